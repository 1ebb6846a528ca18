"""All metrics of one set of probabilities, with intervals, and the calibration test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, Vector, check_graded, is_graded
from recal.clusters import check_clusters
from recal.metrics import calibration_error, row_scores
from recal.metrics.intervals import LEVEL, NO_INTERVAL, Interval, intervals_of
from recal.metrics.row_scores import Classes, RowScores, score
from recal.schema import Number, check

# Names for display, in the order of every table.
LABELS = {
    "ece": "ECE",
    "mce": "MCE",
    "adaptive_ece": "adaptive ECE",
    "classwise_ece": "class-wise ECE",
    "debiased_ece": "debiased ECE",
    "smooth_ece": "smooth ECE",
    "ks_error": "KS error",
    "brier": "Brier / K",
    "nll": "NLL",
    "error_rate": "error rate",
    "aurc": "AURC",
    "auroc": "AUROC",
}
# The function of each of these names.
METRICS = tuple(
    getattr(row_scores, name, None) or getattr(calibration_error, name) for name in LABELS
)
HIGHER_IS_BETTER = frozenset({"auroc"})


@dataclass(frozen=True)
class Evaluation(Mapping[str, float]):
    """The value of every metric, ``evaluation["ece"]``, and its 95 % interval,
    ``evaluation.intervals["ece"]``.

    Attributes
    ----------
    n_classes : None if only the confidence of each answer was given
    intervals : mapping of metric to (low, high); empty without a bootstrap
    draws : mapping of metric to the number of bootstrap draws behind its interval
    notes : mapping of metric to the reason why it has no interval, if it has none
    n_clusters : number of clusters that were resampled; None if rows were
    """

    values_: Mapping[str, float]
    n_samples: int
    n_classes: int | None
    n_bins: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    draws: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    n_clusters: int | None = None

    def __getitem__(self, name: str) -> float:
        if name not in self.values_:
            raise KeyError(f"no metric {name!r}; there are {', '.join(self.values_)}")
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite and undefined numbers become "inf" and "nan", which
        `float` reads back.
        """
        rows: dict[str, dict[str, Any]] = {
            name: {"value": json_number(value)} for name, value in self.values_.items()
        }
        for name, interval in self.intervals.items():
            rows[name]["interval"] = [json_number(bound) for bound in interval]
            rows[name]["draws"] = self.draws[name]
        for name, note in self.notes.items():
            rows[name]["note"] = note
        return {
            "n_samples": self.n_samples,
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "n_clusters": self.n_clusters,
            "metrics": rows,
        }

    def __str__(self) -> str:
        classes = (
            "graded answers" if self.n_classes is None else f"samples, {self.n_classes:,} classes"
        )
        lines = [f"{self.n_samples:,} {classes}, {self.n_bins} bins"]
        if self.intervals:
            most = max(self.draws.values())
            fewer = [f"{LABELS[name]}: {n:,}" for name, n in self.draws.items() if n < most]
            note = f" ({', '.join(fewer)})" if fewer else ""
            units = "" if self.n_clusters is None else f" of {self.n_clusters:,} clusters"
            lines[0] += f"; 95 % intervals from {most:,} bootstrap draws{units}{note}"
        for name, value in self.values_.items():
            line = f"  {LABELS[name]:<15}{value:>9.5f}"
            lines.append(f"{line}   {self.describe_interval(name)}".rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def describe_interval(self, name: str) -> str:
        """The interval of a metric as text, or the reason why there is none; empty without a
        bootstrap.
        """
        if name in self.notes or name not in self.intervals:
            return self.notes.get(name, "")
        low, high = self.intervals[name]
        return f"{low:.5f} to {high:.5f}"


def json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def evaluate(
    probs: ArrayLike,
    y: ArrayLike,
    bootstrap: int = 0,
    *,
    confidences: ArrayLike | None = None,
    n_bins: int = 15,
    classes: Classes = None,
    clusters: ArrayLike | None = None,
    random_state: int | None = 0,
) -> Evaluation:
    """Every metric of `recal.metrics`, with 95 % intervals if bootstrap draws are requested.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities. A 1-D array is the confidence of each answer, from any system whose answers
        were graded; the NLL and the Brier score are then those of the two outcomes right and wrong,
        without a class-wise ECE.
    y : array-like of shape (n_samples,)
        Integers are column indices; other labels need `classes`. With a 1-D `probs`: which answers
        are right, as booleans or 0 and 1.
    bootstrap : int
        Number of draws, such as 1000; 0 for no intervals. More than 1,000 rows are resampled in
        1,000 blocks, so that a million rows cost little more than ten thousand.
    confidences : array-like of shape (n_samples,), optional
        Result of `predict_confidence`; by default the largest probability of each row. Class-wise
        ECE, Brier score, NLL and error rate do not use them.
    n_bins : int
        For the binned errors.
    classes : sequence of length n_classes, optional
        Names of the columns, in order.
    clusters : array-like of shape (n_samples,), optional
        Names of rows that belong together, such as frames of one video or samples of one patient.
        Intervals then resample whole clusters; they are wider, because rows of one cluster are not
        independent. Fewer than five clusters give no intervals, because their variance is unknown.
    random_state : int or None
        Seed of the draws.

    Examples
    --------
    >>> from recal import evaluate
    >>> result = evaluate([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bootstrap=100)
    >>> round(result["ece"], 4), result["error_rate"] < 0.34
    (0.4, True)
    >>> len(result.intervals["ece"])
    2
    >>> round(evaluate([0.9, 0.8, 0.7], [True, False, True])["ece"], 4)  # graded answers
    0.4
    """
    draws = check(bootstrap, Number(0, whole=True), "bootstrap")
    pair = None if is_graded(probs) else row_scores.read_pair(probs, y, classes)
    if pair is None:
        rows = row_scores.score_graded(*check_graded(probs, y, classes, confidences))
    else:
        rows = row_scores.score_labelled(*pair, confidences)
    n, k = len(rows), None if rows.graded else rows.n_classes
    groups = None if clusters is None else check_clusters(clusters, n)
    values = _values(rows, pair, n_bins)
    if not draws:
        return Evaluation(values, n, k, n_bins)
    n_clusters = None if groups is None else int(groups.max()) + 1
    if n_clusters is not None and n_clusters < 5:
        note = f"no interval: {n_clusters} clusters, at least 5 are needed"
        nothing = dict.fromkeys(values, NO_INTERVAL), dict.fromkeys(values, 0)
        return Evaluation(
            values, n, k, n_bins, *nothing, dict.fromkeys(values, note), n_clusters=n_clusters
        )
    rng = np.random.default_rng(random_state)
    found = intervals_of(rows, pair, values, n_bins, draws, groups, rng)
    notes = {}
    if math.isnan(values["auroc"]):
        lacking = "wrong" if rows.correct.all() else "right"
        notes["auroc"] = f"undefined without {lacking} answers"
    return Evaluation(values, n, k, n_bins, *found, notes, n_clusters=n_clusters)


def _values(rows: RowScores, pair: tuple[Floats, Labels] | None, n_bins: int) -> dict[str, float]:
    edges = calibration_error.equal_width_edges(n_bins)
    width = calibration_error.table_of(rows.confidence, rows.correct, edges)
    mass_edges = calibration_error.equal_mass_edges(rows.confidence, n_bins)
    mass = calibration_error.table_of(rows.confidence, rows.correct, mass_edges)
    gathered = row_scores.runs(rows)
    values = {
        "ece": width.ece(),
        "mce": width.mce(),
        "adaptive_ece": mass.ece(),
        "classwise_ece": None if pair is None else calibration_error.classwise_ece_of(*pair, edges),
        "debiased_ece": width.debiased(),
        "smooth_ece": calibration_error.smooth_ece_of(rows),
        "ks_error": row_scores.ks_of(gathered),
        "brier": float(rows.brier.mean()) / rows.n_classes,
        "nll": float(rows.nll.mean()),
        "error_rate": 1.0 - float(rows.correct.mean()),
        "aurc": row_scores.aurc_of(gathered),
        "auroc": row_scores.auroc_of(gathered),
    }
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class CalibrationTest:
    """The result of `calibration_test`; prints as a sentence.

    Attributes
    ----------
    p_value : the probability that a calibrated model looks at least as miscalibrated as this one
    statistic : the sum of squared gaps in units of their variance; larger is less calibrated
    mean_gap : mean confidence minus accuracy; positive if overconfident
    """

    p_value: float
    statistic: float
    mean_gap: float
    n_samples: int
    draws: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def rejected(self) -> bool:
        """Whether calibration is rejected at the 5 % level."""
        return self.p_value < 1 - LEVEL

    @property
    def shown(self) -> str:
        """The p-value as text; the smallest that the draws can give is an upper bound."""
        return f"p {'≤' if self.p_value <= 1 / (self.draws + 1) else '='} {self.p_value:.2g}"

    @property
    def finding(self) -> str:
        if not self.rejected:
            return "the test finds no evidence of miscalibration"
        bound = "at most " if self.p_value <= 1 / (self.draws + 1) else ""
        return (
            "a calibrated model would give a result this far off in "
            f"{bound}{100 * self.p_value:.2g} % of samples"
        )

    def __str__(self) -> str:
        side = "above" if self.mean_gap > 0 else "below"
        return (
            f"{self.shown}: {self.finding} (mean confidence lies {abs(self.mean_gap):.4f} {side} "
            f"accuracy, {self.n_samples:,} samples)."
        )


def calibration_test(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    confidences: ArrayLike | None = None,
    draws: int = 1000,
    classes: Classes = None,
    random_state: int | None = 0,
) -> CalibrationTest:
    """Test whether the top class is right as often as its confidence says.

    The statistic sums the squared gap between the expected and the observed number of right
    answers, divided by its variance under calibration, over bins with equal numbers of rows. It
    adds the same term for all rows together, which shows overconfidence that is too small to be
    seen bin by bin. Its distribution under calibration is simulated: each answer is right with a
    probability equal to its confidence (consistency resampling), so the level holds for any number
    of rows and for confidences near 1. The p-value is (1 + simulated at least as large) / (1 +
    draws).

    Do not use it on the data that a calibrator was fitted on.

    Examples
    --------
    >>> from recal.metrics import calibration_test
    >>> calibration_test([[0.9, 0.1]] * 100, [0] * 70 + [1] * 30).p_value < 0.01
    True
    """
    check(draws, calibration_error.COUNT, "draws")
    return calibration_test_of(score(probs, y, classes, confidences), n_bins, draws, random_state)


def calibration_test_of(
    rows: RowScores, n_bins: int = 15, draws: int = 1000, random_state: int | None = 0
) -> CalibrationTest:
    """The test for rows that are already scored."""
    edges = calibration_error.equal_mass_edges(rows.confidence, n_bins)
    confidence, slot, sizes = _slots(rows.confidence, edges)
    bin_starts = row_scores.first_of_each(calibration_error.assign_bins(confidence, edges))
    variance = np.add.reduceat(sizes * confidence * (1 - confidence), bin_starts)
    # Even a calibrated model makes an error now and then where confidence is near 1. Without the
    # additional variance, a single such error would outweigh all other bins.
    least = 0.1

    def statistic(right: NDArray[Any]) -> Vector:
        gaps = np.add.reduceat(right - sizes * confidence, bin_starts, axis=-1)
        bins_apart = (gaps**2 / (variance + least)).sum(axis=-1)
        together = gaps.sum(axis=-1) ** 2 / (variance.sum() + least)
        # The sum of m squared normal gaps varies sqrt(m) times as much as one: this gives both
        # parts equal weight.
        return np.asarray(bins_apart + np.sqrt(len(variance)) * together)

    observed = float(statistic(np.bincount(slot, rows.correct)))
    rng = np.random.default_rng(random_state)
    simulated = statistic(rng.binomial(sizes, confidence, size=(draws, len(sizes))))
    as_large = int((simulated >= observed * (1 - 1e-12)).sum())
    return CalibrationTest(
        p_value=(1 + as_large) / (1 + draws),
        statistic=observed,
        mean_gap=float(rows.gap.mean()),
        n_samples=len(rows),
        draws=draws,
    )


def _slots(
    confidence: Vector, edges: Vector, most: int = 1000
) -> tuple[Vector, NDArray[np.intp], NDArray[np.intp]]:
    """Gather rows of nearly equal confidence within a bin: mean confidence, slot of each row, rows.

    The number of right answers in a slot is then binomial.
    """
    cuts = np.unique(np.r_[edges[1:-1], np.quantile(confidence, np.linspace(0, 1, most))])
    places = confidence if len(confidence) <= most else np.searchsorted(cuts, confidence)
    _, slot, sizes = np.unique(places, return_inverse=True, return_counts=True)
    means = np.bincount(slot, confidence) / sizes
    lowest = np.full(len(sizes), np.inf)
    np.minimum.at(lowest, slot, confidence)
    # Rounding must not move a mean across an edge.
    return np.maximum(np.minimum(means, 1.0), lowest), slot, sizes
