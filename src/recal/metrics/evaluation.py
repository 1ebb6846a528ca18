"""All metrics of one set of probabilities, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import Vector, check_graded, check_weights, is_graded
from recal.clusters import check_clusters
from recal.errors import InputError
from recal.metrics.calibration_error import (
    classwise_ece_of,
    equal_mass_edges,
    equal_width_edges,
    smooth_ece_of,
    table_of,
)
from recal.metrics.intervals import NO_INTERVAL, Interval, intervals_of
from recal.metrics.row_scores import (
    Classes,
    RowScores,
    positive_rows,
    read_pair,
    score_graded,
    score_labelled,
)
from recal.metrics.scores import aurc_of, auroc_of, ks_of, runs
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
    sample_weight: ArrayLike | None = None,
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
    sample_weight : array-like of shape (n_samples,), optional
        Relative weights of the rows. There are no intervals with weights.
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
    if draws and sample_weight is not None:
        raise InputError(
            f"must be 0 with sample_weight, because intervals need equally weighted rows, got {draws}",
            argument="bootstrap",
        )
    pair = None if is_graded(probs) else read_pair(probs, y, classes)
    if pair is None:
        rows = score_graded(*check_graded(probs, y, classes, confidences))
    else:
        rows = score_labelled(*pair, confidences)
    n, k = len(rows), None if rows.graded else rows.n_classes
    weights = None if sample_weight is None else check_weights(sample_weight, n)
    groups = None if clusters is None else check_clusters(clusters, n)
    edges = equal_width_edges(n_bins)
    classwise = None if pair is None else classwise_ece_of(*pair, edges, weights)
    if weights is not None:
        rows, weights = positive_rows(rows, weights)
    values = _values(rows, n_bins, classwise, weights)
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


def _values(
    rows: RowScores, n_bins: int, classwise: float | None, weights: Vector | None
) -> dict[str, float]:
    width = table_of(rows.confidence, rows.correct, equal_width_edges(n_bins), weights)
    edges = equal_mass_edges(rows.confidence, n_bins, weights)
    mass = table_of(rows.confidence, rows.correct, edges, weights)
    gathered = runs(rows, weights)
    values = {
        "ece": width.ece(),
        "mce": width.mce(),
        "adaptive_ece": mass.ece(),
        "classwise_ece": classwise,
        "debiased_ece": width.debiased(),
        "smooth_ece": smooth_ece_of(rows, weights),
        "ks_error": ks_of(gathered),
        "brier": float(np.average(rows.brier, weights=weights)) / rows.n_classes,
        "nll": float(np.average(rows.nll, weights=weights)),
        "error_rate": 1.0 - float(np.average(rows.correct, weights=weights)),
        "aurc": aurc_of(gathered),
        "auroc": auroc_of(gathered),
    }
    return {name: value for name, value in values.items() if value is not None}
