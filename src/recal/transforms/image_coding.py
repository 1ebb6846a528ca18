"""Images whose values are coded with loss or overwritten: JPEG and random pixels. Both run on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels.threads import over_rows
from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.content import content_keys, uniforms, uniforms_at
from recal.transforms.image import ImageTransform, check_white
from recal.transforms.layout import as_planes, to_planes

# Values of images that are drawn for at once: enough for numpy, few enough for a processor's cache.
_TOGETHER = 1 << 16


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

    def _transformed(self, images: NDArray[Any], layout: str) -> NDArray[Any]:
        dtype = arrays.dtype_name(images)
        white = check_white(images, dtype, self.white, self.kind)
        if dtype == "uint8":
            return _coded(images, layout, int(self.quality))
        x = arrays.to_working(images)
        if np.isnan(x).any():
            raise InputError("jpeg has no code for NaN, and these images hold one; fill in missing pixels first.")
        levels = x * (255.0 / white)
        np.rint(np.clip(levels, 0, 255, out=levels), out=levels)
        coded = _coded(levels.astype(np.uint8), layout, int(self.quality))
        return np.asarray(arrays.from_working(coded * x.dtype.type(white / 255.0), dtype))


def _coded(images: NDArray[np.uint8], layout: str, quality: int) -> NDArray[np.uint8]:
    """Return the images after a way through JPEG, in their layout."""
    changed = np.empty(images.shape, np.uint8)
    over_rows(_code, as_planes(images, layout), quality, as_planes(changed, layout))
    return changed


def _code(planes: NDArray[np.uint8], start: int, stop: int, quality: int, out: NDArray[np.uint8]) -> None:
    from PIL import Image  # Pillow costs more to load than the rest of this package

    for place in range(start, stop):
        image, target = np.moveaxis(planes[place], 0, -1), np.moveaxis(out[place], 0, -1)
        if planes.shape[1] == 3 and image.flags.c_contiguous:
            target[...] = np.asarray(_through_jpeg(Image.fromarray(image), quality))
            continue
        grey = [Image.fromarray(np.ascontiguousarray(plane)) for plane in planes[place]]
        if len(grey) == 3:  # Pillow joins and parts channels faster than numpy
            coded = _through_jpeg(Image.merge("RGB", grey), quality).split()
        else:
            coded = tuple(_through_jpeg(plane, quality) for plane in grey)
        for channel, plane in enumerate(coded):
            out[place, channel] = np.asarray(plane)


def _through_jpeg(image: Any, quality: int) -> Any:
    from PIL import Image

    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    # Straight to the decoder: opening it as a file would read its header in Python, which takes 75 us.
    return Image.frombytes(image.mode, image.size, buffer.getvalue(), "jpeg", image.mode, "")


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

    def _transformed(self, images: NDArray[Any], layout: str) -> NDArray[Any]:
        white = check_white(images, arrays.dtype_name(images), self.white, self.kind)
        changed = images.copy()
        over_rows(self._overwrite, to_planes(images, layout), white, as_planes(changed, layout))
        return changed

    def _overwrite(self, planes: NDArray[Any], start: int, stop: int, white: float, out: NDArray[Any]) -> None:
        channels, height, width = planes.shape[1:]
        together = max(1, _TOGETHER // planes[0].size)
        for begin in range(start, stop, together):
            exact = arrays.to_working(planes[begin : min(begin + together, stop)])
            keys = content_keys(exact, self.kind, self.seed)
            image, hit = np.nonzero(uniforms(keys, height * width) < self.share)
            places = hit[:, None] + np.arange(channels) * (height * width)
            colour = uniforms_at(keys[image], places.astype(np.uint64), stream=1).astype(exact.dtype)
            colour = arrays.from_working(colour * exact.dtype.type(white), arrays.dtype_name(planes))
            out[begin + image, :, hit // width, hit % width] = colour
