"""Binning methods: one histogram per class, a Bayesian average of many histograms, and bins that
keep as much information about the label as possible (I-Max).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.isotonic import pack, smooth
from recal.calibrators.samples import Samples
from recal.checks import Indices, Vector
from recal.maps.arrays import class_log_odds, class_scores, log_softmax
from recal.maps.curves import CERTAIN, Bins, InformativeBins, Steps
from recal.schema import Count, NotNegative


class HistogramBinning(GuardedCalibrator):
    """Sort each class's probability into bins, replace it by the bin's share of hits, then
    normalise the rows.

    The oldest and simplest method: it assumes nothing, and gives only `n_bins` different values per
    class. Samples in one bin become indistinguishable, so predictions may change and the ranking
    gets coarser. Reference: Zadrozny and Elkan, *Obtaining calibrated probability estimates from
    decision trees and naive Bayesian classifiers* (ICML 2001).

    Parameters
    ----------
    n_bins : int, optional
        Bins per class, with equal numbers of samples. By default three times the number of classes,
        limited to the range from 15 to 30 and to at least ten samples per bin: a class is predicted
        for about 1 sample in n_classes, so with few bins, all of its predictions fall into the last
        bin.
    penalty : float
        The number of samples, spread evenly over the classes, that are added to every bin so that
        no share is 0 or 1. The value of an empty bin is its middle.

    Examples
    --------
    >>> model = HistogramBinning(n_bins=2).fit([3.0, 2.0, 2.5, -2.0], [1, 0, 1, 0])
    >>> model.map_.values.round(2).tolist()  # of each class and bin
    [[0.17, 0.83], [0.17, 0.83]]
    """

    n_bins: Count | None = None
    penalty: NotNegative = 1.0

    map_: Bins = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels, count, n_classes = samples.labels, len(samples), samples.n_classes
        n_bins = self.n_bins or max(1, min(max(15, 3 * n_classes), 30, count // 10))
        # Halfway between two neighbours, so that rounding at predict time moves no sample across.
        position = np.arange(1, n_bins) * count // n_bins
        all_edges, values = np.empty((n_classes, n_bins - 1)), np.empty((n_classes, n_bins))
        for k, scores in enumerate(np.ascontiguousarray(class_scores(samples.logits).T)):
            ordered = np.sort(scores)
            edges = halfway(ordered[np.maximum(position - 1, 0)], ordered[position])
            ends = scipy.special.expit(with_ends(edges))
            # The positions of the edges among the sorted scores give the counts; only hits are
            # looked up one by one.
            below = np.searchsorted(ordered, edges, side="right")
            counts = np.diff(below, prepend=0, append=count)
            own = np.searchsorted(edges, scores[labels == k], side="left")
            hits = np.bincount(own, minlength=n_bins)
            added = np.maximum(counts + self.penalty, np.finfo(np.float64).tiny)
            shares = (hits + self.penalty / n_classes) / added
            all_edges[k] = edges
            # The value of a bin without samples is its middle.
            values[k] = np.where(counts > 0, shares, (ends[1:] + ends[:-1]) / 2)
        return {"map_": Bins(all_edges, values)}


class BayesianBinning(GuardedCalibrator):
    """Average histograms of all sizes, each weighted by its Bayesian score, class by class.

    For each class, histograms of `n^(1/3) / 10` to `10 n^(1/3)` bins are scored by the marginal
    likelihood of the labels under a beta prior of two samples, shared by the bins. The result is
    their weighted mean, and rows are normalised. There is no number of bins to choose, and the
    average is smoother than one histogram; predictions may change. Besides bins with equal numbers
    of samples, as published, there are bins of equal width, which help for classes that are rarely
    predicted: equal mass puts their few likely samples into one bin. Equal width is left out if
    nearly all probabilities are 0 or 1. Reference: Naeini, Cooper and Hauskrecht, *Obtaining well
    calibrated probabilities using Bayesian binning* (AAAI 2015).

    Parameters
    ----------
    penalty : float
        The number of samples, spread evenly over the classes, that are added at the end so that no
        value is nearly 0 or 1.

    Examples
    --------
    >>> log_odds = np.linspace(-9.0, 9.0, 1000)
    >>> right = np.random.default_rng(0).random(1000) < 1.0 / (1.0 + np.exp(-log_odds / 5.0))
    >>> bool(BayesianBinning().fit(log_odds, right.astype(int)).predict_confidence([5.0]) < 0.9)
    True
    """

    penalty: NotNegative = 1.0

    map_: Steps = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels, count = samples.labels, len(samples)
        root = count ** (1 / 3)
        sizes = range(max(1, int(root / 10)), max(1, min(int(np.ceil(root * 10)), count)) + 1)
        ranks = [np.arange(size + 1) * count // size for size in sizes]
        # With a single bin, equal width and equal mass are the same.
        inner = [np.linspace(0.0, 1.0, size + 1)[1:-1] for size in sizes if size > 1]
        widths = [with_ends(scipy.special.logit(edges)) for edges in inner]
        curves = []
        for k, column in enumerate(np.ascontiguousarray(class_scores(samples.logits).T)):
            # Bins of equal width need a few probabilities between 0.001 and 0.999.
            inside = (np.abs(column) < scipy.special.logit(0.999)).sum()
            curves.append(_average(column, labels == k, ranks, widths if inside >= 5 else []))
        edges, values, offsets = pack(curves)
        values = smooth(values, count, samples.n_classes, self.penalty)
        return {"map_": Steps(edges, values, offsets)}


def _average(
    scores: Vector, hits: NDArray[np.bool_], ranks: list[Indices], widths: list[Vector]
) -> tuple[Vector, Vector]:
    """Return the weighted mean of all histograms as a step function: upper edges and values.

    `ranks` are the ends of the bins of equal mass among the sorted scores, and `widths` the edges
    of the bins of equal width.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    edge_at = with_ends(halfway(ordered[:-1], ordered[1:]))
    histograms = [*(edge_at[ends] for ends in ranks), *widths]
    sizes = np.array([len(edges) - 1 for edges in histograms])
    starts = np.cumsum(sizes) - sizes
    low = np.concatenate([edges[:-1] for edges in histograms])
    high = np.concatenate([edges[1:] for edges in histograms])
    below, within = (np.searchsorted(ordered, edges, side="right") for edges in (low, high))
    hits_to = np.concatenate([[0], np.cumsum(hits[order])])
    counts, positives = within - below, hits_to[within] - hits_to[below]
    middles = np.clip((scipy.special.expit(low) + scipy.special.expit(high)) / 2, 1e-12, 1 - 1e-12)
    strength = np.repeat(2.0 / sizes, sizes)
    alpha, beta = strength * middles, strength * (1 - middles)
    log_gamma = scipy.special.gammaln
    evidence = log_gamma(strength) - log_gamma(counts + strength)
    evidence += log_gamma(positives + alpha) - log_gamma(alpha)
    evidence += log_gamma(counts - positives + beta) - log_gamma(beta)
    log_scores = np.add.reduceat(evidence, starts)
    weights = np.exp(log_scores - log_scores.max())
    weights /= weights.sum()
    values = (positives + alpha) / (counts + strength)
    kept = np.flatnonzero(weights > 1e-7)
    union = np.unique(np.concatenate([histograms[m][1:] for m in kept]))
    mean = np.zeros(len(union))
    for m in kept:
        own = values[starts[m] : starts[m] + sizes[m]]
        mean += weights[m] * own[np.searchsorted(histograms[m][1:], union, side="left")]
    return union, mean / weights[kept].sum()


