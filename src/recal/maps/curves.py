"""Maps that apply a curve to each class's log-odds, one against the rest, and divide rows by their
sums.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.checks import Vector
from recal.errors import InputError
from recal.maps.arrays import (
    at,
    class_log_odds,
    class_scores,
    clip,
    interpolate,
    is_at,
    log_softmax,
    look_up,
    normalise,
    put,
    repeated,
    row_max,
    row_sum,
    sigmoid,
    softmax,
    softplus,
    top_column,
)
from recal.maps.base import Array, Map, ViewLogits, like, namespace
from recal.maps.scaling import Scale
from recal.schema import FloatArray, Integers, Number

# The curves of all classes are concatenated: their inputs, their values, and the offsets at which
# each begins and ends.
Knots = Annotated[Vector, FloatArray("N", low=-np.inf, high=np.inf)]
Values = Annotated[Vector, FloatArray("N", low=0.0, high=1.0)]
Offsets = Annotated[NDArray[np.int64], Integers("K+1", low=0, high=2**62)]

# Beyond these log-odds, float64 cannot represent 1 - p.
CERTAIN = 36.0
# The upper edge of the last step of Venn-Abers.
ENDLESS = float(np.finfo(np.float64).max)


class Lines(Map):
    """A piecewise linear curve for each class: isotonic regression."""

    knots: Knots
    values: Values
    offsets: Offsets
    beta: Scale

    def check(self) -> None:
        check_curves(self.knots, self.offsets, "knots")

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return normalise(
            interpolate(class_scores(z, self.beta), self.knots, self.values, self.offsets)
        )


class SharedLine(Map):
    """One increasing piecewise linear curve for all classes, with a tiny slope that breaks ties."""

    knots: Annotated[Vector, FloatArray("N", low=-np.inf, high=np.inf, rising=True)]
    values: Annotated[Vector, FloatArray("N", low=0.0, high=1.0, rising=True)]
    slope: Annotated[float, Number(1e-12, 1.0)]

    keeps_order: ClassVar[bool] = True

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return normalise(self.line(class_scores(z)))

    def line(self, scores: Array) -> Array:
        """Apply the shared curve to log-odds."""
        line = interpolate(scores, self.knots, self.values, np.array([0, len(self.knots)]))
        return line + self.slope * sigmoid(scores)


class Steps(Map):
    """A step function for each class: Bayesian binning."""

    edges: Knots
    values: Values
    offsets: Offsets

    def check(self) -> None:
        check_curves(self.edges, self.offsets, "edges", last=np.inf)

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        return normalise(look_up(class_scores(z), self.edges, self.values, self.offsets))


class Bins(Map):
    """The same number of bins for each class, each class with its own edges: histogram binning."""

    edges: Annotated[Vector, FloatArray("K", "B-1", low=-np.inf, high=np.inf, rising=True)]
    values: Annotated[Vector, FloatArray("K", "B", low=0.0, high=1.0)]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        count, n_bins = self.values.shape
        edges = np.concatenate([self.edges, np.full((count, 1), np.inf)], axis=1).ravel()
        offsets = np.arange(count + 1) * n_bins
        return normalise(look_up(class_scores(z), edges, self.values.ravel(), offsets))


class InformativeBins(Map):
    """One table of bins for all classes, with a tiny slope that breaks ties."""

    edges: Annotated[Vector, FloatArray("B-1", low=-np.inf, high=np.inf, rising=True)]
    values: Annotated[Vector, FloatArray("B", low=0.0, high=1.0)]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        odds = clip(class_log_odds(log_softmax(z)), -CERTAIN, CERTAIN)
        edges, offsets = np.append(self.edges, np.inf), np.array([0, len(self.values)])
        shares = look_up(odds, edges, self.values, offsets)
        return normalise(shares * (1.0 + 1e-9 * sigmoid(odds)))


class Brackets(Map):
    """Two step functions for each class that enclose the probability: Venn-Abers."""

    low_edges: Annotated[Vector, FloatArray("L", low=-np.inf, high=np.inf)]
    low_values: Annotated[Vector, FloatArray("L", low=0.0, high=1.0)]
    low_offsets: Offsets
    high_edges: Annotated[Vector, FloatArray("H", low=-np.inf, high=np.inf)]
    high_values: Annotated[Vector, FloatArray("H", low=0.0, high=1.0)]
    high_offsets: Offsets

    def check(self) -> None:
        check_curves(self.low_edges, self.low_offsets, "low_edges", last=ENDLESS)
        check_curves(self.high_edges, self.high_offsets, "high_edges", last=ENDLESS)

    def interval(self, z: Array) -> tuple[Array, Array]:
        """Return both ends for each class, before rows are divided by their sums."""
        scores = class_scores(z)
        low = look_up(scores, self.low_edges, self.low_values, self.low_offsets)
        return low, look_up(scores, self.high_edges, self.high_values, self.high_offsets)

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        low, high = self.interval(z)
        return normalise(high / (1.0 - low + high))


class TopLine(Map):
    """A piecewise linear curve for the prediction's confidence; other classes share the rest:
    spline calibration.
    """

    scores: Annotated[Vector, FloatArray("N", low=0.0, high=1.0, rising=True)]
    values: Annotated[Vector, FloatArray("N", low=0.0, high=1.0)]
    beta: Scale

    keeps_order: ClassVar[bool] = True

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        column = top_column(z)
        confidence = interpolate(
            at(softmax(z), column), self.scores, self.values, np.array([0, len(self.scores)])
        )
        return spread_rest(z, self.beta, column, confidence)


class LogisticCurves(Map):
    """sigmoid(a x + c) of each class's log-odds x, clipped at `limit`: Platt scaling."""

    coefficients: Annotated[Vector, FloatArray(2, "K")]
    limit: Scale

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        scores = clip(class_scores(z), -self.limit, self.limit)
        slope, shift = (like(z, row) for row in self.coefficients)
        return softmax(-softplus(-(scores * slope + shift)))


