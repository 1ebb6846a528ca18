"""How many labels? The share of answers that two or four times as many would allow to accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import check_confidences, check_labels, check_probs
from recal.decisions.bounds import Interval
from recal.decisions.deciding import decide
from recal.decisions.decision import Decision
from recal.progress import track

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
    confidences: ArrayLike | None = None,
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
    sure = None if confidences is None else check_confidences(confidences, len(array))
    rng = np.random.default_rng(random_state)
    costs = (None, None) if like.costs is None else (like.costs.error, like.costs.review)
    found = []
    for factor in track(times, "sizes"):
        n = round(factor * len(array))
        shares = []
        for _ in track(range(draws), "draw"):
            rows = rng.integers(len(array), size=n)
            one = decide(
                array[rows],
                labels[rows],
                like.risk,
                like.confidence,
                confidences=None if sure is None else sure[rows],
                cost_error=costs[0],
                cost_review=costs[1],
                per_class=like.rule.per_class,
            )
            shares.append(one.coverage)
        low, high = np.quantile(shares, [0.025, 0.975])
        possible = float(np.mean(np.array(shares) > 0))
        found.append(Promise(float(factor), n, float(np.mean(shares)), (float(low), float(high)), possible))
    return tuple(found)
