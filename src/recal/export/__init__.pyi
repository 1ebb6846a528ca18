"""The public names of this folder, each from its home."""

from .calibration import keep_classes as keep_classes
from .onnx_file import (
    export_calibration as export_calibration,
    export_onnx as export_onnx,
    export_sets as export_sets,
)
