"""What views show: the four groups of ReCal, the iterations of its fit, and how damage changes the
accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Floats
from recal.decisions import Profile, class_mix
from recal.decisions.damage import FEWEST_KINDS
from recal.engine.grouping import ConfidenceAt, Group, group
from recal.errors import InputError
from recal.maps.arrays import sigmoid, softmax
from recal.maps.steps import Plan, calibrated_probs
from recal.metrics import bin_table, evaluate
from recal.reporting.chart import sentences
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


def by_strength(spec: str) -> tuple[str, float, str]:
    """Return a sort key: transformations by kind, then by strength."""
    kind, _, strength = spec.partition(":")
    try:
        return kind, float(strength), spec
    except ValueError:
        return kind, 0.0, spec


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

    @property
    def sized_labels(self) -> list[str]:
        """The names of the groups with their median sizes."""
        return [
            f"{label} ({size:,})" for label, size in zip(GROUP_LABELS.values(), self.usual_sizes)
        ]

    def lines(self) -> list[tuple[str, list[int], list[float]]]:
        """Return transformation, sizes and errors of the four groups, sorted by kind and strength."""
        rows = zip(self.transforms, self.sizes.tolist(), self.errors.tolist())
        return sorted(rows, key=lambda row: by_strength(row[0]))

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
    beta = (
        float(TemperatureScaling().fit(views).beta_) if scaled and views.labels is not None else 1.0
    )
    if scaled and views.labels is None:
        raise InputError("`scaled=True` fits a temperature, which needs labels.")
    original = views.logits if beta == 1.0 else views.logits * beta
    probs = softmax(original)
    sizes = np.zeros((len(views.transforms), 4), np.int64)
    errors = np.full((len(views.transforms), 4), np.nan)
    for index, transform in enumerate(views.transforms):
        copies = views.transformed(transform)
        numbers = group(original, copies if beta == 1.0 else copies * beta, confidence_at)
        for member in Group:
            rows = numbers == member
            sizes[index, member - 1] = rows.sum()
            if views.labels is not None and rows.any():
                errors[index, member - 1] = bin_table(probs[rows], views.labels[rows], n_bins).ece()
    return GroupStudy(tuple(map(str, views.transforms)), sizes, errors, confidence_at, 1 / beta)


@dataclass(frozen=True)
class PlanPath:
    """Metrics on the test rows after the first steps of a plan, by the number of steps."""

    steps: NDArray[np.int64]
    ece: Vector
    nll: Vector
    brier: Vector

    def rows(self) -> list[tuple[float, ...]]:
        """Return steps, ECE, NLL and Brier score of at most eight points, evenly spaced."""
        kept = np.unique(np.linspace(0, len(self.steps) - 1, 8).astype(int))
        return list(
            zip(*(column[kept].tolist() for column in (self.steps, self.ece, self.nll, self.brier)))
        )


def path_of(
    plan: Plan, views: Views, labels: NDArray[np.intp], n_bins: int = 15, points: int = 21
) -> PlanPath:
    """Apply longer and longer parts of a plan, `points` of them, to rows that it was not fitted on."""
    lengths = np.unique(np.linspace(0, len(plan.steps), points).astype(np.int64))
    evaluations = []
    for length in lengths:
        part = replace(
            plan,
            steps=plan.steps[:length],
            finish=plan.finish if length == len(plan.steps) else 1.0,
        )
        evaluations.append(evaluate(calibrated_probs(part, views), labels, n_bins=n_bins))
    columns = [np.array([one[name] for one in evaluations]) for name in ("ece", "nll", "brier")]
    return PlanPath(lengths, *columns)


@dataclass(frozen=True)
class DamageStudy:
    """The views of a fit, seen as damaged data sets with known labels.

    Attributes
    ----------
    kinds : the kind of each view
    accuracy, temperature : of each view; its best temperature relative to that of the fit
    usual : accuracy on the inputs as they are
    damaging : the kinds that lower the accuracy
    n_samples : number of labelled samples
    notes : sentences on new inputs, if there are any
    place : estimated accuracy and temperature of the new inputs; None where they cannot be
    estimated
    """

    kinds: tuple[str, ...]
    accuracy: Vector
    temperature: Vector
    usual: float
    damaging: tuple[str, ...]
    n_samples: int
    notes: tuple[str, ...] = ()
    place: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        return sentences("damage", self, FEWEST_KINDS)[0]

    def rows(self) -> list[tuple[str, int, tuple[float, float], tuple[float, float]]]:
        """Return kind, number of views, and ranges of accuracy and temperature; the most damaging
        kind first.
        """
        rows = []
        for kind in dict.fromkeys(self.kinds):
            own = np.array([one == kind for one in self.kinds])
            accuracy, heat = self.accuracy[own], self.temperature[own]
            ranges = (
                (float(accuracy.min()), float(accuracy.max())),
                (float(heat.min()), float(heat.max())),
            )
            rows.append((kind, int(own.sum()), *ranges))
        return sorted(rows, key=lambda row: row[2])


def damage_study(profile: Profile, logits: Floats | None = None) -> DamageStudy | None:
    """Return what a profile knows about damage and about new inputs;

    None if it has no labelled views.
    """
    learned = profile.following
    if learned is None:
        return None
    whole = np.flatnonzero(
        [kind != "" and size == 0 for kind, size in zip(learned.kinds, learned.sizes)]
    )
    views = whole[: len(whole) // 2]  # the other half mixes these with inputs as they are
    if not len(views):
        return None
    notes: tuple[str, ...] = ()
    place = None
    if logits is not None:
        condition, mix = profile.condition(logits), class_mix(profile, logits)
        notes = (f"{len(logits):,} new inputs: {condition}",)
        if mix.changed:
            notes += (f"A different class mix alone explains them: {mix.moves()}.",)
        place = (condition.accuracy, 1 / condition.ratio) if condition.known else None
    return DamageStudy(
        kinds=tuple(learned.kinds[view] for view in views),
        accuracy=sigmoid(learned.clean_log_odds + learned.changes[views, 1]),
        temperature=np.exp(-learned.changes[views, 0]),
        usual=learned.accuracy,
        damaging=learned.damaging,
        n_samples=learned.n_samples,
        notes=notes,
        place=place,
    )
