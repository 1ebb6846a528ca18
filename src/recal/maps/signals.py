"""The map from the signals of an answer to the probability that the answer is right.

The input is an (n_samples, n_signals) array with NaN or an infinity where a signal is missing. Text columns and
groups arrive as numeric codes: 0, 1, 2, ... for the levels of the fit, in sorted order, and NaN for
a level that was not in the fit. Every model below reads the same standardised signals and returns
log-odds.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import clip, log_odds, sigmoid
from recal.maps.base import Array, Map, Views, indices, like, namespace
from recal.schema import LARGEST, SMALLEST, Floats, Integers, Number

PerSignal = Annotated[NDArray[np.float64], Floats("S")]
Spread = Annotated[NDArray[np.float64], Floats("S", low=SMALLEST)]
Shares = Annotated[NDArray[np.float64], Floats(None, low=0.0, high=1.0)]
Knots = Annotated[NDArray[np.float64], Floats("S", "N", rising=True)]
PerNode = Annotated[NDArray[np.float64], Floats("T", "J", high=LARGEST)]
Zeros = Annotated[NDArray[np.float64], Floats("T", "J", low=0.0, high=1.0)]

# How a signal is transformed for a linear model.
LOG_ODDS, LOGARITHM, PLAIN, CATEGORY = 0, 1, 2, 3
# Probabilities are clipped to [CLIP, 1 - CLIP] before their log-odds are taken.
CLIP = 0.005


class SignalScale(Map):
    """Log-odds, logarithms or plain values, clipped to the range of the fit and standardised.

    Each field has one entry per signal. `shift` is added before a logarithm is taken.
    """

    kind: Annotated[NDArray[np.int64], Integers("S", low=LOG_ODDS, high=CATEGORY)]
    shift: PerSignal
    lower: PerSignal
    upper: PerSignal
    centre: PerSignal
    spread: Spread

    def standardise(self, signals: Array) -> tuple[Array, Array]:
        """Return the standardised signals, 0 if missing, and an indicator that is 1.0 if a signal
        is missing.
        """
        xp = namespace(signals)
        zeros = xp.zeros_like(signals)
        missing = ~(xp.abs(signals) < np.inf)  # NaN and infinities
        filled = xp.where(missing, zeros, signals)
        share = clip(filled, CLIP, 1.0 - CLIP)
        positive = xp.maximum(filled + like(signals, self.shift), SMALLEST)
        scaled = xp.where(self._is(signals, LOG_ODDS), xp.log(share) - xp.log(1.0 - share), filled)
        scaled = xp.where(self._is(signals, LOGARITHM), xp.log(positive), scaled)
        scaled = xp.minimum(
            xp.maximum(scaled, like(signals, self.lower)), like(signals, self.upper)
        )
        scaled = (scaled - like(signals, self.centre)) / like(signals, self.spread)
        return xp.where(missing | self._is(signals, CATEGORY), zeros, scaled), xp.where(
            missing, zeros + 1.0, zeros
        )

    def _is(self, signals: Array, kind: int) -> Array:
        return like(signals, (self.kind == kind).astype(np.float64)) > 0.5


class LinearSignals(Map):
    """Logistic regression on standardised signals and on indicators of missing ones."""

    intercept: float
    weights: PerSignal
    missing_weights: PerSignal

    def log_odds(self, scaled: Array, missing: Array) -> Array:
        terms = scaled * like(scaled, self.weights) + missing * like(scaled, self.missing_weights)
        return namespace(scaled).sum(terms, axis=1) + self.intercept


class SplineSignals(Map):
    """Logistic regression on a quadratic spline of each signal; constant beyond the outer knots.

    The spline is c0 t + c1 t^2 + sum of c (t - knot)^2 to the right of each inner knot; `weights`
    has this order.
    """

    intercept: float
    knots: Knots
    weights: Annotated[NDArray[np.float64], Floats("S", "N")]
    missing_weights: PerSignal

    def log_odds(self, scaled: Array, missing: Array) -> Array:
        xp, knots, weights = namespace(scaled), self.knots, self.weights
        inside = xp.minimum(
            xp.maximum(scaled, like(scaled, knots[:, 0])), like(scaled, knots[:, -1])
        )
        total = inside * like(scaled, weights[:, 0]) + inside * inside * like(scaled, weights[:, 1])
        for place in range(1, knots.shape[1] - 1):
            beyond = xp.maximum(inside - like(scaled, knots[:, place]), 0.0)
            total = total + beyond * beyond * like(scaled, weights[:, place + 1])
        total = total * (1.0 - missing) + missing * like(scaled, self.missing_weights)
        return xp.sum(total, axis=1) + self.intercept


class TreeSignals(Map):
    """Boosted trees: the sum over all trees of the `value` of the leaf that a row reaches.

    `signal`, `threshold` and `missing_left` describe the inner nodes: a row goes left if its signal
    is not above the threshold, and a missing signal goes left if `missing_left` is 1. `path` is 1
    if a leaf lies in the left subtree of a node, -1 if it lies in the right one, and 0 otherwise. A
    row reaches the leaf whose signs agree with all outcomes.
    """

    intercept: float
    n_signals: int
    signal: Annotated[NDArray[np.int64], Integers("T", "J", low=0)]
    threshold: PerNode
    missing_left: Zeros
    path: Annotated[NDArray[np.float64], Floats("T", "J", "L", low=-1.0, high=1.0)]
    value: Annotated[NDArray[np.float64], Floats("T", "L")]

    def check(self) -> None:
        if self.signal.max() >= self.n_signals:
            raise InputError(
                f"names a signal that does not exist, got {self.signal.max()}", argument="signal"
            )

    def log_odds(self, scaled: Array, missing: Array) -> Array:
        xp = namespace(scaled)
        columns = indices(scaled, self.signal.reshape(-1))
        low = xp.take(scaled, columns, axis=1) <= like(scaled, self.threshold.reshape(-1))
        lost = xp.take(missing, columns, axis=1) > 0.5
        left = (lost & (like(scaled, self.missing_left.reshape(-1)) > 0.5)) | (~lost & low)
        sign = xp.where(left, like(scaled, 1.0), like(scaled, -1.0))
        agreement = xp.matmul(sign, like(scaled, self._paths()))
        length = np.abs(self.path).sum(axis=1).reshape(-1)
        reached = agreement > like(scaled, length - 0.5)
        leaves = xp.where(reached, like(scaled, self.value.reshape(-1)), 0.0)
        return xp.sum(leaves, axis=1) + self.intercept

    def _paths(self) -> NDArray[np.float64]:
        """Return the paths of all trees as one matrix, (n_trees * n_nodes, n_trees * n_leaves)."""
        trees, nodes, leaves = self.path.shape
        matrix = np.zeros((trees, nodes, trees, leaves))
        matrix[np.arange(trees), :, np.arange(trees), :] = self.path
        return matrix.reshape(trees * nodes, trees * leaves)


SignalModel = LinearSignals | SplineSignals | TreeSignals


class SignalMap(Map):
    """Confidence of an answer: a mixture of models of its signals, then a slope and offsets on its
    log-odds.

    `offsets` has one row per signal: the offset of each of its levels, padded with zeros. Signals
    that are not categories and levels that were not in the fit have no offsets.
    """

    scale: SignalScale
    models: tuple[SignalModel, ...]
    weights: Shares
    slope: Annotated[float, Number(0.0, LARGEST)]
    offsets: Annotated[NDArray[np.float64], Floats("S", None)]

    def check(self) -> None:
        if len(self.models) != len(self.weights):
            raise InputError(
                f"There are {len(self.models)} models and {len(self.weights)} weights."
            )
        sizes = {len(self.scale.kind), len(self.offsets)}
        for model in self.models:
            sizes.add(
                model.n_signals if isinstance(model, TreeSignals) else len(model.missing_weights)
            )
        if len(sizes) != 1:
            raise InputError(f"The models read different numbers of signals: {sorted(sizes)}.")

    def confidence(self, signals: Array) -> Array:
        """Return the probability that each answer is right, (n_samples,)."""
        xp = namespace(signals)
        scaled, missing = self.scale.standardise(signals)
        mixed = like(signals, 0.0)
        for weight, model in zip(self.weights.tolist(), self.models):
            mixed = mixed + weight * sigmoid(model.log_odds(scaled, missing))
        shifted = self.slope * log_odds(mixed)
        levels = np.arange(self.offsets.shape[1], dtype=np.float64)[None, :]
        for place in np.flatnonzero(self.offsets.any(axis=1)).tolist():
            same = signals[:, place : place + 1] == like(signals, levels)
            own = xp.where(same, like(signals, self.offsets[place][None, :]), 0.0)
            shifted = shifted + xp.sum(own, axis=1)
        return sigmoid(shifted)

    def probs(self, z: Array, views: Views = ()) -> Array:
        """Return the probabilities that an answer is wrong and right, (n_samples, 2), from its
        signals.
        """
        right = self.confidence(z)
        return namespace(z).stack([1.0 - right, right], axis=1)
