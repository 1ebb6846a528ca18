"""All metrics of one set of probabilities at once, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import Floats, Labels, check_confidences, check_weights
from recal.engine.same_rows import fitted_rows, warn_of_fitted
from recal.errors import InputError
from recal.metrics import passes
from recal.metrics.binned import BinTable, Vector, classwise_ece, equal_mass_edges, table_of
from recal.metrics.cells import gather
from recal.metrics.intervals import Interval, classwise_interval
from recal.metrics.intervals import bootstrap as bootstrap_cells
from recal.metrics.ranked import auroc_of, ks_of, runs, weighted_aurc_of
from recal.metrics.rows import Classes, RowScores, check_pair, equal_width_edges, run
from recal.metrics.smooth import cosine_coefficients, fixed_point

# In the order in which people read them: what they mean, and whether lower is better.
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
    """The value of every metric, ``evaluation["ece"]``, and its 95 % interval, ``evaluation.intervals["ece"]``.

    Attributes
    ----------
    intervals : mapping of metric to (low, high); empty without a bootstrap
    draws : mapping of metric to the number of bootstrap draws behind its interval
    """

    values_: Mapping[str, float]
    n_samples: int
    n_classes: int
    n_bins: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    draws: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        if name not in self.values_:
            raise KeyError(f"no metric {name!r}; there are {', '.join(self.values_)}")
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite becomes the string "nan" or "inf", which `float` reads back."""
        rows: dict[str, dict[str, Any]] = {name: {"value": _plain(value)} for name, value in self.values_.items()}
        for name, interval in self.intervals.items():
            rows[name]["interval"] = [_plain(bound) for bound in interval]
            rows[name]["draws"] = self.draws[name]
        return {
            "n_samples": self.n_samples,
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "metrics": rows,
        }

    def __str__(self) -> str:
        lines = [f"{self.n_samples:,} samples, {self.n_classes:,} classes, {self.n_bins} bins"]
        if self.intervals:
            most = max(self.draws.values())
            fewer = [f"{LABELS[name]}: {n:,}" for name, n in self.draws.items() if n < most]
            note = f" ({', '.join(fewer)})" if fewer else ""
            lines[0] += f"; 95 % intervals from {most:,} bootstrap draws{note}"
        for name, value in self.values_.items():
            line = f"  {LABELS[name]:<15}{value:>9.5f}"
            if name in self.intervals:
                low, high = self.intervals[name]
                line += f"   [{low:.5f}, {high:.5f}]"
            lines.append(line)
        return "\n".join(lines)

    __repr__ = __str__


