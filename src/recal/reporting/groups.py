"""The four groups of ReCal: their size and calibration under each transformation, and the iterations of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.recal import Iteration
from recal.calibrators.temperature import TemperatureScaling
from recal.engine.grouping import Group, group
from recal.errors import InputError
from recal.maps.arrays import softmax
from recal.maps.plan import ConfidenceAt, Plan, Ties, calibrated_probs
from recal.metrics import bin_table, evaluate
from recal.views import Views

Vector = NDArray[np.float64]

GROUP_LABELS = {
    Group.CHANGED_ROSE: "changed, rose",
    Group.CHANGED_FELL: "changed, fell",
    Group.KEPT_ROSE: "kept, rose",
    Group.KEPT_FELL: "kept, fell",
}

# The ECE of fewer samples is mostly noise: even with calibrated confidence it is about 0.1.
FEWEST_RANKED = 20


def places(errors: Sequence[float | None], sizes: Sequence[float | None]) -> dict[int, int]:
    """Return the rank of each group that can be ranked, from 0 for the smallest error to 3 for the largest.

    Groups without an error and groups of fewer than 20 samples have no rank; a size of None counts as large enough.
    Of three groups the middle one ranks second, of two one is smallest and one largest, and a single group has no
    rank. Groups with equal errors rank in their own order.

    Examples
    --------
    >>> from recal.reporting.groups import places
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


def by_strength(spec: str) -> tuple[str, float, str]:
    """Return a sort key: transformations by kind, then by strength."""
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
    errors : (m, 4), the ECE of the original inputs in the group; NaN for an empty group or without labels
    confidence_at : at which class the confidence in the transformed copy was read
    temperature : the temperature that all logits were divided by
    """

    transforms: tuple[str, ...]
    sizes: NDArray[np.int64]
    errors: NDArray[np.float64]
    confidence_at: ConfidenceAt
    temperature: float

    @property
    def ranks(self) -> NDArray[np.int64]:
        """How often each group (rows) had the smallest to the largest error (columns); see `places`."""
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
        """The names of the groups with their median sizes."""
        return [f"{label} ({size:,})" for label, size in zip(GROUP_LABELS.values(), self.usual_sizes)]

    def lines(self) -> list[tuple[str, list[int], list[float]]]:
        """Return transformation, sizes and errors of the four groups, sorted by kind and strength."""
        rows = zip(self.transforms, self.sizes.tolist(), self.errors.tolist())
        return sorted(rows, key=lambda row: by_strength(row[0]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: size and ECE by transformation and group; None for an empty group."""
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
    """Group the samples by each transformation, and measure the calibration of each group.

    Parameters
    ----------
    views : Views with transformations; with labels for the errors
    confidence_at, ties : see `recal.group`
    scaled : bool
        First divide all logits by one temperature, fitted on these views. The paper's group tables do this, with
        ``confidence_at="own"``.
    n_bins : int

    Examples
    --------
    >>> from recal import Views
    >>> from recal.reporting.groups import group_study
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


@dataclass(frozen=True)
class Progress:
    """The iterations of a fit of ReCal, as columns."""

    number: NDArray[np.int64]
    transform: tuple[str, ...]
    ece: Vector
    accepted: NDArray[np.bool_]
    betas: NDArray[np.float64]
    shares: NDArray[np.float64]


def progress(history: Sequence[Iteration]) -> Progress:
    """Return the iterations as columns, with the factors as applied and group sizes as shares."""
    sizes = np.array([record.sizes for record in history], dtype=np.float64).reshape(-1, 4)
    return Progress(
        np.arange(1, len(history) + 1),
        tuple(str(record.transform) for record in history),
        np.array([record.ece_after for record in history]),
        np.array([record.accepted for record in history], dtype=np.bool_),
        np.array([record.betas for record in history], dtype=np.float64).reshape(-1, 4),
        sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1),
    )


def group_flow(data: Progress) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the transformations of a fit, by kind and strength, and the mean share of each group, (m, 4)."""
    specs = sorted(set(data.transform), key=by_strength)
    drawn = np.array(data.transform)
    return tuple(specs), np.array([data.shares[drawn == spec].mean(axis=0) for spec in specs]).reshape(-1, 4)


@dataclass(frozen=True)
class PlanPath:
    """Metrics on the test rows after the first steps of a plan, by the number of steps."""

    steps: NDArray[np.int64]
    ece: Vector
    nll: Vector
    brier: Vector


def path_of(plan: Plan, views: Views, labels: NDArray[np.intp], n_bins: int = 15, points: int = 21) -> PlanPath:
    """Apply longer and longer parts of a plan, `points` of them, to rows that it was not fitted on."""
    lengths = np.unique(np.linspace(0, len(plan.steps), points).astype(np.int64))
    evaluations = []
    for length in lengths:
        part = replace(plan, steps=plan.steps[:length], finish=plan.finish if length == len(plan.steps) else 1.0)
        evaluations.append(evaluate(calibrated_probs(part, views), labels, n_bins=n_bins))
    columns = [np.array([one[name] for one in evaluations]) for name in ("ece", "nll", "brier")]
    return PlanPath(lengths, *columns)
