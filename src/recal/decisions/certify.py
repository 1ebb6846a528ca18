"""The search for a threshold with a guarantee: which sets of most confident answers are certified.

One binomial bound is exact for one threshold; trying many and keeping the best would break it. So the thresholds are
tested one after the other, from the strictest on, and each test is passed on only if the one before it succeeded
(fixed-sequence testing; as a search over thresholds: Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test",
2021). One early mistake with high confidence would end such a sequence, so part of the allowed error probability is
kept for later beginnings (the fallback procedure of Wiens, 2003, which still errs at most as often as was allowed). The
older search by halving (SGR; Geifman and El-Yaniv, 2017) spends the error probability on every step and accepts less.

Sets are counted, not cut at fixed confidences: "the m most confident", for a fixed list of m. Given the confidence of
the next one, these m are independent draws from all answers above it, so their mistakes are binomial whatever scale the
confidence has. Sets never part answers of equal confidence. The guarantee is exact where the chance of a mistake does
not fall as confidence falls; see `docs/deciding.md` for what happens where it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
Vector = NDArray[np.float64]
Counts = NDArray[np.intp]

# Larger numbers of answers are cut off here: such a risk can never be shown.
_NEVER = 1e15

# How fast the tested sets grow: at most this share of the possible coverage is given away.
_GROWTH = 1.005
# Where sequences begin, by the number of mistakes that their first set may hold, and with which share of the allowed
# error probability. Few samples cannot afford much but the first; many should not fail by one mistake near the top.
_FEW = ((0, 0.8),)
_MANY = ((0, 0.3), (3, 0.5))
# "Many": so many times the answers that could show anything at all.
_MANY_TIMES = 8
# What is left begins where sets are 4, 16, ... times as large.
_APART = 4
# No answer is taken to be wrong less often than this share of the risk: labels are wrong now and then.
_LEAST_DOUBT = 0.2


def chance_of_so_few(errors: ArrayLike, counts: ArrayLike, risk: float) -> Vector:
    """P(at most `errors` mistakes among `counts` answers) if each is wrong with probability `risk`.

    It is the exact p-value of "the true share of mistakes is at least `risk`"; 1 where there are no answers.
    """
    from scipy.special import betainc  # half of what a command costs that never comes here

    count, wrong = np.asarray(counts, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    right = np.maximum(count - wrong, 0.0)
    # All wrong, or no answers: as many or fewer is certain, where the beta function has no value.
    return np.where(right > 0, betainc(np.maximum(right, 1.0), wrong + 1.0, 1.0 - risk), 1.0)


def share_interval(hits: int, count: int, confidence: float) -> Interval:
    """The Clopper-Pearson interval of a share: it holds the true one with at least this probability.

    Examples
    --------
    >>> from recal.decisions.certify import share_interval
    >>> low, high = share_interval(0, 100, 0.95)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.special import betaincinv

    if count == 0:
        return 0.0, 1.0
    tail = (1.0 - confidence) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1.0 - tail)) if hits < count else 1.0
    return low, high


def fewest_answers(risk: float, level: float) -> int:
    """How many answers, all of them right, show a risk at this level; nothing can be shown with fewer."""
    return int(min(np.ceil(np.log(level) / np.log1p(-risk)), _NEVER))


def smallest_size(errors: int, risk: float, level: float) -> int:
    """How many answers, with so many mistakes among them, show a risk at this level."""
    low, high = errors, errors + 1
    while chance_of_so_few(errors, high, risk) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance_of_so_few(errors, middle, risk) <= level else (middle, high)
    return high


@dataclass(frozen=True)
class Ranked:
    """Answers from the most to the least confident, cut only where the confidence changes."""

    confidence: Vector  # (n,), falling
    errors: Vector  # (n + 1,): mistakes among the m most confident
    ends: Counts  # the number of answers down to and including each distinct confidence

    def __len__(self) -> int:
        return len(self.confidence)

    def threshold(self, count: int) -> float:
        """The shortest decimal that accepts exactly the `count` most confident; `count` must not part equals."""
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
    """Order answers by confidence."""
    order = np.argsort(-confidence, kind="stable")
    falling = np.asarray(confidence, dtype=np.float64)[order]
    errors = np.concatenate([[0.0], np.cumsum(wrong[order], dtype=np.float64)])
    ends = np.flatnonzero(np.r_[falling[1:] != falling[:-1], True]) + 1 if len(falling) else np.empty(0, np.intp)
    return Ranked(falling, errors, ends)


