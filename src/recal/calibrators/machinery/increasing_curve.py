"""One increasing, piecewise linear curve for the log-probabilities of all classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.probabilities import log_softmax
from recal.checks import Floats, Labels
from recal.maps.order import RisingCurve

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]


@dataclass(frozen=True)
class IncreasingCurve:
    """From 0 downwards: piece j lies between inputs[j] and inputs[j + 1] and has the slope exp(parameters[j]).

    The last piece goes on for ever. A log-probability of 0 stays 0; softmax needs no more.
    """

    inputs: Vector  # knots, falling from 0

    @classmethod
    def for_logits(cls, logits: Floats, labels: Labels, n_pieces: int) -> IncreasingCurve:
        """Put the knots where the truth's log-probability and the two largest lie: what the likelihood hangs on."""
        log_probs = log_softmax(logits)
        truth = log_probs[np.arange(len(labels)), labels]
        largest = np.partition(log_probs, -2, axis=1)[:, -2:]
        crucial = np.concatenate([truth, largest.ravel()])
        knots = np.quantile(crucial, np.arange(1, n_pieces) / n_pieces)
        # Knots closer than this cannot be told apart by data, and would make slopes of nothing.
        distinct = [0.0]
        for knot in knots[::-1]:
            if knot < distinct[-1] - 1e-3:
                distinct.append(float(knot))
        return cls(np.array(distinct))

    def start(self, beta: float) -> Vector:
        """Return the parameters of temperature scaling."""
        return np.full(len(self.inputs), np.log(beta))

    def map(self, parameters: Vector) -> RisingCurve:
        """Return the fitted map."""
        return RisingCurve(self.inputs, parameters)

    def objective(self, logits: Floats, labels: Labels, penalty: float) -> Objective:
        """Return the function of the parameters that is minimised, with its gradient."""
        piece, beyond = self._locate(log_softmax(logits))
        rows, n_pieces = np.arange(len(labels)), len(self.inputs)
        lengths = -np.diff(self.inputs)

        def loss(parameters: Vector) -> tuple[float, Vector]:
            slopes = np.exp(parameters)
            mapped = self._apply(piece, beyond, slopes)
            log_probs = log_softmax(mapped)
            pull = np.exp(log_probs)
            pull[rows, labels] -= 1.0
            pull /= len(labels)
            # A value lies in one piece and has all those above it, whole, behind it.
            partly = np.bincount(piece.ravel(), weights=(pull * beyond).ravel(), minlength=n_pieces)
            below = np.cumsum(np.bincount(piece.ravel(), weights=pull.ravel(), minlength=n_pieces)[::-1])[::-1]
            by_slope = -partly.astype(np.float64)
            by_slope[:-1] -= lengths * below[1:]
            bends = np.diff(parameters)
            gradient = slopes * by_slope
            gradient[1:] += 2 * penalty * bends
            gradient[:-1] -= 2 * penalty * bends
            return float(-log_probs[rows, labels].mean() + penalty * (bends**2).sum()), gradient

        return loss

    def _locate(self, log_probs: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return each value's piece, and how far below the piece's upper end it lies."""
        rising = -self.inputs
        piece = np.maximum(np.searchsorted(rising, -log_probs, side="right") - 1, 0)
        return piece, self.inputs[piece] - log_probs

    def _apply(self, piece: NDArray[np.intp], beyond: NDArray[np.float64], slopes: Vector) -> NDArray[np.float64]:
        ends = np.concatenate([[0.0], -np.cumsum(slopes[:-1] * -np.diff(self.inputs))])
        return ends[piece] - slopes[piece] * beyond
