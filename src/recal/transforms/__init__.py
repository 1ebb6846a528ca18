"""Transformations that keep the label: most lose information, some only show the input another way."""

from __future__ import annotations

from recal.transforms.audio import Bits, LowPass
from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import Blur, Brightness, Contrast, Pixelate, ZoomOut
from recal.transforms.image_coding import Jpeg, RandomPixels
from recal.transforms.image_moves import Crop, Flip, Shift, ZoomIn
from recal.transforms.parse import TRANSFORMS, as_transform
from recal.transforms.pool import pool
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise
from recal.transforms.series_moves import TimeShift
from recal.transforms.tabular import MedianFill
from recal.transforms.text import DropTokens, MaskTokens
from recal.transforms.text_cut import Cut

__all__ = [
    "TRANSFORMS",
    "Bits",
    "Blur",
    "Brightness",
    "BuiltIn",
    "Coarse",
    "Contrast",
    "Crop",
    "Cut",
    "DropFrames",
    "DropSamples",
    "DropTokens",
    "Flip",
    "Jpeg",
    "LowPass",
    "MaskTokens",
    "MedianFill",
    "Named",
    "Pixelate",
    "Quantise",
    "RandomPixels",
    "Shift",
    "TimeShift",
    "Transform",
    "ZoomIn",
    "ZoomOut",
    "as_transform",
    "format_strength",
    "pool",
]
