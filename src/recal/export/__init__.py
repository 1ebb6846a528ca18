"""The ONNX runtime: a model and its calibration, the calibration alone, or prediction sets, as one file."""

from recal.export.export import export_onnx, export_replay
from recal.export.sets import export_sets

__all__ = ["export_onnx", "export_replay", "export_sets"]
