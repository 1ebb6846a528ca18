"""Isotonic regression: a rising curve for each class or one that all share, and the brackets of Venn-Abers."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.curves import Knots, fit_increasing, pack, smooth
from recal.calibrators.solvers.temperature import fit_betas
from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits
from recal.maps.arrays import class_scores, softmax
from recal.maps.curves import ENDLESS, Brackets, Lines, SharedLine
from recal.maps.plan import Answers
from recal.schema import NotNegative, Number
from recal.views import Views

Array = NDArray[np.float64]
# Scores closer than this, relative to their size, are one: rounding must move no sample across an edge.
_SAME = 1e-9


class IsotonicCalibration(Calibrator):
    """Map each class's log-odds through an increasing function of its own, then normalise the rows.

    For every class the increasing function that best predicts "is it this class?" is found by pooling adjacent
    violators. It bends freely, so it needs many samples of each class: for ten classes, a thousand or more in all.
    Rows are divided by their sums afterwards, which may change predictions. Reference: Zadrozny and Elkan,
    *Transforming classifier scores into accurate multiclass probability estimates* (KDD 2002).

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1. With 0
        the curves are those of scikit-learn's IsotonicRegression of the log-odds, which for two classes are the
        difference of the logits.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    knots_, values_ : ndarray
        The curves' corners, log-odds and probabilities, those of all classes end to end.
    offsets_ : ndarray of shape (n_classes + 1,)
        Where each class's curve begins in them.

    Examples
    --------
    >>> from recal.calibrators import IsotonicCalibration
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicCalibration().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.7, 0.3]])
    """

    short_name = "isotonic"

    answers: Answers = "free"
    penalty: NotNegative = 1.0

    map_: Lines = from_fit()
    knots_ = from_map("knots")
    values_ = from_map("values")
    offsets_ = from_map("offsets")

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        beta = self._first_beta(views.logits, labels)
        columns = np.ascontiguousarray(class_scores(views.logits, beta).T)
        knots, values, offsets = pack([self._fit_curve(scores, labels == k) for k, scores in enumerate(columns)])
        self.map_ = Lines(knots, smooth(values, len(labels), views.n_classes, self.penalty), offsets, beta)

    def _first_beta(self, logits: Floats, labels: Labels) -> float:
        """Return the scale of the logits before the curves."""
        return 1.0

    def _fit_curve(self, scores: Array, hits: NDArray[np.bool_]) -> Knots:
        """Return the knots of one class's curve."""
        return fit_increasing(scores, hits)


class CentredIsotonic(IsotonicCalibration):
    """Isotonic regression whose flat stretches are drawn together to their centres, with lines between them.

    Each level of the isotonic curve is put at the mean score of its samples, and neighbours are joined by straight
    lines; beyond the first and the last level the curve is flat. Between them it orders samples that isotonic
    regression ties, and errs less where the truth rises steadily. Levels of 0 and 1 keep their inner ends, so that a
    score that was always right stays so. Reference: Oron and Flournoy, *Centered isotonic regression: point and
    interval estimation for dose-response studies* (Statistics in Biopharmaceutical Research 2017).

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    knots_, values_, offsets_ : ndarray
        The classes' curves, as in `IsotonicCalibration`.

    Examples
    --------
    >>> from recal.calibrators import CentredIsotonic
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> CentredIsotonic().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0], [1.5, 0.0]]).round(3)
    array([[0.767, 0.233],
           [0.5  , 0.5  ]])
    """

    short_name = "centred"

    def _fit_curve(self, scores: Array, hits: NDArray[np.bool_]) -> Knots:
        knots, values = fit_increasing(scores, hits)
        levels, first = np.unique(values, return_index=True)
        ends = knots[np.append(first[1:], len(knots)) - 1]
        members = np.minimum(np.searchsorted(ends, scores, side="left"), len(levels) - 1)
        counts = np.bincount(members, minlength=len(levels))
        centres = np.bincount(members, weights=scores, minlength=len(levels)) / np.maximum(counts, 1)
        # What was never, or always, right stays so up to its inner end.
        if len(levels) > 1 and levels[0] == 0.0:
            centres[0] = ends[0]
        if len(levels) > 1 and levels[-1] == 1.0:
            centres[-1] = knots[first[-1]]
        return centres, levels


