"""Series and sounds moved in time, not damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from recal.transforms import arrays
from recal.transforms.arrays import Array
from recal.transforms.series import SeriesTransform


@dataclass(frozen=True, slots=True)
class TimeShift(SeriesTransform):
    """Move a series by ``round(share * time)`` samples, at least one; what leaves at one end comes back at the other.

    `fill` puts something else where the series moved away from: ``hold`` repeats its end value, ``zero`` is silence.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.transforms import TimeShift
    >>> TimeShift(0.25)(np.array([[1.0, 2.0, 3.0, 4.0]]))
    array([[4., 1., 2., 3.]])
    """

    kind: ClassVar[str] = "timeshift"
    assumes: ClassVar[str] = "when in the recording something happens says nothing about its label"
    keeps_information: ClassVar[bool] = True
    identity: ClassVar[float] = 0.0
    strengths: ClassVar[tuple[float, float]] = (0.01, 0.2)
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "direction": ("later", "earlier"),
        "fill": ("wrap", "hold", "zero"),
    }

    share: float
    direction: str = "later"
    fill: str = "wrap"
    axis: int = -1

    def _series(self, x: Array, dtype: str) -> Array:
        xp, length = arrays.namespace(x), x.shape[1]
        by = max(1, round(self.share * length))
        by = by % length if self.fill == "wrap" else min(by, length)
        if by == 0:
            return x
        later = self.direction == "later"
        if self.fill == "wrap":
            new = x[:, length - by :] if later else x[:, :by]
        elif self.fill == "zero":
            new = xp.zeros_like(x[:, :by])
        else:
            new = xp.concatenate([x[:, :1] if later else x[:, length - 1 :]] * by, 1)
        return xp.concatenate([new, x[:, : length - by]] if later else [x[:, by:], new], 1)
