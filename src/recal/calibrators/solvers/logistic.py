"""One small logistic regression per class, all solved at once: what Platt scaling and beta calibration share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from recal.checks import Labels

# In units where each feature has a root mean square of 1: too weak to be seen, enough to make the answer unique.
_RIDGE = 1e-8
TOL = 1e-12
_MAX_STEPS = 100
# How strongly classes that move together are held where each was by itself, and how many steps they may take: more
# gain nothing that is seen in samples left out.
_JOINT_PENALTY = 1e-3
_JOINT_STEPS = 20


def targets(labels: Labels, n_classes: int, smooth: float) -> tuple[np.ndarray, np.ndarray]:
    """Return what a positive and a negative sample of each class should be given: nearly 1 and 0.

    They are (N+ + s) / (N+ + 2s) and s / (N- + 2s): with s = 1 Platt's (1999), the mean of a uniform prior's posterior.
    They keep the answer finite where a class is missing, or can be told apart without an error.
    """
    positive = np.bincount(labels, minlength=n_classes).astype(np.float64)
    if smooth == 0.0:
        return np.ones(n_classes), np.zeros(n_classes)
    return (positive + smooth) / (positive + 2 * smooth), smooth / (len(labels) - positive + 2 * smooth)


def largest_score(scores: np.ndarray) -> float:
    """Return how large a score may count: 36, what 1 - p in float64 can say, or twice the usual one if larger.

    With Platt's targets a sample pulls on the slope in proportion to its score, even one that is settled; a class that
    the model rules out with a logit of -10,000 would flatten its whole curve. Code that works on probabilities has the
    same bound without saying so.
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

    Minimises, for each class k by itself, the mean cross-entropy between sigmoid(sum_j coef[j, k] * features[j][:, k] +
    coef[-1, k]) and the targets: high[k] where the label is k, else low[k]. Newton's method with a step halved, class
    by class, until the loss falls.

    Parameters
    ----------
    features : sequence of ndarray of shape (n_samples, n_classes)
        With a single column, labels are 0 for its samples and 1 for the others.
    free : ndarray of bool, (n_features + 1, n_classes), optional
        False holds a coefficient at zero.
    start : ndarray of the shape of the coefficients, optional
        Where the search begins.
    tol : float
        How near its minimum the loss must be.
    """
    count, n_classes = features[0].shape
    size = np.array([np.sqrt(np.square(feature).mean(axis=0)) for feature in features])
    size = np.vstack([np.where(size > 0.0, size, 1.0), np.ones(n_classes)])
    held = np.zeros(size.shape, dtype=bool) if free is None else ~free
    # The targets enter the loss linearly, by one number for each coefficient.
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
        chosen = features if len(open_) == n_classes else [feature[:, open_] for feature in features]
        classes = _Classes(chosen, size[:, open_], pull[:, open_], held[:, open_])
        coef[:, open_], unsettled, taken = classes.descend(coef[:, open_], tol, _MAX_STEPS - steps)
        open_, steps = open_[unsettled], steps + taken
    return coef / size


class _Classes:
    """The logistic regressions of some classes, in units where each feature has a root mean square of 1."""

    def __init__(self, features: Sequence[np.ndarray], size: np.ndarray, pull: np.ndarray, held: np.ndarray) -> None:
        self.features, self.size, self.pull, self.held = features, size, pull, held
        self.count = len(features[0])

    def descend(self, coef: np.ndarray, tol: float, most: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Take Newton steps until no more than half of the classes are unsettled, or all are settled.

        Returns the coefficients, which classes are unsettled, and how many steps were taken.
        """
        loss, scores, small = self._loss(coef)
        for step_number in range(most):
            gradient, hessian = self._derivatives(coef, scores, small)
            step, decrease = _newton_step(hessian, gradient, self.held)
            unsettled = decrease >= tol
            if unsettled.sum() <= len(unsettled) // 2:
                return coef, unsettled, step_number
            length = np.ones(coef.shape[1])
            for _ in range(30):
                trial = coef + length * step
                value, scores, small = self._loss(trial)
                # What is settled is not halved: rounding alone would decide.
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
        """Return the losses, the scores and e^-|score|, from which log(1 + e^score) and the sigmoid follow."""
        scores = self.features[0] * (coef[0] / self.size[0])
        for feature, scale in zip(self.features[1:], (coef / self.size)[1:-1]):
            scores += feature * scale
        scores += coef[-1]
        small = np.exp(-np.abs(scores))
        total = np.log1p(small).sum(axis=0) + np.maximum(scores, 0.0).sum(axis=0)
        loss = total / self.count - (self.pull * coef).sum(axis=0)
        return loss + _RIDGE * np.square(coef).sum(axis=0), scores, small

    def _derivatives(self, coef: np.ndarray, scores: np.ndarray, small: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
                hessian[:, i, j] = hessian[:, j, i] = (weighted * columns[j]).mean(axis=0) / (size[i] * size[j])
        gradient += 2.0 * _RIDGE * coef - self.pull
        gradient[self.held] = 0.0
        return gradient, hessian


def _newton_step(hessian: np.ndarray, gradient: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each class's Newton step and the decrease that it promises at first order."""
    width = len(gradient)
    system = hessian + 2.0 * _RIDGE * np.eye(width)
    fixed = held.T
    system[fixed[:, :, None] | fixed[:, None, :]] = 0.0
    diagonal = np.einsum("kii->ki", system)
    diagonal[fixed] = 1.0
    # Where every sample of a class is settled the curvature is nil, and a step must not be huge.
    diagonal += 1e-12
    step = -np.linalg.solve(system, gradient.T[:, :, None])[:, :, 0].T
    return step, -(gradient * step).sum(axis=0)


def fit_jointly(features: Sequence[np.ndarray], labels: Labels, coef: np.ndarray) -> np.ndarray:
    """Return coefficients near `coef`, none but the intercepts negative, whose normalised answers have the least NLL.

    Answers are the classes' sigmoids divided by their sum. A penalty holds each coefficient, times its feature's root
    mean square, where it was: 0.001 K / n times the squared distance.
    """
    count, n_classes = features[0].shape
    size = np.array([np.sqrt(np.square(feature).mean(axis=0)) for feature in features])
    size = np.vstack([np.where(size > 0.0, size, 1.0), np.ones(n_classes)])
    centre, strength, rows = coef * size, _JOINT_PENALTY * n_classes / count, np.arange(count)

    def loss_at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = flat.reshape(size.shape)
        scale = point / size
        scores = sum(feature * row for feature, row in zip(features, scale)) + scale[-1]
        small = np.exp(-np.abs(scores))
        logs = np.minimum(scores, 0.0) - np.log1p(small)  # of the sigmoids
        logs -= logs.max(axis=1, keepdims=True)
        probs = np.exp(logs)
        total = probs.sum(axis=1, keepdims=True)
        loss = float((np.log(total[:, 0]) - logs[rows, labels]).mean())
        probs /= total
        probs[rows, labels] -= 1.0
        probs *= np.where(scores < 0.0, 1.0, small) / ((1.0 + small) * count)
        gradient = np.array([*((probs * feature).sum(axis=0) for feature in features), probs.sum(axis=0)]) / size
        away = point - centre
        return loss + strength * float(np.square(away).sum()), (gradient + 2.0 * strength * away).ravel()

    least = np.zeros(size.shape)
    least[-1] = -np.inf
    found = scipy.optimize.minimize(
        loss_at,
        centre.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(least.ravel(), np.inf),
        options={"maxiter": _JOINT_STEPS, "ftol": 1e-9, "gtol": 1e-7},
    )
    return found.x.reshape(size.shape) / size
