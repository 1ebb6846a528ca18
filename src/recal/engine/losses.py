"""The loss of each group as a function of its beta: what a solver asks.

The loss of a group is sum_i F_i(s_i b) - s_i b d_i, where F is a row's log-partition and d how far the true class lies
below the largest logit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.engine.scaled import ScaledRows, Vector


class GroupLosses:
    """What is known of the groups' losses at the present scales; `weights` counts a sample more than once.

    Attributes
    ----------
    members : (n_samples,) each sample's group
    sizes : (n_groups,) how many samples, or their weight
    occupied, mistaken : (n_groups,) whether there is a sample that counts, and one whose truth is not the largest logit
    pull : (n_groups,) sum of s d
    """

    def __init__(
        self, rows: ScaledRows, drops: Vector, members: NDArray[Any], n_groups: int, weights: Vector | None = None
    ) -> None:
        self._rows, self._drops, self._weights = rows, drops, weights
        self._n_groups = n_groups
        self.members = members
        self.sizes = self.by_group(np.ones(len(members)))
        counted = slice(None) if weights is None else weights > 0.0
        self.occupied = np.bincount(members[counted], minlength=n_groups) > 0
        self.mistaken = np.bincount(members[counted][drops[counted] < 0.0], minlength=n_groups) > 0
        self.pull = self.by_group(rows.scales * drops)

    def sums(self, betas: Vector) -> tuple[Vector, Vector]:
        """Return each group's sum of s F'(s b) and of s**2 F''(s b); a beta of 0 asks for none."""
        scales = self._rows.scales
        first, second = self._rows.slopes(betas[self.members])
        return self.by_group(scales * first), self.by_group(scales**2 * second)

    def by_group(self, values: Vector) -> Vector:
        """Return each group's sum of values, one per sample."""
        counted = values if self._weights is None else values * self._weights
        return np.bincount(self.members, weights=counted, minlength=self._n_groups).astype(np.float64)

    def margins(self) -> Vector:
        """Return how far apart each sample's two largest logits lie at the present scale."""
        return -self._rows.scales * self._rows.runner_up_drop()

    def pooled(self) -> GroupLosses:
        """Return the loss of all samples as one group."""
        everyone = np.zeros(len(self.members), dtype=np.intp)
        return GroupLosses(self._rows, self._drops, everyone, 1, self._weights)