class BetaCurves(Map):
    """sigmoid(a log p - b log(1 - p) + c) of each class's probability p: beta calibration."""

    coefficients: Annotated[Vector, FloatArray(3, "K")]
    limit: Scale

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        log_p, log_rest = beta_features(class_scores(z), self.limit)
        a, b, c = (like(z, row) for row in self.coefficients)
        return softmax(-softplus(-(log_p * a + log_rest * b + c)))


def beta_features(scores: Array, limit: float) -> tuple[Array, Array]:
    """Return log p and -log(1 - p) from log-odds, clipped at `limit`."""
    xp = namespace(scores)
    log_p = xp.minimum(scores, 0.0) - xp.log1p(xp.exp(-xp.abs(scores)))
    return xp.maximum(log_p, -limit), xp.minimum(scores - log_p, limit)


def check_curves(
    inputs: Vector, offsets: NDArray[np.int64], name: str, last: float | None = None
) -> None:
    """Refuse curves with gaps between offsets, that fall, or with another last edge."""
    if offsets[0] != 0 or offsets[-1] != len(inputs) or not (offsets[1:] > offsets[:-1]).all():
        raise InputError(
            f"must rise from 0 to {len(inputs)}, got {offsets.tolist()[:4]}", argument="offsets"
        )
    falls = np.flatnonzero(inputs[1:] < inputs[:-1]) + 1
    if not np.isin(falls, offsets).all():
        raise InputError("must not fall within a curve", argument=name)
    if last is not None and (inputs[offsets[1:] - 1] != last).any():
        raise InputError(f"must end at {last:g} for every class", argument=name)


def spread_rest(z: Array, beta: float, column: Array, confidence: Array) -> Array:
    """Give the prediction its confidence, at least 1 / n_classes, and divide the rest among the
    other classes.

    The others share the rest as in softmax(beta z). If one of them would overtake the prediction,
    the differences between their logits are shrunk by a common factor until it just does not.
    """
    xp = namespace(z)
    confidence = xp.maximum(confidence, 1.0 / z.shape[1])
    others = put(z, column, -np.inf)
    logs = beta * (others - row_max(others))
    logs = put(xp.maximum(logs, -1e6), column, -np.inf)
    rest = 1.0 - confidence
    certain = rest <= 0.0
    most = xp.where(certain, np.inf, confidence / xp.where(certain, 1.0, rest))
    shares = softmax(logs)
    crowded = row_max(shares) > most
    if not isinstance(z, np.ndarray):
        drops, here = put(logs, column, 0.0), is_at(z, column)
        shares = xp.where(crowded, _drawn_together(drops, here, most), shares)
    elif crowded.any():
        rows = np.flatnonzero(crowded)
        drops, here = put(logs[rows], column[rows], 0.0), is_at(z[rows], column[rows])
        shares[rows] = _drawn_together(drops, here, most[rows])
    return put(shares * rest, column, confidence)


def _drawn_together(drops: Array, here: Array, most: Array) -> Array:
    """Return the softmax of drops times the largest factor in [0, 1] for which no share in a row
    exceeds `most`.

    The largest drop of a row is 0. The prediction, at `here`, is left out.
    """
    xp = namespace(drops)

    def halve(number: Array, ends: Array) -> Array:
        low, high = ends[:, :1], ends[:, 1:]
        middle = (low + high) / 2.0
        weights = xp.where(here, 0.0, xp.exp(drops * middle))
        crowded = 1.0 / row_sum(weights) > most
        return xp.concat([xp.where(crowded, low, middle), xp.where(crowded, middle, high)], axis=1)

    ends = xp.concat([xp.zeros_like(most), xp.ones_like(most)], axis=1)
    low = repeated(drops, 30, halve, ends)[:, :1]  # as exact as float32
    weights = xp.where(here, 0.0, xp.exp(drops * low))
    return weights / row_sum(weights)
