"""Maps that scale logits: one temperature, a scale and a shift for each class, a matrix, or a
rising curve.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from recal.checks import Floats, Vector
from recal.engine import SMALL, over_rows, rows
from recal.engine.series import as_rows
from recal.errors import InputError
from recal.maps.arrays import (
    at,
    clip,
    largest_columns,
    linear,
    log_softmax,
    put,
    row_max,
    soft_log_probs,
    softmax,
    softplus,
)
from recal.maps.base import Array, Map, ViewLogits, like, namespace
from recal.maps.guard import lift_answers
from recal.schema import LARGEST, SMALLEST, FloatArray, Number, Share

if TYPE_CHECKING:
    from recal.maps.steps import Plan

PerClass = Annotated[Vector, FloatArray("K")]
Scale = Annotated[float, Number(SMALLEST, LARGEST)]


class Temperature(Map):
    """softmax(beta z): temperature scaling, with beta = 1 / temperature."""

    beta: Scale

    keeps_order: ClassVar[bool] = True
    in_parts: ClassVar[bool] = False

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return softmax(z, self.beta)

    def compiled(self, z: Array, views: ViewLogits) -> tuple[Array, Array] | None:
        return None if z.size < SMALL else scaled_answers(z, np.full(len(z), self.beta))

    @property
    def plan(self) -> Plan:
        from recal.maps.steps import Plan  # steps.py imports this module

        return Plan(start=self.beta)


class TemperatureMixture(Map):
    """A weighted mixture of softmax(beta z), softmax(z) and the uniform distribution: ETS."""

    beta: Scale
    weights: Annotated[Vector, FloatArray(3, low=0.0, high=1.0)]

    keeps_order: ClassVar[bool] = True

    def check(self) -> None:
        if abs(self.weights.sum() - 1.0) > 1e-6:
            raise InputError(f"must sum to 1, got {self.weights.sum():.6g}", argument="weights")

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        scaled, own, uniform = self.weights.tolist()
        return scaled * softmax(z, self.beta) + own * softmax(z) + uniform / z.shape[1]


class Affine(Map):
    """softmax(scale * z + shift), with a scale and a shift for each class: vector scaling.

    If a row has a logit beyond `limit`, its maximum is subtracted, and values below -limit are set
    to -limit.
    """

    scale: PerClass
    shift: PerClass
    limit: Scale

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return softmax(within(z, self.limit) * like(z, self.scale) + like(z, self.shift))


class StructuredAffine(Map):
    """The same on log-probabilities at a temperature, with a share of the uniform distribution."""

    beta: Scale
    uniform: Share
    scale: PerClass
    shift: PerClass

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        features = soft_log_probs(z * self.beta, 1.0, self.uniform)
        return softmax(features * like(z, self.scale) + like(z, self.shift))


class Linear(Map):
    """The mean of softmax(W x + b) over several W and b; x are logits or log-probabilities."""

    weights: Annotated[Vector, FloatArray("M", "K", "K")]
    intercepts: Annotated[Vector, FloatArray("M", "K")]
    features: Literal["logits", "log-probabilities"]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        features = linear_features(z, self.features)
        total = softmax(linear(features, self.weights[0], self.intercepts[0]))
        for weights, intercept in zip(self.weights[1:], self.intercepts[1:]):
            total = total + softmax(linear(features, weights, intercept))
        return total / len(self.weights)


class StructuredLinear(Map):
    """softmax(W x + b) on log-probabilities at a temperature, with a uniform share."""

    beta: Scale
    uniform: Share
    weights: Annotated[Vector, FloatArray("K", "K")]
    intercept: PerClass

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        features = soft_log_probs(z * self.beta, 1.0, self.uniform)
        return softmax(linear(features, self.weights, self.intercept))


class LatentFunction(Map):
    """The mean of softmax(x + g(x)) over several functions g; x are log-probabilities at a
    temperature: GP.

    g is the same for all classes: a weighted sum of Gaussians of one width at `points`; each g has
    a row of weights.
    """

    beta: Scale
    length: Scale
    points: Annotated[Vector, FloatArray("P")]
    draws: Annotated[Vector, FloatArray("D", "P")]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        xp = namespace(z)
        logs = log_softmax(z * self.beta)
        # Far from all points the Gaussians are 0; clipping keeps the squares of saturated
        # log-probabilities finite.
        clipped = xp.reshape(xp.maximum(logs, -1e6), (-1, 1))
        distance = (clipped - like(z, self.points[None, :])) / self.length
        bends = linear(xp.exp(-0.5 * (distance * distance)), self.draws)
        total = xp.zeros_like(logs)
        for draw in range(len(self.draws)):
            total = total + softmax(logs + xp.reshape(bends[:, draw], (-1, z.shape[1])))
        return total / len(self.draws)


class GapNetwork(Map):
    """A small network that reads the gaps between the largest logits and returns a positive factor
    for each gap.

    tanh units read the logarithms of the distances from the top; then there is one softplus output
    for each gap. If fewer ranks are read than there are classes, the last output is the factor of
    all distances below the last rank.
    """

    inputs: Annotated[Vector, FloatArray(2, "R")]
    parameters: Annotated[Vector, FloatArray(None)]
    classes: Annotated[int, Number(2, whole=True)]

    keeps_order: ClassVar[bool] = True

    @property
    def n_classes(self) -> int:
        return self.classes

    def check(self) -> None:
        if self.inputs[1].min() < SMALLEST or self.inputs.shape[1] >= self.classes:
            raise InputError(
                "must hold a mean and a positive scale for each rank but one", argument="inputs"
            )
        sizes = [math.prod(shape) for shape in self.shapes]
        if self.n_hidden < 0 or sum(sizes) != len(self.parameters):
            raise InputError(
                "has no number of parameters that a network has", argument="parameters"
            )

    @property
    def n_hidden(self) -> int:
        n_inputs = self.inputs.shape[1]
        n_outputs = n_inputs + (self.classes > n_inputs + 1)
        return (len(self.parameters) - n_outputs) // (n_inputs + 1 + n_outputs)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return network_shapes(self.inputs.shape[1], self.classes, self.n_hidden)

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return softmax(self.scores(z))

    def scores(self, z: Array) -> Array:
        """Return new logits in the same order."""
        xp = namespace(z)
        n_ranks = self.inputs.shape[1] + 1
        weights, offsets, out_weights, out_offsets = unpack(self.parameters, self.shapes)
        columns = largest_columns(z, n_ranks)
        values = at(z, columns)
        features = (xp.log1p(values[:, :1] - values[:, 1:]) - like(z, self.inputs[0])) / like(
            z, self.inputs[1]
        )
        hidden = xp.tanh(_dense(features, weights, offsets))
        factors = softplus(_dense(hidden, out_weights, out_offsets))
        gaps = values[:, :-1] - values[:, 1:]
        falls = xp.cumulative_sum(gaps * factors[:, : n_ranks - 1], axis=1)
        levels = xp.concat([xp.zeros_like(values[:, :1]), -falls], axis=1)
        if self.classes > n_ranks:
            below = xp.maximum(values[:, -1:] - z, 0.0)
            return put(levels[:, -1:] - factors[:, n_ranks - 1 :] * below, columns, levels)
        places = xp.argsort(columns, axis=1, stable=True)
        return at(levels, places)


def within(z: Array, limit: float) -> Array:
    """Return logits; rows beyond `limit` are shifted to a maximum of 0 and clipped."""
    xp = namespace(z)
    if isinstance(z, np.ndarray) and max(z.max(), -z.min()) <= limit:
        return z
    return xp.where(row_max(xp.abs(z)) > limit, xp.maximum(z - row_max(z), -limit), z)


def linear_features(z: Array, kind: str) -> Array:
    """Return the features of a linear map, clipped so that their squares stay finite; a class that
    is ruled out may have a logit of -3e38.
    """
    features = log_softmax(z) if kind == "log-probabilities" else z
    return clip(features, -1e9, 1e9)


def scaled_answers(logits: Floats, scales: Vector) -> tuple[Vector, Vector]:
    """Return softmax(s z) by compiled loops, with one scale per row, and its value at each row's
    largest logit.
    """
    logits, probs = as_rows(logits), np.empty(logits.shape)
    short = logits.shape[1] <= rows.SHORT
    columns = np.empty(len(logits), np.intp) if short else logits.argmax(axis=1)
    confidences, close = np.empty(len(logits)), np.empty(len(logits), np.bool_)
    over_rows(rows.fill_softmax, logits, columns, short, scales, probs, confidences, close)
    if close.any():
        probs[close] = lifted = lift_answers(probs[close], columns[close][:, None])
        confidences[close] = lifted.max(axis=1)
    return probs, confidences


def network_shapes(n_inputs: int, n_classes: int, n_hidden: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of both layers' weights and offsets."""
    n_outputs = n_inputs + (n_classes > n_inputs + 1)
    return (n_inputs, n_hidden), (n_hidden,), (n_hidden, n_outputs), (n_outputs,)


def unpack(parameters: Vector, shapes: tuple[tuple[int, ...], ...]) -> list[Vector]:
    """Return the layers' arrays from one vector."""
    sizes = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, sizes), shapes)]


def _dense(inputs: Array, weights: Vector, offsets: Vector) -> Array:
    """Return inputs @ weights + offsets, summed in the same order for every row, unlike a matrix
    product.
    """
    total = like(inputs, offsets[None, :])
    for column, row in enumerate(weights):
        total = total + inputs[:, column : column + 1] * like(inputs, row[None, :])
    return total
