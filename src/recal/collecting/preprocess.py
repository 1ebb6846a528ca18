"""What stands between an image and a network: the value that command lines and workers can name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from recal.errors import InputError


@dataclass(frozen=True)
class Normalize:
    """Divide by `divide`, subtract `mean`, divide by `std`, per channel; for arrays and tensors, to float32.

    Parameters
    ----------
    mean, std : float or one per channel
    divide : float
        255 brings uint8 pixels to [0, 1].
    channels : {"first", "last", "keep"}
        Where the model wants the channels of (n, h, w, c) or (n, c, h, w) batches; grey (n, h, w) batches get one.

    Examples
    --------
    >>> import numpy as np
    >>> Normalize(mean=0.5, std=0.5)(np.full((1, 2, 2, 3), 255, np.uint8)).shape
    (1, 3, 2, 2)
    """

    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    divide: float = 255.0
    channels: Literal["first", "last", "keep"] = "first"

    def __post_init__(self) -> None:
        if self.channels not in ("first", "last", "keep"):
            raise InputError(f"`channels` must be 'first', 'last' or 'keep', got {self.channels!r}.")
        if self.divide == 0 or np.any(np.asarray(self.std) == 0):
            raise InputError("`divide` and `std` must not be 0.")

    def __call__(self, images: Any) -> Any:
        values = images.float() if hasattr(images, "detach") else np.asarray(images, dtype=np.float32)
        values = values / self.divide
        if self.channels != "keep":
            values = self._place(values)
        axis = 1 if self.channels == "first" else -1
        return (values - self._shaped(self.mean, values, axis)) / self._shaped(self.std, values, axis)

    def _place(self, values: Any) -> Any:
        if len(values.shape) == 3:
            return values[:, None] if self.channels == "first" else values[..., None]
        if len(values.shape) != 4:
            raise InputError(f"Images come as (n, h, w), (n, h, w, c) or (n, c, h, w); got {tuple(values.shape)}.")
        is_last = values.shape[-1] in (1, 3, 4) and values.shape[1] not in (1, 3, 4)
        if is_last == (self.channels == "last"):
            return values
        order = (0, 3, 1, 2) if is_last else (0, 2, 3, 1)
        return values.permute(*order) if hasattr(values, "permute") else values.transpose(order)

    def _shaped(self, number: float | Sequence[float], values: Any, axis: int) -> Any:
        constants = np.asarray(number, dtype=np.float32).reshape(-1)
        if len(constants) not in (1, values.shape[axis]):
            raise InputError(
                f"mean and std need one value, or one for each of {values.shape[axis]} channels; got {len(constants)}."
            )
        shape = [1] * len(values.shape)
        shape[axis] = len(constants)
        if hasattr(values, "new_tensor"):
            return values.new_tensor(constants.tolist()).reshape(shape)
        return constants.reshape(shape)
