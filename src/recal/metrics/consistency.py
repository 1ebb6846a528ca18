"""Calibration test: could a calibrated model have made these predictions?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.metrics.calibration_error import COUNT, assign_bins, equal_mass_edges, first_of_each
from recal.metrics.intervals import LEVEL
from recal.metrics.row_scores import Classes, RowScores, score
from recal.schema import check


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
        """The p-value as text; the smallest one that the draws can give is shown as an upper bound."""
        return f"p {'≤' if self.p_value <= 1 / (self.draws + 1) else '='} {self.p_value:.2g}"

    @property
    def finding(self) -> str:
        if not self.rejected:
            return "the test finds no evidence of miscalibration"
        bound = "at most " if self.p_value <= 1 / (self.draws + 1) else ""
        return f"a calibrated model would give a result this far off in {bound}{100 * self.p_value:.2g} % of samples"

    def __str__(self) -> str:
        side = "above" if self.mean_gap > 0 else "below"
        return (
            f"{self.shown}: {self.finding} "
            f"(mean confidence lies {abs(self.mean_gap):.4f} {side} accuracy, {self.n_samples:,} samples)."
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
    check(draws, COUNT, "draws")
    return calibration_test_of(score(probs, y, classes, confidences), n_bins, draws, random_state)


def calibration_test_of(
    rows: RowScores, n_bins: int = 15, draws: int = 1000, random_state: int | None = 0
) -> CalibrationTest:
    """The test for rows that are already scored."""
    edges = equal_mass_edges(rows.confidence, n_bins)
    confidence, slot, sizes = _slots(rows.confidence, edges)
    bin_starts = first_of_each(assign_bins(confidence, edges))
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
