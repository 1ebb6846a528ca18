"""The public names of this folder, each from its home."""

from .onnx_file import export_calibration as export_calibration, export_onnx as export_onnx
