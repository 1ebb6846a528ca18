"""Which axes of an image array are height, width and channels: one rule, read from the shape alone."""

from __future__ import annotations

from recal.errors import InputError, Remedy
from recal.transforms.arrays import Array, contiguous

LAYOUTS: tuple[str, ...] = ("auto", "NCHW", "NHWC", "NHW", "CHW", "HWC", "HW")
_CHANNELS = (1, 3, 4)


def image_layout(shape: tuple[int, ...], layout: str = "auto") -> str:
    """Return the layout of an image array; batches of frames (5 axes) are named by their last three axes.

    An axis of length 1, 3 or 4 is the channels'. Where two could be, or none, the two equal axes are height and width;
    where that leaves a choice too, channels come first if two could be, and none is an error. Three axes are a batch
    of grey images, unless the last has length 1, 3 or 4 and the one before is longer than 4: then they are one image.
    The batch's size plays no part, so a sample is read the same way in any batch.

    Examples
    --------
    >>> from recal.transforms.layout import image_layout
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
