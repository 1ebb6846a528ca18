"""The group study: how samples react to each transformation, and how well the model is calibrated in each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.probabilities import softmax
from recal.calibrators.temperature import TemperatureScaling
from recal.engine.grouping import Group, group
from recal.errors import InputError
from recal.metrics import bin_table
from recal.plan import ConfidenceAt, Ties
from recal.views import Views

GROUP_LABELS = {
    Group.CHANGED_ROSE: "changed, rose",
    Group.CHANGED_FELL: "changed, fell",
    Group.KEPT_ROSE: "kept, rose",
    Group.KEPT_FELL: "kept, fell",
}


# The calibration error of fewer samples is mostly noise: with 10 bins even calibrated confidence is some 0.1 off.
FEWEST_RANKED = 20


def places(errors: Sequence[float | None], sizes: Sequence[float | None]) -> dict[int, int]:
    """Return the place, 0 for the smallest error to 3 for the largest, of each group that can be ranked.

    Left out are groups without an error and those of fewer than 20 samples; a size that is None is taken for enough.
    With three groups left the middle one is second, with two there is a smallest and a largest, and one alone has no
    rank. Equal errors rank in the groups' order.

    Examples
    --------
    >>> from recal.reporting.data.groups import places
    >>> places([0.3, 0.1, None, 0.2], [50, 60, 0, 70])
    {1: 0, 3: 1, 0: 3}
    """
    known = {
        index: error
        for index, (error, size) in enumerate(zip(errors, sizes))
        if error is not None and not np.isnan(error) and (size is None or size >= FEWEST_RANKED)
    }
    order = sorted(known, key=lambda index: known[index])
    if len(order) < 2:
        return {}
    return {index: 3 if index == order[-1] else place for place, index in enumerate(order)}


def by_strength(spec: str) -> tuple[str, float, str]:
    """Order transformations by kind, then by their number."""
    kind, _, strength = spec.partition(":")
    try:
        return kind, float(strength), spec
    except ValueError:
        return kind, 0.0, spec


@dataclass(frozen=True)
class GroupStudy:
    """Per transformation (rows) and group (columns, in the order of `Group`): size and calibration error.

    Attributes
    ----------
    transforms : specs, m of them
    sizes : (m, 4)
    errors : (m, 4), the ECE of the original inputs that fall in the group; NaN in an empty group or without labels
    confidence_at : which reading of the transformed copy's confidence was used
    temperature : the temperature that the logits were divided by beforehand
    """

    transforms: tuple[str, ...]
    sizes: NDArray[np.int64]
    errors: NDArray[np.float64]
    confidence_at: ConfidenceAt
    temperature: float

    @property
    def ranks(self) -> NDArray[np.int64]:
        """How often each group (rows) had the smallest, ..., largest error (columns) over the transformations.

        Groups of fewer than 20 samples are not ranked; see `places`.
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

    @property
    def sized_labels(self) -> list[str]:
        """The groups' names with their median sizes, for charts of the ranks."""
        return [f"{label} ({size:,})" for label, size in zip(GROUP_LABELS.values(), self.usual_sizes)]

    def lines(self) -> list[tuple[str, list[int], list[float]]]:
        """Transformation, sizes and errors of the four groups, by kind and strength, for a table that people read."""
        rows = zip(self.transforms, self.sizes.tolist(), self.errors.tolist())
        return sorted(rows, key=lambda row: by_strength(row[0]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: per transformation and group the size and the ECE, None where a group is empty."""
        names = [member.name.lower() for member in Group]
        errors = [[None if np.isnan(error) else float(error) for error in row] for row in self.errors]
        return {
            "confidence_at": self.confidence_at,
            "temperature": self.temperature,
            "groups": {spec: dict(zip(names, row)) for spec, row in zip(self.transforms, self.sizes.tolist())},
            "ece": {spec: dict(zip(names, row)) for spec, row in zip(self.transforms, errors)},
            "ranks": dict(zip(names, self.ranks.tolist())),
            "ranked_from": FEWEST_RANKED,
        }


def group_study(
    views: Views,
    *,
    confidence_at: ConfidenceAt = "original",
    ties: Ties = "float32",
    scaled: bool = False,
    n_bins: int = 15,
) -> GroupStudy:
    """Group the samples by every transformation, and measure each group.

    Parameters
    ----------
    views : Views with transformations; with labels for the errors
    confidence_at, ties : see `recal.group`
    scaled : bool
        Divide all logits by one temperature, fitted on these views, beforehand. The paper's group tables are made so,
        with ``confidence_at="own"``.
    n_bins : int

    Examples
    --------
    >>> from recal import Views
    >>> from recal.reporting.data.groups import group_study
    >>> views = Views([[2.0, 0.0], [2.0, 0.0]], {"zoom:0.5": [[3.0, 0.0], [0.0, 1.0]]}, labels=[0, 1])
    >>> group_study(views).sizes
    array([[0, 1, 1, 0]])
    """
    if not views.transforms:
        raise InputError("These views hold no transformations, so there is nothing to group.")
    beta = float(TemperatureScaling().fit(views).beta_) if scaled and views.labels is not None else 1.0
    if scaled and views.labels is None:
        raise InputError("`scaled=True` fits a temperature, which needs labels.")
    original = views.logits if beta == 1.0 else views.logits * beta
    probs = softmax(original)
    sizes = np.zeros((len(views.transforms), 4), np.int64)
    errors = np.full((len(views.transforms), 4), np.nan)
    for index, transform in enumerate(views.transforms):
        copies = views.transformed(transform)
        numbers = group(original, copies if beta == 1.0 else copies * beta, confidence_at, ties)
        for member in Group:
            rows = numbers == member
            sizes[index, member - 1] = rows.sum()
            if views.labels is not None and rows.any():
                errors[index, member - 1] = bin_table(probs[rows], views.labels[rows], n_bins).ece()
    return GroupStudy(tuple(map(str, views.transforms)), sizes, errors, confidence_at, 1 / beta)
