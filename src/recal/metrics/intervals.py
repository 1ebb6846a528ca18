"""Intervals that hold with few mistakes, where a bootstrap fails: it cannot draw a mistake that the
sample lacks.

With fewer than 30 mistakes, or 30 right answers (fewer still if both are common),
`extend_for_few_mistakes` extends the bootstrap intervals to exact ones. NLL, Brier score, AURC and
AUROC are sums over the mistakes; the AURC, for one, is the sum of -log(coverage at which the
mistake is accepted) / n. Four methods, each for one kind of number:

- a rate: Clopper and Pearson (1934), exact;
- a sum of scores over rare rows, such as the losses of all mistakes: the gamma interval of Fay and
  Feuer (1997), which
  adds one pseudo-observation and equals the exact Poisson interval if all scores are equal;
- a mean of a few numbers between 0 and 1, such as the AUROC: the Clopper-Pearson interval for the
  same number of coin
  flips, which vary more than any other numbers with this mean;
- a sum or a difference of two estimates that each have an interval: MOVER (Zou and Donner, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.clusters import cluster_sums
from recal.metrics.row_scores import RowScores, Vector

Interval = tuple[float, float]

LEVEL = 0.95
# 97.5 % quantile of the normal distribution.
DEVIATIONS = 1.96
NO_INTERVAL = (math.nan, math.nan)
# Below this number of mistakes (or of right answers), intervals are extended to the exact ones. The
# exact ones assume rare events; the number falls to 0 as the error rate goes to one half.
FEW = 30
# The smallest probability of a wrong answer: the resolution of float32 next to 1.
_LEAST_DOUBT = 2.0**-24


def rate_interval(count: float, n: float, level: float = LEVEL) -> Interval:
    """Clopper-Pearson interval of a rate; `count` and `n` may be effective numbers, which are not
    whole.

    Examples
    --------
    >>> from recal.metrics.intervals import rate_interval
    >>> low, high = rate_interval(0, 200)
    >>> low, round(high, 4)  # no mistake among 200
    (0.0, 0.0183)
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2  # of a rate
    low = float(betaincinv(count, n - count + 1, tail)) if count > 0 else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return low, high


def sum_interval(scores: Vector, pseudo: float, level: float = LEVEL) -> Interval:
    """Interval of the expected sum of scores over rare events, from the scores of the events that
    occurred.

    Parameters
    ----------
    scores : array of shape (n_events,)
        Positive numbers; the number of events is assumed to be Poisson distributed.
    pseudo : float
        Score of the pseudo-observation: the score of an event that did not occur but might have.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.intervals import sum_interval
    >>> low, high = sum_interval(np.ones(3), 1.0)
    >>> round(low, 2), round(high, 2)  # the exact Poisson interval of 3 events
    (0.62, 8.77)
    """
    from scipy.special import gammaincinv

    tail = (1 - level) / 2
    total, squares = float(scores.sum()), float(np.square(scores).sum())
    if not math.isfinite(total):
        return total, total
    low = squares / total * float(gammaincinv(total**2 / squares, tail)) if squares > 0 else 0.0
    total, squares = total + pseudo, squares + pseudo**2
    if not math.isfinite(total):
        return low, total
    high = (
        squares / total * float(gammaincinv(total**2 / squares, 1 - tail)) if squares > 0 else 0.0
    )
    return low, high


def combined_interval(
    one: float, first: Interval, two: float, second: Interval, correlation: float = 0.0
) -> Interval:
    """MOVER: interval of ``one + two`` from the interval of each; `correlation` is the correlation
    of the estimates.

    For a difference pass the negative of the second estimate, of its interval and of the
    correlation.

    Examples
    --------
    >>> from recal.metrics.intervals import combined_interval
    >>> combined_interval(1.0, (0.7, 1.3), 2.0, (1.6, 2.4))
    (2.5, 3.5)
    """
    below, above = (one - first[0], two - second[0]), (first[1] - one, second[1] - two)

    def length(a: float, b: float) -> float:
        return math.sqrt(max(a * a + b * b + 2 * correlation * a * b, 0.0))

    return one + two - length(*below), one + two + length(*above)


