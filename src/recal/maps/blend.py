"""Maps that combine several inputs: blends and means of views, and mixtures of other maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.engine import row_blocks
from recal.errors import InputError
from recal.maps.arrays import linear, row_max, row_sum, safe_log, soft_log_probs, softmax
from recal.maps.base import Array, Map, ViewLogits, like, namespace, wide
from recal.maps.steps import Beta, OneTransform, named_views
from recal.schema import LARGEST, FloatArray, Integers, Kind, Number, Sizes, check
from recal.transforms import Transform, as_transform

Answers = Literal["kept", "free"]
Weight = Annotated[float, Number(0.0, LARGEST)]
Finite = Annotated[float, Number(-LARGEST, LARGEST)]
Finites = tuple[Finite, ...]


class ViewWeights(Kind):
    """Transformations and their weights."""

    rule = "pairs of a transformation and a number; each transformation once"

    def read(self, value: Any, sizes: Sizes) -> tuple[tuple[Transform, float], ...]:
        if not isinstance(value, list | tuple):
            raise ValueError
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            raise ValueError
        kind = Number(0.0, LARGEST)
        weights = {
            as_transform(key): check(one, kind, f"the weight of {key}") for key, one in value
        }
        if len(weights) < len(value):
            raise ValueError
        return tuple(weights.items())


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
    gated_own : float >= 0
        The weight of the original at and above the gate.
    gated_offsets : sequence of n_classes numbers
        The offsets at and above the gate.
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
    offsets: Finites
    epsilon: Annotated[float, Number(0.0, 1.0, ends="()")]
    gate: Annotated[float, Number(0.0, 1.0, ends="(]")] | None = None
    gated_own: Weight = 1.0
    gated_offsets: Finites = ()
    answers: Answers = "kept"
    mixture: Weight = 0.0
    gated_mixture: Weight = 0.0
    matrices: tuple[tuple[Finites, ...], ...] = ()
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
        for part in row_blocks(*logits.shape):
            needed[part] = self._is_below(wide(logits[part]))
        return needed

    def _is_below(self, z: Array) -> Array:
        weights = namespace(z).exp((z - row_max(z)) * self.start)
        return (1.0 / row_sum(weights) < self.gate)[:, 0]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        if self.needs_mixture:
            raise InputError(
                "This blend is part of an ensemble of calibrators", remedy="Use the ensemble itself"
            )
        return self.blended(z, views)

    def blended(self, z: Array, views: ViewLogits = (), mixed: Array | None = None) -> Array:
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
        if self.gate is not None and self.weights:
            alone = f"mixture {self.gated_mixture:.4f}, " if self.needs_mixture else ""
            alone += f"original {self.gated_own:.4f}"
            lines.append(f"  no view at a confidence of {self.gate:g} or more: {alone}")
        return "\n".join(lines)


def _weighed(
    x: Array, own: float, offsets: tuple[float, ...], members: Array | None, mixture: float
) -> Array:
    scores = x * own
    if offsets:
        scores = scores + like(x, np.array(offsets))
    return scores if members is None else scores + members * mixture


class ViewMean(Map):
    """The mean of the probabilities of the original and its views."""

    views: tuple[Annotated[Transform, OneTransform()], ...]

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        total = softmax(z)
        for view in views:
            total = total + softmax(view)
        return total / (1 + len(views))

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.views


class Mixture(Map):
    """The weighted sum of the members' probabilities.

    Parameters
    ----------
    names : the name of each member
    members : maps that need no views
    weights : (n_members,), 0 for a member that is only read by others
    reads : (n_members,)
        The earlier member whose log-probabilities a member reads instead of the logits; -1 for the
        logits.
    plan : Blend, optional
        A blend of the mixture's log-probabilities with those of temperature scaling and a few
        views.
    """

    names: tuple[str, ...]
    members: tuple[Map, ...]
    weights: Annotated[NDArray[np.float64], FloatArray("M", low=0.0, high=1.0)]
    reads: Annotated[NDArray[np.int64], Integers("M", low=-1, high=2**31)]
    plan: Blend | None = None

    def check(self) -> None:
        if not len(self.members) == len(self.names) == len(set(self.names)) == len(self.weights):
            raise InputError("must each name one member", argument=("names", "members", "weights"))
        if abs(self.weights.sum() - 1.0) > 1e-6:
            raise InputError(f"must sum to 1, got {self.weights.sum():.6g}", argument="weights")
        if any(member.transforms for member in self.members):
            raise InputError("must need no views", argument="members")
        if (self.reads >= np.arange(len(self.reads))).any():
            raise InputError("must name earlier members", argument="reads")

    def check_classes(self, n_classes: int) -> None:
        for part in (*self.members, *([] if self.plan is None else [self.plan])):
            part.check_classes(n_classes)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return () if self.plan is None else self.plan.transforms

    @property
    def gate(self) -> float | None:
        """Samples with at least this confidence need no views; None if there is no gate."""
        return None if self.plan is None else self.plan.gate

    def needs_views(self, logits: Array) -> Array:
        return super().needs_views(logits) if self.plan is None else self.plan.needs_views(logits)

    def probs(self, z: Array, views: ViewLogits = ()) -> Array:
        mixed = self.mixed(z)
        return mixed if self.plan is None else self.plan.blended(z, views, mixed)

    def mixed(self, z: Array) -> Array:
        """Return the weighted mean of the members' probabilities, (n_samples, n_classes)."""
        total = None
        for weight, probs in zip(
            self.weights.tolist(), member_probs(self.members, self.reads.tolist(), z)
        ):
            if weight > 0.0:
                total = probs * weight if total is None else total + probs * weight
        return total


def member_probs(members: Sequence[Map], reads: Sequence[int], z: Array) -> list[Array]:
    """Return the probabilities of each member, (n_samples, n_classes); `reads` as in `Mixture`."""
    probs: list[Array] = []
    for member, source in zip(members, reads):
        probs.append(member.probs(z if source < 0 else safe_log(probs[source])))
    return probs
