"""How many labels? What two or four times as many would bring: to the fit, and to the share that can be accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from recal.calibrators.base import Calibrator
from recal.checks import check_labels, check_probs
from recal.decisions.bounds import Interval
from recal.decisions.decide import Decision, decide
from recal.errors import InputError
from recal.metrics.proper import nll
from recal.views import Views

_TIMES = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Promise:
    """What a guarantee could reach with so many times the labels, on average over resamples."""

    times: float
    n_samples: int
    coverage: float
    interval: Interval  # of the share accepted, between resamples
    possible: float  # the share of resamples in which anything could be accepted


def more_labels(
    probs: ArrayLike,
    y: ArrayLike,
    like: Decision,
    times: Sequence[float] = _TIMES,
    *,
    draws: int = 40,
    random_state: int | None = 0,
) -> tuple[Promise, ...]:
    """Say what share could be accepted with so many times the labelled samples.

    The samples stand for the population: as many as asked are drawn from them, with replacement, and decided on.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import decide, more_labels
    >>> sure = np.linspace(0.99, 0.5, 400)
    >>> probs, y = np.column_stack([sure, 1 - sure]), (np.arange(400) % 40 == 39).astype(int)
    >>> once, often = more_labels(probs, y, decide(probs, y, risk=0.06), times=(1, 16), draws=20)
    >>> once.coverage < 0.9, often.coverage, often.n_samples
    (True, 1.0, 6400)
    """
    array = check_probs(probs)
    labels = check_labels(y, len(array), array.shape[1], like.classes)
    rng = np.random.default_rng(random_state)
    costs = (None, None) if like.costs is None else (like.costs.error, like.costs.review)
    found = []
    for factor in times:
        n = round(factor * len(array))
        shares = []
        for _ in range(draws):
            rows = rng.integers(len(array), size=n)
            one = decide(
                array[rows],
                labels[rows],
                like.risk,
                like.confidence,
                cost_error=costs[0],
                cost_review=costs[1],
                per_class=like.rule.per_class,
            )
            shares.append(one.coverage)
        low, high = np.quantile(shares, [0.025, 0.975])
        possible = float(np.mean(np.array(shares) > 0))
        found.append(Promise(float(factor), n, float(np.mean(shares)), (float(low), float(high)), possible))
    return tuple(found)


@dataclass(frozen=True)
class LearningCurve:
    """The loss of a calibrator by the number of samples it was fitted on, and where that leads.

    Attributes
    ----------
    sizes : numbers of fitting samples
    losses : mean negative log-likelihood on samples left out, one for each size
    deviations : of each loss between splits
    projected : mapping of 2 and 4 times the largest size to the loss expected there: a + b / n, fitted to the curve
    """

    method: str
    sizes: tuple[int, ...]
    losses: tuple[float, ...]
    deviations: tuple[float, ...]
    projected: dict[int, float]

    @property
    def gain(self) -> float:
        """How much of the loss four times the labels would take away, as a share of it."""
        return 1 - self.projected[max(self.projected)] / self.losses[-1]


def learning_curve(
    calibrator: Calibrator,
    views: Views,
    y: ArrayLike | None = None,
    *,
    splits: int = 10,
    random_state: int | None = 0,
) -> LearningCurve:
    """Fit on an eighth, a quarter and a half of the samples, and on three quarters; measure on the last quarter.

    What remains to be gained falls about as 1/n for a method with a fixed number of parameters, so a + b / n is fitted
    to the losses and read at two and four times the largest size.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import TemperatureScaling, Views
    >>> from recal.decisions import learning_curve
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> curve = learning_curve(TemperatureScaling(), Views(4 * np.eye(3)[y] + 3 * rng.normal(size=(600, 3)), labels=y))
    >>> curve.sizes, curve.gain < 0.05
    ((75, 150, 300, 450), True)
    """
    labels = views.labels if y is None else check_labels(y, views.n_samples, views.n_classes, views.classes)
    if labels is None:
        raise InputError("Labels are needed for a learning curve: pass them as `y`, or use views that hold them.")
    n = views.n_samples
    sizes = [size for size in (n // 8, n // 4, n // 2, 3 * n // 4) if size >= 10]
    if len(sizes) < 2:
        raise InputError(f"A learning curve needs at least 40 samples, got {n}.")
    rng = np.random.default_rng(random_state)
    losses = np.empty((splits, len(sizes)))
    for split in range(splits):
        order = rng.permutation(n)
        test = order[3 * n // 4 :]
        for column, size in enumerate(sizes):
            rows = order[:size]
            fitted = clone(calibrator).fit(views[rows], labels[rows])
            losses[split, column] = nll(fitted.predict_proba(views[test]), labels[test])
    means = losses.mean(axis=0)
    slope, _ = np.polyfit(1.0 / np.array(sizes), means, 1, w=np.sqrt(sizes))
    largest = sizes[-1]
    # A curve that noise made rise says that more labels bring nothing, not that they harm.
    slope = max(float(slope), 0.0)
    projected = {k * largest: float(means[-1]) - slope * (1 - 1 / k) / largest for k in (2, 4)}
    between = losses.std(axis=0, ddof=1) if splits > 1 else np.full(len(sizes), math.nan)
    return LearningCurve(calibrator.short_name, tuple(sizes), tuple(means.tolist()), tuple(between.tolist()), projected)
