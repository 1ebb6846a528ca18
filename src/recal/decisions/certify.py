"""Guarantees: which sets of predictions are shown to hold few enough mistakes.

A rule offers a list of sets of predictions, from strict to loose: "the m most confident", for all
m, or the policies of a cascade. This module says how far down the list one may go. There are two
promises.

**Confidence**: with probability 1 - `level` over the labelled samples, at most a share `risk` of
the accepted predictions is wrong. One binomial bound is exact for one set; trying many and keeping
the best would break it. Sets are therefore tested in a fixed order, each only if the one before it
passed (fixed-sequence testing; as a search over thresholds: Angelopoulos, Bates, Candes, Jordan and
Lei, "Learn then Test", 2021).

Given the confidence of the next prediction, the m most confident are independent draws from all
predictions above it, so their mistakes are binomial for any confidence scale. Sets never divide
predictions of equal confidence. The guarantee is exact if the chance of a mistake does not fall as
confidence falls.

The order may begin at any size, and a good start matters: a mistake at the very top would end a
search that begins there. The start is chosen from the largest set downwards. Whether to begin at
the m most confident is decided from all confidences, and from the labels of the predictions *below*
these m. The labels of the m are independent of this decision, so the first test is as valid as a
test of a set that was fixed in advance. If the search begins at or below the last good set, the
decision not to begin at the first bad one depends only on labels below that, so its test is valid
as well. Together the error probability is `level`, which one start uses up: there are no others.

**Average**: over labelled samples and new inputs, the expected share of mistakes among accepted
predictions is at most `risk`. The largest set with (wrong + 1) / (accepted + 1) <= risk nearly does
this. Its error is a little too high, because its size varies from draw to draw, and large sets,
which were lucky, count more. The size is therefore averaged over resamples of the labels, and
shrunk by part of its variation. This promise is measured in simulations, not proven:
`benchmarks/promises.py`.

**Clusters.** Rows of one video or one patient are dependent; the clusters are the independent
units. Both promises are then about an average cluster, where each cluster counts the same whatever
its size: draw a cluster, then one of its rows. One random row per cluster is an independent sample
of these, and the exact search is made on them. For the promise on average, each row weighs one over
the size of its cluster, and the one more mistake weighs as much as one independent answer. A
promise about rows cannot be kept in general: a sample may lack the large clusters that hold most
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Vector
from recal.clusters import effective_count

Counts = NDArray[np.intp]


def chance_of_so_few(errors: ArrayLike, counts: ArrayLike, risk: ArrayLike) -> Vector:
    """P(at most `errors` mistakes among `counts` predictions) if each is wrong with probability
    `risk`.

    It is the exact p-value of "the true share of mistakes is at least `risk`"; 1 if there are no
    predictions, 0 for fewer than 0 mistakes.
    """
    from scipy.special import betainc  # slow to import, and not needed to apply a rule

    count, wrong = np.asarray(counts, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    right = np.maximum(count - wrong, 0.0)
    # If all are wrong, or there are none, the probability is 1 and the beta function is undefined.
    chance = betainc(np.maximum(right, 1.0), np.maximum(wrong, 0.0) + 1.0, 1.0 - np.asarray(risk))
    return np.where(wrong < 0, 0.0, np.where(right > 0, chance, 1.0))


def passed_in_order(errors: ArrayLike, counts: ArrayLike, risk: float, level: float) -> int:
    """Return how many sets, from the first on, are shown to hold at most a share `risk` of
    mistakes.

    Parameters
    ----------
    errors, counts : array-like of shape (n_sets,)
        Mistakes and predictions in each set, in an order that was fixed without looking at these
        labels.
    risk, level : float
        With probability 1 - `level`, all sets that passed have a true share of mistakes of at most
        `risk`.

    Examples
    --------
    >>> from recal.decisions.certify import passed_in_order
    >>> passed_in_order([0, 1, 9, 2], [60, 100, 120, 200], risk=0.05, level=0.05)
    2
    """
    good = chance_of_so_few(errors, counts, risk) <= level
    return len(good) if good.all() else int(np.argmin(good))


def kept_on_average(
    accepted: ArrayLike, wrong: ArrayLike, risk: float, clusters: ArrayLike | None = None
) -> int:
    """Return how many sets, from the first on, may be used if the error rate must hold on average.

    Parameters
    ----------
    accepted : array-like of bool, shape (n_samples, n_sets)
        Whether each labelled prediction is in each set; sets are ordered from strict to loose.
    wrong : array-like of bool, shape (n_samples,) or (n_samples, n_sets)
        Whether each prediction is wrong, or would be under each policy.
    risk : float
    clusters : array-like of int, shape (n_samples,), optional

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.certify import kept_on_average
    >>> confidence = np.linspace(1, 0, 1000)
    >>> wrong = np.arange(1000) % 10 > confidence * 10
    >>> accepted = confidence[:, None] >= np.array([0.9, 0.8, 0.6, 0.4, 0.2])
    >>> kept_on_average(accepted, wrong, risk=0.2)
    3
    """
    chosen = np.asarray(accepted, dtype=np.bool_)
    mistakes = np.asarray(wrong, dtype=np.float64).reshape(len(chosen), -1)
    units = np.arange(len(chosen)) if clusters is None else clusters
    numbers = np.unique(units, return_inverse=True)[1].astype(np.intp)
    losses = chosen * (mistakes - risk) * cluster_weights(numbers)[:, None]
    sizes = chosen.sum(axis=0)
    one_more = (1.0 - risk) * weight_of_one_more(mistakes[:, -1], numbers)
    reached = [
        _last(draw[numbers] @ losses, one_more)
        for draw in resampled_weights(int(numbers.max()) + 1)
    ]
    target = shrunk_mean(np.r_[0, sizes][reached])
    return nearest_place(np.r_[0, np.maximum.accumulate(sizes)], target)


@dataclass(frozen=True)
class Ranked:
    """Predictions from the most to the least confident.

    Cuts are only possible where the confidence changes.
    """

    confidence: Vector  # (n,), falling
    errors: Vector  # (n + 1,): mistakes among the m most confident
    ends: Counts  # the number of predictions down to and including each distinct confidence
    clusters: Counts | None = None  # (n,), numbered

    def __len__(self) -> int:
        return len(self.confidence)

    def threshold(self, count: int) -> float:
        """Return the shortest decimal that accepts exactly the `count` most confident.

        `count` is one of `ends`.
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

    def up_to(self, sizes: Counts) -> Counts:
        """Return the smallest sets that hold at least so many predictions."""
        return self.ends[np.searchsorted(self.ends, sizes)]


