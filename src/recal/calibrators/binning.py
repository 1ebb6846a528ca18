"""Binning methods: one histogram per class, and a Bayesian average of many histograms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples, warn_if_few
from recal.maps.arrays import class_scores
from recal.maps.blend import Answers
from recal.maps.curves import Bins, Steps
from recal.schema import Count, NotNegative, Number
from recal.solvers.isotonic import pack, smooth

Vector = NDArray[np.float64]
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
            edges = equal_width_edges(n_bins)
            if strategy == "mass":
                edges = equal_mass_edges(ordered, n_bins)
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
            widths = [with_ends(equal_width_edges(size)) for size in sizes if size > 1]
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


def equal_mass_edges(ordered: Vector, n_bins: int) -> Vector:
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


def equal_width_edges(n_bins: int) -> Vector:
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
