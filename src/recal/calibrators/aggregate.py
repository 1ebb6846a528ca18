"""Learned aggregation: a weighted sum of the original's and the views' logits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_map, kept_by_answers
from recal.calibrators.solvers.temperature import fit_beta
from recal.checks import Labels
from recal.maps.aggregation import ViewSum, tame
from recal.maps.arrays import log_softmax
from recal.maps.base import wide
from recal.maps.plan import Answers
from recal.schema import NotNegative
from recal.views import Views


class LearnedAggregation(Calibrator):
    """Sum the logits of the original and its views with learned weights of at least 0.

    There is one weight for each, or with `per_class` one for each and every class. They minimise the negative
    log-likelihood with a slight penalty on their squares, as published; the loss is convex, so it is solved to its
    minimum (L-BFGS-B) where the authors take some steps of gradient descent. They scale the weights of the first kind
    to a sum of 1, since only accuracy matters to them; here the sum is free, so that it holds a temperature.
    Reference: Shanmugam, Blalock, Balakrishnan and Guttag, *Better aggregation in test-time augmentation* (ICCV 2021).

    Parameters
    ----------
    per_class : bool
        Whether every class has its own weights.
    penalty : float
        On half the sum of the weights' squares.
    answers : {"free", "kept"}
        "kept": where the likeliest class is not the model's own answer, a guard makes it so, at the least cost.

    Attributes
    ----------
    beta_ : float
        The logits' common scale before they are weighted: the inverse of the original's fitted temperature.
    weights_ : ndarray of shape (1 + n_views, 1) or (1 + n_views, n_classes)
        The original's first.
    transforms_ : list of str
        The views' specs.

    Examples
    --------
    >>> from recal import Views
    >>> from recal.calibrators import LearnedAggregation
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]] * 20, {"flip": [[3.0, 0.0], [0.0, 2.0]] * 20}, labels=[0, 1, 1, 1] * 10)
    >>> LearnedAggregation().fit(views).predict_proba(views[:2]).round(2)
    array([[0.73, 0.27],
           [0.34, 0.66]])
    """

    short_name: ClassVar[str] = "aggregate"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("free")
    needs_views: ClassVar[bool] = True

    map_: ViewSum
    beta_ = from_map("beta")
    weights_ = from_map("weights")

    def __init__(self, *, answers: Answers = "free", per_class: bool = False, penalty: NotNegative = 0.0001) -> None:
        self.per_class = per_class
        self.penalty = penalty
        self.answers = answers

    def _fit(self, views: Views, labels: Labels) -> None:
        per_class, penalty = self.per_class, self.penalty
        beta = fit_beta(views.logits, labels)
        layers = [views.logits, *(views.transformed(transform) for transform in views.transforms)]
        stack = np.stack([tame(beta * wide(layer)) for layer in layers], axis=1)
        rows, n_layers = np.arange(len(labels)), stack.shape[1]
        shape = (n_layers, views.n_classes if per_class else 1)

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            weights = flat.reshape(shape)
            log_probs = log_softmax(np.einsum("nmk,mk->nk", stack, np.broadcast_to(weights, stack.shape[1:])))
            slopes = np.exp(log_probs)
            slopes[rows, labels] -= 1.0
            gradient = np.einsum("nmk,nk->mk", stack, slopes) / len(labels)
            by_weight = (gradient if per_class else gradient.sum(axis=1, keepdims=True)) + penalty * weights
            value = -log_probs[rows, labels].mean() + 0.5 * penalty * (weights**2).sum()
            return float(value), by_weight.ravel()

        start = np.full(shape, 1.0 / n_layers).ravel()
        answer = scipy.optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start),
            options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8},
        )  # fmt: skip
        self.map_ = ViewSum(views.transforms, beta, answer.x.reshape(shape))