def ranked(confidence: Vector, wrong: NDArray[np.bool_], clusters: Counts | None = None) -> Ranked:
    """Order predictions by confidence; the order of the rows does not matter."""
    order = np.lexsort((wrong, -confidence))
    falling = np.asarray(confidence, dtype=np.float64)[order]
    errors = np.concatenate([[0.0], np.cumsum(wrong[order], dtype=np.float64)])
    ends = np.flatnonzero(np.r_[falling[1:] != falling[:-1], True][: len(falling)]) + 1
    return Ranked(falling, errors, ends, None if clusters is None else clusters[order])


@dataclass(frozen=True)
class Evidence:
    """Predictions, and those that the exact bound is computed from: all, or one row per cluster."""

    all_rows: Ranked
    evidence: Ranked

    @classmethod
    def of(
        cls, confidence: Vector, wrong: NDArray[np.bool_], clusters: Counts | None = None
    ) -> Evidence:
        if clusters is None or not len(clusters):
            everything = ranked(confidence, wrong)
            return cls(everything, everything)
        numbers = np.unique(clusters, return_inverse=True)[1].astype(np.intp)
        drawn = one_row_per_cluster(confidence, wrong, numbers)
        everything = ranked(confidence, wrong, numbers)
        return cls(everything, ranked(confidence[drawn], wrong[drawn]))

    def sizes(self, risk: float, level: float, guarantee: str) -> tuple[Ranked, Counts]:
        """Return the sets that keep a promise: predictions, and how many of the most confident."""
        if guarantee == "average":
            ends = self.all_rows.ends
            return self.all_rows, ends[ends <= on_average(self.all_rows, risk)]
        return self.evidence, certified(self.evidence, risk, level)


