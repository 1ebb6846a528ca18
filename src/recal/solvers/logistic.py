"""One small logistic regression per class, all solved at once;

Platt scaling and beta calibration use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from recal.checks import Labels

# A ridge for features with a root mean square of 1: it has no visible effect, but makes the
# solution unique.
_RIDGE = 1e-8
TOL = 1e-12
_MAX_STEPS = 100
# How strongly the joint fit is pulled towards the separate curves, and its number of steps: more
# steps do not help.
_JOINT_PENALTY = 1e-3
_JOINT_STEPS = 20


def targets(labels: Labels, n_classes: int, smooth: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of positive and negative samples of each class: nearly 1 and 0.

    They are (N+ + s) / (N+ + 2s) and s / (N- + 2s). s = 1 is Platt's choice (1999): the posterior
    mean for a uniform prior. They keep the solution finite if a class is missing or perfectly
    separated.
    """
    positive = np.bincount(labels, minlength=n_classes).astype(np.float64)
    if smooth == 0.0:
        return np.ones(n_classes), np.zeros(n_classes)
    return (positive + smooth) / (positive + 2 * smooth), smooth / (
        len(labels) - positive + 2 * smooth
    )


def largest_score(scores: np.ndarray) -> float:
    """Return the limit of scores: 36, the largest log-odds of a float64 probability, or twice the
    median if larger.

    With Platt's targets every sample pulls on the slope in proportion to its score. A class that
    the model rules out with a logit of -10,000 would flatten its whole curve. Code that works on
    probabilities has the same limit implicitly.
    """
    return max(-float(np.log(np.finfo(np.float64).eps)), 2.0 * float(np.median(np.abs(scores))))


def fit_logistic(
    features: Sequence[np.ndarray],
    labels: Labels,
    high: np.ndarray,
    low: np.ndarray,
    free: np.ndarray | None = None,
    start: np.ndarray | None = None,
    tol: float = TOL,
) -> np.ndarray:
    """Return the coefficients, (n_features + 1, n_classes), the last row being the intercepts.

    Minimises, for each class k by itself, the mean cross-entropy between sigmoid(sum_j coef[j, k] *
    features[j][:, k] + coef[-1, k]) and the targets: high[k] if the label is k, else low[k]. Uses
    Newton's method; steps are halved, class by class, until the loss falls.

    Parameters
    ----------
    features : sequence of ndarray of shape (n_samples, n_classes)
        With a single column, labels are 0 for samples of its class and 1 for the others.
    free : ndarray of bool, (n_features + 1, n_classes), optional
        False keeps a coefficient at zero.
    start : ndarray of the shape of the coefficients, optional
        The starting point of the search.
    tol : float
        The largest distance of the loss from its minimum.
    """
    count, n_classes = features[0].shape
    size = _sizes(features)
    free = np.ones(size.shape, dtype=bool) if free is None else free
    # The targets enter the loss linearly, through one number for each coefficient.
    pull = np.empty(size.shape)
    inside = labels < n_classes
    rows, columns = np.flatnonzero(inside), labels[inside]
    for j, feature in enumerate(features):
        own = np.bincount(columns, weights=feature[rows, columns], minlength=n_classes)
        pull[j] = (low * feature.sum(axis=0) + (high - low) * own) / size[j]
    pull[-1] = low * count + (high - low) * np.bincount(columns, minlength=n_classes)
    pull /= count
    coef = np.zeros(size.shape) if start is None else start * size
    open_, steps = np.arange(n_classes), 0
    while len(open_) and steps < _MAX_STEPS:
        chosen = (
            features if len(open_) == n_classes else [feature[:, open_] for feature in features]
        )
        classes = _Classes(chosen, size[:, open_], pull[:, open_], free[:, open_])
        coef[:, open_], unsettled, n_steps = classes.descend(
            coef[:, open_], tol, _MAX_STEPS - steps
        )
        open_, steps = open_[unsettled], steps + n_steps
    return coef / size


def _sizes(features: Sequence[np.ndarray]) -> np.ndarray:
    """Return the root mean square of each feature and, for the intercept, 1; (n_features + 1,
    n_classes).
    """
    size = np.array([np.sqrt(np.square(feature).mean(axis=0)) for feature in features])
    return np.vstack([np.where(size > 0.0, size, 1.0), np.ones(size.shape[1])])