def extend_for_few_mistakes(
    rows: RowScores,
    values: Mapping[str, float],
    intervals: Mapping[str, Interval],
    clusters: NDArray[np.intp] | None = None,
    wrong_nll: float | None = None,
) -> tuple[dict[str, Interval], dict[str, str]]:
    """Replace or extend bootstrap intervals by exact ones; return them with notes on those that
    need one.

    `wrong_nll` is the mean loss of a mistake; see `loss_if_wrong`. A cluster counts as one event.
    """
    n, wrong = len(rows), ~rows.correct
    rare = wrong if wrong.sum() <= n / 2 else rows.correct
    of_rare = None if clusters is None else clusters[rare]
    # The number of rare rows in an event that did not occur: the largest cluster of them, or a
    # typical whole cluster.
    scale = 1.0
    if clusters is not None:
        sizes = np.bincount(clusters)
        scale = float(
            np.bincount(clusters[rare]).max() if rare.any() else sizes @ sizes / sizes.sum()
        )

    def rare_sum(column: Vector, pseudo: float) -> tuple[float, Interval]:
        """Sum of a score over the rare rows, divided by n, and its interval."""
        scores = cluster_sums(column[rare], of_rare)
        low, high = sum_interval(
            scores, max(pseudo * scale, float(scores.mean()) if len(scores) else 0.0)
        )
        return float(scores.sum()) / n, (low / n, high / n)

    def extend(name: str, exact: Interval) -> None:
        drawn = result[name]
        missing = any(map(math.isnan, drawn))
        result[name] = exact if missing else (min(exact[0], drawn[0]), max(exact[1], drawn[1]))

    def mirror(interval: Interval) -> Interval:
        """Turn an interval for the rare rows into one for a number from 0 (all rows right) to 1
        (all wrong).
        """
        low, high = interval[0], min(interval[1], 1.0)
        return (low, high) if rare is wrong else (1.0 - high, 1.0 - low)

    result, notes = dict(intervals), dict[str, str]()
    if clusters is None:
        result["error_rate"] = rate_interval(float(wrong.sum()), n)
    else:
        extend("error_rate", mirror(rare_sum(np.ones(n), 1.0)[1]))
    if math.isnan(values["auroc"]):
        notes["auroc"] = f"undefined without {'wrong' if rare is wrong else 'right'} answers"
    events = len(cluster_sums(np.ones(int(rare.sum())), of_rare))
    if events >= FEW * (1 - 2 * rare.mean()):
        return result, notes
    if rare is wrong:
        missing = _mean_loss(1.0 - rows.confidence) if wrong_nll is None else wrong_nll
        extend("nll", _mean_interval(rows.nll, rare, clusters, *rare_sum(rows.nll, missing)))
        column = rows.brier / rows.n_classes
        missing = float((1 + rows.confidence**2).mean()) / rows.n_classes
        extend("brier", _mean_interval(column, rare, clusters, *rare_sum(column, missing)))
    extend("aurc", mirror(rare_sum(-np.log(_coverage(rows.confidence)), 1.0)[1]))
    if events:
        # The same number of coin flips varies more than any other numbers in [0, 1] with this mean.
        extend("auroc", rate_interval(values["auroc"] * events, events))
    margin = max(
        result["error_rate"][1] - values["error_rate"],
        values["error_rate"] - result["error_rate"][0],
    )
    for name in result.keys() - {"nll", "brier", "aurc", "auroc", "error_rate"}:
        # A mistake changes the gap of one confidence, or the gaps of two classes.
        most = values[name] + (2 * margin / rows.n_classes if name == "classwise_ece" else margin)
        result[name] = result[name][0], min(max(result[name][1], most), 1.0)
    return result, notes


def _mean_interval(
    column: Vector,
    rare: NDArray[np.bool_],
    clusters: NDArray[np.intp] | None,
    rare_part: float,
    exact: Interval,
) -> Interval:
    """Interval of the mean of a column:

    normal for the common rows, exact for the sum over the rare ones.
    """
    common = np.where(rare, 0.0, column)
    mean = float(common.mean())
    residuals = cluster_sums(common - mean, clusters)
    half = DEVIATIONS * math.sqrt(float(residuals @ residuals)) / len(column)
    if not math.isfinite(exact[1]):
        return mean - half + exact[0], exact[1]
    low, high = combined_interval(mean, (mean - half, mean + half), rare_part, exact)
    return max(low, 0.0), high


def _coverage(confidence: Vector) -> Vector:
    """Share of rows with at least each row's confidence;

    rows of equal confidence count one half of each other.
    """
    order = np.sort(confidence)
    below, through = (
        np.searchsorted(order, confidence, "left"),
        np.searchsorted(order, confidence, "right"),
    )
    return np.asarray((len(order) - 0.5 * (below + through)) / len(order))


def _mean_loss(doubt: Vector) -> float:
    """Mean of -log(doubt), with 0 replaced by the resolution of float32;

    infinite if most rows have a doubt of 0.
    """
    return (
        math.inf
        if np.median(doubt) <= 0
        else float(-np.log(np.maximum(doubt, _LEAST_DOUBT)).mean())
    )


def loss_if_wrong(probs: Floats, confidence: Vector, most: int = 2000) -> float:
    """Mean NLL of a mistake if all rows are equally likely to be wrong and the other classes have
    the model's odds.

    This is cautious: mistakes are more likely in rows of low confidence, where they cost less. At
    most `most` rows, evenly spaced in confidence, are read.
    """
    chosen = np.argsort(confidence, kind="stable")[:: max(1, len(confidence) // most)]
    rest = np.sort(probs[chosen].astype(np.float64), axis=1)[:, :-1]
    rest /= np.maximum(rest.sum(axis=1, keepdims=True), _LEAST_DOUBT)
    spread = -(rest * np.log(np.maximum(rest, _LEAST_DOUBT))).sum(axis=1)
    return float(spread.mean()) + _mean_loss(1.0 - probs[chosen].max(axis=1).astype(np.float64))
