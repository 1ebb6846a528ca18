"""Maps that scale logits: one temperature, or a scale and a shift for each class."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.maps.arrays import is_large, softmax
from recal.maps.base import Array, Map, Views, like, namespace
from recal.maps.compiled import scaled_answers
from recal.schema import LARGEST, SMALLEST, Floats, Number

PerClass = Annotated[NDArray[np.float64], Floats("K")]
Scale = Annotated[float, Number(SMALLEST, LARGEST)]

# A probability of exactly 0 at the truth is an infinite loss, and nothing is certain.
ABOVE_ZERO, BELOW_ONE = 1e-300, 1.0 - 2.0**-53


class Temperature(Map):
    """softmax(beta z): temperature scaling, with beta = 1 / temperature."""

    beta: Scale

    keeps_order: ClassVar[bool] = True
    in_parts: ClassVar[bool] = False

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(z, self.beta) if is_large(z) else scaled_softmax(z, self.beta)

    def compiled(self, z: Array, views: Views) -> tuple[Array, Array]:
        return scaled_answers(z, np.full(len(z), self.beta))


class Affine(Map):
    """softmax(scale * z + shift), with a scale and a shift for each class: vector scaling.

    A row with a logit beyond `limit` has its maximum subtracted, and what is then below -limit counts as -limit.
    """

    scale: PerClass
    shift: PerClass
    limit: Scale

    def probs(self, z: Array, views: Views = ()) -> Array:
        return softmax(within(z, self.limit) * like(z, self.scale) + like(z, self.shift))


def within(z: Array, limit: float) -> Array:
    """Return logits with the rows that reach beyond `limit` moved to a maximum of 0 and cut off below."""
    xp = namespace(z)
    if isinstance(z, np.ndarray) and max(z.max(), -z.min()) <= limit:
        return z
    beyond = xp.max(xp.abs(z), axis=1, keepdims=True) > limit
    return xp.where(beyond, xp.maximum(z - xp.max(z, axis=1, keepdims=True), like(z, -limit)), z)


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
