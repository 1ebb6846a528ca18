"""Transformations that keep the label: most remove information, some show the input in another
way.
"""

from __future__ import annotations

from recal.transforms.base import BuiltIn as BuiltIn
from recal.transforms.base import Named as Named
from recal.transforms.base import Transform as Transform
from recal.transforms.base import format_strength as format_strength
from recal.transforms.image import Blur as Blur
from recal.transforms.image import Brightness as Brightness
from recal.transforms.image import Contrast as Contrast
from recal.transforms.image import Flip as Flip
from recal.transforms.image import Jpeg as Jpeg
from recal.transforms.image import Pixelate as Pixelate
from recal.transforms.image import RandomPixels as RandomPixels
from recal.transforms.image import Shift as Shift
from recal.transforms.image import ZoomIn as ZoomIn
from recal.transforms.image import ZoomOut as ZoomOut
from recal.transforms.pool import TRANSFORMS as TRANSFORMS
from recal.transforms.pool import as_transform as as_transform
from recal.transforms.pool import pool as pool
from recal.transforms.series import Bits as Bits
from recal.transforms.series import Coarse as Coarse
from recal.transforms.series import DropFrames as DropFrames
from recal.transforms.series import DropSamples as DropSamples
from recal.transforms.series import LowPass as LowPass
from recal.transforms.series import Noise as Noise
from recal.transforms.series import Quieter as Quieter
from recal.transforms.series import TimeMask as TimeMask
from recal.transforms.series import TimeShift as TimeShift
from recal.transforms.tabular import MedianFill as MedianFill
from recal.transforms.tabular import Missing as Missing
from recal.transforms.tabular import Permute as Permute
from recal.transforms.tabular import Rescale as Rescale
from recal.transforms.text import Cut as Cut
from recal.transforms.text import DropCharacters as DropCharacters
from recal.transforms.text import DropTokens as DropTokens