def _plain(value: float) -> float | str:
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
    random_state: int | None = 0,
) -> Evaluation:
    """Every metric of `recal.metrics`, with 95 % bootstrap intervals where draws are asked for.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
    y : array-like of shape (n_samples,)
        Integers are column indices; anything else needs `classes`.
    bootstrap : int
        Number of draws, such as 1000; 0 for none. Rows are not resampled one by one beyond 16,384 of them: cells of
        512 confidence quantiles stand for them, so a million rows cost little more than ten thousand.
    sample_weight : array-like of shape (n_samples,), optional
        How much each row counts. There are no intervals then.
    confidences : array-like of shape (n_samples,), optional
        What `predict_confidence` gave; by default each row's largest probability. All but class-wise ECE, Brier score,
        NLL and error rate are about them.
    n_bins : int
        For the binned errors.
    classes : sequence of length n_classes, optional
        The columns' names, in the columns' order.
    random_state : int or None
        Seed of the draws.

    Examples
    --------
    >>> from recal import evaluate
    >>> found = evaluate([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], bootstrap=100)
    >>> round(found["ece"], 4), found["error_rate"] < 0.34
    (0.4, True)
    >>> len(found.intervals["ece"])
    2
    """
    draws = _check_draws(bootstrap)
    if draws and sample_weight is not None:
        raise InputError(
            "must be 0 with sample_weight: intervals are for rows that count once each",
            argument="bootstrap",
            came=f"got {draws}",
        )
    array, labels = check_pair(probs, y, classes)
    edges = equal_width_edges(n_bins)
    n, k = array.shape
    warn_of_fitted(fitted_rows(array), n, "these metrics are better than on new inputs", "Evaluate on other samples.")
    rows = RowScores(np.empty(n), np.empty(n, np.bool_), np.empty(n), np.empty(n), k)
    run(passes.score_rows, array, labels, rows.confidence, rows.correct, rows.brier, rows.nll)
    if confidences is not None:
        rows = replace(rows, confidence=check_confidences(confidences, n))
    if sample_weight is not None:
        return Evaluation(_weighted(array, labels, rows, n_bins, check_weights(sample_weight, n)), n, k, n_bins)
    gaps = np.zeros((1, k, n_bins))
    run(passes.bin_classwise, array, labels, edges, np.zeros(n, np.intp), gaps)
    width = table_of(rows.confidence, rows.correct, edges)
    mass = table_of(rows.confidence, rows.correct, equal_mass_edges(rows.confidence, n_bins))
    values = _values(rows, width, mass, float(np.abs(gaps).sum() / (n * k)))
    if not draws:
        return Evaluation(values, n, k, n_bins)
    rng = np.random.default_rng(random_state)
    found = bootstrap_cells(gather(rows, edges), values, width, mass, draws, rng)
    used = dict.fromkeys(found, draws)
    found["classwise_ece"], used["classwise_ece"] = classwise_interval(array, labels, rows, edges, draws, rng)
    intervals = {name: _holding(values[name], found[name]) for name in LABELS}
    return Evaluation(values, n, k, n_bins, intervals, used)


def _weighted(array: Floats, labels: Labels, rows: RowScores, n_bins: int, weights: Vector) -> dict[str, float]:
    # Rows that do not count are left out: a truth of probability 0 must not make NaN of infinity.
    held = weights > 0.0
    scores = rows.confidence[held], rows.correct[held], rows.brier[held], rows.nll[held]
    rows = RowScores(*scores, rows.n_classes)
    weights = weights[held]
    edges = equal_width_edges(n_bins), equal_mass_edges(rows.confidence, n_bins, weights)
    width, mass = (table_of(rows.confidence, rows.correct, between, weights) for between in edges)
    classwise = classwise_ece(array[held], labels[held], n_bins, sample_weight=weights)
    return _values(rows, width, mass, classwise, weights)


def _values(
    rows: RowScores, width: BinTable, mass: BinTable, classwise: float, weights: Vector | None = None
) -> dict[str, float]:
    gathered = runs(rows.confidence, rows.correct, weights)
    gaps = rows.gap / len(rows) if weights is None else rows.gap * (weights / weights.sum())
    found = {
        "ece": width.ece(),
        "mce": width.mce(),
        "adaptive_ece": mass.ece(),
        "classwise_ece": classwise,
        "debiased_ece": width.debiased(),
        "smooth_ece": fixed_point(cosine_coefficients(rows.confidence, gaps)),
        "ks_error": ks_of(gathered),
        "brier": float(np.average(rows.brier, weights=weights)) / rows.n_classes,
        "nll": float(np.average(rows.nll, weights=weights)),
        "error_rate": 1.0 - float(np.average(rows.correct, weights=weights)),
        "aurc": weighted_aurc_of(gathered),
        "auroc": auroc_of(gathered),
    }
    return {name: found[name] for name in LABELS}


def _holding(value: float, interval: Interval) -> Interval:
    """A small calibration error is mostly noise, and its interval may end below it: a person expects it inside."""
    return min(interval[0], value), max(interval[1], value)


def _check_draws(draws: int) -> int:
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 0:
        raise InputError(
            "is the number of draws, a whole number of at least 0", argument="bootstrap", came=f"got {draws!r}"
        )
    return int(draws)
