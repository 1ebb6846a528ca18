"""Binning methods: one histogram per class, a Bayesian average of many histograms, and bins that
keep as much information about the label as possible (I-Max).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples, warn_if_few
from recal.checks import Vector
from recal.maps.arrays import class_log_odds, class_scores, log_softmax
from recal.maps.blend import Answers
from recal.maps.curves import CERTAIN, Bins, InformativeBins, Steps
from recal.schema import Count, NotNegative, Number
from recal.solvers.isotonic import pack, smooth

Index = NDArray[np.intp]


class HistogramBinning(Calibrator):
    """Sort each class's probability into bins, replace it by the bin's share of hits, then
    normalise the rows.

    The oldest and simplest method: it assumes nothing, and gives only `n_bins` different values per
    class. Samples in one bin become indistinguishable, so predictions may change and the ranking
    gets coarser. Reference: Zadrozny and Elkan, *Obtaining calibrated probability estimates from
    decision trees and naive Bayesian classifiers* (ICML 2001).

    Parameters
    ----------
    n_bins : int, optional
        Bins per class. By default 15 for equal width; for equal mass, three times the number of
        classes, limited to the range from 15 to 30 and to at least ten samples per bin.
    strategy : {"mass", "width"}
        Bins with equal numbers of samples, or of equal width. A class is predicted for about 1
        sample in n_classes, so with few bins of equal mass, all of its predictions fall into the
        last bin. With bins of equal width, all small probabilities fall into the first bin, which
        raises the NLL.
    penalty : float
        The number of samples, spread evenly over the classes, that are added to every bin so that
        no share is 0 or 1. The value of an empty bin is its middle.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    edges_ : ndarray of shape (n_classes, n_bins - 1)
        The inner edges, in log-odds; a bin includes its upper edge.
    values_ : ndarray of shape (n_classes, n_bins)
        The share of hits in each bin.

    Examples
    --------
    >>> from recal.calibrators import HistogramBinning
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [2.5, 0.0], [0.0, 2.0]]
    >>> HistogramBinning(n_bins=2, strategy="width").fit(logits, [0, 1, 0, 1]).predict_proba([[2.2, 0.0]]).round(3)
    array([[0.625, 0.375]])
    """

    short_name = "histogram"

    answers: Answers = "free"
    n_bins: Count | None = None
    strategy: Literal["mass", "width"] = "mass"
    penalty: NotNegative = 1.0

    map_: Bins = from_fit()
    edges_ = from_map("edges")
    values_ = from_map("values")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        warn_if_few(self, samples, mistakes=True)
        strategy, n_bins = self.strategy, self._count_bins(len(samples), samples.n_classes)
        labels = samples.labels
        columns = np.ascontiguousarray(class_scores(samples.logits).T)
        all_edges, values = np.empty((len(columns), n_bins - 1)), np.empty((len(columns), n_bins))
        for k, scores in enumerate(columns):
            ordered = np.sort(scores)
            edges = log_odds_of_equal_width(n_bins)
            if strategy == "mass":
                edges = log_odds_of_equal_mass(ordered, n_bins)
            ends = scipy.special.expit(with_ends(edges))
            middles = (ends[1:] + ends[:-1]) / 2
            # The positions of the edges among the sorted scores give the counts; only hits are
            # looked up one by one.
            counts = np.diff(
                np.searchsorted(ordered, edges, side="right"), prepend=0, append=len(ordered)
            )
            hits = np.bincount(
                np.searchsorted(edges, scores[labels == k], side="left"), minlength=n_bins
            )
            all_edges[k] = edges
            values[k] = frequencies(counts, hits, middles, len(columns), self.penalty)
        return {"map_": Bins(all_edges, values)}

    def _count_bins(self, n_samples: int, n_classes: int) -> int:
        if self.n_bins is not None:
            return self.n_bins
        if self.strategy == "width":
            return 15
        return max(1, min(max(15, 3 * n_classes), 30, n_samples // 10))


class BayesianBinning(Calibrator):
    """Average histograms of all sizes, each weighted by its Bayesian score, class by class.

    For each class, histograms of `n^(1/3) / spread` to `n^(1/3) * spread` bins are scored by the
    marginal likelihood of the labels under a beta prior in each bin. The result is their weighted
    mean, and rows are normalised. There is no number of bins to choose, and the average is smoother
    than one histogram; predictions may change. Reference: Naeini, Cooper and Hauskrecht, *Obtaining
    well calibrated probabilities using Bayesian binning* (AAAI 2015).

    Parameters
    ----------
    strategy : {"both", "mass"}
        "mass" uses bins with equal numbers of samples, as published. "both" adds bins of equal
        width, which help for classes that are rarely predicted: equal mass puts their few likely
        samples into one bin. Equal width is left out if nearly all probabilities are 0 or 1.
    spread : float
        The range of the number of bins around the cube root of the number of samples; C in the
        publication.
    prior_samples : float
        The prior's strength in samples, shared by all bins of a histogram; N' in the publication. A
        bin's prior mean is its middle.
    penalty : float
        The number of samples, spread evenly over the classes, that are added at the end so that no
        value is nearly 0 or 1.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    edges_, values_ : ndarray
        Each class's averaged histogram as a step function of its log-odds: the upper edge of every
        step (the last is infinite) and its value. The functions of all classes are concatenated.
    offsets_ : ndarray of shape (n_classes + 1,)
        The index at which each class's steps begin.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import BayesianBinning
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 2))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> model = BayesianBinning().fit(5 * logits, labels)  # overconfident: five times too large
    >>> bool(model.predict_proba([[5.0, 0.0]])[0, 0] < 0.85)
    True
    """

    short_name = "bbq"

    answers: Answers = "free"
    strategy: Literal["both", "mass"] = "both"
    spread: Annotated[float, Number(1.0)] = 10.0
    prior_samples: Annotated[float, Number(1e-6)] = 2.0
    penalty: NotNegative = 1.0

    map_: Steps = from_fit()
    edges_ = from_map("edges")
    values_ = from_map("values")
    offsets_ = from_map("offsets")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        warn_if_few(self, samples, mistakes=True)
        labels, count = samples.labels, len(samples)
        root = count ** (1 / 3)
        most = max(1, min(int(np.ceil(root * self.spread)), count))
        sizes = range(max(1, int(root / self.spread)), most + 1)
        ranks = [np.arange(size + 1) * count // size for size in sizes]
        widths = []
        if self.strategy == "both":  # with a single bin, equal width and equal mass are the same
            widths = [with_ends(log_odds_of_equal_width(size)) for size in sizes if size > 1]
        curves = []
        for k, column in enumerate(np.ascontiguousarray(class_scores(samples.logits).T)):
            # Bins of equal width need a few probabilities between 0.001 and 0.999.
            inside = (np.abs(column) < scipy.special.logit(0.999)).sum()
            wide = widths if inside >= 5 else []
            curves.append(_average(column, labels == k, ranks, wide, self.prior_samples))
        edges, values, offsets = pack(curves)
        values = smooth(values, count, samples.n_classes, self.penalty)
        return {"map_": Steps(edges, values, offsets)}


def _average(
    scores: Vector, hits: NDArray[np.bool_], ranks: list[Index], widths: list[Vector], prior: float
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
    strength = np.repeat(prior / sizes, sizes)
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


def log_odds_of_equal_mass(ordered: Vector, n_bins: int) -> Vector:
    """Return the n_bins - 1 inner edges that divide sorted scores evenly; edges between equal
    scores are equal.

    An edge lies halfway between two neighbours, so that rounding at predict time does not move a
    sample across it.
    """
    position = np.arange(1, n_bins) * len(ordered) // n_bins
    return halfway(ordered[np.maximum(position - 1, 0)], ordered[position])


def halfway(low: Vector, high: Vector) -> Vector:
    """Return the log-odds halfway between two, measured in probabilities if these differ, else in
    log-odds.
    """
    middle = scipy.special.logit((scipy.special.expit(low) + scipy.special.expit(high)) / 2)
    return np.where((low < middle) & (middle < high), middle, (low + high) / 2)


def with_ends(edges: Vector) -> Vector:
    """Return the inner edges of bins with both infinite ends."""
    return np.concatenate([[-np.inf], edges, [np.inf]])


def log_odds_of_equal_width(n_bins: int) -> Vector:
    """Return the log-odds of the n_bins - 1 inner edges that divide the range of probabilities
    evenly.
    """
    return scipy.special.logit(np.linspace(0.0, 1.0, n_bins + 1)[1:-1])


def frequencies(
    counts: Index, hits: Index, middles: Vector, n_classes: int, smoothing: float
) -> Vector:
    """Return each bin's share of hits after adding `smoothing` samples, spread evenly over the
    classes.

    The value of a bin without samples is its middle.
    """
    shares = (hits + smoothing / n_classes) / np.maximum(
        counts + smoothing, np.finfo(np.float64).tiny
    )
    return np.where(counts > 0, shares, middles)


class MutualInformationBinning(Calibrator):
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
    share : {"all", "none"}
        One set of bins for all classes, or one for each (which needs many samples of each).
    penalty : float
        The number of samples, spread evenly over the classes, that are added to every bin so that
        no share is 0 or 1.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    edges_ : ndarray of shape (1 or n_classes, n_bins - 1)
        The inner edges of the log-odds; a bin includes its upper edge.
    values_ : ndarray of shape (1 or n_classes, n_bins)
        The share of hits in each bin.
    information_ : ndarray of shape (1 or n_classes,)
        The mutual information of bin and label, in nats, if the model's own probabilities were
        right.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators import MutualInformationBinning
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> model = MutualInformationBinning(n_bins=8).fit(3 * logits, labels)
    >>> model.edges_.shape
    (1, 7)
    """

    short_name = "imax"

    answers: Answers = "free"
    n_bins: Count = 15
    share: Literal["all", "none"] = "all"
    penalty: NotNegative = 1.0

    map_: InformativeBins = from_fit()
    information_: Vector = from_fit()
    edges_ = from_map("edges")
    values_ = from_map("values")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        n_bins, labels = self.n_bins, samples.labels
        odds = np.clip(class_log_odds(log_softmax(samples.logits)), -CERTAIN, CERTAIN)
        if self.share == "all":
            pooled = np.zeros(odds.shape, dtype=bool)
            pooled[np.arange(len(labels)), labels] = True
            groups = [(odds.ravel(), pooled.ravel())]
        else:
            warn_if_few(self, samples)
            columns = enumerate(np.ascontiguousarray(odds.T))
            groups = [(column, labels == k) for k, column in columns]
        all_edges = np.full((len(groups), n_bins - 1), np.inf)
        values, information = np.zeros((len(groups), n_bins)), np.empty(len(groups))
        for g, (scores, hits) in enumerate(groups):
            edges, information[g] = informative_edges(scores, n_bins)
            all_edges[g, : len(edges)] = edges
            bins = np.searchsorted(edges, scores, side="left")
            counts, hit = (
                np.bincount(some, minlength=len(edges) + 1) for some in (bins, bins[hits])
            )
            # No bin is empty, so none needs the middle as its value.
            middles = np.zeros(len(edges) + 1)
            shares = frequencies(counts, hit, middles, samples.n_classes, self.penalty)
            values[g, : len(shares)] = shares
        return {"map_": InformativeBins(all_edges, values), "information_": information}


class _Sums:
    """Sums of P(hit) and of P(miss), according to the scores, over ranges of the sorted log-odds."""

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


def informative_edges(scores: Vector, n_bins: int) -> tuple[Vector, float]:
    """Return at most n_bins - 1 edges without empty bins, and the mutual information that they
    keep.

    The published search finds a local optimum. Here it starts from the best bins on a grid of
    candidate edges. If the scores have few distinct values, the grid contains all possible edges.
    """
    sums = _Sums(scores)
    edges, history = climb(sums, best_on_grid(sums, _candidates(sums), n_bins))
    return edges, history[-1]


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


def climb(sums: _Sums, edges: Vector) -> tuple[Vector, list[float]]:
    """Raise the mutual information until it no longer changes; return the edges and its value after
    each step.
    """
    edges = _drop_empty(sums, edges)
    history = [information(*sums.between(edges))]
    for _ in range(100):
        hit, miss = sums.between(edges)
        moved = _drop_empty(sums, best_edges(np.log(hit) - np.log(miss)))
        value = information(*sums.between(moved))
        if not value > history[-1] * (1 + 1e-9):
            break
        edges = moved
        history.append(value)
    return edges, history


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
