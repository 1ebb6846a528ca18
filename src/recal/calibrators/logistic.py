"""Logistic curves of each class's log-odds: Platt scaling and beta calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Labels, Matrix
from recal.maps.arrays import class_scores
from recal.maps.curves import BetaCurves, LogisticCurves, beta_features
from recal.schema import NotNegative
from recal.solvers.convex import minimise, restricted
from recal.solvers.softmax import NEAR_TOL


class PlattScaling(GuardedCalibrator):
    """Give each class a logistic curve of its log-odds, sigmoid(a * log(p / (1 - p)) + c), and
    divide by the sum.

    The score of a class is the log-odds of its softmax probability, not its logit. With two classes
    that is the difference of the logits. A constant added to all logits of a sample changes
    nothing.

    Parameters
    ----------
    penalty : float
        The strength s of smoothed targets: (N+ + s) / (N+ + 2s) and s / (N- + 2s) instead of 1 and
        0. They keep the curve moderate if a class has few samples, and finite if it has none. 1 is
        Platt's choice, 0 means hard targets; 0.1 is better than both on most real data sets.

    Notes
    -----
    Log-odds are clipped at 36, or at twice their median if that is more.

    Examples
    --------
    >>> log_odds = [3.0, 2.0, 1.0, -2.0]
    >>> PlattScaling().fit(log_odds, [1, 1, 0, 0]).predict_proba([2.0]).round(2)
    array([[0.22, 0.78]])
    """

    penalty: NotNegative = 0.1

    map_: LogisticCurves = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels, n_classes = samples.labels, samples.n_classes
        scores = class_scores(samples.logits)
        limit = _largest_score(scores)
        coefficients = fit_logistic([np.clip(scores, -limit, limit)], labels, self.penalty)
        if n_classes == 2:  # the curve of the second class mirrors the first
            coefficients = np.hstack([coefficients, [[1.0], [-1.0]] * coefficients])
        return {"map_": LogisticCurves(coefficients, limit)}


class BetaCalibration(GuardedCalibrator):
    """Give each class the map 1 / (1 + 1 / (e^c p^a / (1 - p)^b)), with a, b >= 0, and divide by
    the sum.

    The map is exact for scores that are Beta-distributed within a class and outside it. It includes
    the identity (a = b = 1, c = 0) and, with a = b, Platt scaling of the log-odds; otherwise it
    bends differently near 0 and near 1. As published, a and b come from a logistic regression on
    log p and -log(1 - p); neither may be negative, so that the map never falls. With more than two
    classes, a last step moves all curves together to the lowest NLL of the normalised
    probabilities; a weak penalty keeps them close.

    Parameters
    ----------
    penalty : float
        The strength of smoothed targets, as in `PlattScaling`.
    joint : bool
        Whether the curves move together at the end. False is one class against the rest, as
        published.

    Notes
    -----
    Log p and -log(1 - p) are clipped at 36, or at twice the median log-odds if that is larger.

    Examples
    --------
    >>> model = BetaCalibration().fit([3.0, 2.0, 1.0, -2.0], [1, 1, 0, 0])
    >>> model.map_.coefficients.round(1).tolist()  # a, b and c of both classes
    [[3.6, 0.0], [0.0, 3.6], [6.2, -6.2]]
    """

    penalty: NotNegative = 0.1
    joint: bool = True

    map_: BetaCurves = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels, n_classes = samples.labels, samples.n_classes
        scores = class_scores(samples.logits)
        limit = _largest_score(scores)
        features = beta_features(scores, limit)
        start = getattr(samples.near, "coefficients", None)
        coefficients = fit_logistic(features, labels, self.penalty, lower=0.0, start=start)
        if n_classes == 2:  # the curve of the second class mirrors the first
            a, b, c = coefficients[:, 0]
            coefficients = np.array([[a, b], [b, a], [c, -c]])
        elif self.joint:
            coefficients = fit_jointly(features, labels, coefficients)
        return {"map_": BetaCurves(coefficients, limit)}


def _targets(labels: Labels, n_classes: int, smooth: float) -> tuple[Matrix, Matrix]:
    """Return the targets of positive and negative samples of each class: nearly 1 and 0.

    They are (N+ + s) / (N+ + 2s) and s / (N- + 2s). s = 1 is Platt's choice (1999): the posterior
    mean for a uniform prior. They keep the solution finite if a class is missing or perfectly
    separated.
    """
    positive = np.bincount(labels, minlength=n_classes)[:n_classes].astype(np.float64)
    if smooth == 0.0:
        return np.ones(n_classes), np.zeros(n_classes)
    negative = len(labels) - positive
    return (positive + smooth) / (positive + 2 * smooth), smooth / (negative + 2 * smooth)


def _largest_score(scores: Matrix) -> float:
    """Return the limit of scores: 36, the largest log-odds of a float64 probability, or twice the
    median if larger.

    With Platt's targets every sample pulls on the slope in proportion to its score. A class that
    the model rules out with a logit of -10,000 would flatten its whole curve. Code that works on
    probabilities has the same limit implicitly.
    """
    return max(-float(np.log(np.finfo(np.float64).eps)), 2.0 * float(np.median(np.abs(scores))))


def fit_logistic(
    features: Sequence[Matrix],
    labels: Labels,
    penalty: float,
    *,
    lower: float | None = None,
    start: Matrix | None = None,
) -> Matrix:
    """Return the coefficients, (n_features + 1, n_classes), the last row being the intercepts.

    Minimises, for each class k by itself, the mean cross-entropy between sigmoid(sum_j coef[j, k] *
    features[j][:, k] + coef[-1, k]) and the targets. With two classes only the first is fitted.

    Parameters
    ----------
    features : sequence of arrays of shape (n_samples, n_classes)
    penalty : float
        The strength of smoothed targets.
    lower : float, optional
        The lowest value of all coefficients but the intercepts.
    start : array of the shape of the coefficients, optional
        A solution for nearly the same samples; the loss is then exact to 1e-5 only.
    """
    width = 1 if features[0].shape[1] == 2 else features[0].shape[1]
    problem = _Curves([feature[:, :width] for feature in features], labels, penalty)
    first, tol = np.zeros(problem.pull.shape), 1e-12
    if start is not None:
        first, tol = start[:, :width], NEAR_TOL
    bounds = None
    if lower is not None:
        bounds = np.full(first.shape, lower)
        bounds[-1] = -np.inf
    return minimise(problem, first, lower=bounds, tol=tol, max_iter=100, warn=False).point


class _Curves:
    """The loss of each class."""

    def __init__(self, features: Sequence[Matrix], labels: Labels, penalty: float) -> None:
        self.features = features
        self.count, n_classes = features[0].shape
        high, low = _targets(labels, n_classes, penalty)
        # The targets enter the loss linearly, through one number for each coefficient.
        rows = np.flatnonzero(labels < n_classes)
        columns = labels[rows]
        self.pull = np.empty((len(features) + 1, n_classes))
        for j, feature in enumerate(features):
            own = np.bincount(columns, weights=feature[rows, columns], minlength=n_classes)
            self.pull[j] = low * feature.sum(axis=0) + (high - low) * own
        own = np.bincount(columns, minlength=n_classes)
        self.pull[-1] = low * self.count + (high - low) * own
        self.pull /= self.count
        # A ridge without visible effect makes the solution unique, even if every sample of a class
        # is saturated, so that its curvature vanishes.
        self.ridge = 1e-8 * np.square(_sizes(features))

    def evaluate(self, point: Matrix) -> Matrix:
        scores = self.features[0] * point[0]
        for feature, row in zip(self.features[1:], point[1:-1]):
            scores += feature * row
        scores += point[-1]
        # e^-|score| gives log(1 + e^score) and the sigmoid.
        small = np.exp(-np.abs(scores))
        total = np.log1p(small).sum(axis=0) + np.maximum(scores, 0.0).sum(axis=0)
        self.point, self.scores, self.small = point, scores, small
        gained: Matrix = ((self.pull - self.ridge * point) * point).sum(axis=0)
        return total / self.count - gained

    def gradient(self) -> Matrix:
        width, n_classes = self.point.shape
        probs = np.where(self.scores < 0.0, self.small, 1.0) / (1.0 + self.small)
        spread = probs * (1.0 - probs)
        columns: list[Any] = [*self.features, 1.0]
        gradient = 2.0 * self.ridge * self.point - self.pull
        self.hessian = np.empty((n_classes, width, width))
        for i, column in enumerate(columns):
            gradient[i] += (probs * column).sum(axis=0) / self.count
            weighted = spread * column
            for j in range(i, width):
                block = (weighted * columns[j]).sum(axis=0) / self.count
                self.hessian[:, i, j] = self.hessian[:, j, i] = block
            self.hessian[:, i, i] += 2.0 * self.ridge[i]
        self.inverse = np.linalg.inv(self.hessian)
        return gradient

    def restrict(self, free: NDArray[np.bool_]) -> None:
        self.inverse = np.linalg.inv(restricted(self.hessian, free.T))

    def hessian_times(self, direction: Matrix) -> Matrix:
        return np.einsum("kij,jk->ik", self.hessian, direction)

    def precondition(self, residual: Matrix) -> Matrix:
        return np.einsum("kij,jk->ik", self.inverse, residual)


def _sizes(features: Sequence[Matrix]) -> Matrix:
    """Return the root mean square of each feature and, for the intercept, 1; (n_features + 1,
    n_classes).
    """
    size = np.array([np.sqrt(np.square(feature).mean(axis=0)) for feature in features])
    return np.vstack([np.where(size > 0.0, size, 1.0), np.ones(size.shape[1])])


def fit_jointly(
    features: Sequence[Matrix], labels: Labels, coef: Matrix, steps: int = 20
) -> Matrix:
    """Return coefficients near `coef` that minimise the NLL of the normalised probabilities.

    The probabilities are the classes' sigmoids divided by their sum; only intercepts may be
    negative. The penalty is 0.001 K / n times the squared distance from `coef`, in units of the
    features' root mean squares.
    """
    count, n_classes = features[0].shape
    size = _sizes(features)
    centre, strength, rows = coef * size, 1e-3 * n_classes / count, np.arange(count)

    def loss_at(flat: Matrix) -> tuple[float, Matrix]:
        point = flat.reshape(size.shape)
        scale = point / size
        scores = sum(feature * row for feature, row in zip(features, scale)) + scale[-1]
        small = np.exp(-np.abs(scores))
        logs = np.minimum(scores, 0.0) - np.log1p(small)  # logarithms of the sigmoids
        logs -= logs.max(axis=1, keepdims=True)
        probs = np.exp(logs)
        total = probs.sum(axis=1, keepdims=True)
        loss = float((np.log(total[:, 0]) - logs[rows, labels]).mean())
        probs /= total
        probs[rows, labels] -= 1.0
        probs *= np.where(scores < 0.0, 1.0, small) / ((1.0 + small) * count)
        pulls = [(probs * feature).sum(axis=0) for feature in features]
        gradient = np.array([*pulls, probs.sum(axis=0)]) / size
        away = point - centre
        gradient += 2.0 * strength * away
        return loss + strength * float(np.square(away).sum()), gradient.ravel()

    least = np.zeros(size.shape)
    least[-1] = -np.inf
    solution = scipy.optimize.minimize(
        loss_at,
        centre.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(least.ravel(), np.inf),
        options={"maxiter": steps, "ftol": 1e-9, "gtol": 1e-7},
    )
    return solution.x.reshape(size.shape) / size
