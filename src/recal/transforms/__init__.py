"""Transformations that keep the label and lose information."""

from __future__ import annotations

from recal.transforms.base import Named, Transform, format_strength
from recal.transforms.parse import TRANSFORMS, as_transform

__all__ = ["TRANSFORMS", "Named", "Transform", "as_transform", "format_strength"]