class IsotonicOneVsAll(IsotonicCalibration):
    """Scale by one temperature, then map each class's log-odds through an increasing function of its own.

    The temperature does the coarse work with one parameter, isotonic regression what is left; so the composition needs
    fewer samples than isotonic regression alone where a network is badly overconfident. Reference: Zhang, Kailkhura
    and Han, *Mix-n-Match* (ICML 2020), there IROvA-TS and, without the temperature, IROvA.

    Parameters
    ----------
    temperature : bool
        Whether to scale by a temperature first (IROvA-TS) or not (IROvA, which is `IsotonicCalibration`).
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    beta_ : float
        The inverse of the temperature, that of the least Brier score as its authors use; 1 where none is fitted.
    knots_, values_, offsets_ : ndarray
        The classes' curves, as in `IsotonicCalibration`.

    Examples
    --------
    >>> from recal.calibrators import IsotonicOneVsAll
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicOneVsAll().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.7, 0.3]])
    """

    short_name = "irova-ts"

    temperature: bool = True

    beta_ = from_map("beta")

    def _first_beta(self, logits: Floats, labels: Labels) -> float:
        """Return the beta of the least Brier score, which the authors use before the curves.

        The search stays within a factor of 50 of the likelihood's beta, which confident mistakes draw down.
        """
        if not self.temperature:
            return 1.0
        likeliest = float(fit_betas(ScaledLogits(logits), labels).values[0])
        rows = np.arange(len(labels))

        def loss(step: float) -> float:
            probs = softmax(logits, likeliest * float(np.exp(step)))
            probs[rows, labels] -= 1.0
            return float(np.square(probs).sum(axis=1).mean())

        solution = scipy.optimize.minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-4})
        return likeliest * float(np.exp(solution.x))


class IsotonicMulticlass(Calibrator):
    """Map every class's log-odds through one shared, strictly increasing function, then normalise the rows.

    All n_samples * n_classes pairs (log-odds, "is it this class?") are pooled and one isotonic regression
    is fitted to them. A small slope is added where it is flat; dividing a row by its sum keeps its order; so the order
    of the classes, and with it the prediction, never changes. Sharing one curve needs far fewer samples than a curve
    for each class. Reference: Zhang, Kailkhura and Han, *Mix-n-Match* (ICML 2020), there IRM.

    Parameters
    ----------
    penalty : float
        How many samples, spread evenly over the classes, are added to the frequencies so that none is 0 or 1.
    slope : float
        What is added per unit of probability to make the function strictly increasing.

    Attributes
    ----------
    knots_, values_ : ndarray of shape (n_knots,)
        The corners of the shared function, log-odds and probabilities, before the slope is added.

    Examples
    --------
    >>> from recal.calibrators import IsotonicMulticlass
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> IsotonicMulticlass().fit(logits, [0, 1, 0, 1]).predict_proba([[2.5, 0.0]]).round(3)
    array([[0.767, 0.233]])
    """

    short_name = "irm"
    keeps_accuracy = True

    penalty: NotNegative = 1.0
    slope: Annotated[float, Number(1e-12, 1.0)] = 1e-9

    map_: SharedLine = from_fit()
    knots_ = from_map("knots")
    values_ = from_map("values")

    def _fit(self, views: Views, labels: Labels) -> None:
        scores = class_scores(views.logits)
        hits = np.zeros(scores.shape, dtype=bool)
        hits[np.arange(len(labels)), labels] = True
        knots, values = fit_increasing(scores.ravel(), hits.ravel())
        self.map_ = SharedLine(knots, smooth(values, len(labels), views.n_classes, self.penalty), self.slope)


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

    answers: Answers = "free"

    map_: Brackets = from_fit()
    low_edges_ = from_map("low_edges")
    low_values_ = from_map("low_values")
    low_offsets_ = from_map("low_offsets")
    high_edges_ = from_map("high_edges")
    high_values_ = from_map("high_values")
    high_offsets_ = from_map("high_offsets")

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        columns = np.ascontiguousarray(class_scores(views.logits).T)
        low, high = zip(*(bracket(column, labels == k) for k, column in enumerate(columns)))
        self.map_ = Brackets(*pack(low), *pack(high))

    def predict_interval(self, X: Views | ArrayLike) -> tuple[Array, Array]:
        """Return p0 and p1 of each class, (n_samples, n_classes) each: one against the rest, before rows are divided.

        The interval is wide where few samples are near, and is not a confidence interval of the probability.
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
        _merged(np.append(where - same, ENDLESS), np.append(0.0, low)),
        _merged(np.append(where + same, ENDLESS), np.append(high, 1.0)),
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
    """Return the same steps, with neighbours of equal value merged."""
    last = np.append(values[1:] != values[:-1], True)
    return edges[last], values[last]
