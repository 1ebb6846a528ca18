"""The four groups of ReCal: how answers react to each transformation, and how calibrated each
group is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.temperature import TemperatureScaling
from recal.engine.grouping import ConfidenceAt, Group, group
from recal.errors import InputError
from recal.maps.arrays import softmax
from recal.metrics import bin_table
from recal.views import Views

GROUP_LABELS = {
    Group.CHANGED_ROSE: "changed, rose",
    Group.CHANGED_FELL: "changed, fell",
    Group.KEPT_ROSE: "kept, rose",
    Group.KEPT_FELL: "kept, fell",
}

# The ECE of fewer samples is mostly noise: even with calibrated confidence it is about 0.1.
FEWEST_RANKED = 20


def places(errors: Sequence[float | None], sizes: Sequence[float | None]) -> dict[int, int]:
    """Return the rank of each group that can be ranked, from 0 for the smallest error to 3 for the
    largest.

    Groups without an error and groups of fewer than 20 samples have no rank; a size of None counts
    as large enough. Of three groups the middle one ranks second, of two one is smallest and one
    largest, and a single group has no rank. Groups with equal errors rank in their own order.

    Examples
    --------
    >>> from recal.reporting.view_studies import places
    >>> places([0.3, 0.1, None, 0.2], [50, 60, 0, 70])
    {1: 0, 3: 1, 0: 3}
    """
    ranked = {
        index: error
        for index, (error, size) in enumerate(zip(errors, sizes))
        if error is not None and not np.isnan(error) and (size is None or size >= FEWEST_RANKED)
    }
    order = sorted(ranked, key=lambda index: ranked[index])
    if len(order) < 2:
        return {}
    return {index: 3 if index == order[-1] else place for place, index in enumerate(order)}


@dataclass(frozen=True)
class GroupStudy:
    """Per transformation (rows) and group (columns, in the order of `Group`): size and calibration
    error.

    Attributes
    ----------
    transforms : specs, m of them
    sizes : (m, 4)
    errors : (m, 4), the ECE of the original inputs in the group; NaN for an empty group or without
    labels confidence_at : at which class the confidence in the transformed copy was read
    temperature : the temperature that all logits were divided by
    """

    transforms: tuple[str, ...]
    sizes: NDArray[np.int64]
    errors: NDArray[np.float64]
    confidence_at: ConfidenceAt
    temperature: float

    @property
    def ranks(self) -> NDArray[np.int64]:
        """How often each group (rows) had the smallest to the largest error (columns); see
        `places`.
        """
        counts = np.zeros((4, 4), np.int64)
        for errors, sizes in zip(self.errors.tolist(), self.sizes.tolist()):
            for index, place in places(errors, sizes).items():
                counts[index, place] += 1
        return counts

    @property
    def usual_sizes(self) -> list[int]:
        """The median size of each group over the transformations."""
        return [int(size) for size in np.median(self.sizes, axis=0)]

    def lines(self) -> list[tuple[str, list[int], list[float]]]:
        """Return transformation, sizes and errors of the four groups, sorted by transformation."""
        rows = zip(self.transforms, self.sizes.tolist(), self.errors.tolist())
        return sorted(rows, key=lambda row: row[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: size and ECE by transformation and group;

        None for an empty group.
        """
        names = [member.name.lower() for member in Group]
        errors = [
            [None if np.isnan(error) else float(error) for error in row] for row in self.errors
        ]
        return {
            "confidence_at": self.confidence_at,
            "temperature": self.temperature,
            "groups": {
                spec: dict(zip(names, row))
                for spec, row in zip(self.transforms, self.sizes.tolist())
            },
            "ece": {spec: dict(zip(names, row)) for spec, row in zip(self.transforms, errors)},
            "ranks": dict(zip(names, self.ranks.tolist())),
            "ranked_from": FEWEST_RANKED,
        }


def group_study(
    views: Views,
    *,
    confidence_at: ConfidenceAt = "original",
    scaled: bool = False,
    n_bins: int = 15,
) -> GroupStudy:
    """Group the samples by each transformation, and measure the calibration of each group.

    Parameters
    ----------
    views : Views with transformations; with labels for the errors
    confidence_at : see `recal.group`
    scaled : bool
        First divide all logits by one temperature, fitted on these views. The paper's group tables
        do this, with ``confidence_at="own"``.
    n_bins : int

    Examples
    --------
    >>> from recal import Views
    >>> from recal.reporting.view_studies import group_study
    >>> views = Views([[2.0, 0.0], [2.0, 0.0]], {"zoom:0.5": [[3.0, 0.0], [0.0, 1.0]]}, labels=[0, 1])
    >>> group_study(views).sizes
    array([[0, 1, 1, 0]])
    """
    if not views.transforms:
        raise InputError("These views hold no transformations, so there is nothing to group.")
    if scaled and views.labels is None:
        raise InputError("`scaled=True` fits a temperature, which needs labels.")
    beta = float(TemperatureScaling().fit(views).beta_) if scaled else 1.0
    original = views.logits * beta
    probs = softmax(original)
    sizes = np.zeros((len(views.transforms), 4), np.int64)
    errors = np.full((len(views.transforms), 4), np.nan)
    for index, transform in enumerate(views.transforms):
        numbers = group(original, views.transformed(transform) * beta, confidence_at)
        for member in Group:
            rows = numbers == member
            sizes[index, member - 1] = rows.sum()
            if views.labels is not None and rows.any():
                errors[index, member - 1] = bin_table(probs[rows], views.labels[rows], n_bins).ece()
    return GroupStudy(tuple(map(str, views.transforms)), sizes, errors, confidence_at, 1 / beta)
