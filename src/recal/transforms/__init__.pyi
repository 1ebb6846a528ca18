"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .base import (
    BuiltIn as BuiltIn,
    Named as Named,
    Transform as Transform,
    format_strength as format_strength,
)
from .image import (
    Blur as Blur,
    Brightness as Brightness,
    Contrast as Contrast,
    Flip as Flip,
    Jpeg as Jpeg,
    Pixelate as Pixelate,
    RandomPixels as RandomPixels,
    Shift as Shift,
    ZoomIn as ZoomIn,
    ZoomOut as ZoomOut,
)
from .pools import TRANSFORMS as TRANSFORMS, as_transform as as_transform, pool as pool
from .series import (
    Bits as Bits,
    Coarse as Coarse,
    DropFrames as DropFrames,
    DropSamples as DropSamples,
    LowPass as LowPass,
    Noise as Noise,
    Quieter as Quieter,
    TimeMask as TimeMask,
    TimeShift as TimeShift,
)
from .tabular import (
    MedianFill as MedianFill,
    Missing as Missing,
    Permute as Permute,
    Rescale as Rescale,
)
from .text import Cut as Cut, DropCharacters as DropCharacters, DropTokens as DropTokens
