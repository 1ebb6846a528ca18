"""Calibrated models for other runtimes: one ONNX file, or a torch module.

Names load on first use: the torch module needs no onnx, and the ONNX file no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "export_calibration": "onnx_file",
    "export_onnx": "onnx_file",
    "export_sets": "onnx_file",
    "keep_classes": "calibration",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
