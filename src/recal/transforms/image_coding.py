"""Images whose values are coded with loss or overwritten: JPEG and random pixels. Both run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.transforms.content import content_keys, uniforms
from recal.transforms.image import ImageTransform, check_white


@dataclass(frozen=True, slots=True)
class Jpeg(ImageTransform):
    """Store as JPEG of `quality` and read back. Three channels are coded as colour, any others one by one as grey.

    Values are rounded to 256 levels of `white` on the way; a quality of 100 stands for no coding at all.
    """

    kind: ClassVar[str] = "jpeg"
    assumes: ClassVar[str] = "the label does not rest on fine detail or exact colour alone"
    identity: ClassVar[float] = 100
    strengths: ClassVar[tuple[float, float]] = (90, 5)
    domain: ClassVar[tuple[float, float]] = (1, 100)
    step: ClassVar[float] = 1
    traceable: ClassVar[bool] = False

    quality: float
    white: float = 1.0
    layout: str = "auto"

    def _planes(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        white = check_white(x, dtype, self.white, self.kind)
        if np.isnan(x).any():
            raise InputError("jpeg has no code for NaN, and these images hold one; fill in missing pixels first.")
        levels = np.rint(np.clip(x * (255.0 / white), 0, 255)).astype(np.uint8)
        if levels.shape[1] == 3:
            colour = np.ascontiguousarray(levels.transpose(0, 2, 3, 1))
            coded = _each(colour, int(self.quality)).transpose(0, 3, 1, 2)
        else:
            coded = _each(levels.reshape((-1, *levels.shape[2:])), int(self.quality)).reshape(levels.shape)
        return np.ascontiguousarray(coded * x.dtype.type(white / 255.0))


def _each(images: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    return np.stack([_code(image, quality) for image in images]) if images.size else images


def _code(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    from PIL import Image  # Pillow costs more to load than the rest of this package

    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


@dataclass(frozen=True, slots=True)
class RandomPixels(ImageTransform):
    """Overwrite each pixel with a random colour, with probability `share`.

    Which pixels and colours follows from `seed` and the image's own content, so an image is treated the same way in
    any batch.
    """

    kind: ClassVar[str] = "pixels"
    assumes: ClassVar[str] = "the label does not rest on single pixels"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.01, 0.5)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    traceable: ClassVar[bool] = False

    share: float
    seed: int = 0
    white: float = 1.0
    layout: str = "auto"

    def _planes(self, x: NDArray[Any], dtype: str) -> NDArray[Any]:
        white = check_white(x, dtype, self.white, self.kind)
        n, channels, height, width = x.shape
        keys = content_keys(x, self.kind, self.seed)
        hit = (uniforms(keys, height * width) < self.share).reshape(n, 1, height, width)
        colour = uniforms(keys, channels * height * width, stream=1).reshape(x.shape)
        return np.where(hit, colour.astype(x.dtype) * x.dtype.type(white), x)