class _Classes:
    """The logistic regressions of some classes, in units where each feature has a root mean square
    of 1.
    """

    def __init__(
        self, features: Sequence[np.ndarray], size: np.ndarray, pull: np.ndarray, free: np.ndarray
    ) -> None:
        self.features, self.size, self.pull, self.free = features, size, pull, free
        self.count = len(features[0])

    def descend(
        self, coef: np.ndarray, tol: float, most: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Take Newton steps until at most half of the classes have not converged, or until all
        have.

        Returns the coefficients, which classes have not converged, and how many steps were taken.
        """
        loss, scores, small = self._loss(coef)
        for step_number in range(most):
            gradient, hessian = self._derivatives(coef, scores, small)
            step, decrease = _newton_step(hessian, gradient, self.free)
            unsettled = decrease >= tol
            if unsettled.sum() <= len(unsettled) // 2:
                return coef, unsettled, step_number
            length = np.ones(coef.shape[1])
            for _ in range(30):
                trial = coef + length * step
                value, scores, small = self._loss(trial)
                # Steps of converged classes are not halved: rounding alone would decide.
                failed = (value > loss - 1e-4 * length * decrease + 1e-15) & unsettled
                if not failed.any():
                    break
                length[failed] *= 0.5
            moved = value <= loss
            coef = np.where(moved, trial, coef)
            if moved.all():
                loss = value
            else:
                loss, scores, small = self._loss(coef)
        return coef, unsettled, most

    def _loss(self, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses, the scores and e^-|score|, which gives log(1 + e^score) and the
        sigmoid.
        """
        scores = self.features[0] * (coef[0] / self.size[0])
        for feature, scale in zip(self.features[1:], (coef / self.size)[1:-1]):
            scores += feature * scale
        scores += coef[-1]
        small = np.exp(-np.abs(scores))
        total = np.log1p(small).sum(axis=0) + np.maximum(scores, 0.0).sum(axis=0)
        loss = total / self.count - (self.pull * coef).sum(axis=0)
        return loss + _RIDGE * np.square(coef).sum(axis=0), scores, small

    def _derivatives(
        self, coef: np.ndarray, scores: np.ndarray, small: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        size, width = self.size, len(self.size)
        probs = np.where(scores < 0.0, small, 1.0) / (1.0 + small)
        spread = probs * (1.0 - probs)
        gradient = np.empty(size.shape)
        hessian = np.empty((size.shape[1], width, width))
        columns: list[np.ndarray | float] = [*self.features, 1.0]
        for i in range(width):
            gradient[i] = (probs * columns[i]).mean(axis=0) / size[i]
            weighted = spread * columns[i]
            for j in range(i, width):
                hessian[:, i, j] = hessian[:, j, i] = (weighted * columns[j]).mean(axis=0) / (
                    size[i] * size[j]
                )
        gradient += 2.0 * _RIDGE * coef - self.pull
        gradient[~self.free] = 0.0
        return gradient, hessian


def _newton_step(
    hessian: np.ndarray, gradient: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each class's Newton step and the expected decrease to first order."""
    width = len(gradient)
    system = hessian + 2.0 * _RIDGE * np.eye(width)
    fixed = ~free.T
    system[fixed[:, :, None] | fixed[:, None, :]] = 0.0
    diagonal = np.einsum("kii->ki", system)
    diagonal[fixed] = 1.0
    # If every sample of a class is saturated, the curvature vanishes, and the step must stay
    # finite.
    diagonal += 1e-12
    step = -np.linalg.solve(system, gradient.T[:, :, None])[:, :, 0].T
    return step, -(gradient * step).sum(axis=0)


def fit_jointly(features: Sequence[np.ndarray], labels: Labels, coef: np.ndarray) -> np.ndarray:
    """Return coefficients near `coef` that minimise the NLL of the normalised probabilities.

    The probabilities are the classes' sigmoids divided by their sum; only intercepts may be
    negative. The penalty is 0.001 K / n times the squared distance from `coef`, in units of the
    features' root mean squares.
    """
    count, n_classes = features[0].shape
    size = _sizes(features)
    centre, strength, rows = coef * size, _JOINT_PENALTY * n_classes / count, np.arange(count)

    def loss_at(flat: np.ndarray) -> tuple[float, np.ndarray]:
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
        gradient = (
            np.array([*((probs * feature).sum(axis=0) for feature in features), probs.sum(axis=0)])
            / size
        )
        away = point - centre
        return loss + strength * float(np.square(away).sum()), (
            gradient + 2.0 * strength * away
        ).ravel()

    least = np.zeros(size.shape)
    least[-1] = -np.inf
    solution = scipy.optimize.minimize(
        loss_at,
        centre.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(least.ravel(), np.inf),
        options={"maxiter": _JOINT_STEPS, "ftol": 1e-9, "gtol": 1e-7},
    )
    return solution.x.reshape(size.shape) / size
