"""A small network that reads sorted logits and answers a positive factor for each gap between neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.engine.scaled import ScaledLogits
from recal.maps.order import GapNetwork, network_shapes, unpack

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]


@dataclass(frozen=True)
class OrderNetwork:
    """tanh units on the logarithms of the distances from the top, then one softplus output for each gap.

    With n_ranks < n_classes the last output is the factor of all distances below the last rank that is read.
    """

    inputs: Matrix  # (2, n_ranks - 1): means and scales of the inputs
    n_classes: int
    n_hidden: int

    @classmethod
    def for_logits(cls, logits: Floats, n_ranks: int, n_hidden: int) -> OrderNetwork:
        n_ranks = min(n_ranks, logits.shape[1])
        features = _features(_Sorted(logits, n_ranks).values)
        scales = features.std(axis=0)
        inputs = np.stack([features.mean(axis=0), np.where(scales > 1e-9, scales, 1.0)])
        return cls(inputs, logits.shape[1], n_hidden)

    @property
    def n_ranks(self) -> int:
        return self.inputs.shape[1] + 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return network_shapes(self.inputs.shape[1], self.n_classes, self.n_hidden)

    def map(self, parameters: Vector) -> GapNetwork:
        """Return the fitted map."""
        return GapNetwork(self.inputs, parameters, self.n_classes)

    def start(self, beta: float, rng: np.random.Generator) -> Vector:
        """Return parameters of temperature scaling: the first layer drawn at random, the second all but silent."""
        first, hidden, second, outputs = self.shapes
        before_softplus = beta + np.log(-np.expm1(-beta))
        return np.concatenate(
            [
                rng.normal(scale=1 / np.sqrt(first[0]), size=first).ravel(),
                np.zeros(hidden),
                np.zeros(np.prod(second)),
                np.full(outputs, before_softplus),
            ]
        )

    def objective(self, logits: Floats, labels: Labels, penalty: float) -> Objective:
        """Return the function of the parameters that is minimised, with its gradient."""
        ranked = _Sorted(logits, self.n_ranks)
        scaled = (_features(ranked.values) - self.inputs[0]) / self.inputs[1]
        gaps, n_samples, n_gaps = ranked.gaps, len(labels), self.n_ranks - 1
        truth = ranked.rank_of(labels)  # n_ranks for a truth below the ranks that are read
        rows = np.arange(n_samples)
        tail = _Tail(logits, labels, ranked, truth) if self.n_classes > self.n_ranks else None

        def loss(parameters: Vector) -> tuple[float, Vector]:
            weights, offsets, out_weights, out_offsets = unpack(parameters, self.shapes)
            hidden = np.tanh(scaled @ weights + offsets)
            before = hidden @ out_weights + out_offsets
            factors = np.logaddexp(0.0, before)
            levels = np.zeros((n_samples, n_gaps + 1 + (tail is not None)))
            levels[:, 1 : n_gaps + 1] = -np.cumsum(gaps * factors[:, :n_gaps], axis=1)
            reached = levels[rows, np.minimum(truth, n_gaps)]
            if tail is not None:
                partition, slope = tail.partition(factors[:, -1])
                levels[:, -1] = levels[:, n_gaps] + partition
                reached = reached - factors[:, -1] * tail.truth_below
            log_total = np.logaddexp.reduce(levels, axis=1)
            probs = np.exp(levels - log_total[:, None])
            # Column l: how much the mass above gap l exceeds its share; the gap's factor pulls the two sides apart.
            excess = np.cumsum(probs[:, :n_gaps], axis=1) - (truth[:, None] <= np.arange(n_gaps))
            by_factor = np.empty_like(factors)
            by_factor[:, :n_gaps] = gaps * excess
            if tail is not None:
                by_factor[:, -1] = probs[:, -1] * slope + tail.truth_below
            by_before = by_factor * scipy.special.expit(before) / n_samples
            by_hidden = (by_before @ out_weights.T) * (1.0 - hidden**2)
            uneven = out_offsets - out_offsets.mean()
            gradient = np.concatenate(
                [
                    (scaled.T @ by_hidden + 2 * penalty * weights).ravel(),
                    by_hidden.sum(axis=0),
                    (hidden.T @ by_before + 2 * penalty * out_weights).ravel(),
                    by_before.sum(axis=0) + 2 * penalty * uneven,
                ]
            )
            size = (weights**2).sum() + (out_weights**2).sum() + (uneven**2).sum()
            return float((log_total - reached).mean() + penalty * size), gradient

        return loss


class _Sorted:
    """The largest logits of each row, in falling order, and the columns they stand in."""

    def __init__(self, logits: Floats, n_ranks: int) -> None:
        rising = np.array(logits, dtype=np.float64, order="C")
        np.negative(rising, out=rising)
        if n_ranks < rising.shape[1]:
            found = np.argpartition(rising, n_ranks - 1, axis=1)[:, :n_ranks]
            found.sort(axis=1)  # ties then keep the columns' order
        else:
            found = np.broadcast_to(np.arange(n_ranks), rising.shape)
        values = np.take_along_axis(rising, found, axis=1)
        order = np.argsort(values, axis=1, kind="stable")
        self.columns = np.take_along_axis(found, order, axis=1)
        self.values = -np.take_along_axis(values, order, axis=1)
        self.gaps = self.values[:, :-1] - self.values[:, 1:]

    def rank_of(self, labels: Labels) -> NDArray[np.intp]:
        """Return the rank of each label; the number of ranks where it is not among them."""
        found = self.columns == labels[:, None]
        return np.where(found.any(axis=1), found.argmax(axis=1), self.columns.shape[1])


class _Tail:
    """What lies below the ranks that are read: a partition function with one factor per row."""

    def __init__(self, logits: Floats, labels: Labels, ranked: _Sorted, truth: NDArray[np.intp]) -> None:
        n_samples, n_ranks = ranked.values.shape
        outside = np.ones(logits.shape, dtype=bool)
        np.put_along_axis(outside, ranked.columns, False, axis=1)
        rest = np.asarray(logits, dtype=np.float64)[outside].reshape(n_samples, -1)
        self._state = ScaledLogits(rest)
        self._drop = ranked.values[:, -1] - self._state.maxima
        own = np.asarray(logits, dtype=np.float64)[np.arange(n_samples), labels]
        self.truth_below = np.where(truth == n_ranks, ranked.values[:, -1] - own, 0.0)

    def partition(self, factors: Vector) -> tuple[Vector, Vector]:
        """Return log sum exp(-factor * distance below the last rank), and its derivative in the factor."""
        slopes = self._state.slopes(factors)[0]
        return self._state.log_partition_at(factors) - factors * self._drop, slopes - self._drop


def _features(values: Matrix) -> Matrix:
    """Return the logarithm of 1 + each distance from the top: bounded enough for saturated logits."""
    return np.log1p(values[:, :1] - values[:, 1:])
