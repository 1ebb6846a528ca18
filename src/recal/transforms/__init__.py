"""Transformations that keep the label: most remove information, some show the input in another way."""

from __future__ import annotations

from recal.transforms.audio import (
    Bits,
    Clip,
    Echo,
    Faster,
    HighPass,
    LowPass,
    Noise,
    Quieter,
    TimeMask,
)
from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import (
    Blur,
    Brightness,
    Contrast,
    Crop,
    Flip,
    Jpeg,
    Pixelate,
    RandomPixels,
    Shift,
    ZoomIn,
    ZoomOut,
)
from recal.transforms.pool import TRANSFORMS, as_transform, pool
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise, TimeShift
from recal.transforms.tabular import MedianFill, Missing, Permute, Rescale
from recal.transforms.text import Cut, DropCharacters, DropSentences, DropTokens, MaskTokens

__all__ = [
    "TRANSFORMS",
    "Bits",
    "Blur",
    "Brightness",
    "BuiltIn",
    "Clip",
    "Coarse",
    "Contrast",
    "Crop",
    "Cut",
    "DropCharacters",
    "DropFrames",
    "DropSamples",
    "DropSentences",
    "DropTokens",
    "Echo",
    "Faster",
    "Flip",
    "HighPass",
    "Jpeg",
    "LowPass",
    "MaskTokens",
    "MedianFill",
    "Missing",
    "Named",
    "Noise",
    "Permute",
    "Pixelate",
    "Quantise",
    "Quieter",
    "RandomPixels",
    "Rescale",
    "Shift",
    "TimeMask",
    "TimeShift",
    "Transform",
    "ZoomIn",
    "ZoomOut",
    "as_transform",
    "format_strength",
    "pool",
]
