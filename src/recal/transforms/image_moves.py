"""Images moved, not damaged: mirror, small shift, crop, slight zoom in.

Nothing is blurred away or darkened, so the result is as good an image as the original; the model meets it from another
side. Stacking gains most from such views (docs/stacking.md). Whether the label survives is a question of the task: see
what each kind `assumes`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.image import ImageTransform, Resampled
from recal.transforms.resampling import Bands, Layout, window


class PixelMove(ImageTransform):
    """Moves whole pixels along axes of the array as it came: no arithmetic, so every dtype keeps its bits."""

    __slots__ = ()

    keeps_information: ClassVar[bool] = True

    def _transformed(self, images: Array, layout: str) -> Array:
        # Counted from the end, the axes of a batch of frames are those of its images.
        return self._move(images, height=layout.index("H") - len(layout), width=layout.index("W") - len(layout))

    @abstractmethod
    def _move(self, images: Array, height: int, width: int) -> Array:
        """Return a moved copy; `height` and `width` number the axes, from the end."""


@dataclass(frozen=True, slots=True)
class Flip(PixelMove):
    """Mirror left to right. It has no strength: its spec is `flip`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import Flip
    >>> Flip()(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))[0]
    array([[3, 2, 1],
           [6, 5, 4]], dtype=uint8)
    """

    kind: ClassVar[str] = "flip"
    assumes: ClassVar[str] = "a mirrored object keeps its label: true of a cat, not of a digit, letter or traffic sign"
    has_strength: ClassVar[bool] = False
    usual: ClassVar[float | None] = 1.0
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (1.0, 1.0)
    domain: ClassVar[tuple[float, float]] = (1.0, 1.0)

    layout: Layout = "auto"

    def _move(self, images: Array, height: int, width: int) -> Array:
        mirrored = arrays.namespace(images).flip(images, (width,))
        if arrays.is_tensor(images):
            return mirrored
        # numpy's is a view of the input. Channels that come last are copied one by one: longer runs than a pixel's.
        moved = np.empty(images.shape, images.dtype)
        for channel in range(images.shape[-1]) if width == -2 else (slice(None),):
            moved[..., channel] = mirrored[..., channel]
        return moved


@dataclass(frozen=True, slots=True)
class Shift(PixelMove):
    """Move the image by whole `pixels`; what leaves on one side comes back on the other.

    The bare spec `shift` means 2 pixels down, wrapped. `fill` puts something else where the image moved away from:
    ``edge`` repeats its last pixels, ``black`` is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import as_transform
    >>> as_transform("shift:1")(np.array([[[1, 1], [2, 2], [3, 3]]], dtype=np.uint8))[0]
    array([[3, 3],
           [1, 1],
           [2, 2]], dtype=uint8)
    >>> as_transform("shift:1:direction=left:fill=black")(np.array([[[1, 2, 3]]], dtype=np.uint8))[0]
    array([[2, 3, 0]], dtype=uint8)
    """

    kind: ClassVar[str] = "shift"
    assumes: ClassVar[str] = "the object's position does not determine its label"
    usual: ClassVar[float | None] = 2
    identity: ClassVar[float] = 0
    strengths: ClassVar[tuple[float, float]] = (1, 4)
    domain: ClassVar[tuple[float, float]] = (0, 10_000)
    step: ClassVar[float] = 1

    pixels: float = 2
    direction: Literal["down", "up", "left", "right"] = "down"
    fill: Literal["wrap", "edge", "black"] = "wrap"
    layout: Layout = "auto"

    def _move(self, images: Array, height: int, width: int) -> Array:
        axis = height if self.direction in ("down", "up") else width
        size = int(images.shape[axis])  # a constant when traced: images of one model have one size
        by = int(self.pixels) % size if self.fill == "wrap" else min(int(self.pixels), size)
        if by == 0:
            return arrays.copy(images)
        forward = self.direction in ("down", "right")
        if self.fill == "wrap":
            new = _part(images, axis, size - by, size) if forward else _part(images, axis, 0, by)
        elif self.fill == "black":
            new = arrays.namespace(images).zeros_like(_part(images, axis, 0, by))
        else:
            edge = _part(images, axis, 0, 1) if forward else _part(images, axis, size - 1, size)
            new = arrays.namespace(images).concatenate([edge] * by, axis)
        kept = _part(images, axis, 0, size - by) if forward else _part(images, axis, by, size)
        return arrays.namespace(images).concatenate([new, kept] if forward else [kept, new], axis)


@dataclass(frozen=True, slots=True)
class Crop(Resampled):
    """Keep `share` of the side, at a corner, and enlarge it to the whole size: about ``1 - share`` is cut off.

    The corner is chosen with `at`; for the centre see `ZoomIn`.
    """

    kind: ClassVar[str] = "crop"
    assumes: ClassVar[str] = "the object's telling parts do not lie at the border that is cut off"
    keeps_information: ClassVar[bool] = True
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (0.95, 0.7)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    positive: ClassVar[bool] = True

    share: float
    at: Literal["top-left", "top-right", "bottom-left", "bottom-right"] = "top-left"
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        vertical, horizontal = self.at.split("-")
        rows = window(height, self.share, 0.0 if vertical == "top" else 1.0)
        return rows, window(width, self.share, 0.0 if horizontal == "left" else 1.0)


@dataclass(frozen=True, slots=True)
class ZoomIn(Resampled):
    """Enlarge by `factor` about the centre: the border is lost, everything else grows.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import ZoomIn
    >>> ZoomIn(2.0)(np.array([[[0, 1, 2, 3]]], dtype=np.float32))[0]
    array([[0.75, 1.25, 1.75, 2.25]], dtype=float32)
    """

    kind: ClassVar[str] = "zoomin"
    assumes: ClassVar[str] = "the object's telling parts do not lie at the border, nor does its size tell its label"
    keeps_information: ClassVar[bool] = True
    identity: ClassVar[float] = 1.0
    strengths: ClassVar[tuple[float, float]] = (1.05, 1.3)
    domain: ClassVar[tuple[float, float]] = (1.0, 10.0)

    factor: float
    layout: Layout = "auto"

    def _bands(self, height: int, width: int) -> tuple[Bands, Bands]:
        return window(height, 1.0 / self.factor, 0.5), window(width, 1.0 / self.factor, 0.5)


def _part(images: Array, axis: int, start: int, stop: int) -> Array:
    """Return images[start:stop] along an axis that is counted from the end."""
    return images[(..., slice(start, stop), *(slice(None),) * (-axis - 1))]
