"""Images: detail lost, the object kept. All work before the model's normalisation.

Shapes are read by `layout.image_layout`; every transformation takes ``layout=`` where that rule is not wanted. Whole
numbers are rounded to nearest and clipped to their dtype. Floats run from 0 (black) to 1 (white) unless ``white=``
says otherwise, for instance 255; it matters only where a result is clipped or drawn.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.engine.compiled import over_rows
from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn
from recal.transforms.randomness import content_keys, uniforms, uniforms_at
from recal.transforms.resampling import (
    Bands,
    Layout,
    as_planes,
    blurred,
    from_planes,
    image_layout,
    in_blocks,
    resample,
    to_planes,
    zoomed,
)

_LEVELS = np.arange(256, dtype=np.float64)[None]


class ImageTransform(BuiltIn):
    """Checks the images, finds their layout and hands both to `_transformed`."""

    __slots__ = ()

    layout: Layout
    modality: ClassVar[str] = "image"

    def __call__(self, images: Array, /) -> Array:
        return arrays.apply(self._images, images, traceable=self.traceable)

    def _images(self, images: Array) -> Array:
        arrays.check_numeric(images, "Images", ("uint8", "uint16"))
        layout = image_layout(images.shape, self.layout)
        if self.is_identity or 0 in images.shape:
            return arrays.copy(images)
        return self._transformed(images, layout)

    @abstractmethod
    def _transformed(self, images: Array, layout: str) -> Array:
        """Return a transformed copy of images that have been checked and are not empty."""


class Resampled(ImageTransform):
    """Resizes, smooths or cuts along both axes, with the same weights for every image."""

    __slots__ = ()

    def _transformed(self, images: Array, layout: str) -> Array:
        height, width = (int(images.shape[layout.index(axis) - len(layout)]) for axis in "HW")
        rows, columns = self._bands(height, width)
        if not arrays.is_tensor(images):
            return resample(images, layout, rows, columns)
        x = arrays.to_working(to_planes(images, layout))
        x = arrays.constant(rows.matrix, x) @ x @ arrays.constant(columns.matrix.T, x)
        return from_planes(arrays.from_working(x, arrays.dtype_name(images)), layout, images.shape)

    @abstractmethod
    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        """Return the weights down and across for images of this size."""


class Pointwise(ImageTransform):
    """Changes each value by itself, in the array as it came; the mean of its image may play a part."""

    __slots__ = ()

    def _transformed(self, images: Array, layout: str) -> Array:
        dtype, axes = arrays.dtype_name(images), len(layout.removeprefix("N"))
        flat = images.reshape((-1, prod(images.shape[-axes:])))
        if dtype == "uint8" and not arrays.is_tensor(images):
            changed = look_up(flat, arrays.from_working(self._levels(flat), dtype))
        else:
            changed = arrays.from_working(self._values(arrays.to_working(flat), dtype), dtype)
        return changed.reshape(images.shape)

    @abstractmethod
    def _values(self, x: Array, dtype: str) -> Array:
        """Return what the floats `x`, (n, values), become; `dtype` is that of the user's images."""

    @abstractmethod
    def _levels(self, flat: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return what each of the 256 levels becomes: one row, or one for each image."""


@dataclass(frozen=True, slots=True)
class ZoomOut(Resampled):
    """Shrink to `scale` of the side and pad back with black: the object stays whole, detail is lost.

    The image is padded with black by ``int(W * (1 - scale) / scale)`` pixels in all, the odd one right and below, and
    resized back with an antialiased bilinear filter. Each step is linear and separable, so the whole is A x B^T with
    two fixed matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import ZoomOut
    >>> ZoomOut(0.5)(np.full((1, 4, 4), 200, dtype=np.uint8))[0]
    array([[  4,  25,  25,   4],
           [ 25, 153, 153,  25],
           [ 25, 153, 153,  25],
           [  4,  25,  25,   4]], dtype=uint8)
    """

    kind: ClassVar[str] = "zoom"
    assumes: ClassVar[str] = "the object is recognisable from fewer pixels, and its size does not determine its label"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    scale: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return zoomed(height, self.scale), zoomed(width, self.scale)


@dataclass(frozen=True, slots=True)
class Brightness(Pointwise):
    """Multiply every value by `factor` and clip: below 1 darkens, above 1 brightens until highlights are lost.

    Float images are clipped only where `factor` exceeds 1, at `white`; values above `white` are then refused, since
    white is never guessed from a batch.
    """

    kind: ClassVar[str] = "brightness"
    assumes: ClassVar[str] = "the label does not depend on how bright the picture is"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 10.0)
    positive: ClassVar[bool] = True

    factor: float
    white: float = 1.0
    layout: Layout = "auto"

    def full_scale(self, dtype: str) -> float | None:
        return self.white if self.factor > 1 and "float" in dtype else None

    def _transformed(self, images: Array, layout: str) -> Array:
        if not arrays.is_tensor(images) or arrays.dtype_name(images) != "uint8":
            return Pointwise._transformed(self, images, layout)
        # A table of 256 entries is quick on any device, and exact in runtimes that have no float64.
        table = arrays.from_working(self._values(_LEVELS, "uint8"), "uint8")
        return arrays.constant(table[0], images)[images.long()]

    def _values(self, x: Array, dtype: str) -> Array:
        factor = arrays.number(self.factor, x)
        if self.factor <= 1:
            return x * factor
        white = check_white(x, dtype, self.white, self.kind)
        bright = x * factor
        return bright.clip(None, white) if arrays.is_tensor(x) else bright.clip(None, white, out=bright)

    def _levels(self, flat: NDArray[np.uint8]) -> NDArray[np.float64]:
        levels: NDArray[np.float64] = self._values(_LEVELS, "uint8")
        return levels


@dataclass(frozen=True, slots=True)
class Contrast(Pointwise):
    """Draw every value towards the image's mean: `factor` of the distance remains."""

    kind: ClassVar[str] = "contrast"
    assumes: ClassVar[str] = "the label does not depend on how strong the picture's contrasts are"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    factor: float
    layout: Layout = "auto"

    def _values(self, x: Array, dtype: str) -> Array:
        return self._drawn(x, x.mean(-1)[:, None])

    def _levels(self, flat: NDArray[np.uint8]) -> NDArray[np.float64]:
        levels: NDArray[np.float64] = self._drawn(_LEVELS, byte_sums(flat)[:, None] / flat.shape[1])
        return levels

    def _drawn(self, x: Array, mean: Array) -> Array:
        away = x - mean
        away *= arrays.number(self.factor, x)  # in place: more large arrays would cost more than the arithmetic
        away += mean
        return away


@dataclass(frozen=True, slots=True)
class Blur(Resampled):
    """Smooth with a Gaussian of `sigma` pixels; pixels at the edge are taken to go on beyond it."""

    kind: ClassVar[str] = "blur"
    assumes: ClassVar[str] = "the label does not rest on fine detail alone"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.3, 3.0)
    domain: ClassVar[tuple[float, float]] = (0.0, 100.0)

    sigma: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return blurred(height, self.sigma), blurred(width, self.sigma)


