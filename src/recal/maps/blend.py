"""Stacking of views: a weighted sum of log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from recal.errors import InputError
from recal.maps.arrays import linear, row_max, row_sum, soft_log_probs, softmax
from recal.maps.base import Array, Map, Views, like, namespace, wide
from recal.maps.steps import Beta, named_views
from recal.schema import LARGEST, Kind, Number, Sizes, check
from recal.transforms import Transform, as_transform

Answers = Literal["kept", "free"]
Weight = Annotated[float, Number(0.0, LARGEST)]
Finite = Annotated[float, Number(-LARGEST, LARGEST)]
PerClass = tuple[Finite, ...]


class ViewWeights(Kind):
    """Transformations and their weights."""

    rule = "pairs of a transformation and a number"

    def read(self, value: Any, sizes: Sizes) -> tuple[tuple[Transform, float], ...]:
        if not isinstance(value, list | tuple):
            raise ValueError
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            raise ValueError
        kind = Number(0.0, LARGEST)
        return tuple(
            (as_transform(key), check(weight, kind, f"the weight of {key}"))
            for key, weight in value
        )


class Blend(Map):
    """A sum of log-probabilities: the original's, those of some views, and one offset per class.

    With x(z) = log((1 - epsilon) softmax(start z) + epsilon / K) a sample's probabilities are

        softmax(own x(original) + sum of weight x(view) + offsets),

    or, if its confidence softmax(start z) reaches `gate`, softmax(gated_own x(original) +
    gated_offsets), which needs no view. If answers are kept, the model's prediction stays the
    likeliest class (`recal.maps.guard`). With `matrices`, M x is added for the original and each
    view below the gate: class-wise weights.

    Parameters
    ----------
    own : float >= 0
        The weight of the original.
    weights : pairs of a transformation and its weight > 0
        Empty for a map that needs no views.
    offsets : one number per class, or ()
    epsilon : float in (0, 1)
        The share of each prediction that is replaced by the uniform distribution, so that every
        logarithm is finite.
    gate : float in (0, 1] or None
        Samples with at least this confidence use no views; with None, all samples use them.
    gated_own, gated_offsets :
        The weight of the original and the offsets at and above the gate.
    answers : {"kept", "free"}
    mixture, gated_mixture : float >= 0
        The weight of log((1 - epsilon) p + epsilon / K) below and above the gate, where p are the
        probabilities of an ensemble's mixture. Such a blend is replayed by its ensemble.
    matrices : one matrix of n_classes rows and columns for the original and each view, or ()
        Entry (i, j) is the weight of the log-probability of class j in the score of class i.
    start : float > 0
        The beta of all logits.

    Examples
    --------
    >>> from recal import Blend
    >>> blend = Blend(0.6, (("zoom:0.8", 0.4),), (), 1e-4, gate=0.9, gated_own=1.1, start=0.5)
    >>> blend.needs_views(np.array([[9.0, 0.0], [1.0, 0.0]])).tolist()
    [False, True]
    """

    own: Weight
    weights: Annotated[tuple[tuple[Transform, float], ...], ViewWeights()]
    offsets: PerClass
    epsilon: Annotated[float, Number(0.0, 1.0, ends="()")]
    gate: Annotated[float, Number(0.0, 1.0, ends="(]")] | None = None
    gated_own: Weight = 1.0
    gated_offsets: PerClass = ()
    answers: Answers = "kept"
    mixture: Weight = 0.0
    gated_mixture: Weight = 0.0
    matrices: tuple[tuple[PerClass, ...], ...] = ()
    start: Beta = 1.0

    def check(self) -> None:
        size, above = len(self.offsets), len(self.gated_offsets)
        if size and above and size != above:
            raise InputError(
                "A blend's `offsets` and `gated_offsets` must have one number per class each, "
                f"got {size} and {above}."
            )
        if self.matrices and np.shape(self.matrices) != (1 + len(self.weights), size, size):
            raise InputError(
                "must be one matrix for the original and each view, with a row and a column for "
                "each of the `offsets`",
                argument="matrices",
            )
        useless = [str(transform) for transform, weight in self.weights if weight == 0.0]
        if useless and not self.matrices:
            raise InputError(
                f"A view of weight 0 would cost a forward pass for nothing; leave out {useless[0]}."
            )
        if len(set(self.transforms)) != len(self.weights):
            names = ", ".join(map(str, self.transforms))
            raise InputError(f"A blend names a transformation twice: {names}.")

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(transform for transform, _ in self.weights)

    @property
    def steps(self) -> tuple[()]:
        """A blend has no steps."""
        return ()

    @property
    def plan(self) -> Blend:
        return self

    @property
    def keeps_answers(self) -> bool:
        return self.answers == "kept"

    @property
    def needs_mixture(self) -> bool:
        """Whether the blend contains an ensemble's mixture."""
        return self.mixture > 0.0 or self.gated_mixture > 0.0

    @property
    def n_classes(self) -> int | None:
        return len(self.offsets) or len(self.gated_offsets) or None

    def with_gate(self, gate: float | None) -> Blend:
        """Return the same blend with another gate; None computes the views of all samples."""
        return replace(self, gate=gate)

    def needs_views(self, logits: Array) -> Array:
        """Return for each sample whether its confidence is below the gate, so that it needs its
        views, (n_samples,).

        This depends on the original's logits alone and is computed row by row in float64.
        """
        if self.gate is None or not self.weights:
            return super().needs_views(logits)
        if not isinstance(logits, np.ndarray):
            return self._is_below(wide(logits))
        needed = np.empty(len(logits), dtype=bool)
        size = max(1, 1_000_000 // logits.shape[1])  # a few megabytes as float64
        for begin in range(0, len(logits), size):
            part = slice(begin, begin + size)
            needed[part] = self._is_below(wide(logits[part]))
        return needed

    def _is_below(self, z: Array) -> Array:
        weights = namespace(z).exp((z - row_max(z)) * self.start)
        return (1.0 / row_sum(weights) < self.gate)[:, 0]

    def probs(self, z: Array, views: Views = ()) -> Array:
        if self.needs_mixture:
            raise InputError(
                "This blend is part of an ensemble of calibrators", remedy="Use the ensemble itself"
            )
        return self.blended(z, views)

    def blended(self, z: Array, views: Views = (), mixed: Array | None = None) -> Array:
        """Return the probabilities of the blend; `mixed` are those of an ensemble's mixture, if the
        blend contains one.

        Without views, all samples are treated as above the gate.
        """
        x = soft_log_probs(z, self.start, self.epsilon)
        members = None
        if mixed is not None and self.needs_mixture:
            members = namespace(z).log(mixed * (1.0 - self.epsilon) + self.epsilon / z.shape[1])
        if self.weights and not views:
            return softmax(self._gated(x, members))
        scores = _weighed(x, self.own, self.offsets, members, self.mixture)
        parts = [soft_log_probs(view, self.start, self.epsilon) for view in views]
        for (_, weight), part in zip(self.weights, parts):
            scores = scores + part * weight
        for matrix, part in zip(self.matrices, [x, *parts]):
            scores = scores + linear(part, np.array(matrix))
        if self.weights and self.gate is not None:
            xp = namespace(z)
            below = xp.expand_dims(self.needs_views(z), axis=1)
            scores = xp.where(below, scores, self._gated(x, members))
        return softmax(scores)

    def _gated(self, x: Array, members: Array | None) -> Array:
        return _weighed(x, self.gated_own, self.gated_offsets, members, self.gated_mixture)

    def __str__(self) -> str:
        changes = "never change" if self.answers == "kept" else "may change"
        lines = [
            f"Plan: temperature {1 / self.start:.4g}, then stacking with "
            f"{named_views(self.transforms)}. Predictions {changes}."
        ]
        parts: list[tuple[Any, float]] = [("mixture", self.mixture)] if self.needs_mixture else []
        parts += [("original", self.own), *self.weights]
        lines += [f"  {name!s:<16} {weight:.4f}" for name, weight in parts]
        if self.offsets:
            lines.append(f"  {'class offsets':<16} {_range(self.offsets)}")
        if self.matrices:
            entries = np.ravel(self.matrices)
            lines.append(f"  {'class weights':<16} {_range(entries)}, added to the weights above")
        if self.gate is not None and self.weights:
            alone = f"mixture {self.gated_mixture:.4f}, " if self.needs_mixture else ""
            alone += f"original {self.gated_own:.4f}"
            alone += f", class offsets {_range(self.gated_offsets)}" if self.gated_offsets else ""
            lines.append(f"  no view at a confidence of {self.gate:g} or more: {alone}")
        return "\n".join(lines)


def _weighed(
    x: Array, own: float, offsets: tuple[float, ...], members: Array | None, mixture: float
) -> Array:
    scores = x * own
    if offsets:
        scores = scores + like(x, np.array(offsets))
    return scores if members is None else scores + members * mixture


def _range(values: Any) -> str:
    return f"from {min(values):+.4f} to {max(values):+.4f}"
