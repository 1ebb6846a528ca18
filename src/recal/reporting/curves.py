"""The numbers behind the figures that show confidence against outcomes. Nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.comparison import Comparison, Row
from recal.metrics import LABELS
from recal.metrics.calibration_error import BinTable, equal_mass_edges, table_of
from recal.metrics.rows import RowScores, equal_width_edges
from recal.metrics.scores import runs
from recal.reporting.expected_errors import calibrated_range

Vector = NDArray[np.float64]
# A method is drawn at the end of the axis, with its value, when it is this many typical distances from the best one.
_FAR = 4.0


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: edges, rows, mean confidence, accuracy and 95 % band of each bin that has rows."""

    low: Vector
    high: Vector
    counts: Vector
    confidence: Vector
    accuracy: Vector
    band_low: Vector
    band_high: Vector


def reliability(rows: RowScores, n_bins: int = 15) -> Reliability:
    """Return the accuracy in bins of confidence. The band contains 95 % of the accuracies of resampled bins.

    The number of correct rows in a resampled bin is binomial, so no draws are needed. Its rate is
    (correct + 1/2) / (rows + 1); otherwise a bin with a few rows, all correct, would look certain.
    """
    return reliability_of(table_of(rows.confidence, rows.correct, equal_width_edges(n_bins)))


def reliability_of(table: BinTable) -> Reliability:
    """Return the diagram of bins that are already filled; see `reliability`."""
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


@dataclass(frozen=True)
class RankBins:
    """Bins with equally many answers, least confident first, with the expected and the observed error rate.

    Most answers of a good model fall into the top bin of a reliability diagram; here they fill most of the figure. A
    calibrated model's error rate in a bin lies between `low` and `high` in 95 % of samples.
    """

    left: Vector  # shares of all answers, from 0 to 1
    right: Vector
    lowest: Vector  # confidences
    highest: Vector
    expected: Vector
    observed: Vector
    low: Vector
    high: Vector
    counts: Vector


def rank_bins(rows: RowScores, n_bins: int = 20) -> RankBins:
    """Put equally many answers into each bin, as far as equal confidences, which stay together, allow."""
    edges = equal_mass_edges(rows.confidence, n_bins)
    place = np.clip(np.searchsorted(edges, rows.confidence, side="left") - 1, 0, len(edges) - 2)
    doubt = 1.0 - rows.confidence
    size = len(edges) - 1
    sums = [np.bincount(place, weights, size) for weights in (None, doubt, doubt * rows.confidence, ~rows.correct)]
    filled = sums[0] > 0
    counts, expected, variance, errors = (column[filled].astype(np.float64) for column in sums)
    low, high = calibrated_range(expected, variance)
    ends = np.cumsum(counts) / len(rows)
    rates = [column / counts for column in (expected, errors, low, high)]
    starts = ends - counts / len(rows)
    edges = np.r_[rows.confidence.min(), edges[1:-1], rows.confidence.max()]
    return RankBins(starts, ends, edges[:-1][filled], edges[1:][filled], rates[0], rates[1], rates[2], rates[3], counts)


@dataclass(frozen=True)
class Curve:
    """The error rate among accepted answers, by the share accepted, most confident first."""

    coverage: Vector
    risk: Vector


def risk_coverage(rows: RowScores, points: int = 200) -> Curve:
    """Return coverage and error rate among the accepted answers, thinned to about `points`."""
    gathered = runs(rows.confidence, rows.correct)
    accepted = np.cumsum(gathered.sizes[::-1])
    wrong = np.cumsum((gathered.sizes - gathered.correct)[::-1])
    # The rate among the first few answers jumps up and down and says nothing.
    kept = np.unique(np.linspace(0, len(accepted) - 1, points).astype(np.intp))
    kept = kept[accepted[kept] >= min(20, len(rows))]
    return Curve(accepted[kept] / len(rows), wrong[kept] / accepted[kept])


@dataclass(frozen=True)
class MethodValues:
    """The values of one metric, and an axis for them. `beyond` names the methods that lie outside the axis."""

    metric: str
    label: str
    digits: int
    rows: Sequence[Row]
    baseline: str
    low: float
    high: float
    beyond: frozenset[str]

    @property
    def reference(self) -> float:
        """The value of the baseline."""
        return next(row.value for row in self.rows if row.method == self.baseline)


def method_values(comparison: Comparison, metric: str) -> MethodValues:
    """Choose an axis by the better half of the methods, so that one bad method does not squash the others."""
    rows = comparison.rows(metric)
    values = np.array([row.value for row in rows])
    finite = values[np.isfinite(values)]
    far: set[str] = {row.method for row in rows if not np.isfinite(row.value)}
    if len(finite) > 2:
        best, middle = float(finite.min()), float(np.median(finite))
        widths = [row.interval[1] - row.interval[0] for row in rows if np.isfinite(row.interval).all()]
        typical = max(middle - best, float(np.median(widths)) if widths else 0.0)
        far |= {row.method for row in rows if typical > 0 and row.value > best + _FAR * typical}
    near = [row for row in rows if row.method not in far] or list(rows)
    ends = [value for row in near for value in (row.value, *row.interval) if np.isfinite(value)] or [0.0]
    low, high = min(ends), max(ends)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    return MethodValues(
        metric, LABELS[metric], comparison.digits(metric), rows, comparison.baseline, low - pad, high + pad,
        frozenset(far),
    )  # fmt: skip