def halfway(low: Vector, high: Vector) -> Vector:
    """Return the log-odds halfway between two, measured in probabilities if these differ, else in
    log-odds.
    """
    middle = scipy.special.logit((scipy.special.expit(low) + scipy.special.expit(high)) / 2)
    return np.where((low < middle) & (middle < high), middle, (low + high) / 2)


def with_ends(edges: Vector) -> Vector:
    """Return the inner edges of bins with both infinite ends."""
    return np.concatenate([[-np.inf], edges, [np.inf]])


class MutualInformationBinning(GuardedCalibrator):
    """Bin the log-odds so that bins say as much as possible about the label, and predict the share
    of hits of the bin.

    Equal-mass bins are concentrated where most scores are, far from where decisions are made;
    equal-width bins are nearly empty in between. These bins maximise the mutual information of bin
    and label. The fit alternates between setting the edges for given bin values and the values for
    given edges; neither step can lower the information. All classes share one set of bins, so that
    rare classes share samples. Within a bin, the model's own order breaks ties, but predictions may
    still change. Reference: Patel et al., *Multi-class uncertainty calibration via mutual
    information maximization-based binning* (ICLR 2021): I-Max with shared class-wise binning.

    Parameters
    ----------
    n_bins : int
        The largest number of bins; there are fewer if the scores have fewer distinct values.
    penalty : float
        The number of samples, spread evenly over the classes, that are added to every bin so that
        no share is 0 or 1.

    Examples
    --------
    >>> y = np.arange(600) % 3
    >>> logits = np.eye(3)[y] + np.random.default_rng(0).normal(size=(600, 3))
    >>> len(MutualInformationBinning(n_bins=8).fit(logits, y).map_.edges)
    7
    """

    n_bins: Count = 15
    penalty: NotNegative = 1.0

    map_: InformativeBins = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        odds = np.clip(class_log_odds(log_softmax(samples.logits)), -CERTAIN, CERTAIN)
        hits = odds[np.arange(len(samples)), samples.labels]
        edges = informative_edges(odds.ravel(), self.n_bins)
        counts, right = (
            np.bincount(np.searchsorted(edges, some, side="left"), minlength=len(edges) + 1)
            for some in (odds.ravel(), hits)
        )
        shares = (right + self.penalty / samples.n_classes) / (counts + self.penalty)
        return {"map_": InformativeBins(edges, shares)}