def certified(answers: Ranked, risk: float, level: float) -> Counts:
    """Return the sizes of all sets of most confident predictions whose share of mistakes is shown
    to be below `risk`.

    With probability at least 1 - `level` this is true for all of them, so any of them may be chosen
    by any rule.
    """
    sizes = growing_sizes(len(answers), risk, level)
    if not len(sizes):
        return sizes
    sizes = np.unique(answers.up_to(sizes[sizes >= _start(answers, sizes, risk, level)]))
    return sizes[: passed_in_order(answers.errors[sizes], sizes, risk, level)]


def on_average(answers: Ranked, risk: float) -> int:
    """Return the number of most confident predictions of which on average at most a share `risk` is
    wrong.
    """
    if not len(answers):
        return 0
    # A thousand places are enough to find the size to a tenth of a per cent.
    ends = answers.ends[np.unique(np.linspace(0, len(answers.ends) - 1, 1000).astype(np.intp))]
    reached = []
    if answers.clusters is None:
        # Sums of Poisson weights are Poisson numbers, so rows between two places need one draw.
        mistakes = np.diff(answers.errors[np.r_[0, ends]])
        right = np.diff(np.r_[0, ends]) - mistakes
        rng = np.random.default_rng(0)
        for _ in range(RESAMPLES):
            losses = (1.0 - risk) * rng.poisson(mistakes) - risk * rng.poisson(right)
            reached.append(_last(np.cumsum(losses), 1.0 - risk))
    else:
        wrong = np.diff(answers.errors)
        one_more = (1.0 - risk) * weight_of_one_more(wrong, answers.clusters)
        losses = (wrong - risk) * cluster_weights(answers.clusters)
        for draw in resampled_weights(int(answers.clusters.max()) + 1):
            totals = np.cumsum(draw[answers.clusters] * losses)[ends - 1]
            reached.append(_last(totals, one_more))
    places = np.r_[0, answers.ends]
    return int(places[nearest_place(places, shrunk_mean(np.r_[0, ends][reached]))])


# Resamples for the promise on average: the size varies by a tenth of its deviation because of them.
RESAMPLES = 100


def resampled_weights(n_units: int) -> Iterator[Vector]:
    """Yield how often each independent unit occurs in a resample: Poisson numbers with mean 1."""
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        yield rng.poisson(1.0, n_units).astype(np.float64)


def _last(totals: Vector, one_more: float) -> int:
    """Return the number of the last set whose mistakes, one more added, are within the risk."""
    good = np.flatnonzero(totals + one_more <= 1e-9)
    return int(good[-1]) + 1 if len(good) else 0


def shrunk_mean(reached: NDArray[np.integer]) -> float:
    """Return the mean size over resamples, less half of its deviation, but at most a quarter less.

    The error over all accepted predictions exceeds the risk in proportion to the variance of the
    size. The mean varies less than the size of one sample, and shrinking it makes up for the rest.
    A threshold between two samples accepts half a sample more than was counted.
    """
    mean, deviation = float(np.mean(reached)), float(np.std(reached))
    return max(mean - min(deviation / 2, mean / 4) - 0.5, 0.0)


def nearest_place(places: Counts, target: float) -> int:
    """Return the index of the place nearest to a target, the larger of two."""
    above = min(int(np.searchsorted(places, target, side="right")), len(places) - 1)
    return above if places[above] - target <= target - places[above - 1] else above - 1


def cluster_weights(clusters: Counts) -> Vector:
    """Return the weight of each row: one over the size of its cluster."""
    return np.asarray(1.0 / np.bincount(clusters)[clusters])


def weight_of_one_more(wrong: Vector, clusters: Counts) -> float:
    """Return the weight of one more independent answer, where a cluster weighs 1: less than 1 if a
    cluster holds more than one independent answer.
    """
    weights = cluster_weights(clusters)
    gaps = weights * (wrong - np.average(wrong, weights=weights))
    return min(float(weights.sum()) / effective_count(gaps, clusters), 1.0)


def one_row_per_cluster(confidence: Vector, wrong: NDArray[np.bool_], clusters: Counts) -> Counts:
    """Draw one row of each cluster at random; return them sorted.

    The draw does not depend on the order of the rows.
    """
    counts = np.bincount(clusters)
    order = np.lexsort((wrong, confidence, clusters))
    first = np.cumsum(counts) - counts
    drawn = first + np.floor(np.random.default_rng(0).random(len(counts)) * counts).astype(np.intp)
    return np.sort(order[drawn[counts > 0]])


