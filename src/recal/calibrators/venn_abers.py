"""Venn-Abers prediction: two isotonic regressions for each answer, which bracket the probability."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.curves import pack
from recal.checks import Labels
from recal.maps.arrays import class_scores
from recal.maps.curves import Brackets
from recal.maps.plan import Answers
from recal.views import Views

Array = NDArray[np.float64]
# Scores closer than this, relative to their size, are one: rounding must move no sample across an edge.
_SAME = 1e-9
_ENDLESS = float(np.finfo(np.float64).max)


class VennAbers(Calibrator):
    """Ask what isotonic regression would say if the sample had been seen with either label: p0 and p1.

    The sample joins the fitted ones, once as "not this class" and once as "this class"; isotonic regression then gives
    it p0 and p1. One of the two is perfectly calibrated, whatever the model and the number of samples; their distance
    says how much the answer depends on a single sample. The probability is p1 / (1 - p0 + p1), which has the least
    worst regret in log-loss; it never reaches 0 or 1. With more than two classes each is set against the rest, and rows
    are divided by their sums. Every class then keeps about 1 / (n + 1), which costs much where a model is nearly
    perfect: prefer another method there. Reference: Vovk, Petej and Fedorova, *Large-scale probabilistic predictors
    with and without guarantees of validity* (NIPS 2015), whose algorithm, linear in the number of sorted samples, is
    used.

    Parameters
    ----------
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    low_edges_, low_values_, low_offsets_ : ndarray
        p0 of each class as a step function of its log-odds, those of all classes end to end: the upper edge of every
        step (that of the last is the largest float64) and the value on it.
    high_edges_, high_values_, high_offsets_ : ndarray
        p1, likewise.

    Examples
    --------
    >>> from recal.calibrators import VennAbers
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> model = VennAbers().fit(logits, [0, 1, 0, 1])
    >>> model.predict_proba([[2.5, 0.0]]).round(3)
    array([[0.6, 0.4]])
    >>> low, high = model.predict_interval([[2.5, 0.0]])
    >>> low.round(3), high.round(3)
    (array([[0.333, 0.   ]]), array([[1.   , 0.667]]))
    """

    short_name: ClassVar[str] = "venn-abers"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")

    map_: Brackets
    low_edges_ = from_map("low_edges")
    low_values_ = from_map("low_values")
    low_offsets_ = from_map("low_offsets")
    high_edges_ = from_map("high_edges")
    high_values_ = from_map("high_values")
    high_offsets_ = from_map("high_offsets")

    def __init__(self, *, answers: Answers = "free") -> None:
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        columns = np.ascontiguousarray(class_scores(views.logits).T)
        low, high = zip(*(bracket(column, labels == k) for k, column in enumerate(columns)))
        self.map_ = Brackets(*pack(low), *pack(high))

    def predict_interval(self, X: Views | ArrayLike) -> tuple[Array, Array]:
        """Return p0 and p1 of each class, (n_samples, n_classes) each: one against the rest, before rows are divided.

        The interval is wide where few samples are near, and is no confidence interval of the probability.
        """
        self._check_width(X)
        views = X if isinstance(X, Views) else Views(X)
        return self.map_.interval(np.asarray(views.logits, dtype=np.float64))


def bracket(scores: Array, hits: NDArray[np.bool_]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return p0 and p1 as step functions of the score: upper edges, of which the last is endless, and values."""
    where, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    own = np.bincount(place, weights=hits, minlength=len(where)).astype(np.float64)
    same = _SAME * (1.0 + np.abs(where))
    # Seen as a hit, a sample between two scores is pooled with the upper one; seen as a miss, with the lower one.
    high = _with_one_more_hit(counts.astype(np.float64), own)
    low = 1.0 - _with_one_more_hit(counts[::-1].astype(np.float64), (counts - own)[::-1])[::-1]
    return (
        _merged(np.append(where - same, _ENDLESS), np.append(0.0, low)),
        _merged(np.append(where + same, _ENDLESS), np.append(high, 1.0)),
    )


def _with_one_more_hit(counts: Array, hits: Array) -> Array:
    """Return isotonic regression at each score, were there one more sample at it, a hit.

    The regression is the slope of the greatest convex minorant of the cumulative sums. A hit more at score i moves all
    sums up to i by (-1, -1), so the minorant from i on changes one corner at a time: Vovk, Petej and Fedorova's
    algorithms 1 and 2.
    """
    sums_x, sums_y = [0.0, *np.cumsum(counts).tolist()], [0.0, *np.cumsum(hits).tolist()]
    corners: list[tuple[float, float]] = [(-1.0, -1.0)]
    for point in zip(sums_x, sums_y):
        while len(corners) > 1 and not _turns_left(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    corners.reverse()  # from here on the last corner is the first one on the way
    values, before = np.empty(len(counts)), (-1.0, -1.0)
    for i in range(len(counts)):
        (x0, y0), (x1, y1) = corners[-1], corners[-2]
        values[i] = (y1 - y0) / (x1 - x0)
        before = (before[0] + sums_x[i + 1] - sums_x[i], before[1] + sums_y[i + 1] - sums_y[i])
        if (before[1] - y0) * (x1 - x0) >= (y1 - y0) * (before[0] - x0):
            continue  # the moved point lies on or above the minorant's first line
        corners.pop()
        while len(corners) > 1 and not _turns_left(before, corners[-1], corners[-2]):
            corners.pop()
        corners.append(before)
    return values


def _turns_left(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - b[1]) > (b[1] - a[1]) * (c[0] - b[0])


def _merged(edges: Array, values: Array) -> tuple[Array, Array]:
    """Return the same steps with neighbours of one value made one."""
    last = np.append(values[1:] != values[:-1], True)
    return edges[last], values[last]
