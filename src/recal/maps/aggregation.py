"""Maps that combine several inputs: means, weighted sums and votes over views, and mixtures of
other maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import at, clip, safe_log, softmax, top_column
from recal.maps.base import Array, Map, TransformList, Views, indices, like, namespace
from recal.maps.plan import Plan
from recal.maps.scaling import Scale, Share
from recal.schema import LARGEST, Floats, Instance, Integers, ListOf, Number, Text
from recal.transforms import Transform

Vector = NDArray[np.float64]
Transforms = Annotated[tuple[Transform, ...], TransformList()]

# Scores beyond this are practically certain; a product of two such numbers does not overflow.
LARGEST_SCORE = 1e4
# The share of the views is lowered in steps of this size.
STEP = 0.01
TINY = 1e-30
# The most random numbers that a file may request.
_MOST_DRAWN = 100_000_000
# How many values are processed at a time when votes are counted.
_MOST_VALUES = 1_000_000


class _OfViews(Map):
    """A map that reads all its views for every sample."""

    views: Transforms

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.views


class ViewMean(_OfViews):
    """The mean of the probabilities of the original and its views, at a temperature: test-time
    augmentation.
    """

    beta: Scale

    def probs(self, z: Array, views: Views = ()) -> Array:
        mean = mean_probs(z, views)
        return mean if self.beta == 1.0 else softmax(safe_log(mean), self.beta)


class ViewSum(_OfViews):
    """softmax of a weighted sum of the logits of the original and its views: learned aggregation."""

    beta: Scale
    weights: Annotated[Vector, Floats("M", "W", low=0.0)]

    def check(self) -> None:
        if len(self.weights) != 1 + len(self.views):
            raise InputError(f"must have {1 + len(self.views)} rows", argument="weights")

    @property
    def n_classes(self) -> int | None:
        return None if self.weights.shape[1] == 1 else self.weights.shape[1]

    def probs(self, z: Array, views: Views = ()) -> Array:
        scores = like(z, self.weights[0]) * tame(z * self.beta)
        for weights, view in zip(self.weights[1:], views):
            scores = scores + like(z, weights) * tame(view * self.beta)
        return softmax(scores)


class AdaptiveMixture(_OfViews):
    """The model's own probabilities mixed with a learned sum of the views, as far as the prediction
    does not change.
    """

    weights: Annotated[Vector, Floats("M", "W")]
    share: Share

    keeps_order: ClassVar[bool] = True

    def check(self) -> None:
        if len(self.weights) != len(self.views):
            raise InputError(f"must have {len(self.views)} rows", argument="weights")

    @property
    def n_classes(self) -> int | None:
        return None if self.weights.shape[1] == 1 else self.weights.shape[1]

    def probs(self, z: Array, views: Views = ()) -> Array:
        scores = namespace(z).zeros_like(z)
        for weights, view in zip(self.weights, views):
            scores = scores + like(z, weights) * tame(view)
        own, other = softmax(z), softmax(scores)
        share = allowed_share(own, other, top_column(z), self.share)
        return (1.0 - share) * own + share * other


class Votes(_OfViews):
    """How often each class wins when the same noise is added to the logits: consistency
    calibration.
    """

    noise: Annotated[float, Number(0.0, LARGEST)]
    draws: Annotated[int, Number(1, whole=True)]
    seed: Annotated[int, Number(0, 2**63, whole=True)]

    def check_classes(self, n_classes: int) -> None:
        if self.draws > _MOST_DRAWN // n_classes:
            most = _MOST_DRAWN // n_classes
            raise InputError(f"must be at most {most}, got {self.draws}", argument="draws")

    def probs(self, z: Array, views: Views = ()) -> Array:
        return count_votes([z, *views], self.noise, self.draws, self.seed)


def mean_probs(z: Array, views: Views) -> Array:
    """Return the mean of the softmax of several arrays."""
    total = softmax(z)
    for view in views:
        total = total + softmax(view)
    return total / (1 + len(views))


def tame(logits: Array) -> Array:
    """Return logits whose weighted sums stay finite."""
    return clip(logits, -LARGEST_SCORE, LARGEST_SCORE)


def allowed_share(own: Array, other: Array, columns: Array, share: float) -> Array:
    """Return the share of `other` for each sample, (n_samples, 1).

    It is `share`, lowered in steps of 0.01 until the prediction in `columns`, (n_samples, 1), stays
    the largest.
    """
    xp = namespace(own)
    lead = at(own, columns) - own
    lag = other - at(other, columns)
    # Class j overtakes the prediction if the share exceeds lead / (lead + lag).
    behind = lag > 0.0
    limit = xp.where(behind, lead / xp.maximum(lead + lag, TINY), np.inf)
    excess = xp.maximum(share - xp.min(limit, axis=1, keepdims=True), 0.0)
    return clip(share - STEP * xp.ceil(excess / STEP - 1e-9), 0.0, 1.0)


def count_votes(layers: list[Any], noise: float, draws: int, seed: int) -> Array:
    """Return the share of draws that each class wins; each of n layers gets every n-th draw."""
    z = layers[0]
    xp, n_classes = namespace(z), z.shape[1]
    total = max(draws, len(layers))
    added = noise * np.random.default_rng(seed).standard_normal((total, n_classes))
    classes = indices(z, np.arange(n_classes)[None, None, :])
    at_once = max(1, _MOST_VALUES // z.size) if isinstance(z, np.ndarray) else total
    counts = xp.zeros_like(z)
    for index, layer in enumerate(layers):
        own = added[index :: len(layers)]
        for start in range(0, len(own), at_once):
            part = like(z, own[start : start + at_once])[None, :, :]
            winners = xp.argmax(layer[:, None, :] + part, axis=2)
            if isinstance(z, np.ndarray):
                cells = (np.arange(len(z))[:, None] * n_classes + winners).ravel()
                counts += np.bincount(cells, minlength=z.size).reshape(z.shape)
            else:
                counts = counts + xp.sum(xp.astype(winners[:, :, None] == classes, z.dtype), axis=1)
    return (counts + 1.0 / n_classes) / (total + 1)


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
    plan : Plan, optional
        A blend of the mixture's log-probabilities with those of temperature scaling and a few
        views.
    """

    names: Annotated[tuple[str, ...], ListOf(Text(), keep=tuple)]
    members: Annotated[tuple[Map, ...], ListOf(Instance(Map), keep=tuple)]
    weights: Annotated[NDArray[np.float64], Floats("M", low=0.0, high=1.0)]
    reads: Annotated[NDArray[np.int64], Integers("M", low=-1, high=2**31)]
    plan: Plan | None = None

    def check(self) -> None:
        if not len(self.members) == len(self.names) == len(set(self.names)) == len(self.weights):
            raise InputError("must each name one member", argument=("names", "members", "weights"))
        if abs(self.weights.sum() - 1.0) > 1e-6:
            raise InputError(f"must sum to 1, got {self.weights.sum():.6g}", argument="weights")
        if any(member.transforms for member in self.members):
            raise InputError("must need no views", argument="members")
        if (self.reads >= np.arange(len(self.reads))).any():
            raise InputError("must name earlier members", argument="reads")
        if self.plan is not None and self.plan.blend is None:
            raise InputError("must have a blend", argument="plan")

    @property
    def n_classes(self) -> int | None:
        return next(
            (member.n_classes for member in self.members if member.n_classes is not None), None
        )

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

    def with_gate(self, gate: float | None) -> Mixture:
        """Return the same map with another gate; None computes the views of all samples."""
        return self if self.plan is None else replace(self, plan=self.plan.with_gate(gate))

    def needs_views(self, logits: Array) -> Array:
        return super().needs_views(logits) if self.plan is None else self.plan.needs_views(logits)

    def probs(self, z: Array, views: Views = ()) -> Array:
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
    """Return the probabilities of each member, (n_samples, n_classes) each; `reads` as in
    `Mixture`.
    """
    probs: list[Array] = []
    for member, source in zip(members, reads):
        probs.append(member.probs(z if source < 0 else safe_log(probs[source])))
    return probs
