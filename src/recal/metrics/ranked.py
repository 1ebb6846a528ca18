"""Metrics of the rows' order by confidence. Equal confidences are never ordered: results do not depend on row order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.engine.kernels import bins
from recal.metrics import passes
from recal.metrics.rows import Classes, ranked

Vector = NDArray[np.float64]


class Runs(NamedTuple):
    """Rows of equal confidence, least confident first: how many, how many right, the confidence they share."""

    sizes: Vector
    correct: Vector
    confidence: Vector


def runs(confidence: Vector, correct: NDArray[np.bool_], weights: Vector | None = None) -> Runs:
    """Gather rows of equal confidence."""
    if weights is None:
        return _unweighted_runs(confidence, correct)
    order = np.argsort(confidence)  # rows of equal confidence are added up, so their order does not matter
    ordered = confidence[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    right = np.add.reduceat((weights * correct)[order], starts)
    return Runs(np.add.reduceat(weights[order], starts), right, ordered[starts])


def _unweighted_runs(confidence: Vector, correct: NDArray[np.bool_]) -> Runs:
    """Sort numbers that hold both: the bits of a float from 0 to 1 sort as it does, and leave room for one more."""
    keys = (confidence + 0.0).view(np.uint64)  # 0 and -0 are one
    keys <<= np.uint64(1)
    keys |= correct.view(np.uint8)
    keys.sort()
    right = np.cumsum(keys & np.uint64(1), dtype=np.int64)
    keys >>= np.uint64(1)
    last = np.flatnonzero(np.r_[keys[1:] != keys[:-1], True])
    sizes, hits = np.diff(last, prepend=-1), np.diff(right[last], prepend=0)
    return Runs(sizes.astype(np.float64), hits.astype(np.float64), keys.view(np.float64)[last])


def ks_error(
    probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al., 2021): no bins.

    Rows are added up from the least to the most confident; the error is the largest distance between the running
    share of right answers and the running mean of confidence, of all rows.

    Examples
    --------
    >>> from recal.metrics import ks_error
    >>> round(ks_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.4
    """
    return ks_of(runs(*ranked(probs, y, classes, sample_weight)))


def ks_of(gathered: Runs) -> float:
    gaps = np.cumsum(gathered.sizes * gathered.confidence - gathered.correct)
    return float(np.abs(gaps).max() / gathered.sizes.sum())


def aurc(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None) -> float:
    """Area under the risk-coverage curve: the error rate among the i most confident rows, averaged over i = 1..n.

    Low when errors are made with low confidence. Rows of equal confidence count with the expectation over their
    order. 0 when every row is right, 1 when every row is wrong. Weights that are not whole numbers give the integral
    over the share covered instead of the sum over rows.

    Examples
    --------
    >>> from recal.metrics import aurc
    >>> aurc([[0.9, 0.1], [0.8, 0.2]], [0, 1])  # risks 0 and 1/2
    0.25
    """
    return weighted_aurc_of(runs(*ranked(probs, y, classes, sample_weight)))


def weighted_aurc_of(gathered: Runs) -> float:
    return aurc_of(gathered) if (gathered.sizes == np.rint(gathered.sizes)).all() else _weighted_area(gathered)


def _weighted_area(gathered: Runs) -> float:
    """The area where weights are no whole numbers: each run's risk, integrated over the mass it adds."""
    sizes, wrong = gathered.sizes[::-1], (gathered.sizes - gathered.correct)[::-1]
    above, wrong_above = np.cumsum(sizes) - sizes, np.cumsum(wrong) - wrong
    rate = wrong / sizes
    logs = np.log1p(np.divide(sizes, above, out=np.zeros(len(sizes)), where=above > 0))
    return float((wrong + (wrong_above - rate * above) * logs).sum() / sizes.sum())


def aurc_of(gathered: Runs, harmonic: Vector | None = None) -> float:
    if harmonic is None and len(gathered.sizes) > passes.SMALL:
        return float(bins.risk_coverage_area(gathered.sizes, gathered.correct))
    if harmonic is None:
        harmonic = harmonic_numbers(int(gathered.sizes.sum()))
    return passes.risk_coverage_area(gathered.sizes, gathered.correct, harmonic)


def harmonic_numbers(n: int) -> Vector:
    """H(0), ..., H(n), with H(i) = 1 + 1/2 + ... + 1/i."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])


def auroc(probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None) -> float:
    """How well confidence tells right from wrong answers: the chance that a right one has the higher confidence.

    Equal confidences count one half. NaN when every row is right or every row is wrong, since there is no pair.

    Examples
    --------
    >>> from recal.metrics import auroc
    >>> auroc([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    1.0
    """
    return auroc_of(runs(*ranked(probs, y, classes, sample_weight)))


def auroc_of(gathered: Runs) -> float:
    wrong = gathered.sizes - gathered.correct
    pairs = gathered.correct.sum() * wrong.sum()
    if pairs == 0:
        return float("nan")
    wrong_below = np.cumsum(wrong) - wrong / 2
    return float(gathered.correct @ wrong_below / pairs)