def fewest_answers(risk: float, level: float) -> int:
    """Return how many predictions, all of them right, are needed to show a risk at this level."""
    return int(min(np.ceil(np.log(level) / np.log1p(-risk)), 1e15))


def growing_sizes(n: int, risk: float, level: float) -> Counts:
    """Return the sizes that may be tested: each half a per cent larger than the one before."""
    fewest = fewest_answers(risk, level)
    if fewest > n:
        return np.empty(0, np.intp)
    steps = math.ceil(math.log(n / fewest) / math.log(1.005)) + 1
    return np.unique(np.minimum(np.ceil(fewest * 1.005 ** np.arange(steps)), n).astype(np.intp))


def allowed_errors(sizes: Counts, risk: float, level: float) -> Vector:
    """Return the largest number of mistakes with which each size is certified; -1 if none is."""
    low, high = np.full(len(sizes), -1.0), sizes.astype(np.float64)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = chance_of_so_few(middle, sizes, risk) <= level
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return low


def _start(answers: Ranked, sizes: Counts, risk: float, level: float) -> int:
    """Return the size at which the search begins.

    From the largest size downwards, begin at the first that is likelier to be certified than all
    smaller ones. Mistakes are expected in proportion to the square root of 1 - confidence, as often
    as in the predictions just below the set, as many as it holds. The root makes overconfident
    numbers harmless: only their order of magnitude matters.
    """
    allowed = allowed_errors(sizes, risk, level)
    steps = np.flatnonzero(np.r_[True, np.diff(allowed) > 0])  # where one more mistake is allowed
    steps = steps[np.unique(np.geomspace(1, len(steps), 80).astype(np.intp) - 1)]
    ends = answers.up_to(sizes[steps])
    allowed = allowed_errors(ends, risk, level)
    shape = np.maximum(np.sqrt(1.0 - answers.confidence), risk / 5)  # some labels are wrong
    doubt = np.concatenate([[0.0], np.cumsum(shape)])
    for place in range(len(ends) - 1, 0, -1):
        size = ends[place]
        stop = min(2 * size, len(answers))
        seen = answers.errors[stop] - answers.errors[size]
        rate = (seen + 1.0) / (doubt[stop] - doubt[size] + 1.0)
        smaller = slice(0, place + 1)
        # The normal score of a Poisson number with this mean being at most what is allowed.
        success = 2 * (np.sqrt(allowed[smaller] + 0.75) - np.sqrt(rate * doubt[ends[smaller]]))
        if success[place] >= success.max():
            return int(sizes[steps[place]])
    return int(sizes[0])


def labels_needed(
    answers: Ranked, risk: float, level: float
) -> tuple[int | None, int | None, float]:
    """Return a range for the number of labelled samples, these included, that certify some set, and
    the share of answers in this set.

    It assumes that further samples are like these. For every set, the share of mistakes lies in the
    middle 80 % of its posterior; the ends of the range are the numbers for the best set at either
    end, and the share is that of the lower end. The upper end is None if the data do not rule out
    that all sets are too bad. Both are None if the lower end is beyond ten times the samples, or
    ten times those that would do without a mistake: then nothing useful can be said.
    """
    from scipy.special import betaincinv

    n, sizes = len(answers), answers.ends
    if not n:
        return None, None, 0.0
    errors = answers.errors[sizes]
    most = 10.0 * max(n, fewest_answers(risk, level))
    numbers: list[int | None] = []
    shares = []
    for quantile in (0.1, 0.9):
        rates = betaincinv(errors + 0.5, sizes - errors + 0.5, quantile)
        low, high = sizes / n, np.full(len(sizes), 2 * most)
        for _ in range(40):
            middle = np.sqrt(low * high)
            count = np.ceil(middle * sizes / n)
            enough = chance_of_so_few(np.ceil(rates * count), count, risk) <= level
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        number = float(high.min())
        shares.append(float(sizes[int(high.argmin())] / n))
        numbers.append(math.ceil(number) if number <= most else None)
    if numbers[0] is None:
        return None, None, 0.0
    # These samples were not enough, whatever the best case says.
    return max(numbers[0], math.ceil(1.1 * n)), numbers[1], shares[0]
