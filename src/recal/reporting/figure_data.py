"""Confidence against outcomes: errors expected and made, the groups of ReCal, and the numbers
behind the figures.

Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Vector
from recal.clusters import ByRow
from recal.errors import InputError
from recal.files.paths import plain_values
from recal.maps.arrays import softmax
from recal.maps.steps import ConfidenceAt, Group, group
from recal.metrics import bin_table
from recal.metrics.calibration_error import BinTable, equal_width_edges, table_of
from recal.metrics.intervals import LEVEL
from recal.metrics.row_scores import RowScores
from recal.reporting.chart import sentences
from recal.views import Views

ErrorCounts = NDArray[np.int64]

# The stops of the slider: every hundredth, and finer near 1, where decisions are made.
THRESHOLDS = (*(round(i / 100, 2) for i in range(100)), 0.995, 0.999, 0.9999)


@dataclass(frozen=True)
class Acceptance:
    """Answers with at least one confidence.

    A calibrated model makes `low` to `high` errors in 95 % of samples.
    """

    threshold: float
    n_samples: int
    accepted: int
    errors: int
    expected: float
    low: int
    high: int

    @property
    def share(self) -> float:
        return self.accepted / self.n_samples

    @property
    def accuracy(self) -> float:
        """The share of correct answers among the accepted; NaN if there are none."""
        return 1 - self.errors / self.accepted if self.accepted else float("nan")


# One acceptance for each threshold.
Thresholds = dict[float, Acceptance]


def threshold_table(rows: RowScores, thresholds: Sequence[float] = THRESHOLDS) -> Thresholds:
    """Count the rows whose confidence reaches each threshold, as `DecisionRule.accept` does."""
    # Rows between two thresholds count alike, so they need not be sorted.
    place = np.searchsorted(thresholds, rows.confidence, side="right")
    sums = _sums(rows, place, len(thresholds) + 1)
    accepted, errors, expected, variance = (np.cumsum(column[::-1])[::-1][1:] for column in sums)
    columns = (accepted, errors, expected, *calibrated_range(expected, variance))
    lines = zip(thresholds, *(column.tolist() for column in columns))
    n = len(rows)
    return {threshold: Acceptance(threshold, n, *numbers) for threshold, *numbers in lines}


def _sums(rows: RowScores, place: NDArray[np.intp], size: int) -> tuple[NDArray[Any], ...]:
    """Return rows, errors, errors expected and their variance by place."""
    doubt = 1.0 - rows.confidence
    errors = np.bincount(place[~rows.correct], minlength=size)
    expected, variance = (
        np.bincount(place, weights, size) for weights in (doubt, doubt * rows.confidence)
    )
    return np.bincount(place, minlength=size), errors, expected, variance


def calibrated_range(
    mean: ArrayLike, variance: ArrayLike, level: float = LEVEL
) -> tuple[ErrorCounts, ErrorCounts]:
    """Return how many errors a calibrated model makes, with this probability, if its doubts sum to
    `mean`.

    The number of errors is a sum of independent events with different probabilities (Poisson
    binomial). A binomial of the same mean and variance is close: its ends lie within one error of
    the exact ones over a wide range of confidences. Its number of trials need not be whole, so its
    tails are read from the incomplete beta function.
    """
    means, variances = (np.atleast_1d(np.asarray(one, np.float64)) for one in (mean, variance))
    tail = (1 - level) / 2
    return _quantile(means, variances, tail), _quantile(means, variances, 1 - tail)


def p_values(errors: NDArray[Any], mean: Vector, variance: Vector) -> Vector:
    """Return the probability that a calibrated model is at least this far off: twice the smaller
    tail, at most 1.
    """
    below = _below(errors.astype(np.float64), mean, variance)
    above = 1 - _below(errors - 1.0, mean, variance)
    return np.minimum(2 * np.minimum(below, above), 1.0)


def holm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct p-values for their number (Holm, 1979): never weaker than Bonferroni, and valid for
    any dependence.
    """
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(
        np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0
    )
    return corrected


def _binomial(mean: Vector, variance: Vector) -> tuple[Vector, Vector]:
    """Return the trials and the success rate of the binomial; rare errors count as Poisson."""
    success = 1 - np.divide(variance, mean, out=np.ones_like(mean), where=mean > 0)
    success = np.maximum(success, 1e-6)
    return mean / success, success


def _quantile(mean: Vector, variance: Vector, probability: float) -> ErrorCounts:
    """Return the smallest count that is not exceeded with at least this probability."""
    from scipy.special import bdtrik

    # It is NaN where no errors are expected.
    return np.ceil(np.nan_to_num(bdtrik(probability, *_binomial(mean, variance)))).astype(np.int64)


def _below(k: Vector, mean: Vector, variance: Vector) -> Vector:
    """Return the probability of at most k errors."""
    from scipy.special import betainc

    trials, success = _binomial(mean, variance)
    inside = betainc(np.maximum(trials - k, 1e-9), np.maximum(k, 0.0) + 1, 1 - success)
    return np.where(k < 0, 0.0, np.where(k < trials, inside, 1.0))


