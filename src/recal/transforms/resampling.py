"""Images: which axes are height, width and channels, how they are resized, and the base classes of
their transformations.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Matrix
from recal.engine import images
from recal.engine.compiled import SMALL, over_rows
from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array, contiguous
from recal.transforms.base import BuiltIn

Layout = Literal["auto", "NCHW", "NHWC", "NHW"]
_CHANNELS = (1, 3, 4)


def image_layout(shape: tuple[int, ...], layout: str = "auto") -> str:
    """Return the layout of a batch of images; videos (5 axes) are named by their last three axes.

    Three axes are grey images. With more, an axis of length 1, 3 or 4 holds the channels. If both
    ends or neither have such a length, the two equal axes are height and width. If that does not
    decide either, channels come first if both ends are possible; otherwise the shape is refused.
    The batch size does not matter, so a sample is read the same way in any batch.

    Examples
    --------
    >>> from recal.transforms.resampling import image_layout
    >>> image_layout((8, 3, 32, 32)), image_layout((8, 32, 32, 3)), image_layout((8, 28, 28))
    ('NCHW', 'NHWC', 'NHW')
    """
    axes = len(shape)
    if layout != "auto":
        if axes != len(layout) and not (len(layout) == 4 and axes == 5):
            raise InputError(
                f"The layout {layout} has {len(layout)} axes, but the images have the shape {tuple(shape)}."
            )
        return layout
    if axes == 3:
        return "NHW"
    if axes not in (4, 5):
        raise InputError(
            "Images need the shape (n, channels, height, width), (n, height, width, channels) or (n, height, width), "
            f"got {tuple(shape)}",
            remedy="Reshape flat rows first, for instance to (-1, 28, 28), and flatten again in the "
            "model or preprocessing",
        )
    a, b, c = shape[-3:]
    first, last = a in _CHANNELS, c in _CHANNELS
    if first != last:
        return "NCHW" if first else "NHWC"
    if not first and not (a == b != c or b == c != a):
        raise InputError(
            f"Channels, height and width are ambiguous in the shape {tuple(shape)}: neither end has length "
            "1, 3 or 4. Pass layout='NCHW' or layout='NHWC' to the transformation."
        )
    return "NHWC" if a == b != c else "NCHW"


def image_size(shape: tuple[int, ...], layout: str) -> tuple[int, int]:
    """Return height and width of images with this layout."""
    return int(shape[layout.index("H") - len(layout)]), int(shape[layout.index("W") - len(layout)])


def as_planes(images: Array, layout: str) -> Array:
    """Return a view of the shape (n, channels, height, width); frames count as images."""
    if images.ndim != 4:
        has_channels = "C" in layout
        sides = images.shape[-3:] if has_channels else (1, *images.shape[-2:])
        images = images.reshape((-1, *sides))
    return images.swapaxes(-1, -2).swapaxes(-2, -3) if layout.endswith("C") else images


def from_planes(planes: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Undo `as_planes`."""
    if layout.endswith("C"):
        planes = planes.swapaxes(-3, -2).swapaxes(-2, -1)
    return contiguous(planes if len(shape) == planes.ndim else planes.reshape((-1, *shape[1:])))


Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bands:
    """A matrix of weights, (target, source), and its nonzero part as `taps`: ``to, at, by``.

    Row j of the taps holds the targets from ``to[j]`` up to ``to[j + 1]``, whose rows are equal;
    rows of zeros are left out. Its weights ``by[j]`` belong to the sources from ``at[j]`` on. The
    number of weights is even; if a zero was added, it may lie beyond the last source.
    """

    matrix: Matrix

    @cached_property
    def taps(self) -> tuple[Places, Places, Matrix]:
        """The arrays `to`, `at` and `by`, computed on first use because a trace needs only the
        matrix.
        """
        matrix = self.matrix
        used = np.flatnonzero(matrix.any(axis=1))
        if not len(used):
            return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros((0, 2))
        rows = matrix[used[0] : used[-1] + 1]
        begins = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]).any(axis=1)])
        rows, size = rows[begins], rows.shape[1]
        first, last = (rows != 0).argmax(axis=1), size - (rows[:, ::-1] != 0).argmax(axis=1)
        count = int((last - first).max())
        at = np.minimum(first, size - count)
        by = np.zeros((len(rows), count + count % 2))
        by[:, :count] = np.take_along_axis(rows, at[:, None] + np.arange(count), axis=1)
        return used[0] + np.r_[begins, used[-1] + 1 - used[0]], at, by


def resample(
    pixels: NDArray[np.generic], layout: str, rows: Bands, columns: Bands
) -> NDArray[np.generic]:
    """Return rows @ pixels @ columns.T for each plane of an array of this layout, in its dtype.

    Numpy computes small inputs, and a compiled kernel computes large ones on all cores. Both sum in
    the same order, so a sample gets the same bits alone and in a batch.
    """
    dtype, (height, width) = arrays.dtype_name(pixels), image_size(pixels.shape, layout)
    # Channels that come first count as images.
    channels = pixels.shape[-1] if layout.endswith("C") else 1
    lines = contiguous(pixels if dtype != "float16" else arrays.to_working(pixels))
    lines = lines.reshape((-1, height, width * channels))
    out, exact = np.zeros_like(lines), arrays.to_working(lines[:0]).dtype
    taps = [(to, at, by.astype(exact)) for to, at, by in (rows.taps, columns.taps)]
    if lines.size >= SMALL:
        steps = exact.type(arrays.STEPS if lines.dtype.kind == "u" else 0)
        over_rows(images.weighted_sums, lines, channels, *taps[0], *taps[1], steps, out)
    else:
        few = lines.reshape((*lines.shape[:2], width, channels))
        sums = arrays.to_working(few)
        for axis, (_, at, by) in enumerate(taps, 1):
            sums = _weighted(sums, at, by, axis)
        sums = arrays.from_working(sums, arrays.dtype_name(lines))
        for axis, (to, _, _) in enumerate(taps, 1):
            sums = np.repeat(sums, np.diff(to), axis=axis)
        down, right = (slice(to[0], to[-1]) for to, _, _ in taps)
        out.reshape(few.shape)[:, down, right] = sums
    return arrays.cast(out, dtype).reshape(pixels.shape)


