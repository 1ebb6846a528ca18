"""Calibrated models for other runtimes: one ONNX file, or a torch module.

Names load on first use: the torch module needs no onnx, and the ONNX file no torch.
"""

from __future__ import annotations

from recal.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
