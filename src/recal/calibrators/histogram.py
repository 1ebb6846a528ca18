"""Histogram binning, one class against the rest."""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.curves import equal_mass_edges, equal_width_edges, frequencies
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.curves import Bins
from recal.maps.plan import Answers
from recal.schema import Count, NotNegative
from recal.views import Views


class HistogramBinning(Calibrator):
    """Sort each class's probability into bins and answer with the share of hits seen there, then normalise the rows.

    The oldest and plainest method: it assumes nothing, and gives only `n_bins` answers per class. Samples in one bin
    can no longer be told apart, so predictions may change and ranking gets coarser. Reference: Zadrozny and Elkan,
    *Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers* (ICML 2001).

    Parameters
    ----------
    n_bins : int, optional
        Bins per class. Left out, it is 15 for equal width; for equal mass it is three times the number of classes,
        but from 15 to 30 and no more than leaves ten samples to each.
    strategy : {"mass", "width"}
        Bins with equally many samples, or of equal width. A class is predicted for about 1 sample in n_classes, so few
        bins of equal mass throw all of its predictions into the last one; bins of equal width throw all small
        probabilities into the first one, which costs likelihood.
    penalty : float
        How many samples, spread evenly over the classes, are added to every bin so that no share is 0 or 1. An empty
        bin answers with its middle.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    edges_ : ndarray of shape (n_classes, n_bins - 1)
        The inner edges, in log-odds; a bin holds its upper edge.
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
    keeps_accuracy = kept_by_answers("free")

    map_: Bins
    edges_ = from_map("edges")
    values_ = from_map("values")

    def __init__(
        self,
        *,
        answers: Answers = "free",
        n_bins: Count | None = None,
        strategy: Literal["mass", "width"] = "mass",
        penalty: NotNegative = 1.0,
    ) -> None:
        self.n_bins = n_bins
        self.strategy = strategy
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        strategy, n_bins = self.strategy, self._count_bins(len(labels), views.n_classes)
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        columns = np.ascontiguousarray(class_scores(views.logits).T)
        all_edges, values = np.empty((len(columns), n_bins - 1)), np.empty((len(columns), n_bins))
        for k, scores in enumerate(columns):
            ordered = np.sort(scores)
            edges = equal_width_edges(n_bins) if strategy == "width" else equal_mass_edges(ordered, n_bins)
            ends = scipy.special.expit(np.concatenate([[-np.inf], edges, [np.inf]]))
            middles = (ends[1:] + ends[:-1]) / 2
            # Where the edges stand among the sorted scores counts the bins; only hits are looked up one by one.
            counts = np.diff(np.searchsorted(ordered, edges, side="right"), prepend=0, append=len(ordered))
            hits = np.bincount(np.searchsorted(edges, scores[labels == k], side="left"), minlength=n_bins)
            all_edges[k] = edges
            values[k] = frequencies(counts, hits, middles, len(columns), self.penalty)
        self.map_ = Bins(all_edges, values)

    def _count_bins(self, n_samples: int, n_classes: int) -> int:
        if self.n_bins is not None:
            return self.n_bins
        return 15 if self.strategy == "width" else max(1, min(max(15, 3 * n_classes), 30, n_samples // 10))