def certified(answers: Ranked, risk: float, level: float, *, calibrated: bool = False) -> Counts:
    """Return the sizes of all sets of most confident answers whose share of mistakes is shown to be below `risk`.

    With probability at least 1 - `level` that is true of every one of them, so any may be chosen, by whatever rule.
    Where confidences are `calibrated` and samples few, they say where the search had best begin; labels do not.
    """
    n = len(answers)
    planned, weights = _sequence(n, risk, level, likely_start(answers, risk, level) if calibrated else None)
    if not len(planned):
        return np.empty(0, np.intp)
    sizes = answers.ends[np.searchsorted(answers.ends, planned)]  # a set that parts equals takes them all in
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


def likely_start(answers: Ranked, risk: float, level: float) -> int | None:
    """Return the size that is likeliest to be certified if confidences are true; None where samples are many, or none.

    With m mistakes expected from the confidences, and k allowed at a size, it is shown with the chance that a Poisson
    number of mean m is at most k. Sizes are those at which one more mistake is allowed.
    """
    from scipy.special import pdtr

    n, fewest = len(answers), fewest_answers(risk, level)
    if not fewest <= n < _MANY_TIMES * fewest:
        return None
    sizes: list[int] = []
    while (size := smallest_size(len(sizes), risk, level)) <= n:
        sizes.append(size)
    doubt = np.cumsum(np.maximum(1.0 - answers.confidence, _LEAST_DOUBT * risk))[np.array(sizes) - 1]
    return sizes[int(np.argmax(pdtr(np.arange(len(sizes)), doubt)))]


def _sequence(n: int, risk: float, level: float, start: int | None = None) -> tuple[Counts, Vector]:
    """The sizes to test, from the smallest on, and the error probability with which each begins a sequence."""
    begins = _beginnings(n, risk, level) if start is None else {start: level}
    if not begins:
        return np.empty(0, np.intp), np.empty(0)
    sizes = [min(begins)]
    while sizes[-1] < n:
        sizes.append(min(n, max(sizes[-1] + 1, math.ceil(sizes[-1] * _GROWTH))))
    planned, weights = np.array(sizes, np.intp), np.zeros(len(sizes))
    for size, weight in begins.items():
        weights[np.searchsorted(planned, size)] += weight
    return planned, weights


def _beginnings(n: int, risk: float, level: float) -> dict[int, float]:
    """The sizes at which sequences begin, with their parts of the error probability: fixed before labels are seen."""
    if (fewest := fewest_answers(risk, level)) > n:
        return {}
    shares = _MANY if n >= _MANY_TIMES * fewest else _FEW
    begins = {smallest_size(errors, risk, share * level): share for errors, share in shares}
    later: list[int] = []
    while (size := max(begins) * _APART ** (len(later) + 1)) < n:
        later.append(size)
    begins |= dict.fromkeys(later, (1 - sum(begins.values())) / max(len(later), 1))
    within = {size: share for size, share in begins.items() if size <= n}
    if len(within) <= 1:  # no room for another beginning: nothing is kept back
        return {fewest: level}
    return {size: level * share / sum(within.values()) for size, share in within.items()}


def further_answers(answers: Ranked, risk: float, level: float) -> tuple[int | None, bool]:
    """Return about how many more labelled samples are needed to certify any set, and whether that is a mere minimum.

    It asks, of each set that could be accepted, how large it would have to be if mistakes went on at the rate seen
    (and one more, since the best of many sets is partly lucky). None: all sets are too often wrong.
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
        shown = chance_of_so_few(np.ceil(rates * middle), np.ceil(middle), risk) <= _FEW[0][1] * level
        low, high = np.where(shown, low, middle), np.where(shown, middle, high)
    return max(1, math.ceil(float((n * (high / sizes - 1)).min()))), False
