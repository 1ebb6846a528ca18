"""Resizing along both axes: what zoom, blur, pixelate and crop share.

Each is linear and separable: rows @ image @ columns.T with two fixed matrices. The matrices are banded, so arrays are
resampled by their bands; tensors that are traced or live on another device are multiplied by the matrices themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from recal.engine.kernels import SMALL, images
from recal.engine.kernels.threads import over_rows
from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.layout import to_lines

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
