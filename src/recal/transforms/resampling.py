"""Image layouts and resampling: which axes are height, width and channels, and how an image is resized."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recal.engine import images
from recal.engine.compiled import SMALL, over_rows
from recal.errors import InputError, Remedy
from recal.transforms import arrays
from recal.transforms.arrays import Array, contiguous

Layout = Literal["auto", "NCHW", "NHWC", "NHW", "CHW", "HWC", "HW"]
_CHANNELS = (1, 3, 4)


def image_layout(shape: tuple[int, ...], layout: str = "auto") -> str:
    """Return the layout of an image array; batches of frames (5 axes) are named by their last three axes.

    An axis of length 1, 3 or 4 is the channels'. Where two could be, or none, the two equal axes are height and width;
    where that leaves a choice too, channels come first if two could be, and none is an error. Three axes are a batch
    of grey images, unless the last has length 1, 3 or 4 and the one before is longer than 4: then they are one image.
    The batch's size plays no part, so a sample is read the same way in any batch.

    Examples
    --------
    >>> from recal.transforms.resampling import image_layout
    >>> image_layout((8, 3, 32, 32)), image_layout((8, 32, 32, 3)), image_layout((8, 28, 28)), image_layout((32, 48, 3))
    ('NCHW', 'NHWC', 'NHW', 'HWC')
    """
    if layout != "auto":
        axes = len(layout)
        if len(shape) != axes and not (axes == 4 and len(shape) == 5):
            raise InputError(f"The layout {layout} has {axes} axes, but the images have the shape {tuple(shape)}.")
        return layout
    if len(shape) == 3:
        return "HWC" if shape[2] in _CHANNELS and shape[1] > max(_CHANNELS) else "NHW"
    if len(shape) in (4, 5):
        return _with_channels(shape)
    reshape = "Reshape flat rows first, for instance to (-1, 28, 28), and flatten again in the model or the "
    reshape += "preprocessing"
    one = "; for one grey image pass layout='HW'" if len(shape) == 2 else "; add or remove axes"
    raise InputError(
        "Images need the shape (n, channels, height, width), (n, height, width, channels) or (n, height, width)",
        came=f"got {tuple(shape)}",
        remedy=Remedy(f"{reshape}{one}", typed=reshape),
    )


def _with_channels(shape: tuple[int, ...]) -> str:
    a, b, c = shape[-3:]
    first, last = a in _CHANNELS, c in _CHANNELS
    if first == last:
        square_last, square_first = a == b != c, b == c != a
        if not first and not (square_last or square_first):
            raise InputError(
                f"Channels, height and width are ambiguous in the shape {tuple(shape)}: neither end has length "
                "1, 3 or 4. Pass layout='NCHW' or layout='NHWC' to the transformation."
            )
        return "NHWC" if square_last else "NCHW"
    return "NCHW" if first else "NHWC"


def to_lines(images: Array, layout: str) -> tuple[Array, int]:
    """Return the images as (n, height, width * channels), and the channels; those that come first count as images."""
    channels = images.shape[-1] if layout in ("NHWC", "HWC") else 1
    height, width = (images.shape[layout.index(axis) - len(layout)] for axis in "HW")
    return contiguous(images).reshape((-1, height, width * channels)), channels


def as_planes(images: Array, layout: str) -> Array:
    """Return a view of the shape (n, channels, height, width); frames count as images."""
    if layout == "HW":
        images = images[None, None]
    elif layout == "NHW":
        images = images[:, None]
    elif layout in ("CHW", "HWC"):
        images = images[None]
    elif images.ndim == 5:
        images = images.reshape((-1, *images.shape[-3:]))
    return images.swapaxes(-1, -2).swapaxes(-2, -3) if layout in ("NHWC", "HWC") else images


def to_planes(images: Array, layout: str) -> Array:
    """Return `as_planes`, one plane after the other in memory."""
    return contiguous(as_planes(images, layout))


def from_planes(planes: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Undo `to_planes`."""
    if layout in ("NHWC", "HWC"):
        planes = planes.swapaxes(-3, -2).swapaxes(-2, -1)
    if len(shape) == planes.ndim:
        return contiguous(planes)
    if len(shape) == 5:
        return contiguous(planes.reshape(shape))
    return contiguous(planes[:, 0] if layout == "NHW" else planes[0, 0] if layout == "HW" else planes[0])


Matrix = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bands:
    """A matrix, (target, source), by what is not zero in it: rows of zeros are left out, equal ones stand once.

    Row j stands for the targets ``to[j]`` up to ``to[j + 1]``; it holds the weights ``by[j]`` from the source ``at[j]``
    on. Their number is even, with a zero more where needed; that one may lie beyond the last source.
    """

    matrix: Matrix

    @property
    def to(self) -> Places:
        return self._found[0]

    @property
    def at(self) -> Places:
        return self._found[1]

    @property
    def by(self) -> Matrix:
        return self._found[2]

    @cached_property
    def _found(self) -> tuple[Places, Places, Matrix]:
        """Found when first asked for: a trace reads the matrix alone, and could not follow this."""
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


