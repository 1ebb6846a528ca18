"""One small logistic regression per class, all solved at once: what Platt scaling and beta calibration share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from recal.calibrators.machinery.parameters import check_number
from recal.checks import Labels

# In units where each feature has a root mean square of 1: too weak to be seen, enough to make the answer unique.
_RIDGE = 1e-8
_TOL = 1e-12
_MAX_STEPS = 100


def check_smooth(value: Any) -> float:
    """Return how many samples soften the targets; True stands for Platt's one, False for none."""
    return float(value) if isinstance(value, bool | np.bool_) else check_number("penalty", value)


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
    features: Sequence[np.ndarray], labels: Labels, high: np.ndarray, low: np.ndarray, free: np.ndarray | None = None
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
    """
    count, n_classes = features[0].shape
    size = np.array([np.sqrt(np.square(feature).mean(axis=0)) for feature in features])
    size = np.vstack([np.where(size > 0.0, size, 1.0), np.ones(n_classes)])
    held = np.zeros(size.shape, dtype=bool) if free is None else ~free

    def score(coef: np.ndarray) -> np.ndarray:
        total = features[0] * (coef[0] / size[0])
        for feature, scale in zip(features[1:], (coef / size)[1:-1]):
            total += feature * scale
        total += coef[-1]
        return total

    def column(j: int) -> np.ndarray | float:
        return features[j] if j < len(features) else 1.0

    # The targets enter the loss linearly, by one number for each coefficient.
    pull = np.empty(size.shape)
    inside = labels < n_classes
    rows, columns = np.flatnonzero(inside), labels[inside]
    for j, feature in enumerate(features):
        own = np.bincount(columns, weights=feature[rows, columns], minlength=n_classes)
        pull[j] = (low * feature.sum(axis=0) + (high - low) * own) / size[j]
    pull[-1] = low * count + (high - low) * np.bincount(columns, minlength=n_classes)
    pull /= count

    def loss_at(coef: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses, the scores and e^-|score|, from which log(1 + e^score) and the sigmoid follow."""
        scores = score(coef)
        small = np.exp(-np.abs(scores))
        loss = (np.log1p(small).sum(axis=0) + np.maximum(scores, 0.0).sum(axis=0)) / count - (pull * coef).sum(axis=0)
        return loss + _RIDGE * np.square(coef).sum(axis=0), scores, small

    coef = np.zeros(size.shape)
    loss, scores, small = loss_at(coef)
    for _ in range(_MAX_STEPS):
        probs = np.where(scores < 0.0, small, 1.0) / (1.0 + small)
        spread = probs * (1.0 - probs)
        gradient = np.empty(size.shape)
        hessian = np.empty((n_classes, len(size), len(size)))
        for i in range(len(size)):
            gradient[i] = (probs * column(i)).mean(axis=0) / size[i]
            weighted = spread * column(i)
            for j in range(i, len(size)):
                hessian[:, i, j] = hessian[:, j, i] = (weighted * column(j)).mean(axis=0) / (size[i] * size[j])
        gradient += 2.0 * _RIDGE * coef - pull
        gradient[held] = 0.0
        step, decrease = _newton_step(hessian, gradient, held)
        if decrease.max() < _TOL:
            break
        length = np.ones(n_classes)
        for _ in range(30):
            trial = coef + length * step
            value, scores, small = loss_at(trial)
            failed = value > loss - 1e-4 * length * decrease + 1e-15
            if not failed.any():
                break
            length[failed] *= 0.5
        moved = value <= loss
        coef = np.where(moved, trial, coef)
        if moved.all():
            loss = value
        else:
            loss, scores, small = loss_at(coef)
    return coef / size


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
