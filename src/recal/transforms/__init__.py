"""Transformations that keep the label and lose information."""

from __future__ import annotations

from recal.transforms.audio import Bits, LowPass
from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import Blur, Brightness, Contrast, Pixelate, ZoomOut
from recal.transforms.image_coding import Jpeg, RandomPixels
from recal.transforms.parse import TRANSFORMS, as_transform
from recal.transforms.pool import pool
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise
from recal.transforms.tabular import MedianFill
from recal.transforms.text import DropTokens, MaskTokens

__all__ = [
    "TRANSFORMS",
    "Bits",
    "Blur",
    "Brightness",
    "BuiltIn",
    "Coarse",
    "Contrast",
    "DropFrames",
    "DropSamples",
    "DropTokens",
    "Jpeg",
    "LowPass",
    "MaskTokens",
    "MedianFill",
    "Named",
    "Pixelate",
    "Quantise",
    "RandomPixels",
    "Transform",
    "ZoomOut",
    "as_transform",
    "format_strength",
    "pool",
]
