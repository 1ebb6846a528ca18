"""Transformations that keep the label and lose information."""

from __future__ import annotations

from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import Brightness, ZoomOut
from recal.transforms.parse import TRANSFORMS, as_transform
from recal.transforms.pool import pool

__all__ = [
    "TRANSFORMS",
    "Brightness",
    "BuiltIn",
    "Named",
    "Transform",
    "ZoomOut",
    "as_transform",
    "format_strength",
    "pool",
]