class _Sums:
    """Sums of P(hit) and of P(miss), according to the scores, over ranges of sorted log-odds."""

    def __init__(self, scores: Vector) -> None:
        self.ordered = np.sort(scores)
        # Each is summed from its small end, so that small sums keep their digits.
        self.hit = np.concatenate([[0.0], np.cumsum(scipy.special.expit(self.ordered))])
        self.miss = np.concatenate(
            [np.cumsum(scipy.special.expit(-self.ordered)[::-1])[::-1], [0.0]]
        )

    def between(self, edges: Vector) -> tuple[Vector, Vector]:
        """Return both sums for each bin that is not empty."""
        inner = np.searchsorted(self.ordered, edges, "right")
        ends = np.unique(np.concatenate([[0], inner, [len(self.ordered)]]))
        return np.diff(self.hit[ends]), -np.diff(self.miss[ends])


def informative_edges(scores: Vector, n_bins: int) -> Vector:
    """Return at most n_bins - 1 edges without empty bins that keep the most information.

    The published search finds a local optimum. Here it starts from the best bins on a grid of
    candidate edges. If the scores have few distinct values, the grid contains all possible edges.
    """
    sums = _Sums(scores)
    return climb(sums, best_on_grid(sums, _candidates(sums), n_bins))


def _candidates(sums: _Sums, count: int = 240) -> Vector:
    """Return candidate edges: between all scores if there are few, else spread by hits, by mass and
    by width.
    """
    distinct = np.unique(sums.ordered) if len(sums.ordered) <= count else None
    if distinct is None:
        inner = np.arange(1, count // 3) / (count // 3)
        by_hits = np.minimum(np.searchsorted(sums.hit, inner * sums.hit[-1]), len(sums.ordered) - 1)
        by_mass = (inner * len(sums.ordered)).astype(np.intp)
        by_width = sums.ordered[0] + inner * (sums.ordered[-1] - sums.ordered[0])
        both = sums.ordered[by_hits], sums.ordered[by_mass]
        distinct = np.unique(np.concatenate([*both, by_width]))
    return _drop_empty(sums, (distinct[1:] + distinct[:-1]) / 2)


def best_on_grid(sums: _Sums, candidates: Vector, n_bins: int) -> Vector:
    """Return the n_bins - 1 candidates that keep the most information, by dynamic programming."""
    if len(candidates) < n_bins:
        return candidates
    inner = np.searchsorted(sums.ordered, candidates, "right")
    ends = np.concatenate([[0], inner, [len(sums.ordered)]])
    hit = sums.hit[None, ends] - sums.hit[ends, None]
    miss = sums.miss[ends, None] - sums.miss[None, ends]
    # gain[i, j]: what a bin from end i to end j adds; the choice changes only the entropies of the
    # bins.
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = hit * np.log(hit / (hit + miss)) + miss * np.log(miss / (hit + miss))
    gain[np.tril_indices(len(ends))] = -np.inf
    total, back = gain[0], []
    for _ in range(n_bins - 1):
        through = total[:, None] + gain
        back.append(through.argmax(axis=0))
        total = through.max(axis=0)
    chosen, at = [], len(ends) - 1
    for previous in reversed(back):
        at = previous[at]
        chosen.append(at)
    return candidates[np.sort(chosen) - 1]


def climb(sums: _Sums, edges: Vector) -> Vector:
    """Move the edges until the mutual information no longer rises."""
    edges = _drop_empty(sums, edges)
    highest = information(*sums.between(edges))
    for _ in range(100):
        hit, miss = sums.between(edges)
        moved = _drop_empty(sums, best_edges(np.log(hit) - np.log(miss)))
        value = information(*sums.between(moved))
        if not value > highest * (1 + 1e-9):
            break
        edges, highest = moved, value
    return edges


def _drop_empty(sums: _Sums, edges: Vector) -> Vector:
    """Drop edges that leave a bin empty."""
    ends = np.searchsorted(sums.ordered, edges, "right")
    keep = np.diff(ends, prepend=0) > 0
    return edges[keep & (ends < len(sums.ordered))]


def best_edges(values: Vector) -> Vector:
    """Return the scores that neighbouring bins with these log-odds explain equally well."""
    low, high = values[:-1], values[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        edges = np.log(np.logaddexp(0, high) - np.logaddexp(0, low)) - np.log(
            np.logaddexp(0, -low) - np.logaddexp(0, -high)
        )
    # For equal neighbours, any point in between works.
    return np.where(np.isfinite(edges), edges, (low + high) / 2)


def information(hit: Vector, miss: Vector) -> float:
    """Return the mutual information of bin and label, in nats, from each bin's expected hits and
    misses.
    """
    total = hit.sum() + miss.sum()
    p_bin = (hit + miss) / total
    kept = hit * np.log(hit / total / p_bin / (hit.sum() / total)) + miss * np.log(
        miss / total / p_bin / (miss.sum() / total)
    )
    return float(kept.sum() / total)
