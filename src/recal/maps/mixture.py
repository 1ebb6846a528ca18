"""The map of an ensemble: a weighted mean of other maps, and views on top if there is a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.maps.arrays import safe_log
from recal.maps.base import Array, Map, Views
from recal.maps.plan import Plan
from recal.schema import Floats, Instance, Integers, ListOf, Text
from recal.transforms import Transform


class Mixture(Map):
    """The sum of weight times probabilities over the members.

    Parameters
    ----------
    names : what each member is called
    members : maps that need no views
    weights : (n_members,), 0 for a member that is only read by others
    reads : (n_members,)
        Which member's log-probabilities a member reads in place of the logits, an earlier one; -1 for the logits.
    plan : Plan, optional
        A blend of the mixture's log-probabilities with those of temperature scaling and a few views.
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
            raise InputError("must sum to 1", argument="weights", came=f"got {self.weights.sum():.6g}")
        if any(member.transforms for member in self.members):
            raise InputError("must need no views", argument="members")
        if (self.reads >= np.arange(len(self.reads))).any():
            raise InputError("must name earlier members", argument="reads")
        if self.plan is not None and self.plan.blend is None:
            raise InputError("must have a blend", argument="plan")

    @property
    def n_classes(self) -> int | None:
        return next((member.n_classes for member in self.members if member.n_classes is not None), None)

    def check_classes(self, n_classes: int) -> None:
        for part in (*self.members, *([] if self.plan is None else [self.plan])):
            part.check_classes(n_classes)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return () if self.plan is None else self.plan.transforms

    @property
    def gate(self) -> float | None:
        """The confidence from which on no view is computed; None if there is no gate."""
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
        """Return the weighted mean of what the members give, (n_samples, n_classes)."""
        answers: list[Array] = []
        for member, source in zip(self.members, self.reads.tolist()):
            answers.append(member.probs(z if source < 0 else safe_log(answers[source])))
        total = None
        for weight, probs in zip(self.weights.tolist(), answers):
            if weight > 0.0:
                total = probs * weight if total is None else total + probs * weight
        return total
