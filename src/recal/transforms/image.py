"""Images: detail lost, the object kept. All work before the model's normalisation.

Shapes are read by `layout.image_layout`; every transformation takes ``layout=`` where that rule is not wanted. Whole
numbers are rounded to nearest and clipped to their dtype. Floats run from 0 (black) to 1 (white) unless ``white=``
says otherwise, for instance 255; it matters only where a result is clipped or drawn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.base import BuiltIn
from recal.transforms.layout import LAYOUTS, from_planes, image_layout, to_planes

# Rows of a banded matrix that are multiplied together: fewer waste less, more cost fewer calls.
_BAND = 32


class ImageTransform(BuiltIn):
    """Finds the layout, hands (n, channels, height, width) floats to `_planes`, and returns to shape and dtype."""

    __slots__ = ()

    layout: str
    modality: ClassVar[str] = "image"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"layout": LAYOUTS}

    def __call__(self, images: Array, /) -> Array:
        return arrays.apply(self._images, images, traceable=self.traceable)

    def _images(self, images: Array) -> Array:
        arrays.check_numeric(images, "Images", ("uint8", "uint16"))
        layout = image_layout(images.shape, self.layout)
        if self.is_identity or 0 in images.shape:
            return arrays.copy(images)
        dtype = arrays.dtype_name(images)
        planes = self._planes(arrays.to_working(to_planes(images, layout)), dtype)
        return from_planes(arrays.from_working(planes, dtype), layout, images.shape)

    @abstractmethod
    def _planes(self, x: Array, dtype: str) -> Array:
        """Transform float planes; `dtype` is that of the user's images, which tells the value of white."""


@dataclass(frozen=True, slots=True)
class ZoomOut(ImageTransform):
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
    assumes: ClassVar[str] = "the object is still told from fewer pixels, and its size does not tell its label"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    scale: float
    layout: str = "auto"

    def _planes(self, x: Array, dtype: str) -> Array:
        height, width = x.shape[-2:]
        return along_both(x, _zoom_matrix(height, self.scale), _zoom_matrix(width, self.scale))


@dataclass(frozen=True, slots=True)
class Brightness(ImageTransform):
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
    layout: str = "auto"

    def full_scale(self, dtype: str) -> float | None:
        return self.white if self.factor > 1 and "float" in dtype else None

    def _images(self, images: Array) -> Array:
        if not arrays.is_tensor(images) or arrays.dtype_name(images) != "uint8" or 0 in images.shape:
            return ImageTransform._images(self, images)
        # A table of 256 entries is quick on any device, and exact in runtimes that have no float64.
        image_layout(images.shape, self.layout)
        table = ImageTransform._images(self, np.arange(256, dtype=np.uint8).reshape((1, 1, 16, 16)))
        return arrays.constant(table.reshape(-1), images)[images.long()]

    def _planes(self, x: Array, dtype: str) -> Array:
        factor = arrays.number(self.factor, x)
        if self.factor <= 1:
            return x * factor
        white = check_white(x, dtype, self.white, self.kind)
        return (x * factor).clip(None, white)


@dataclass(frozen=True, slots=True)
class Contrast(ImageTransform):
    """Draw every value towards the image's mean: `factor` of the distance remains."""

    kind: ClassVar[str] = "contrast"
    assumes: ClassVar[str] = "the label does not depend on how strong the picture's contrasts are"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    factor: float
    layout: str = "auto"

    def _planes(self, x: Array, dtype: str) -> Array:
        mean = x.reshape((x.shape[0], -1)).mean(-1)[:, None, None, None]
        return mean + (x - mean) * arrays.number(self.factor, x)


