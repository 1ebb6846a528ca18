"""Isotonic regression: a rising curve for each class against the rest, or one that all classes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.sample_checks import warn_if_few
from recal.calibrators.solvers.curves import Knots, fit_increasing, pack, smooth
from recal.calibrators.solvers.temperature import fit_betas
from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits
from recal.maps.arrays import class_scores, softmax
from recal.maps.curves import Lines, SharedLine
from recal.maps.plan import Answers
from recal.schema import NotNegative, Number
from recal.views import Views


class IsotonicCalibration(Calibrator):
    """Map each class's log-odds through an increasing function of its own, then normalise the rows.

    For every class the increasing function that best predicts "is it this class?" is found by pooling adjacent
    violators. It bends freely, so it wants many samples of each class: a thousand and more in all for ten classes.
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
    keeps_accuracy = kept_by_answers("free")

    map_: Lines
    knots_ = from_map("knots")
    values_ = from_map("values")
    offsets_ = from_map("offsets")

    def __init__(self, *, answers: Answers = "free", penalty: NotNegative = 1.0) -> None:
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        self._fit_columns(views.logits, labels, 1.0)

    def _fit_columns(self, logits: Floats, labels: Labels, beta: float) -> None:
        n_samples, n_classes = logits.shape
        columns = np.ascontiguousarray(class_scores(logits, beta).T)
        curves = [fit_increasing(columns[k], labels == k) for k in range(n_classes)]
        self.map_ = lines(curves, n_samples, n_classes, self.penalty, beta)


def lines(curves: Sequence[Knots], n_samples: int, n_classes: int, penalty: float, beta: float) -> Lines:
    """Return the map of curves, one for each class, whose values are moved as `penalty` more samples would."""
    knots, values, offsets = pack(curves)
    return Lines(knots, smooth(values, n_samples, n_classes, penalty), offsets, beta)


Array = NDArray[np.float64]


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

    def _fit_columns(self, logits: Floats, labels: Labels, beta: float) -> None:
        n_samples, n_classes = logits.shape
        columns = np.ascontiguousarray(class_scores(logits, beta).T)
        curves = [centred(columns[k], labels == k) for k in range(n_classes)]
        self.map_ = lines(curves, n_samples, n_classes, self.penalty, beta)


def centred(scores: Array, hits: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the knots of centred isotonic regression: one for each level, at the mean score of its samples."""
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

    beta_ = from_map("beta")

    def __init__(self, *, answers: Answers = "free", temperature: bool = True, penalty: NotNegative = 1.0) -> None:
        self.temperature = temperature
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        warn_if_few(self, len(labels), views.n_classes, int((views.logits.argmax(axis=1) != labels).sum()))
        self._fit_columns(views.logits, labels, _least_squares_beta(views.logits, labels) if self.temperature else 1.0)


def _least_squares_beta(logits: Floats, labels: Labels) -> float:
    """Return the beta of the least Brier score, which the authors use before the curves.

    It is sought within a factor of 50 of the likelihood's, which is drawn down by confident mistakes.
    """
    likeliest = float(fit_betas(ScaledLogits(logits), labels).values[0])
    rows = np.arange(len(labels))

    def loss(step: float) -> float:
        probs = softmax(logits, likeliest * float(np.exp(step)))
        probs[rows, labels] -= 1.0
        return float(np.square(probs).sum(axis=1).mean())

    found = scipy.optimize.minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-4})
    return likeliest * float(np.exp(found.x))


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

    map_: SharedLine
    knots_ = from_map("knots")
    values_ = from_map("values")

    def __init__(self, *, penalty: NotNegative = 1.0, slope: Annotated[float, Number(1e-12, 1.0)] = 1e-9) -> None:
        self.penalty = penalty
        self.slope = slope

    def _fit(self, views: Views, labels: Labels) -> None:
        scores = class_scores(views.logits)
        hits = np.zeros(scores.shape, dtype=bool)
        hits[np.arange(len(labels)), labels] = True
        knots, values = fit_increasing(scores.ravel(), hits.ravel())
        self.map_ = SharedLine(knots, smooth(values, len(labels), views.n_classes, self.penalty), self.slope)
