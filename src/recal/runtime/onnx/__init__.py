"""The ONNX runtime: a model and its calibration, or the calibration alone, as one file."""

from recal.runtime.onnx.export import export_onnx, export_replay

__all__ = ["export_onnx", "export_replay"]