@dataclass(frozen=True)
class Slices(ByRow):
    """Parts of the answers, worst first, with errors expected and observed, and the range of a
    calibrated model.

    Attributes
    ----------
    p_values : one per part, corrected for their number (Holm)
        For 95 of 100 calibrated models, no part is called off.
    """

    by: str
    names: tuple[str, ...]
    counts: ErrorCounts
    expected: Vector
    errors: ErrorCounts
    low: ErrorCounts
    high: ErrorCounts
    p_values: Vector

    @property
    def gaps(self) -> Vector:
        """Mean confidence minus accuracy: positive where the model is overconfident."""
        return (self.errors - self.expected) / self.counts

    @property
    def gap_ranges(self) -> tuple[Vector, Vector]:
        """The 95 % range of the gaps of a calibrated model."""
        return (self.low - self.expected) / self.counts, (self.high - self.expected) / self.counts

    @property
    def off(self) -> NDArray[np.bool_]:
        """Which parts are miscalibrated by more than chance explains, corrected for the number of
        parts.
        """
        return self.p_values < 1 - LEVEL

    @property
    def words(self) -> str:
        """What these parts can and cannot tell."""
        return sentences("parts", self, int(np.median(self.counts)))[0]

    def of(self, names: Sequence[str]) -> Slices:
        """Return only these parts, in this order."""
        rows = [self.names.index(name) for name in names]
        return replace(self[rows], names=tuple(names))


def slices_of(
    rows: RowScores, values: ArrayLike, by: str, names: Sequence[Any] | NDArray[Any] | None = None
) -> Slices:
    """Split the answers by `values`, one for each row, such as the predicted class or the camera.

    Parameters
    ----------
    by : what a part is called, such as "class"
    names : what each of the integers in `values` stands for, optional

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.row_scores import score
    >>> from recal.reporting.figure_data import slices_of
    >>> probs, y = np.tile([0.9, 0.1], (200, 1)), (np.arange(200) < 60).astype(int)
    >>> slices = slices_of(score(probs, y), np.where(y == 1, "night", "day"), "time of day")
    >>> slices.names, slices.errors.tolist(), slices.off.tolist()
    (('night', 'day'), [60, 0], [True, True])
    """
    column = np.asarray(values)
    if column.shape != (len(rows),):
        raise InputError(
            f"{by!r} needs one value for each of the {len(rows):,} answers, got shape "
            f"{column.shape}."
        )
    levels, place = np.unique(column, return_inverse=True)
    counts, errors, expected, variance = _sums(rows, place, len(levels))
    low, high = calibrated_range(expected, variance)
    corrected = holm(p_values(errors, expected, variance))
    # Worst first: the strongest evidence, then the largest gap.
    order = np.lexsort((-np.abs(errors - expected) / counts, corrected))
    labels = tuple(str(levels[i] if names is None else names[int(levels[i])]) for i in order)
    columns: tuple[NDArray[Any], ...] = (counts, expected, errors, low, high, corrected)
    return Slices(by, labels, *(column[order] for column in columns))


class Reliability(NamedTuple):
    """A reliability diagram: edges, rows, mean confidence, accuracy and 95 % band of each bin that
    has rows.
    """

    low: Vector
    high: Vector
    counts: Vector
    confidence: Vector
    accuracy: Vector
    band_low: Vector
    band_high: Vector


def reliability(rows: RowScores, n_bins: int = 15) -> Reliability:
    """Return the accuracy in bins of confidence."""
    return reliability_of(table_of(rows.confidence, rows.correct, equal_width_edges(n_bins)))


def reliability_of(table: BinTable) -> Reliability:
    """Return the accuracy in bins. The band contains 95 % of the accuracies of resampled bins.

    The number of correct rows in a resampled bin is binomial, so no draws are needed. Its rate is
    (correct + 1/2) / (rows + 1); otherwise a bin with a few rows, all correct, would look certain.
    """
    from scipy.stats import binom

    filled = table.counts > 0
    counts = table.counts[filled]
    rate = (table.correct[filled] + 0.5) / (counts + 1)
    band = [binom.ppf(q, counts, rate) / counts for q in (0.025, 0.975)]
    accuracy = table.accuracy[filled]
    return Reliability(
        table.edges[:-1][filled],
        table.edges[1:][filled],
        counts,
        table.confidence[filled],
        accuracy,
        np.minimum(band[0], accuracy),
        np.maximum(band[1], accuracy),
    )


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
    >>> from recal.reporting.figure_data import places
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
    errors : (m, 4), the ECE of the original inputs in the group
        NaN for an empty group, or without labels.
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
        """How often each group (rows) had each rank of the error (columns); see `places`."""
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
        """Return plain values for JSON: size and ECE by transformation and group.

        The ECE of an empty group is None.
        """
        names = [member.name.lower() for member in Group]
        rows = list(zip(self.transforms, self.sizes.tolist(), self.errors.tolist()))
        return {
            "confidence_at": self.confidence_at,
            "temperature": self.temperature,
            "groups": {spec: dict(zip(names, sizes)) for spec, sizes, _ in rows},
            "ece": {spec: dict(zip(names, plain_values(errors))) for spec, _, errors in rows},
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
    >>> from recal.reporting.figure_data import group_study
    >>> views = Views([[2.0, 0.0], [2.0, 0.0]], {"zoom:0.5": [[3.0, 0.0], [0.0, 1.0]]}, [0, 1])
    >>> group_study(views).sizes
    array([[0, 1, 1, 0]])
    """
    if not views.transforms:
        raise InputError("These views hold no transformations, so there is nothing to group.")
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