@dataclass(frozen=True, slots=True)
class Blur(ImageTransform):
    """Smooth with a Gaussian of `sigma` pixels; pixels at the edge are taken to go on beyond it."""

    kind: ClassVar[str] = "blur"
    assumes: ClassVar[str] = "the label does not rest on fine detail alone"
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.3, 3.0)
    domain: ClassVar[tuple[float, float]] = (0.0, 100.0)

    sigma: float
    layout: str = "auto"

    def _planes(self, x: Array, dtype: str) -> Array:
        height, width = x.shape[-2:]
        return along_both(x, _blur_matrix(height, self.sigma), _blur_matrix(width, self.sigma))


@dataclass(frozen=True, slots=True)
class Pixelate(ImageTransform):
    """Keep `scale` of the resolution: the image becomes ``round(scale * size)`` blocks a side, each its own mean."""

    kind: ClassVar[str] = "pixelate"
    assumes: ClassVar[str] = "the label does not rest on fine detail alone"
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.9, 0.1)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    scale: float
    layout: str = "auto"

    def _planes(self, x: Array, dtype: str) -> Array:
        height, width = x.shape[-2:]
        return along_both(x, _block_matrix(height, self.scale), _block_matrix(width, self.scale))


def check_white(x: Array, dtype: str, white: float, kind: str) -> float:
    """Return the value of white; refuse float images that exceed it."""
    limit = arrays.white_of(dtype, white)
    remedy = f"For values from 0 to 255 write '{kind}:...:white=255', and transform before normalising."
    arrays.check_full_scale(x, limit, kind, remedy)
    return limit


def along_both(x: Array, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Array:
    """Return rows @ x @ columns.T for each plane.

    numpy multiplies plane by plane, so a plane's result cannot depend on how many there are. The matrices are banded:
    a block of their rows reads few columns, and rows of zeros, the black border, read none.
    """
    if arrays.is_tensor(x):
        return arrays.constant(rows, x) @ x @ arrays.constant(columns.T, x)
    tall = np.zeros((*x.shape[:-2], len(rows), x.shape[-1]), x.dtype)
    for target, source, part in _bands(rows):
        tall[..., target, :] = arrays.constant(part, x) @ x[..., source, :]
    out = np.zeros((*x.shape[:-2], len(rows), len(columns)), x.dtype)
    for target, source, part in _bands(columns):
        out[..., target] = tall[..., source] @ arrays.constant(part.T, x)
    return out


def _bands(matrix: NDArray[np.float64]) -> Iterator[tuple[slice, slice, NDArray[np.float64]]]:
    """Cut a matrix into blocks of rows: which rows, which columns they read, and what stands there."""
    rows = np.flatnonzero(matrix.any(axis=1))
    for start in range(int(rows[0]) if len(rows) else 0, int(rows[-1]) + 1 if len(rows) else 0, _BAND):
        stop = min(start + _BAND, int(rows[-1]) + 1)
        used = np.flatnonzero(matrix[start:stop].any(axis=0))
        source = slice(int(used[0]), int(used[-1]) + 1)
        yield slice(start, stop), source, matrix[start:stop, source]


@lru_cache(maxsize=256)
def _zoom_matrix(size: int, scale: float) -> NDArray[np.float64]:
    """Pad with black, then resize back: (size, size)."""
    border = int(size * (1 - scale) / scale)
    return resize_matrix(size, size, border // 2, border - border // 2)


def resize_matrix(source: int, target: int, before: int = 0, after: int = 0) -> NDArray[np.float64]:
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
def _blur_matrix(size: int, sigma: float) -> NDArray[np.float64]:
    reach = int(np.ceil(4 * sigma))
    offsets = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights /= weights.sum()
    matrix = np.zeros((size, size))
    pixels = np.arange(size)
    for offset, weight in zip(offsets, weights):
        matrix[pixels, np.clip(pixels + offset, 0, size - 1)] += weight
    return matrix


@lru_cache(maxsize=256)
def _block_matrix(size: int, scale: float) -> NDArray[np.float64]:
    blocks = max(1, round(scale * size))
    block = np.arange(size) * blocks // size
    same = (block[:, None] == block).astype(np.float64)
    return same / same.sum(axis=1, keepdims=True)
