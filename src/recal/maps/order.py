"""Maps that keep the order of the logits: a network that stretches gaps between sorted logits, or one rising curve."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import largest_columns, log_softmax, pieces_at, put, softmax, softplus
from recal.maps.base import Array, Map, Views, like, namespace
from recal.schema import SMALLEST, Floats, Number

Vector = NDArray[np.float64]
# e to the power of this can still be multiplied by itself.
_LARGEST_EXPONENT = 230.0


class RisingCurve(Map):
    """One increasing, piecewise linear curve for the log-probabilities of all classes.

    From 0 downwards: piece j lies between knots[j] and knots[j + 1] and has the slope exp(log_slopes[j]); the last
    piece has no end.
    """

    knots: Annotated[Vector, Floats("N", high=0.0)]
    log_slopes: Annotated[Vector, Floats("N", low=-_LARGEST_EXPONENT, high=_LARGEST_EXPONENT)]

    keeps_order: ClassVar[bool] = True

    def check(self) -> None:
        if (self.knots[1:] > self.knots[:-1]).any():
            raise InputError("must not rise", argument="knots")

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(self.scores(z))

    def scores(self, z: Array) -> Array:
        """Return new logits in the same order."""
        logs = log_softmax(z)
        slopes = np.exp(self.log_slopes)
        ends = np.concatenate([[0.0], -np.cumsum(slopes[:-1] * -np.diff(self.knots))])
        end, slope, knot = pieces_at(-logs, -self.knots[1:], (ends, slopes, self.knots))
        return end - slope * (knot - logs)


class GapNetwork(Map):
    """A small network that reads the gaps between the largest logits and returns a positive factor for each gap.

    tanh units on the logarithms of the distances from the top, then one softplus output for each gap. If fewer ranks
    are read than there are classes, the last output is the factor of all distances below the last rank.
    """

    inputs: Annotated[Vector, Floats(2, "R")]
    parameters: Annotated[Vector, Floats(None)]
    classes: Annotated[int, Number(2, whole=True)]

    keeps_order: ClassVar[bool] = True

    @property
    def n_classes(self) -> int:
        return self.classes

    def check(self) -> None:
        if self.inputs[1].min() < SMALLEST or self.inputs.shape[1] >= self.classes:
            raise InputError("must hold a mean and a positive scale for each rank but one", argument="inputs")
        sizes = [math.prod(shape) for shape in self.shapes]
        if self.n_hidden < 0 or sum(sizes) != len(self.parameters):
            raise InputError("has no number of parameters that a network has", argument="parameters")

    @property
    def n_hidden(self) -> int:
        n_inputs = self.inputs.shape[1]
        n_outputs = n_inputs + (self.classes > n_inputs + 1)
        return (len(self.parameters) - n_outputs) // (n_inputs + 1 + n_outputs)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return network_shapes(self.inputs.shape[1], self.classes, self.n_hidden)

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(self.scores(z))

    def scores(self, z: Array) -> Array:
        """Return new logits in the same order."""
        xp = namespace(z)
        n_ranks = self.inputs.shape[1] + 1
        weights, offsets, out_weights, out_offsets = unpack(self.parameters, self.shapes)
        columns = largest_columns(z, n_ranks)
        values = xp.take_along_axis(z, columns, axis=1)
        features = (xp.log1p(values[:, :1] - values[:, 1:]) - like(z, self.inputs[0])) / like(z, self.inputs[1])
        hidden = xp.tanh(_dense(features, weights, offsets))
        factors = softplus(_dense(hidden, out_weights, out_offsets))
        gaps = values[:, :-1] - values[:, 1:]
        falls = xp.cumulative_sum(gaps * factors[:, : n_ranks - 1], axis=1)
        levels = xp.concat([xp.zeros_like(values[:, :1]), -falls], axis=1)
        if self.classes > n_ranks:
            below = xp.maximum(values[:, -1:] - z, xp.zeros_like(z))
            return put(levels[:, -1:] - factors[:, n_ranks - 1 :] * below, columns, levels)
        places = xp.argsort(columns, axis=1, stable=True)
        return xp.take_along_axis(levels, places, axis=1)


def network_shapes(n_inputs: int, n_classes: int, n_hidden: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of both layers' weights and offsets."""
    n_outputs = n_inputs + (n_classes > n_inputs + 1)
    return (n_inputs, n_hidden), (n_hidden,), (n_hidden, n_outputs), (n_outputs,)


def unpack(parameters: Vector, shapes: tuple[tuple[int, ...], ...]) -> list[Vector]:
    """Return the layers' arrays from one vector."""
    sizes = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, sizes), shapes)]


def _dense(inputs: Array, weights: Vector, offsets: Vector) -> Array:
    """Return inputs @ weights + offsets, added up in the same order for every row, as a matrix product is not."""
    total = like(inputs, offsets[None, :])
    for column, row in enumerate(weights):
        total = total + inputs[:, column : column + 1] * like(inputs, row[None, :])
    return total
