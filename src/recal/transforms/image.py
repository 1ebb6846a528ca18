"""Transformations of images, before the model's normalisation: they remove detail or move the
image.

`resampling.image_layout` reads shapes; pass ``layout=`` to any transformation if that rule does not
fit. Whole numbers are rounded to nearest and clipped to their dtype. Floats run from 0 (black) to 1
(white) unless ``white=`` gives another value, such as 255; it matters only if a result is clipped
or pixels are drawn.

A mirrored or shifted image is as good as the original, so stacking gains most from such
views (docs/methods.md). Whether the label survives depends on the task: see what each kind
`assumes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.engine.compiled import over_rows
from recal.errors import InputError
from recal.transforms import arrays, resampling
from recal.transforms.arrays import Array
from recal.transforms.base import Strengths, content_keys, uniforms, uniforms_at
from recal.transforms.resampling import (
    Bands,
    ImageTransform,
    Layout,
    Pointwise,
    Resampled,
    as_planes,
)


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

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return resampling.zoomed(height, self.scale), resampling.zoomed(width, self.scale)


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

    def full_scale(self, dtype: str) -> float | None:
        return self.white if self.factor > 1 and "float" in dtype else None

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
    """Smooth with a Gaussian of `sigma` pixels; beyond the edge, the pixel at the edge is repeated."""

    kind = "blur"
    assumes = "the label does not rest on fine detail alone"
    strengths = Strengths(0.3, 3, identity=0, domain=(0, 100))

    sigma: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return resampling.blurred(height, self.sigma), resampling.blurred(width, self.sigma)


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

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return resampling.in_blocks(height, self.scale), resampling.in_blocks(width, self.scale)


def check_white(x: Array, dtype: str, white: float, kind: str) -> float:
    """Return full brightness: the dtype's largest whole number, or `white`.

    Refuse float images that exceed it.
    """
    limit = float(np.iinfo(dtype).max) if "int" in dtype else white
    remedy = (
        f"For values from 0 to 255 write '{kind}:...:white=255', and transform before normalising."
    )
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
                raise InputError(
                    "jpeg has no code for NaN, and these images hold one; fill in missing pixels first."
                )
            levels = np.rint(np.clip(x * (255.0 / white), 0, 255)).astype(np.uint8)
            scale = x.dtype.type(white / 255.0)
        coded = np.empty(images.shape, np.uint8)
        over_rows(
            _code_planes, as_planes(levels, layout), int(self.quality), as_planes(coded, layout)
        )
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
    """Mirror left to right. It has no strength: its spec is `flip`.

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
        "the object's telling parts do not lie at the border, nor does its size tell its label"
    )
    keeps_information = True
    strengths = Strengths(1.05, 1.3, identity=1, domain=(1, 10))

    factor: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        share = 1.0 / self.factor
        return resampling.middle(height, share), resampling.middle(width, share)
