"""A test of calibration: could an honest model have given these answers?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.engine.kernels import bins
from recal.errors import InputError
from recal.metrics.binned import equal_mass_edges
from recal.metrics.cells import gather
from recal.metrics.rows import Classes, score

Vector = NDArray[np.float64]
_BLOCK = 1_000_000
# Added to the variance of each bin's number of right answers. Where confidence is near 1 a single error, such as an
# honest model makes now and then, would otherwise outweigh all other bins, and the test would find little else.
_LEAST_VARIANCE = 0.1


@dataclass(frozen=True)
class CalibrationTest:
    """What `calibration_test` found; prints as a sentence.

    Attributes
    ----------
    p_value : the chance that an honest model looks at least as dishonest as this one
    statistic : squared gaps in units of their variance, summed; larger is less honest
    mean_gap : mean confidence minus accuracy; positive when over-confident
    """

    p_value: float
    statistic: float
    mean_gap: float
    n_samples: int
    draws: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        side = "above" if self.mean_gap > 0 else "below"
        finding = (
            "an honest model would hardly look like this"
            if self.p_value < 0.05
            else "an honest model could well look like this"
        )
        sign = "<=" if self.p_value <= 1 / (self.draws + 1) else "="
        return (
            f"p {sign} {self.p_value:.2g}: {finding} "
            f"(mean confidence lies {abs(self.mean_gap):.4f} {side} accuracy, {self.n_samples:,} samples)."
        )


def calibration_test(
    probs: ArrayLike,
    y: ArrayLike,
    n_bins: int = 15,
    *,
    draws: int = 1000,
    classes: Classes = None,
    random_state: int | None = 0,
) -> CalibrationTest:
    """Test whether the top class is right as often as its confidence says.

    The statistic adds up, over bins of equal numbers of rows, the squared gap between the expected and the observed
    number of right answers, divided by its variance under honesty, and the same for all rows together, which shows
    over-confidence too small to be seen bin by bin. Its distribution under honesty is simulated: each answer is right
    with a chance equal to its confidence (consistency resampling), so the level holds for any number of rows and for
    confidences near 1. The p-value is (1 + simulated at least as large) / (1 + draws).

    Do not use it on the data that a calibrator was fitted on.

    Examples
    --------
    >>> from recal.metrics import calibration_test
    >>> calibration_test([[0.9, 0.1]] * 100, [0] * 70 + [1] * 30).p_value < 0.01
    True
    """
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise InputError(f"`draws` must be a whole number of at least 1, got {draws!r}.")
    rows = score(probs, y, classes)
    edges = equal_mass_edges(rows.confidence, n_bins)
    cells = gather(rows, edges)
    # Right and wrong rows of one run are told apart by their cells; under honesty only the run's confidence matters.
    starts = np.flatnonzero(np.r_[True, cells.run[1:] != cells.run[:-1]])
    sizes = np.add.reduceat(cells.counts, starts)
    expected = np.add.reduceat(cells.counts * cells.confidence, starts)
    confidence = np.clip(expected / sizes, 0.0, 1.0)
    bin_of = np.empty(len(starts), np.intp)
    bins.assign_bins(confidence, edges, bin_of)
    bin_starts = np.flatnonzero(np.r_[True, bin_of[1:] != bin_of[:-1]])
    variance = np.add.reduceat(sizes * confidence * (1 - confidence), bin_starts)

    def statistic(right: NDArray) -> Vector:
        gaps = np.add.reduceat(right - sizes * confidence, bin_starts, axis=-1)
        bins_apart = (gaps**2 / (variance + _LEAST_VARIANCE)).sum(axis=-1)
        together = gaps.sum(axis=-1) ** 2 / (variance.sum() + _LEAST_VARIANCE)
        # Squares of m normal gaps spread sqrt(m) times as widely as one: so weighted, both parts count alike.
        return np.asarray(bins_apart + np.sqrt(len(variance)) * together)

    observed = float(statistic(np.add.reduceat(cells.counts * cells.correct, starts)))
    rng = np.random.default_rng(random_state)
    as_large = 0
    block = max(1, _BLOCK // len(sizes))
    for first in range(0, draws, block):
        simulated = rng.binomial(sizes, confidence, size=(min(block, draws - first), len(sizes)))
        as_large += int((statistic(simulated) >= observed * (1 - 1e-12)).sum())
    return CalibrationTest(
        p_value=(1 + as_large) / (1 + draws),
        statistic=observed,
        mean_gap=float(rows.gap.mean()),
        n_samples=len(rows),
        draws=draws,
    )
