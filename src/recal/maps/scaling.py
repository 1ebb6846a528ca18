"""Maps that scale logits: one temperature, a scale and a shift for each class, or a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats as FloatArray
from recal.engine import rows
from recal.engine.compiled import SMALL, over_rows
from recal.engine.scaled import ABOVE_ZERO, BELOW_ONE, as_rows
from recal.errors import InputError
from recal.maps.arrays import is_large, linear, log_softmax, soft_log_probs, softmax
from recal.maps.base import Array, Map, Views, like, namespace
from recal.maps.guard import lift_answers
from recal.schema import LARGEST, SMALLEST, Floats, Number

if TYPE_CHECKING:
    from recal.maps.plan import Plan

Vector = NDArray[np.float64]
PerClass = Annotated[Vector, Floats("K")]
Scale = Annotated[float, Number(SMALLEST, LARGEST)]
Share = Annotated[float, Number(0.0, 1.0)]

# Up to this many classes, numpy takes longer to begin a row than to read it.
_SHORT = 32
# Features no larger than this can be squared and multiplied; a class that is ruled out may have a logit of -3e38.
_LARGEST_FEATURE = 1e9


class Temperature(Map):
    """softmax(beta z): temperature scaling, with beta = 1 / temperature."""

    beta: Scale

    keeps_order: ClassVar[bool] = True
    in_parts: ClassVar[bool] = False

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(z, self.beta) if is_large(z) else scaled_softmax(z, self.beta)

    def compiled(self, z: Array, views: Views) -> tuple[Array, Array] | None:
        return None if z.size < SMALL else scaled_answers(z, np.full(len(z), self.beta))

    @property
    def plan(self) -> Plan:
        from recal.maps.plan import Plan  # which imports this module

        return Plan(start=self.beta)


class TemperatureMixture(Map):
    """A mixture of softmax(beta z), softmax(z) and the uniform distribution, with these weights: ETS."""

    beta: Scale
    weights: Annotated[Vector, Floats(3, low=0.0, high=1.0)]

    keeps_order: ClassVar[bool] = True

    def check(self) -> None:
        if abs(self.weights.sum() - 1.0) > 1e-6:
            raise InputError("must sum to 1", argument="weights", came=f"got {self.weights.sum():.6g}")

    def probs(self, z: Array, views: Views = ()) -> Array:
        scaled, own, uniform = (float(weight) for weight in self.weights)
        return scaled * softmax(z, self.beta) + own * softmax(z) + uniform / z.shape[1]


class Affine(Map):
    """softmax(scale * z + shift), with a scale and a shift for each class: vector scaling.

    A row with a logit beyond `limit` has its maximum subtracted, and what is then below -limit counts as -limit.
    """

    scale: PerClass
    shift: PerClass
    limit: Scale

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(within(z, self.limit) * like(z, self.scale) + like(z, self.shift))


class StructuredAffine(Map):
    """The same on log-probabilities at a temperature, of which a share is replaced by the uniform distribution."""

    beta: Scale
    uniform: Share
    scale: PerClass
    shift: PerClass

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(soft_log_probs(z * self.beta, 1.0, self.uniform) * like(z, self.scale) + like(z, self.shift))


class Linear(Map):
    """The mean of softmax(W x + b) over several W and b; x are the logits or the log-probabilities."""

    weights: Annotated[Vector, Floats("M", "K", "K")]
    intercepts: Annotated[Vector, Floats("M", "K")]
    features: Literal["logits", "log-probabilities"]

    def probs(self, z: Array, views: Views = ()) -> Array:
        features = linear_features(z, self.features)
        total = softmax(linear(features, self.weights[0], self.intercepts[0]))
        for weights, intercept in zip(self.weights[1:], self.intercepts[1:]):
            total = total + softmax(linear(features, weights, intercept))
        return total / len(self.weights)


class StructuredLinear(Map):
    """softmax(W x + b) on log-probabilities at a temperature, mixed with the uniform distribution."""

    beta: Scale
    uniform: Share
    weights: Annotated[Vector, Floats("K", "K")]
    intercept: PerClass

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(linear(soft_log_probs(z * self.beta, 1.0, self.uniform), self.weights, self.intercept))


class LatentFunction(Map):
    """The mean of softmax(x + g(x)) over several functions g; x are log-probabilities at a temperature: GP.

    g is the same for all classes: a sum of Gaussian bells of one width at `points`, with a row of weights for each g.
    """

    beta: Scale
    length: Scale
    points: Annotated[Vector, Floats("P")]
    draws: Annotated[Vector, Floats("D", "P")]

    def probs(self, z: Array, views: Views = ()) -> Array:
        xp = namespace(z)
        logs = log_softmax(z * self.beta)
        # Far from all points the bells are nil; clipping keeps the squares of saturated log-probabilities finite.
        clipped = xp.reshape(xp.maximum(logs, like(z, -1e6)), (-1, 1))
        distance = (clipped - like(z, self.points[None, :])) / self.length
        bends = linear(xp.exp(-0.5 * (distance * distance)), self.draws)
        total = xp.zeros_like(logs)
        for draw in range(len(self.draws)):
            total = total + softmax(logs + xp.reshape(bends[:, draw], (-1, z.shape[1])))
        return total / len(self.draws)


def within(z: Array, limit: float) -> Array:
    """Return logits with the rows that reach beyond `limit` moved to a maximum of 0 and cut off below."""
    xp = namespace(z)
    if isinstance(z, np.ndarray) and max(z.max(), -z.min()) <= limit:
        return z
    beyond = xp.max(xp.abs(z), axis=1, keepdims=True) > limit
    return xp.where(beyond, xp.maximum(z - xp.max(z, axis=1, keepdims=True), like(z, -limit)), z)


def linear_features(z: Array, kind: str) -> Array:
    """Return what a linear map is linear in, cut off where squares would be too large."""
    features = log_softmax(z) if kind == "log-probabilities" else z
    return namespace(z).clip(features, -_LARGEST_FEATURE, _LARGEST_FEATURE)


def scaled_softmax(z: Array, scales: Array | float) -> Array:
    """Return softmax(s z), with one scale s for all rows or one for each, (n_samples, 1).

    The largest logit keeps the largest probability even if a tiny scale would make it tie.
    """
    xp = namespace(z)
    drops = z - xp.max(z, axis=1, keepdims=True)
    weights = xp.exp(drops * scales)
    weights = xp.where(drops < 0.0, xp.minimum(weights, like(z, BELOW_ONE)), weights)
    probs = weights / xp.sum(weights, axis=1, keepdims=True)
    return xp.minimum(xp.maximum(probs, like(z, ABOVE_ZERO)), like(z, BELOW_ONE))


def scaled_answers(logits: FloatArray, scales: Vector) -> tuple[Vector, Vector]:
    """Return softmax(s z) by compiled loops, each row with its scale, and its value at the row's largest logit."""
    logits, probs = as_rows(logits), np.empty(logits.shape)
    short = logits.shape[1] <= _SHORT
    columns = np.empty(len(logits), np.intp) if short else logits.argmax(axis=1)
    confidences, close = np.empty(len(logits)), np.empty(len(logits), np.bool_)
    over_rows(rows.softmax, logits, columns, short, scales, probs, confidences, close)
    if close.any():
        probs[close] = lifted = lift_answers(probs[close], columns[close][:, None])
        confidences[close] = lifted.max(axis=1)
    return probs, confidences
