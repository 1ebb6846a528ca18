"""How many labels? What fewer of them gave, and what two and four times as many would bring."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.comparison import Comparison
from recal.comparison.run import refit
from recal.errors import RecalError
from recal.metrics.rows import score

Vector = NDArray[np.float64]
# A fit that takes longer than this is not repeated for a picture.
MOST_SECONDS = 20.0
_PARTS = (0.125, 0.25, 0.5, 1.0)
_REPEATS = 3


@dataclass(frozen=True)
class LearningCurve:
    """NLL on the test rows by the number of labels a method was fitted on.

    Attributes
    ----------
    sizes : numbers of fitting rows
    nll : the mean over random parts of that size
    low, high : lowest and highest of the parts
    slope : of a constant + slope / size, fitted to the means, the larger sizes counting more; never negative
    width : the width of the 95 % interval of the NLL on the test rows that there are
    """

    method: str
    sizes: NDArray[np.int64]
    nll: Vector
    low: Vector
    high: Vector
    slope: float
    width: float

    def at(self, factor: float) -> float:
        """The NLL to be expected with so many times the labels."""
        return float(self.nll[-1]) - self.slope / float(self.sizes[-1]) * (1 - 1 / factor)

    @property
    def words(self) -> str:
        now = int(self.sizes[-1])
        gain = [self.at(1) - self.at(factor) for factor in (2, 4)]
        if max(gain) < 0.1 * self.width:
            more = "the fit itself has nearly all the labels it can use"
        else:
            more = (
                f"the fit would gain about {gain[0]:.4f} of NLL from twice and {gain[1]:.4f} from four times the labels"
            )
        return (
            f"Fitted on {now:,} labels: {more}. The interval of the test NLL is {self.width:.4f} wide; twice the test "
            f"labels would make it {self.width / 2**0.5:.4f}, four times {self.width / 2:.4f}."
        )


def learning_curve(comparison: Comparison, method: str, seed: int = 0) -> LearningCurve | None:
    """Fit a method again on parts of its fitting rows; None where that is not possible or would take too long."""
    calibrator, fit, test = comparison.calibrators.get(method), comparison.fit_views, comparison.test
    if calibrator is None or fit is None or test is None:
        return None
    index = list(comparison.methods).index(method)
    if comparison.fit_seconds[:, index].mean() * _REPEATS > MOST_SECONDS or fit.n_samples < 40:
        return None
    rng = np.random.default_rng(seed)
    labels = comparison.test_labels
    rows = []
    for part in _PARTS:
        size = int(part * fit.n_samples)
        found = []
        for _ in range(_REPEATS if part < 1 else 1):
            chosen = fit[np.sort(rng.permutation(fit.n_samples)[:size])]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that parts are small is the point
                    probs = refit(calibrator, chosen, seed).predict_proba(test)
            except RecalError:  # too few rows for this method, which is an answer too
                continue
            found.append(float(score(probs, labels).nll.mean()))
        if found and np.isfinite(found).all():
            rows.append((size, float(np.mean(found)), min(found), max(found)))
    if len(rows) < 2:
        return None
    sizes, nll, low, high = (np.array(column) for column in zip(*rows))
    # The spread of a mean falls with the size, so the larger ones tell more.
    slope = max(float(np.polyfit(1 / sizes, nll, 1, w=sizes)[0]), 0.0)
    spread = float(comparison.samples[method].nll.std()) / len(labels) ** 0.5
    return LearningCurve(method, sizes.astype(np.int64), nll, low, high, slope, 2 * 1.96 * spread)