def resample(pixels: NDArray[np.generic], layout: str, rows: Bands, columns: Bands) -> NDArray[np.generic]:
    """Return rows @ pixels @ columns.T for each plane of an array of this layout, in its dtype.

    Few pixels are computed by numpy, many by a compiled kernel on all cores. Both take every sum in the same order,
    so a sample alone gets the bits that it gets in a batch.
    """
    dtype = arrays.dtype_name(pixels)
    lines, channels = to_lines(pixels if dtype != "float16" else arrays.to_working(pixels), layout)
    out = np.zeros_like(lines)
    if lines.size < SMALL:
        _fill_few(lines, channels, rows, columns, out)
    else:
        exact = arrays.to_working(np.empty(0, lines.dtype)).dtype
        by = rows.by.astype(exact), columns.by.astype(exact)
        steps = exact.type(arrays.STEPS if lines.dtype.kind == "u" else 0)
        bands = rows.to, rows.at, by[0], columns.to, columns.at, by[1]
        over_rows(images.resample, lines, channels, *bands, steps, out)
    return arrays.cast(out, dtype).reshape(pixels.shape)


def _fill_few(lines: NDArray[np.generic], channels: int, rows: Bands, columns: Bands, out: NDArray[np.generic]) -> None:
    shape = (*lines.shape[:2], -1, channels)
    exact = arrays.to_working(lines.reshape(shape))
    sums = arrays.from_working(_weighted(_weighted(exact, rows, 1), columns, 2), arrays.dtype_name(lines))
    for axis, bands in ((1, rows), (2, columns)):
        sums = np.repeat(sums, np.diff(bands.to), axis=axis)
    down, right = (slice(int(bands.to[0]), int(bands.to[-1])) for bands in (rows, columns))
    out.reshape(shape)[:, down, right] = sums


def _weighted(values: Array, bands: Bands, axis: int) -> Array:
    total = np.zeros((*values.shape[:axis], len(bands.at), *values.shape[axis + 1 :]), values.dtype)
    wide = tuple(-1 if place == axis else 1 for place in range(values.ndim))
    for k in range(bands.by.shape[1]):
        at = np.minimum(bands.at + k, values.shape[axis] - 1)
        total += bands.by[:, k].astype(values.dtype).reshape(wide) * values.take(at, axis)
    return total


@lru_cache(maxsize=256)
def zoomed(size: int, scale: float) -> Bands:
    """Pad with black, then resize back: (size, size)."""
    border = int(size * (1 - scale) / scale)
    return Bands(resize_matrix(size, size, border // 2, border - border // 2))


def resize_matrix(source: int, target: int, before: int = 0, after: int = 0) -> Matrix:
    """Pad with zeros, then resize with antialiasing, along one axis: (target, source).

    A triangle as wide as a target pixel, or as a source pixel when enlarging; the weights of a target pixel sum to 1
    over the padded axis. Only the pixels under the triangle are visited, since the padding may be huge.
    """
    padded = source + before + after
    ratio = padded / target
    reach = max(ratio, 1.0)
    centres = (np.arange(target) + 0.5) * ratio
    pixels = np.floor(centres - reach).astype(np.intp)[:, None] + np.arange(int(2 * reach) + 3)
    weights = np.maximum(0.0, 1.0 - np.abs(pixels + 0.5 - centres[:, None]) / reach)
    weights *= (pixels >= 0) & (pixels < padded)
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((target, source))
    inside = (pixels >= before) & (pixels < before + source)
    rows = np.broadcast_to(np.arange(target)[:, None], pixels.shape)
    matrix[rows[inside], pixels[inside] - before] = weights[inside]
    return matrix


@lru_cache(maxsize=256)
def blurred(size: int, sigma: float) -> Bands:
    """Smooth with a Gaussian; what lies beyond the edge is the edge's pixel."""
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
    """Cut the axis into ``round(scale * size)`` blocks, each of which becomes its mean."""
    blocks = max(1, round(scale * size))
    block = np.arange(size) * blocks // size
    same = (block[:, None] == block).astype(np.float64)
    return Bands(same / same.sum(axis=1, keepdims=True))


@lru_cache(maxsize=256)
def window(size: int, share: float, place: float) -> Bands:
    """Enlarge a window to the whole axis, interpolating linearly: (size, size).

    The window is `share` of the axis wide; `place` goes from 0, at its beginning, to 1, at its end.
    """
    middles = (size - size * share) * place + (np.arange(size) + 0.5) * share - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(size) - np.clip(middles, 0, size - 1)[:, None]))
    return Bands(weights / weights.sum(axis=1, keepdims=True))