@dataclass(frozen=True, slots=True)
class Pixelate(Resampled):
    """Keep `scale` of the resolution: the image becomes ``round(scale * size)`` blocks a side, each its own mean."""

    kind: ClassVar[str] = "pixelate"
    assumes: ClassVar[str] = "the label does not rest on fine detail alone"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    scale: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return in_blocks(height, self.scale), in_blocks(width, self.scale)


def check_white(x: Array, dtype: str, white: float, kind: str) -> float:
    """Return the value of white; refuse float images that exceed it."""
    limit = arrays.white_of(dtype, white)
    remedy = f"For values from 0 to 255 write '{kind}:...:white=255', and transform before normalising."
    arrays.check_full_scale(x, limit, kind, remedy)
    return limit


def look_up(flat: NDArray[np.uint8], tables: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return each image's bytes, (n, values), through a table of 256: its own, or the one that there is."""
    if len(tables) == 1:
        return _translated(flat, tables[0])
    changed = np.empty_like(flat)
    for image, table, target in zip(flat, tables, changed):
        target[:] = _translated(image, table)
    return changed


def _translated(values: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    # Six times as fast as values as indices, which numpy widens to 64 bits first.
    translated = bytearray(np.ascontiguousarray(values)).translate(table.tobytes())
    return np.frombuffer(translated, np.uint8).reshape(values.shape)


def byte_sums(flat: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the sum of each row of bytes; in 32 bits, which is quick, as long as they cannot overflow."""
    quick = flat.shape[1] * 255 < 2**32
    sums: NDArray[np.int64] = flat.sum(axis=1, dtype=np.uint32 if quick else np.int64).astype(np.int64)
    return sums


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
    layout: Layout = "auto"

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
    layout: Layout = "auto"

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