def _weighted(values: NDArray[Any], at: Places, by: Matrix, axis: int) -> NDArray[Any]:
    total = np.zeros((*values.shape[:axis], len(at), *values.shape[axis + 1 :]), values.dtype)
    wide = tuple(-1 if place == axis else 1 for place in range(values.ndim))
    for k in range(by.shape[1]):
        taken = values.take(np.minimum(at + k, values.shape[axis] - 1), axis)
        total += by[:, k].reshape(wide) * taken
    return total


@lru_cache(maxsize=256)
def zoomed(size: int, scale: float) -> Bands:
    """Pad with black, then resize back with antialiasing: (size, size).

    The filter is a triangle as wide as a target pixel. The weights of a target pixel sum to 1 over
    the padded axis. Only the pixels under the triangle are visited, because the padding may be
    huge.
    """
    border = int(size * (1 - scale) / scale)
    padded, before = size + border, border // 2
    ratio = padded / size
    centres = (np.arange(size) + 0.5) * ratio
    pixels = np.floor(centres - ratio).astype(np.intp)[:, None] + np.arange(int(2 * ratio) + 3)
    weights = np.maximum(0.0, 1.0 - np.abs(pixels + 0.5 - centres[:, None]) / ratio)
    weights *= (pixels >= 0) & (pixels < padded)
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((size, size))
    rows, taps = np.nonzero((pixels >= before) & (pixels < before + size))
    matrix[rows, pixels[rows, taps] - before] = weights[rows, taps]
    return Bands(matrix)


@lru_cache(maxsize=256)
def blurred(size: int, sigma: float) -> Bands:
    """Smooth with a Gaussian; beyond the edge, the pixel at the edge is repeated."""
    reach = int(np.ceil(4 * sigma))
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights /= weights.sum()
    matrix = np.zeros((size, size))
    pixels = np.arange(size)
    for offset, weight in zip(offsets, weights):
        matrix[pixels, np.clip(pixels + offset, 0, size - 1)] += weight
    return Bands(matrix)


@lru_cache(maxsize=256)
def in_blocks(size: int, scale: float) -> Bands:
    """Replace each of ``round(scale * size)`` blocks of the axis with its mean."""
    blocks = max(1, round(scale * size))
    block = np.arange(size) * blocks // size
    same = (block[:, None] == block).astype(np.float64)
    return Bands(same / same.sum(axis=1, keepdims=True))


@lru_cache(maxsize=256)
def middle(size: int, share: float) -> Bands:
    """Enlarge the middle `share` of an axis to the whole axis, interpolating linearly."""
    middles = (size - size * share) / 2 + (np.arange(size) + 0.5) * share - 0.5
    gaps = np.abs(np.arange(size) - np.clip(middles, 0, size - 1)[:, None])
    weights = np.maximum(0.0, 1.0 - gaps)
    return Bands(weights / weights.sum(axis=1, keepdims=True))


class ImageTransform(BuiltIn):
    """Checks the images, finds their layout and passes both to `_transformed`."""

    layout: Layout
    modality = "image"

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

    def _transformed(self, images: Array, layout: str) -> Array:
        rows, columns = self._bands(*image_size(images.shape, layout))
        if not arrays.is_tensor(images):
            return resample(images, layout, rows, columns)
        x = arrays.to_working(arrays.contiguous(as_planes(images, layout)))
        x = arrays.constant(rows.matrix, x) @ x @ arrays.constant(columns.matrix.T, x)
        return from_planes(arrays.from_working(x, arrays.dtype_name(images)), layout, images.shape)

    @abstractmethod
    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        """Return the vertical and the horizontal weights for images of this size."""


class Pointwise(ImageTransform):
    """Changes each value on its own; the result may also depend on the mean of the image."""

    def _transformed(self, images: Array, layout: str) -> Array:
        dtype, axes = arrays.dtype_name(images), len(layout) - 1
        flat = images.reshape((-1, prod(images.shape[-axes:])))
        if dtype == "uint8" and not arrays.is_tensor(images):
            levels = np.arange(256, dtype=np.float64)[None]
            tables = arrays.from_working(self._values(levels, flat, dtype), dtype)
            pairs = [(flat, tables[0])] if len(tables) == 1 else zip(flat, tables)
            # `bytes.translate` is six times as fast as a lookup in numpy, which widens indices to
            # 64 bits.
            parts = [values.tobytes().translate(table.tobytes()) for values, table in pairs]
            changed = b"".join(parts)
            return np.frombuffer(bytearray(changed), np.uint8).reshape(images.shape)
        x = arrays.to_working(flat)
        return arrays.from_working(self._values(x, x, dtype), dtype).reshape(images.shape)

    @abstractmethod
    def _values(self, x: Array, images: Array, dtype: str) -> Array:
        """Return the new values of the floats `x` in each image, (n, values); `dtype` is that of
        the user's images.

        For bytes, `x` holds the 256 levels, and the result has one row for all images or one row
        per image.
        """
