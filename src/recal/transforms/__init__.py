"""Transformations that keep the label: most lose information, some only show the input another way."""

from __future__ import annotations

from recal.transforms.audio import Bits, LowPass
from recal.transforms.base import BuiltIn, Named, Transform, format_strength
from recal.transforms.image import Blur, Brightness, Contrast, Pixelate, ZoomOut
from recal.transforms.image_coding import Jpeg, RandomPixels
from recal.transforms.image_moves import Crop, Flip, Shift, ZoomIn
from recal.transforms.parse import TRANSFORMS, as_transform
from recal.transforms.pool import pool
from recal.transforms.recording import Clip, Echo, Faster, HighPass
from recal.transforms.series import Coarse, DropFrames, DropSamples, Quantise
from recal.transforms.series_moves import TimeShift
from recal.transforms.sound import Noise, Quieter, TimeMask
from recal.transforms.tabular import MedianFill, Missing, Permute, Rescale
from recal.transforms.text import DropTokens, MaskTokens
from recal.transforms.text_cut import Cut
from recal.transforms.text_parts import DropCharacters, DropSentences

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
