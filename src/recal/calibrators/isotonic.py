"""Isotonic regression: an increasing curve for each class or one for all classes, and the intervals
of Venn-Abers; and a spline, whose slope is the confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator, GuardedCalibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Floats, Labels, Matrix
from recal.engine.series import ScaledLogits
from recal.maps.arrays import TIE, class_scores, row_max, row_sum, softmax
from recal.maps.base import wide
from recal.maps.curves import ENDLESS, Brackets, Lines, SharedLine, TopLine
from recal.schema import NotNegative, Number
from recal.solvers.temperature import fit_betas
from recal.views import Views

Curve = tuple[Matrix, Matrix]


class IsotonicCalibration(GuardedCalibrator):
    """Map each class's log-odds through an increasing function of its own, then normalise the rows.

    For every class, pooling adjacent violators finds the increasing function that best predicts "is
    it this class?". The function can take any shape, so it needs many samples of each class: a
    thousand or more for ten classes. Rows are divided by their sums afterwards, which may change
    predictions. Reference: Zadrozny and Elkan,
    *Transforming classifier scores into accurate multiclass probability estimates* (KDD 2002).

    Parameters
    ----------
    penalty : float
        The number of samples, spread evenly over the classes, that are added so that no frequency
        is 0 or 1. With 0 the curves are those of scikit-learn's IsotonicRegression of the log-odds,
        which for two classes are the difference of the logits.

    Examples
    --------
    >>> IsotonicCalibration().fit([3.0, 2.0, 1.0, -2.0], [1, 0, 1, 0]).predict_proba([2.5]).round(3)
    array([[0.3, 0.7]])
    """

    penalty: NotNegative = 1.0

    map_: Lines = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels = samples.labels
        beta = self._first_beta(samples.logits, labels)
        columns = np.ascontiguousarray(class_scores(samples.logits, beta).T)
        knots, values, offsets = pack(
            [fit_increasing(scores, labels == k) for k, scores in enumerate(columns)]
        )
        values = smooth(values, len(labels), samples.n_classes, self.penalty)
        return {"map_": Lines(knots, values, offsets, beta)}

    def _first_beta(self, logits: Floats, labels: Labels) -> float:
        """Return the scale of the logits before the curves."""
        return 1.0


class IsotonicOneVsAll(IsotonicCalibration):
    """Scale by one temperature, then map each class's log-odds through an increasing function of
    its own.

    The temperature makes the main correction with one parameter, and isotonic regression corrects
    the rest. The combination therefore needs fewer samples than isotonic regression alone if a
    network is badly overconfident. `penalty` is that of `IsotonicCalibration`. Reference: Zhang,
    Kailkhura and Han, *Mix-n-Match* (ICML 2020): IROvA-TS.

    Examples
    --------
    >>> model = IsotonicOneVsAll().fit([4.0, 4.0, 4.0, -4.0], [1, 1, 0, 0])
    >>> round(model.map_.beta, 2)
    0.27
    """

    def _first_beta(self, logits: Floats, labels: Labels) -> float:
        """Return the beta with the lowest Brier score, which the authors use before the curves.

        The search stays within a factor of 50 of the maximum likelihood beta, which confident
        mistakes lower.
        """
        likeliest = float(fit_betas(ScaledLogits(logits), labels).values[0])
        drops = wide(logits) - row_max(logits)
        rows = np.arange(len(labels))

        def loss(step: float) -> float:
            probs = np.exp(drops * (likeliest * float(np.exp(step))))
            probs /= row_sum(probs)
            probs[rows, labels] -= 1.0
            return float(np.square(probs, out=probs).sum(axis=1).mean())

        solution = scipy.optimize.minimize_scalar(
            loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-4}
        )
        return likeliest * float(np.exp(solution.x))


class IsotonicMulticlass(Calibrator):
    """Map every class's log-odds through one shared, strictly increasing function, then normalise
    the rows.

    All n_samples * n_classes pairs (log-odds, "is it this class?") are pooled, and one isotonic
    regression is fitted to them. A small slope makes it strictly increasing, and dividing a row by
    its sum keeps its order, so the order of the classes and the prediction never change. One shared
    curve needs far fewer samples than a curve for each class. Reference: Zhang, Kailkhura and Han,
    *Mix-n-Match* (ICML 2020), where it is called IRM.

    Parameters
    ----------
    penalty : float
        The number of samples, spread evenly over the classes, that are added so that no frequency
        is 0 or 1.

    Examples
    --------
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> probs = IsotonicMulticlass().fit(logits, [0, 1, 0, 1]).predict_proba(logits)
    >>> probs.argmax(axis=1).tolist()
    [0, 0, 0, 1]
    """

    keeps_accuracy = True

    penalty: NotNegative = 1.0

    map_: SharedLine = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        scores = class_scores(samples.logits)
        hits = np.zeros(scores.shape, dtype=bool)
        hits[np.arange(len(samples)), samples.labels] = True
        knots, values = fit_increasing(scores.ravel(), hits.ravel())
        values = smooth(values, len(samples), samples.n_classes, self.penalty)
        return {"map_": SharedLine(knots, values, 1e-9)}


class SplineCalibration(Calibrator):
    """Calibrate the confidence by the slope of a spline through the cumulative hits, without any
    bins.

    Sort the samples by confidence and add up hits minus confidence, starting from the lowest. For a
    calibrated model the sum stays near zero. A natural cubic spline with few knots is fitted to it
    by least squares. The calibrated confidence of a sample is its confidence plus the spline's
    slope at its rank; between samples it is interpolated.

    Only the probability of the predicted class is calibrated. The other classes share the rest in
    proportion to their probabilities after temperature scaling. If the second class would then
    overtake the predicted one, a temperature for this row shrinks the differences between the
    others just enough. Predictions therefore never change, and the confidence equals the curve;
    only a confidence below 1 / n_classes is raised to it. Reference: Gupta et al.,
    *Calibration of neural networks using splines* (ICLR 2021).

    Parameters
    ----------
    n_knots : int
        Knots of the spline, spread evenly over the ranks.
    penalty : float
        The number of samples, right only by chance, that are added so that no confidence is 0 or 1.

    Examples
    --------
    >>> log_odds = np.linspace(-6.0, 6.0, 1000)
    >>> right = np.random.default_rng(0).random(1000) < 1.0 / (1.0 + np.exp(-log_odds / 3.0))
    >>> model = SplineCalibration().fit(log_odds, right.astype(int))
    >>> bool(model.predict_confidence([3.0])[0] < 0.9)
    True
    """

    keeps_accuracy = True

    n_knots: Annotated[int, Number(2, whole=True)] = 6
    penalty: NotNegative = 1.0

    map_: TopLine = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        n_samples, logits = len(samples), samples.logits
        # Fewer samples than knots would leave the spline undetermined; two knots make a straight
        # line.
        n_knots = min(self.n_knots, max(2, n_samples // 2))
        confidence = softmax(logits)[np.arange(n_samples), samples.answers]
        order = np.argsort(confidence, kind="stable")
        confidence, hits = confidence[order], (samples.answers == samples.labels)[order]
        ranks = np.arange(n_samples + 1) / n_samples
        excess = np.concatenate([[0.0], np.cumsum(hits - confidence)]) / n_samples
        knots = np.linspace(0.0, 1.0, n_knots)
        coefficients = np.linalg.lstsq(_basis(knots)(ranks), excess, rcond=None)[0]
        # Half a rank lower is the middle of a sample's step in the sum.
        slopes = _basis(knots)(ranks[1:] - 0.5 / n_samples, 1) @ coefficients
        # Confidences that differ by a few units in the last place count as equal.
        scores, tied, counts = np.unique(
            merge_ties(confidence, 1e-15), return_inverse=True, return_counts=True
        )
        calibrated = scores + np.bincount(tied, weights=slopes) / counts
        values = smooth(np.clip(calibrated, 0.0, 1.0), n_samples, samples.n_classes, self.penalty)
        return {"map_": TopLine(scores, values, samples.beta)}


def _basis(knots: NDArray[np.float64]) -> Any:
    """Return the natural splines that are 1 at one knot and 0 at the others, as one vector-valued
    function.
    """
    return scipy.interpolate.CubicSpline(knots, np.eye(len(knots)), bc_type="natural")


class VennAbers(GuardedCalibrator):
    """Compute isotonic regression as if the sample had been seen with either label: p0 and p1.

    The sample is added to the fitted ones, once as "not this class" and once as "this class";
    isotonic regression then gives it p0 and p1. One of the two is perfectly calibrated for any
    model and any number of samples; their distance shows how much the result depends on a single
    sample. The probability is p1 / (1 - p0 + p1), which minimises the worst-case regret in
    log-loss; it never reaches 0 or 1. With more than two classes, each is fitted against the rest,
    and rows are divided by their sums. Every class then keeps about 1 / (n + 1), which raises the
    loss of a nearly perfect model: prefer another method for it. Reference: Vovk, Petej and
    Fedorova, *Large-scale probabilistic predictors with and without guarantees of validity* (NIPS
    2015). The code uses their algorithm, which is linear in the number of sorted samples.

    Examples
    --------
    >>> model = VennAbers().fit([3.0, 2.0, 1.0, -2.0], [1, 0, 1, 0])
    >>> low, high = model.predict_interval([2.5])
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([[0.0, 0.333]], [[0.667, 1.0]])
    """

    map_: Brackets = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        columns = np.ascontiguousarray(class_scores(samples.logits).T)
        low, high = zip(*(bracket(column, samples.labels == k) for k, column in enumerate(columns)))
        return {"map_": Brackets(*pack(low), *pack(high))}

    def predict_interval(self, X: Views | ArrayLike) -> tuple[Matrix, Matrix]:
        """Return p0 and p1 of each class against the rest, (n_samples, n_classes) each, before rows
        are normalised.

        The interval is wide if few samples are near, and it is not a confidence interval of the
        probability.
        """
        self._check_width(X)
        views = X if isinstance(X, Views) else Views(X)
        return self.map_.interval(np.asarray(views.logits, dtype=np.float64))


def bracket(scores: Matrix, hits: NDArray[np.bool_]) -> tuple[Curve, Curve]:
    """Return p0 and p1 as step functions of the score: upper edges, the last being the largest
    float, and values.
    """
    where, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    own = np.bincount(place, weights=hits, minlength=len(where)).astype(np.float64)
    # Rounding must not move a sample across an edge.
    same = 1e-9 * (1.0 + np.abs(where))
    # As a hit, a sample between two scores is pooled with the upper one; as a miss, with the lower
    # one.
    high = _with_one_more_hit(counts.astype(np.float64), own)
    low = 1.0 - _with_one_more_hit(counts[::-1].astype(np.float64), (counts - own)[::-1])[::-1]
    return (
        _merged(np.append(where - same, ENDLESS), np.append(0.0, low)),
        _merged(np.append(where + same, ENDLESS), np.append(high, 1.0)),
    )


def _with_one_more_hit(counts: Matrix, hits: Matrix) -> Matrix:
    """Return isotonic regression at each score if there were one more sample with this score, a
    hit.

    The regression is the slope of the greatest convex minorant of the cumulative sums. One more hit
    at score i moves all sums up to i by (-1, -1), so the minorant from i on changes one corner at a
    time: algorithms 1 and 2 of Vovk, Petej and Fedorova.
    """
    sums_x, sums_y = [0.0, *np.cumsum(counts).tolist()], [0.0, *np.cumsum(hits).tolist()]
    corners: list[tuple[float, float]] = [(-1.0, -1.0)]
    for point in zip(sums_x, sums_y):
        while len(corners) > 1 and not _turns_left(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    corners.reverse()  # from here on, the last corner in the list is the next one
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


def _merged(edges: Matrix, values: Matrix) -> Curve:
    """Return the same steps, with neighbours of equal value merged."""
    last = np.append(values[1:] != values[:-1], True)
    return edges[last], values[last]


def fit_increasing(scores: Matrix, hits: NDArray[np.bool_]) -> Curve:
    """Return the knots (score, value) of the increasing function that best predicts `hits`, in
    squared error.

    The function is linear between knots and constant outside, as in scikit-learn's
    IsotonicRegression with clipping. No block of the solution can end between two equal targets, so
    misses between neighbouring hits are pooled first. The solver then sees at most two elements per
    hit, even if the scores of all classes are pooled.
    """
    exact = np.sort(scores)
    ordered = merge_ties(exact)
    hit_scores = scores[hits] if ordered is exact else ordered[np.searchsorted(exact, scores[hits])]
    where, counts = np.unique(hit_scores, return_counts=True)
    left, right = np.searchsorted(ordered, where, "left"), np.searchsorted(ordered, where, "right")
    # The elements alternate: the misses before a score with hits, then all samples at that score.
    edges = np.empty(2 * len(where) + 2, dtype=np.intp)
    edges[0], edges[-1] = 0, len(ordered)
    edges[1:-1:2], edges[2:-1:2] = left, right
    weights = np.diff(edges)
    targets = np.zeros(len(weights))
    targets[1::2] = counts / weights[1::2]
    present = weights > 0
    fitted = scipy.optimize.isotonic_regression(
        targets[present], weights=weights[present].astype(np.float64)
    ).x
    starts, ends = edges[:-1][present], edges[1:][present] - 1
    first = np.concatenate([[True], fitted[1:] != fitted[:-1]])
    last = np.concatenate([first[1:], [True]])
    low, high = ordered[starts[first]], ordered[ends[last]]
    keep = np.stack([np.ones(len(low), dtype=bool), high > low], axis=1).ravel()
    return np.stack([low, high], axis=1).ravel()[keep], np.repeat(fitted[first], 2)[keep]


def merge_ties(ordered: Matrix, tie: float = TIE) -> Matrix:
    """Return sorted scores in which neighbours that differ only by rounding are equal; the same
    array if none do.

    If a curve jumped between two such scores, the last bit of a logarithm, which differs between
    libraries, would decide which value a sample gets.
    """
    gaps = np.diff(ordered, prepend=-np.inf)
    begins = gaps > tie * (1.0 + np.abs(ordered))
    if not (~begins & (gaps > 0.0)).any():
        return ordered
    return ordered[np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))]


def pack(curves: Sequence[Curve]) -> tuple[Matrix, Matrix, NDArray[np.int64]]:
    """Concatenate curves of different lengths: scores, values, and the indices where each curve
    begins and ends.
    """
    scores, values = (np.concatenate(parts) for parts in zip(*curves))
    return scores, values, np.cumsum([0, *(len(curve[0]) for curve in curves)], dtype=np.int64)


def smooth(values: Matrix, n_samples: int, n_classes: int, smoothing: float) -> Matrix:
    """Smooth frequencies as if there were `smoothing` more samples, spread evenly over the classes.

    Smoothing keeps the order of frequencies; with smoothing > 0 none stays at 0 or 1.
    """
    return (n_samples * values + smoothing / n_classes) / (n_samples + smoothing)
