"""What the shape of a model's input tells: which images it takes, and where it wants an axis that inputs lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recal.collecting.inputs.pixels import Pixels

_PIXELS: dict[int, Pixels] = {1: "gray", 3: "rgb", 4: "rgba"}


def pixels_of(shape: Sequence[Any]) -> Pixels | None:
    """Return what images must be for an input of this shape, by its channels; None where the shape does not tell."""
    if len(shape) != 4:
        return None
    counts = [side for side in (shape[1], shape[3]) if side in (1, 3, 4)]
    return _PIXELS[counts[0]] if len(counts) == 1 else None


def with_channel(batch: Any, shape: Sequence[Any]) -> Any:
    """Return a batch of grey images or sounds with the axis of length 1 that an input of this shape has for channels.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.models.shapes import with_channel
    >>> with_channel(np.zeros((5, 8000)), ("batch", 1, 8000)).shape
    (5, 1, 8000)
    """
    if len(batch.shape) + 1 != len(shape) or len(batch.shape) < 2:
        return batch
    if shape[1] == 1:
        return batch[:, None]
    return batch[..., None] if shape[-1] == 1 else batch
