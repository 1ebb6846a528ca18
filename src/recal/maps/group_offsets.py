"""Group offsets: one number per group, added to the log-odds of the confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.engine.clusters import check_names
from recal.errors import InputError

Vector = NDArray[np.float64]

# Confidences are kept this far from 0 and 1 before their log-odds are taken.
_EDGE = 1e-12


@dataclass(frozen=True, eq=False)
class GroupOffsets:
    """Shift the log-odds of each confidence by the offset of its group; unknown groups are not shifted.

    Parameters
    ----------
    names : tuple of str
    offsets : array of shape (n_groups,)

    Examples
    --------
    >>> import numpy as np
    >>> from recal.maps.group_offsets import GroupOffsets
    >>> offsets = GroupOffsets(("law",), np.array([-1.0]))
    >>> offsets.apply(np.array([0.8, 0.8]), ["law", "physics"]).round(3).tolist()
    [0.595, 0.8]
    """

    names: tuple[str, ...]
    offsets: Vector

    def __post_init__(self) -> None:
        if not isinstance(self.names, tuple) or not all(isinstance(name, str) for name in self.names):
            raise InputError("must be a tuple of group names", argument="names")
        if not isinstance(self.offsets, np.ndarray) or self.offsets.shape != (len(self.names),):
            raise InputError("must be one number per group", argument="offsets")
        if len(set(self.names)) < len(self.names) or not np.isfinite(self.offsets).all():
            raise InputError("Group offsets must be finite, and each group may be named once.")

    def shifts(self, groups: ArrayLike, n_samples: int) -> Vector:
        """Return the offset of each row's group, (n_samples,); 0 for groups that the fit has not seen."""
        names, index = check_names(groups, n_samples, "groups")
        offsets = dict(zip(self.names, self.offsets.tolist()))
        return np.array([offsets.get(name, 0.0) for name in names])[index]

    def apply(self, confidence: Vector, groups: ArrayLike) -> Vector:
        """Return confidences with the offsets of their groups; without an offset they stay exactly as they are."""
        shifts = self.shifts(groups, len(confidence))
        return np.where(shifts == 0.0, confidence, sigmoid(log_odds(confidence) + shifts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupOffsets):
            return NotImplemented
        return self.names == other.names and bool(np.array_equal(self.offsets, other.offsets))

    def __hash__(self) -> int:
        return hash((self.names, self.offsets.tobytes()))


def log_odds(confidence: Vector) -> Vector:
    """Return the log-odds of confidences, finite also for 0 and 1."""
    inside = np.clip(np.asarray(confidence, np.float64), _EDGE, 1.0 - _EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def sigmoid(values: Vector) -> Vector:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))
