"""The search for a threshold with a guarantee: which sets of most confident predictions are
certified.

One binomial bound is exact for one threshold; trying many and keeping the best would break it.
Thresholds are therefore tested one after the other, from the strictest on, and each test is only
made if the one before it succeeded (fixed-sequence testing; as a search over thresholds:
Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test", 2021). One early mistake with high
confidence would end such a sequence, so part of the allowed error probability is kept for later
starts (the fallback procedure of Wiens, 2003, which still errs at most as often as allowed). The
older search by halving (SGR; Geifman and El-Yaniv, 2017) spends error probability on every step and
accepts less.

Sets are defined by size: "the m most confident", for a fixed list of m. Given the confidence of the
next one, these m are independent draws from all predictions above it, so their mistakes are
binomial for any confidence scale. Sets never divide predictions of equal confidence. The guarantee
is exact if the chance of a mistake does not fall as confidence falls; `docs/deciding.md` shows what
happens otherwise.

**Clusters.** Rows of one video or one patient are dependent, and a binomial bound over rows is
wrong. The independent units are then the clusters. One random row per cluster is an independent
sample again, and the exact search is made on these rows. Clusters smaller than the largest are
drawn in proportion to their size, so that every row is equally likely and the guarantee is about
rows. No valid bound can count a cluster as more than one row without assumptions about the
dependence, because all rows of a cluster may be wrong together. Bounds on the loss per cluster
(betting, Hoeffding) and averages of p-values over many draws are valid, too, and accept less: see
`benchmarks/decide_clusters.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.metrics.intervals import Interval, rate_interval

Vector = NDArray[np.float64]
Counts = NDArray[np.intp]

# Larger numbers of predictions are clipped at this value: such a risk can never be shown.
_NEVER = 1e15
# How fast the tested sets grow: at most this share of the possible coverage is lost.
_GROWTH = 1.005
# Where sequences start, by the number of mistakes that their first set may have, and their shares
# of the allowed error probability. With few samples the first gets almost all; with many, one
# mistake near the top must not end the search.
_FEW = ((0, 0.8),)
_MANY = ((0, 0.3), (3, 0.5))
# "Many" samples: this many times the fewest predictions that could certify anything.
_MANY_TIMES = 8
# The remaining sequences start at sets that are 4, 16, ... times as large.
_APART = 4
# Every prediction counts as wrong with at least this share of the risk, because some labels are
# wrong.
_LEAST_DOUBT = 0.2


def chance_of_so_few(errors: ArrayLike, counts: ArrayLike, risk: float) -> Vector:
    """P(at most `errors` mistakes among `counts` predictions) if each is wrong with probability
    `risk`.

    It is the exact p-value of "the true share of mistakes is at least `risk`"; 1 if there are no
    predictions.
    """
    from scipy.special import (
        betainc,
    )  # importing it takes half the time of a command that never needs it

    count, wrong = np.asarray(counts, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    right = np.maximum(count - wrong, 0.0)
    # If all are wrong, or there are none, the probability is 1 and the beta function is undefined.
    return np.where(right > 0, betainc(np.maximum(right, 1.0), wrong + 1.0, 1.0 - risk), 1.0)


def share_interval(hits: NDArray[np.bool_], clusters: Counts | None, confidence: float) -> Interval:
    """Return the Clopper-Pearson interval of a share; for dependent rows, with the effective number
    of rows.

    The number of rows is divided by the design effect, the variance of the mean by clusters over
    that by rows.
    """
    n, share = len(hits), float(hits.mean())
    if clusters is None:
        return rate_interval(int(hits.sum()), n, confidence)
    counts = np.bincount(clusters)
    sums = np.bincount(clusters, weights=hits - share)
    by_rows = share * (1 - share) / n
    n_clusters = len(counts)
    by_clusters = float((sums**2).sum()) / n**2 * n_clusters / max(n_clusters - 1, 1)
    # Without any variation within the sample, a cluster counts as one row.
    effect = by_clusters / by_rows if by_rows > 0 else n / n_clusters
    size = n / max(effect, 1.0)
    return rate_interval(share * size, size, confidence)


def fewest_answers(risk: float, level: float) -> int:
    """Return how many predictions, all of them right, are needed to show a risk at this level."""
    return int(min(np.ceil(np.log(level) / np.log1p(-risk)), _NEVER))


def smallest_size(errors: int, risk: float, level: float) -> int:
    """Return how many predictions are needed to show a risk at this level with this many mistakes
    among them.
    """
    high = errors + 1
    while chance_of_so_few(errors, high, risk) > level:
        high *= 2
    sizes = range(errors + 1, high)
    return (
        errors
        + 1
        + bisect_left(
            sizes, True, key=lambda size: bool(chance_of_so_few(errors, size, risk) <= level)
        )
    )


@dataclass(frozen=True)
class Ranked:
    """Predictions from the most to the least confident; cuts are only possible where the confidence
    changes.
    """

    confidence: Vector  # (n,), falling
    errors: Vector  # (n + 1,): mistakes among the m most confident
    ends: Counts  # the number of predictions down to and including each distinct confidence

    def __len__(self) -> int:
        return len(self.confidence)

    def threshold(self, count: int) -> float:
        """Return the shortest decimal that accepts exactly the `count` most confident; `count` is
        one of `ends`.
        """
        if count == 0:
            return math.inf
        if count == len(self):
            return 0.0
        low, high = float(self.confidence[count]), float(self.confidence[count - 1])
        middle = (low + high) / 2
        for digits in range(2, 18):
            if low < (short := round(middle, digits)) <= high:
                return short
        return high


def ranked(confidence: Vector, wrong: NDArray[np.bool_]) -> Ranked:
    """Order predictions by confidence."""
    order = np.argsort(-confidence, kind="stable")
    falling = np.asarray(confidence, dtype=np.float64)[order]
    errors = np.concatenate([[0.0], np.cumsum(wrong[order], dtype=np.float64)])
    ends = (
        np.flatnonzero(np.r_[falling[1:] != falling[:-1], True]) + 1
        if len(falling)
        else np.empty(0, np.intp)
    )
    return Ranked(falling, errors, ends)


def certified(answers: Ranked, risk: float, level: float, *, calibrated: bool = False) -> Counts:
    """Return the sizes of all sets of most confident predictions whose share of mistakes is shown
    to be below `risk`.

    With probability at least 1 - `level` this is true for all of them, so any of them may be chosen
    by any rule. If confidences are `calibrated` and samples are few, the confidences decide where
    the search starts; labels do not.
    """
    start = likely_start(answers, risk, level) if calibrated else None
    planned, weights = _sequence(len(answers), risk, level, start)
    if not len(planned):
        return np.empty(0, np.intp)
    sizes = answers.ends[
        np.searchsorted(answers.ends, planned)
    ]  # a set never divides predictions of equal confidence
    chances = chance_of_so_few(answers.errors[sizes], sizes, risk)
    passed, carried = np.zeros(len(sizes), np.bool_), 0.0
    starts = np.flatnonzero(weights)
    for start, stop in zip(starts, np.r_[starts[1:], len(sizes)]):
        allowed = carried + weights[start]
        good = chances[start:stop] <= allowed
        length = len(good) if good.all() else int(np.argmin(good))
        passed[start : start + length] = True
        carried = allowed if length == len(good) else 0.0
    return np.unique(sizes[passed])


def one_row_per_cluster(confidence: Vector, wrong: NDArray[np.bool_], clusters: Counts) -> Counts:
    """Draw at most one row of each cluster at random, each row with the same probability; return
    them sorted.

    The draw does not depend on the order of the rows.
    """
    counts = np.bincount(clusters)
    order = np.lexsort((wrong, confidence, clusters))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    drawn = np.random.default_rng(0).integers(0, counts.max(), len(counts))
    return np.sort(order[place == drawn[clusters[order]]])


def likely_start(answers: Ranked, risk: float, level: float) -> int | None:
    """Return the size that is most likely to be certified if confidences are true; None with too
    few or many samples.

    If m mistakes are expected from the confidences and k are allowed at a size, this is the
    probability that a Poisson number with mean m is at most k. Only sizes at which one more mistake
    is allowed are compared.
    """
    from scipy.special import pdtr

    n, fewest = len(answers), fewest_answers(risk, level)
    if not fewest <= n < _MANY_TIMES * fewest:
        return None
    sizes: list[int] = []
    while (size := smallest_size(len(sizes), risk, level)) <= n:
        sizes.append(size)
    doubt = np.cumsum(np.maximum(1.0 - answers.confidence, _LEAST_DOUBT * risk))[
        np.array(sizes) - 1
    ]
    return sizes[int(np.argmax(pdtr(np.arange(len(sizes)), doubt)))]


def _sequence(n: int, risk: float, level: float, start: int | None = None) -> tuple[Counts, Vector]:
    """Return the sizes to test, from the smallest on, and the error probability with which each
    starts a sequence.
    """
    starts = _starts(n, risk, level) if start is None else {start: level}
    if not starts:
        return np.empty(0, np.intp), np.empty(0)
    sizes = [min(starts)]
    while sizes[-1] < n:
        sizes.append(min(n, max(sizes[-1] + 1, math.ceil(sizes[-1] * _GROWTH))))
    planned, weights = np.array(sizes, np.intp), np.zeros(len(sizes))
    for size, weight in starts.items():
        weights[np.searchsorted(planned, size)] += weight
    return planned, weights


def _starts(n: int, risk: float, level: float) -> dict[int, float]:
    """Return the sizes at which sequences start and their error probabilities; fixed before labels
    are seen.
    """
    if (fewest := fewest_answers(risk, level)) > n:
        return {}
    shares = _MANY if n >= _MANY_TIMES * fewest else _FEW
    starts = {smallest_size(errors, risk, share * level): share for errors, share in shares}
    later: list[int] = []
    while (size := max(starts) * _APART ** (len(later) + 1)) < n:
        later.append(size)
    starts |= dict.fromkeys(later, (1 - sum(starts.values())) / max(len(later), 1))
    within = {size: share for size, share in starts.items() if size <= n}
    if len(within) <= 1:  # no room for another start: nothing is kept for later
        return {fewest: level}
    return {size: level * share / sum(within.values()) for size, share in within.items()}


def further_answers(answers: Ranked, risk: float, level: float) -> tuple[int | None, bool]:
    """Return about how many more labelled samples are needed to certify any set, and whether this
    is only a minimum.

    For each set, compute how large it must be if mistakes continue at the same rate. One mistake is
    added, because the best of many sets is partly lucky. None if all sets are wrong too often.
    """
    n, sizes = len(answers), answers.ends
    errors = answers.errors[sizes]
    rates = (errors + 1.0) / (sizes + 1.0)
    possible = rates < risk
    if not possible.any():
        clean = sizes[errors == 0]
        if not len(clean):
            return None, True
        fewest = fewest_answers(risk, level)
        return max(1, math.ceil(n * (fewest / clean.max() - 1))), True
    sizes, rates = sizes[possible].astype(np.float64), rates[possible]
    low, high = np.full(len(sizes), 1.0), np.full(len(sizes), 1e12)
    for _ in range(60):
        middle = np.sqrt(low * high)
        enough = (
            chance_of_so_few(np.ceil(rates * middle), np.ceil(middle), risk) <= _FEW[0][1] * level
        )
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return max(1, math.ceil(float((n * (high / sizes - 1)).min()))), False
