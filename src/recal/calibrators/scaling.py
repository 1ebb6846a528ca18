"""Vector scaling, and structured vector and matrix scaling, whose ridges follow the size of the
data.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from recal.calibrators.base import Calibrator, from_fit, from_map
from recal.calibrators.samples import Samples, warn_if_few
from recal.checks import Floats
from recal.maps.arrays import soft_log_probs
from recal.maps.base import wide
from recal.maps.blend import Answers
from recal.maps.scaling import Affine, StructuredAffine, StructuredLinear, within
from recal.schema import Strength
from recal.solvers.softmax import NEAR_TOL, DiagonalMap, LinearMap
from recal.solvers.temperature import fit_beta


class VectorScaling(Calibrator):
    """Scale and shift the logits class by class, softmax(v * z + b), to minimise the negative
    log-likelihood.

    Parameters
    ----------
    penalty : float
        Strength of a weak ridge, ``penalty * (sum of (v - beta)^2 + sum of b^2)``, where beta is
        the common scale of temperature scaling. It keeps the solution finite and unique, for
        instance if a class is missing from the labels or is separated perfectly. Otherwise the
        default changes the loss by less than 1e-7.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    scales_, shifts_ : ndarray of shape (n_classes,)
        v and b.
    loss_ : float
        The penalised loss at the minimum.
    limit_ : float
        20 times the largest logit of a typical row, and at least 100. If a row has larger logits,
        such as a row filled with the lowest float32, its maximum is subtracted, and lower values
        are then clipped at minus the limit.

    Examples
    --------
    >>> from recal.calibrators import VectorScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> VectorScaling(penalty=0.1).fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.79, 0.21]])
    """

    short_name: ClassVar[str] = "vs"
    takes_weights: ClassVar[bool] = True

    answers: Answers = "free"
    penalty: Strength = 1e-7

    map_: Affine = from_fit()
    loss_: float = from_fit()
    scales_ = from_map("scale")
    shifts_ = from_map("shift")
    limit_ = from_map("limit")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        warn_if_few(self, samples, mistakes=True)
        labels, weights = samples.labels, samples.weights
        logits: Floats = np.array(samples.logits, dtype=np.float64, order="C")
        limit = max(100.0, 20.0 * float(np.median(np.abs(logits).max(axis=1))))
        logits = within(logits, limit)
        start = np.zeros((2, samples.n_classes))
        start[0] = fit_beta(logits, labels, weights)
        solution = DiagonalMap(
            logits, labels, ridge=self.penalty, centre=start, weights=weights
        ).solve(start)
        scale, shift = solution.point
        return {"map_": Affine(scale, shift, limit), "loss_": solution.loss}


class StructuredVectorScaling(Calibrator):
    """Scale and shift class by class, as far from temperature scaling as the number of samples
    warrants (SVS).

    With x the log-probabilities after temperature scaling, mixed with a share of 1 / (n + 1) of the
    uniform distribution, minimise

        mean NLL of softmax(v * x + b)  +  K/n * (scale_penalty * sum of (v - 1)^2 + shift_penalty *
        sum of b^2).

    Parameters
    ----------
    scale_penalty, shift_penalty : float
        Strengths relative to the authors' K/n.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    beta_ : float
        The scale 1/T of the temperature scaling that comes first.
    scales_, shifts_ : ndarray of shape (n_classes,)
        v and b.
    n_fitted_ : int
        The number of samples of the fit, which sets the share of the uniform distribution.
    loss_ : float
        The penalised loss at the minimum.

    Examples
    --------
    >>> from recal.calibrators import StructuredVectorScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> StructuredVectorScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.76, 0.24]])
    """

    short_name: ClassVar[str] = "svs"

    answers: Answers = "free"
    scale_penalty: Strength = 1.0
    shift_penalty: Strength = 1.0

    map_: StructuredAffine = from_fit()
    loss_: float = from_fit()
    beta_ = from_map("beta")
    scales_ = from_map("scale")
    shifts_ = from_map("shift")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        beta, labels, near = samples.beta, samples.labels, samples.near
        features, uniform = _robust_features(samples)
        identity = np.zeros((2, samples.n_classes))
        identity[0] = 1.0
        ridge = np.array([[self.scale_penalty], [self.shift_penalty]])
        ridge = ridge * (samples.n_classes / len(labels))
        problem = DiagonalMap(features, labels, ridge=ridge, centre=identity)
        start, tol = identity, 1e-7
        if isinstance(near, StructuredAffine):
            start, tol = np.stack([near.scale, near.shift]), NEAR_TOL
        solution = problem.solve(start, tol=tol)
        return {"map_": StructuredAffine(beta, uniform, *solution.point), "loss_": solution.loss}


class StructuredMatrixScaling(Calibrator):
    """Mix the classes linearly, as far from temperature scaling as the number of samples warrants
    (SMS).

    With x the log-probabilities after temperature scaling, mixed with a share of 1 / (n + 1) of the
    uniform distribution, minimise over W = diag(v) + M, M off the diagonal, the mean NLL of
    softmax(W x + b) plus

        K/n * (scale_penalty * sum of (v - 1)^2 + shift_penalty * sum of b^2) + K(K-1)/n *
        mix_penalty * sum of M^2.

    Parameters
    ----------
    scale_penalty, shift_penalty, mix_penalty : float
        Strengths relative to the authors' K/n, K/n and K(K-1)/n.
    answers : {"free", "kept"}
        "kept": predictions never change: a guard keeps the model's prediction the likeliest class
        at the lowest cost.

    Attributes
    ----------
    beta_ : float
        The scale 1/T of the temperature scaling that comes first.
    weights_ : ndarray of shape (n_classes, n_classes)
        W; row k gives the score of class k.
    intercept_ : ndarray of shape (n_classes,)
        b.
    n_fitted_ : int
        The number of samples of the fit, which sets the share of the uniform distribution.
    loss_ : float
        The penalised loss at the minimum.

    Examples
    --------
    >>> from recal.calibrators import StructuredMatrixScaling
    >>> logits = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]]
    >>> StructuredMatrixScaling().fit(logits, [0, 0, 1, 1]).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.75, 0.25]])
    """

    short_name: ClassVar[str] = "sms"

    answers: Answers = "free"
    scale_penalty: Strength = 1.0
    shift_penalty: Strength = 1.0
    mix_penalty: Strength = 1.0

    map_: StructuredLinear = from_fit()
    loss_: float = from_fit()
    beta_ = from_map("beta")
    weights_ = from_map("weights")
    intercept_ = from_map("intercept")

    def _fit(self, samples: Samples) -> dict[str, Any]:
        beta, labels, near = samples.beta, samples.labels, samples.near
        count = samples.n_classes
        ridge = np.full((count, count + 1), self.mix_penalty * (count - 1))
        np.fill_diagonal(ridge, self.scale_penalty)
        ridge[:, -1] = self.shift_penalty
        ridge *= count / len(labels)
        features, uniform = _robust_features(samples)
        problem = LinearMap(features, labels, count)
        identity = np.eye(count, count + 1)
        problem.penalise(ridge, identity)
        start, tol = identity, 1e-7
        if isinstance(near, StructuredLinear):
            start, tol = np.column_stack([near.weights, near.intercept]), NEAR_TOL
        solution = problem.solve(start, tol=tol)
        weights, intercept = solution.point[:, :-1].copy(), solution.point[:, -1].copy()
        fitted = StructuredLinear(beta, uniform, weights, intercept)
        return {"map_": fitted, "loss_": solution.loss}


def _robust_features(samples: Samples) -> tuple[np.ndarray, float]:
    """Return log-probabilities at the fitted temperature, and their share of uniform probability."""
    uniform = 1.0 / (len(samples) + 1.0)
    return soft_log_probs(wide(samples.logits) * samples.beta, 1.0, uniform), uniform
