"""Group offsets: one number per group, added to the log-odds of the confidence."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import check_names
from recal.errors import InputError
from recal.maps.arrays import log_odds, sigmoid
from recal.maps.base import Array, like, namespace
from recal.schema import Floats, ListOf, Record, Text

Vector = NDArray[np.float64]


class GroupOffsets(Record):
    """Shift the log-odds of each confidence by the offset of its group; unknown groups are not
    shifted.

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

    names: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    offsets: Annotated[Vector, Floats("G")]

    def check(self) -> None:
        if len(set(self.names)) != len(self.offsets):
            raise InputError(
                "must name each group once, with one number each in `offsets`", argument="names"
            )

    def shifts(self, groups: ArrayLike, n_samples: int) -> Vector:
        """Return the offset of each row's group, (n_samples,); 0 for groups that were not in the
        fit.
        """
        names, index = check_names(groups, n_samples, "groups")
        offsets = dict(zip(self.names, self.offsets.tolist()))
        return np.array([offsets.get(name, 0.0) for name in names])[index]

    def apply(self, confidence: Array, groups: ArrayLike) -> Array:
        """Return confidences shifted by the offsets of their groups; those without an offset do not
        change at all.
        """
        shifts = like(confidence, self.shifts(groups, len(confidence)))
        xp = namespace(confidence)
        return xp.where(shifts == 0.0, confidence, sigmoid(log_odds(confidence) + shifts))
