"""Maps that combine several inputs: means over views, and mixtures of other maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import safe_log, softmax
from recal.maps.base import Array, Map, TransformList, Views
from recal.maps.blend import Blend
from recal.maps.scaling import Scale
from recal.schema import Floats, Integers
from recal.transforms import Transform

Vector = NDArray[np.float64]
Transforms = Annotated[tuple[Transform, ...], TransformList()]


class ViewMean(Map):
    """The mean of the probabilities of the original and its views, at a temperature:

    test-time augmentation.
    """

    views: Transforms
    beta: Scale

    def probs(self, z: Array, views: Views = ()) -> Array:
        mean = mean_probs(z, views)
        return mean if self.beta == 1.0 else softmax(safe_log(mean), self.beta)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.views


def mean_probs(z: Array, views: Views) -> Array:
    """Return the mean of the softmax of several arrays."""
    total = softmax(z)
    for view in views:
        total = total + softmax(view)
    return total / (1 + len(views))


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
    weights: Annotated[NDArray[np.float64], Floats("M", low=0.0, high=1.0)]
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

    @property
    def n_classes(self) -> int | None:
        known = [one.n_classes for one in self.members if one.n_classes is not None]
        return known[0] if known else None

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
    """Return the probabilities of each member, (n_samples, n_classes) each;

    `reads` as in `Mixture`.
    """
    probs: list[Array] = []
    for member, source in zip(members, reads):
        probs.append(member.probs(z if source < 0 else safe_log(probs[source])))
    return probs
