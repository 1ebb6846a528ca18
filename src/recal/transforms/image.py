"""Transformations of images, before the model's normalisation: they remove detail or move the
image.

`image_layout` reads shapes; pass ``layout=`` to any transformation if that rule does not
fit. Whole numbers are rounded to nearest and clipped to their dtype. Floats run from 0 (black) to 1
(white) unless ``white=`` gives another value, such as 255; it matters only if a result is clipped
or pixels are drawn.

A mirrored or shifted image is as good as the original, so stacking gains most from such
views (docs/methods.md). Whether the label survives depends on the task: see what each kind
`assumes`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Indices, Matrix
from recal.engine import SMALL, over_rows
from recal.engine import images as kernels
from recal.errors import InputError
from recal.transforms import arrays
from recal.transforms.arrays import Array, contiguous
from recal.transforms.base import BuiltIn, Strengths, content_keys, uniforms, uniforms_at

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
    >>> from recal.transforms.image import image_layout
    >>> image_layout((8, 3, 32, 32)), image_layout((8, 32, 32, 3)), image_layout((8, 28, 28))
    ('NCHW', 'NHWC', 'NHW')
    """
    axes = len(shape)
    if layout != "auto":
        if axes != len(layout) and not (len(layout) == 4 and axes == 5):
            rule = f"The layout {layout} has {len(layout)} axes"
            raise InputError(f"{rule}, but the images have the shape {tuple(shape)}.")
        return layout
    if axes == 3:
        return "NHW"
    if axes not in (4, 5):
        rule = (
            "Images need the shape (n, c, height, width), (n, height, width, c) or (n, height, "
            "width)"
        )
        remedy = "Reshape flat rows to (-1, height, width), and flatten them in the preprocessing"
        raise InputError(f"{rule}, got {tuple(shape)}", remedy=remedy)
    a, b, c = shape[-3:]
    first, last = a in _CHANNELS, c in _CHANNELS
    if first != last:
        return "NCHW" if first else "NHWC"
    if not first and not (a == b != c or b == c != a):
        rule = f"The shape {tuple(shape)} is ambiguous: neither end has 1, 3 or 4 channels"
        raise InputError(rule, remedy="Pass layout='NCHW' or layout='NHWC' to the transformation")
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


@dataclass(frozen=True, eq=False)
class Bands:
    """A matrix of weights, (target, source), and its nonzero part as `taps`: ``to, at, by``.

    Row j of the taps holds the targets from ``to[j]`` up to ``to[j + 1]``, whose rows are equal;
    rows of zeros are left out. Its weights ``by[j]`` belong to the sources from ``at[j]`` on. The
    number of weights is even; if a zero was added, it may lie beyond the last source.
    """

    matrix: Matrix

    @cached_property
    def taps(self) -> tuple[Indices, Indices, Matrix]:
        """The arrays `to`, `at` and `by`, on first use: a trace needs only the matrix."""
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
        over_rows(kernels.weighted_sums, lines, channels, *taps[0], *taps[1], steps, out)
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


def _weighted(values: NDArray[Any], at: Indices, by: Matrix, axis: int) -> NDArray[Any]:
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
        return arrays.compute(self._images, images, traceable=self.traceable)

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
        rows, columns = map(self._band, image_size(images.shape, layout))
        if not arrays.is_tensor(images):
            return resample(images, layout, rows, columns)
        x = arrays.to_working(arrays.contiguous(as_planes(images, layout)))
        x = arrays.constant(rows.matrix, x) @ x @ arrays.constant(columns.matrix.T, x)
        return from_planes(arrays.from_working(x, arrays.dtype_name(images)), layout, images.shape)

    @abstractmethod
    def _band(self, size: int) -> Bands:
        """Return the weights along an axis of this size."""


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


