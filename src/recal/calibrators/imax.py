"""Bins that keep as much information about the label as possible (I-Max)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.binning import frequencies
from recal.calibrators.samples import Samples, warn_if_few
from recal.maps.arrays import class_log_odds, log_softmax
from recal.maps.blend import Answers
from recal.maps.curves import CERTAIN, InformativeBins
from recal.schema import Count, NotNegative

Vector = NDArray[np.float64]


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