@dataclass(frozen=True)
class ZoomOut(Resampled):
    """Shrink to `scale` of the side and pad back with black: the object stays whole, detail is
    lost.

    The image is padded with ``int(W * (1 - scale) / scale)`` black pixels in all; an odd pixel goes
    to the right or bottom. It is then resized back with an antialiased bilinear filter. Both steps
    are linear and separable, so together they are A x B^T with two fixed matrices.

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

    kind = "zoom"
    assumes = (
        "the object is recognisable from fewer pixels, and its size does not determine its label"
    )
    strengths = Strengths(0.9, 0.1, identity=1, ends="(]")

    scale: float
    layout: Layout = "auto"

    def _band(self, size: int) -> Bands:
        return zoomed(size, self.scale)


@dataclass(frozen=True)
class Brightness(Pointwise):
    """Multiply every value by `factor` and clip: below 1 darkens, above 1 brightens until
    highlights are lost.

    Float images are clipped at `white`, and only if `factor` exceeds 1; values above `white` are
    then refused, because white is never guessed from a batch.
    """

    kind = "brightness"
    assumes = "the label does not depend on how bright the picture is"
    strengths = Strengths(0.9, 0.1, identity=1, domain=(0, 10), ends="(]")

    factor: float
    white: float = 1.0
    layout: Layout = "auto"

    def _values(self, x: Array, images: Array, dtype: str) -> Array:
        bright = x * arrays.scalar_like(self.factor, x)
        if self.factor <= 1:
            return bright
        return bright.clip(None, check_white(x, dtype, self.white, self.kind))


@dataclass(frozen=True)
class Contrast(Pointwise):
    """Move every value towards the image's mean: `factor` of the distance remains."""

    kind = "contrast"
    assumes = "the label does not depend on how strong the picture's contrasts are"
    strengths = Strengths(0.9, 0.1, identity=1, ends="(]")

    factor: float
    layout: Layout = "auto"

    def _values(self, x: Array, images: Array, dtype: str) -> Array:
        mean = images.mean(-1)[:, None]
        return (x - mean) * arrays.scalar_like(self.factor, x) + mean


@dataclass(frozen=True)
class Blur(Resampled):
    """Smooth with a Gaussian of `sigma` pixels; beyond the edge, its pixels are repeated."""

    kind = "blur"
    assumes = "the label does not rest on fine detail alone"
    strengths = Strengths(0.3, 3, identity=0, domain=(0, 100))

    sigma: float
    layout: Layout = "auto"

    def _band(self, size: int) -> Bands:
        return blurred(size, self.sigma)


@dataclass(frozen=True)
class Pixelate(Resampled):
    """Keep `scale` of the resolution: each side becomes ``round(scale * size)`` blocks, each filled
    with its mean.
    """

    kind = "pixelate"
    assumes = "the label does not rest on fine detail alone"
    strengths = Strengths(0.9, 0.1, identity=1, ends="(]")

    scale: float
    layout: Layout = "auto"

    def _band(self, size: int) -> Bands:
        return in_blocks(size, self.scale)


def check_white(x: Array, dtype: str, white: float, kind: str) -> float:
    """Return full brightness: the dtype's largest whole number, or `white`.

    Refuse float images that exceed it.
    """
    limit = float(np.iinfo(dtype).max) if "int" in dtype else white
    remedy = f"For values from 0 to 255 write '{kind}:...:white=255'; transform before normalising"
    arrays.check_full_scale(x, limit, kind, remedy)
    return limit


@dataclass(frozen=True)
class Jpeg(ImageTransform):
    """Store as JPEG of `quality` and read back. Three channels are coded as colour, any others one
    by one as grey.

    Values are rounded to 256 levels of `white` on the way; a quality of 100 means no coding at all.
    """

    kind = "jpeg"
    assumes = "the label does not rest on fine detail or exact colour alone"
    strengths = Strengths(90, 5, identity=100, domain=(1, 100), whole=True)
    traceable = False

    quality: float
    white: float = 1.0
    layout: Layout = "auto"

    def _transformed(self, images: NDArray[Any], layout: str) -> NDArray[Any]:
        dtype = arrays.dtype_name(images)
        white = check_white(images, dtype, self.white, self.kind)
        levels, scale = images, 1.0
        if dtype != "uint8":
            x = arrays.to_working(images)
            if np.isnan(x).any():
                raise InputError("jpeg has no code for NaN; fill in missing pixels first.")
            levels = np.rint(np.clip(x * (255.0 / white), 0, 255)).astype(np.uint8)
            scale = x.dtype.type(white / 255.0)
        coded = np.empty(images.shape, np.uint8)
        planes, target = as_planes(levels, layout), as_planes(coded, layout)
        over_rows(_code_planes, planes, int(self.quality), target)
        return coded if dtype == "uint8" else np.asarray(arrays.from_working(coded * scale, dtype))


def _code_planes(
    planes: NDArray[np.uint8], start: int, stop: int, quality: int, out: NDArray[np.uint8]
) -> None:
    from PIL import Image  # Pillow takes longer to load than the rest of this package

    for image, target in zip(planes[start:stop], out[start:stop]):
        if len(image) == 3:
            image, target = np.moveaxis(image, 0, -1)[None], np.moveaxis(target, 0, -1)[None]
        for pixels, result in zip(image, target):
            source, buffer = Image.fromarray(np.ascontiguousarray(pixels)), BytesIO()
            source.save(buffer, "JPEG", quality=quality)
            # Call the decoder directly: opening the data as a file would parse its header in
            # Python, which takes 75 us.
            mode, coded = source.mode, buffer.getvalue()
            result[...] = Image.frombytes(mode, source.size, coded, "jpeg", mode, "")


@dataclass(frozen=True)
class RandomPixels(ImageTransform):
    """Overwrite each pixel with a random colour, with probability `share`.

    The pixels and their colours follow from `seed` and the image's own content, so an image is
    treated the same way in any batch.
    """

    kind = "pixels"
    assumes = "the label does not rest on single pixels"
    strengths = Strengths(0.01, 0.5, identity=0)
    traceable = False

    share: float
    seed: int = 0
    white: float = 1.0
    layout: Layout = "auto"

    def _transformed(self, images: NDArray[Any], layout: str) -> NDArray[Any]:
        white = check_white(images, arrays.dtype_name(images), self.white, self.kind)
        changed = images.copy()
        planes = np.ascontiguousarray(as_planes(images, layout))
        over_rows(self._overwrite, planes, white, as_planes(changed, layout))
        return changed

    def _overwrite(
        self, planes: NDArray[Any], start: int, stop: int, white: float, out: NDArray[Any]
    ) -> None:
        channels, height, width = planes.shape[1:]
        # Enough values at once for numpy, few enough for the processor's cache.
        count = max(1, (1 << 16) // planes[0].size)
        for begin in range(start, stop, count):
            exact = arrays.to_working(planes[begin : min(begin + count, stop)])
            keys = content_keys(exact, self.kind, self.seed)
            image, hit = np.nonzero(uniforms(keys, height * width) < self.share)
            places = hit[:, None] + np.arange(channels) * (height * width)
            drawn = uniforms_at(keys[image], places.astype(np.uint64), stream=1)
            colour = drawn.astype(exact.dtype) * exact.dtype.type(white)
            colour = arrays.from_working(colour, arrays.dtype_name(planes))
            out[begin + image, :, hit // width, hit % width] = colour


@dataclass(frozen=True)
class Flip(ImageTransform):
    """Mirror left to right; written `flip`, without a strength.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Flip
    >>> Flip()(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))[0]
    array([[3, 2, 1],
           [6, 5, 4]], dtype=uint8)
    """

    kind = "flip"
    assumes = (
        "a mirrored object keeps its label: true of a cat, not of a digit, letter or traffic sign"
    )
    keeps_information = True
    has_strength = False

    layout: Layout = "auto"

    def _transformed(self, images: Array, layout: str) -> Array:
        axis = layout.index("W") - len(layout)
        return arrays.copy(arrays.numpy_or_torch(images).flip(images, (axis,)))


@dataclass(frozen=True)
class Shift(ImageTransform):
    """Move the image by whole `pixels`; what leaves on one side comes back on the other.

    The bare spec `shift` means 2 pixels down.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import as_transform
    >>> as_transform("shift:1")(np.array([[[1, 1], [2, 2], [3, 3]]], dtype=np.uint8))[0]
    array([[3, 3],
           [1, 1],
           [2, 2]], dtype=uint8)
    """

    kind = "shift"
    assumes = "the object's position does not determine its label"
    keeps_information = True
    strengths = Strengths(1, 4, identity=0, domain=(0, 10_000), whole=True)

    pixels: float = 2
    direction: Literal["down", "up", "left", "right"] = "down"
    layout: Layout = "auto"

    def _transformed(self, images: Array, layout: str) -> Array:
        axis = layout.index("H" if self.direction in ("down", "up") else "W") - len(layout)
        by = int(self.pixels)
        return arrays.roll(images, axis, by if self.direction in ("down", "right") else -by)


@dataclass(frozen=True)
class ZoomIn(Resampled):
    """Enlarge by `factor` around the centre: the border is lost, everything else grows.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import ZoomIn
    >>> ZoomIn(2.0)(np.array([[[0, 1, 2, 3]]], dtype=np.float32))[0]
    array([[0.75, 1.25, 1.75, 2.25]], dtype=float32)
    """

    kind = "zoomin"
    assumes = (
        "what identifies the object is not at the border, and its size does not determine its label"
    )
    keeps_information = True
    strengths = Strengths(1.05, 1.3, identity=1, domain=(1, 10))

    factor: float
    layout: Layout = "auto"

    def _band(self, size: int) -> Bands:
        return middle(size, 1.0 / self.factor)
