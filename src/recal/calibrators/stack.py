"""The softmax of a weighted sum of log-probabilities plus one offset per class, with weights that
are never negative.

Minimise over theta = (a, c), a >= 0,

    mean NLL of softmax(sum of a_v x_v + c)  +  offset_penalty |c|^2  +  VIEW_PENALTY (sum of a_v^2
    but the original's).

The problem is convex. Newton's method updates the free weights and the offsets, projected onto a >=
0; a weight of 0 that would become negative stays at 0. The stack has its own solver because
`linear.minimise` has no bounds, and because the Hessian is small or nearly diagonal, so that no
inner iteration is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels
from recal.engine import rows as kernels
from recal.engine.compiled import over_rows

Vector = NDArray[np.float64]
# Up to this many classes, the whole block of the offsets in the Hessian is used. With more, its
# diagonal is enough: the ridge grows like n_classes / n_samples, while the share of a class falls
# like 1 / n_classes.
_DENSE_CLASSES = 256
_ARMIJO = 1e-4
_SHORTEST_STEP = 2.0**-20


@dataclass(frozen=True)
class Stack:
    """A fitted sum: the features in use, their weights, the offsets of the classes, and the
    penalised loss.
    """

    used: tuple[int, ...]
    weights: Vector
    offsets: Vector
    loss: float
    n_base: int = 1
    """The number of leading features that are not views."""

    @property
    def views(self) -> tuple[int, ...]:
        """The views with a positive weight."""
        return tuple(
            v for v, weight in zip(self.used, self.weights) if v >= self.n_base and weight > 0.0
        )


VIEW_PENALTY = 5e-5


class StackMap:
    """The loss of one data set, for any choice of features; rows of weight 0 do not count.

    Parameters
    ----------
    features : (n_views, n_samples, n_classes) float32, the original first
    labels : (n_samples,)
    rows : (n_samples,) weights that sum to 1
    offset_penalty : float
    n_base : int
        The number of leading features that are not views. They have no ridge, and a fit starts at
        the last of them.
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        labels: Labels,
        rows: Vector,
        *,
        offset_penalty: float,
        n_base: int = 1,
    ) -> None:
        self.features, self.labels, self.rows = features, labels, rows
        self.offset_penalty, self.n_base = offset_penalty, n_base
        _, self.n_samples, self.n_classes = features.shape
        self._n_chunks = -(-self.n_samples // kernels.CHUNK)
        self.probs = np.empty((self.n_samples, self.n_classes), dtype=np.float32)
        self.losses = np.empty(self.n_samples)
        self._at: Stack | None = None
        self._loss = np.nan

    def evaluate(self, stack: Stack) -> float:
        """Compute `probs` and `losses` of all rows for this stack, and return the penalised loss."""
        if stack is self._at:
            return self._loss
        used = np.array(stack.used, dtype=np.intp)
        over_rows(
            kernels.stacked_probs, self.probs, self.features, used, stack.weights, stack.offsets, self.labels,
            self.losses, size=self.probs.size * len(used),
        )  # fmt: skip
        ridge = self._view_penalties(stack.used)
        penalty = self.offset_penalty * float(stack.offsets @ stack.offsets) + float(
            ridge @ stack.weights**2
        )
        self._at, self._loss = stack, float(self.rows @ self.losses) + penalty
        return self._loss

    def solve(
        self,
        used: tuple[int, ...],
        start: Stack | None = None,
        *,
        tol: float = 1e-9,
        max_iter: int = 60,
    ) -> Stack:
        """Return the best stack of these features. `start` may have fewer features."""
        before = {} if start is None else dict(zip(start.used, start.weights))
        weights = np.array(
            [before.get(v, 1.0 if v == self.n_base - 1 and start is None else 0.0) for v in used]
        )
        offsets = np.zeros(self.n_classes) if start is None else start.offsets.copy()
        now = Stack(used, weights, offsets, 0.0, self.n_base)
        loss = self.evaluate(now)
        for _ in range(max_iter):
            step_weights, step_offsets, decrement = self._newton_step(now)
            if not decrement > 0.0:
                break
            moved = self._line_search(now, loss, step_weights, step_offsets, decrement)
            if moved is None:
                break
            now, loss = moved
            if decrement < 2.0 * tol:
                break
        self._at = Stack(used, now.weights, now.offsets, self.evaluate(now), self.n_base)
        return self._at

    def promised_gains(self, stack: Stack, candidates: tuple[int, ...]) -> Vector:
        """Return by how much each candidate would lower the loss, to second order; 0 if its weight
        were negative.

        `stack` must be the one evaluated last. Coupling with the weights in use counts; coupling
        with the offsets does not, since this only screens candidates.
        """
        used = np.array(
            [v for v, weight in zip(stack.used, stack.weights) if weight > 0.0], dtype=np.intp
        )
        both = np.array([*candidates, *used], dtype=np.intp)
        sums = np.empty((self._n_chunks, len(both), 2 + len(used)))
        over_rows(
            kernels.first_order, sums, self.probs, self.features, both, used, self.labels, self.rows,
            size=self.probs.size * len(both),
        )  # fmt: skip
        total = sums.sum(axis=0)
        slopes, curvatures, couplings = total[:, 0], total[:, 1], total[:, 2:]
        count = len(candidates)
        block = couplings[count:] + 1e-9 * np.eye(len(used))
        across = couplings[:count]
        left = curvatures[:count] - np.einsum(
            "cu,cu->c", across, np.linalg.solve(block, across.T).T
        )
        left = np.maximum(left, 1e-6 * curvatures[:count]) + 2.0 * VIEW_PENALTY
        return np.where(slopes[:count] < 0.0, slopes[:count] ** 2 / (2.0 * left), 0.0)

    def _view_penalties(self, used: tuple[int, ...]) -> Vector:
        return np.array([0.0 if v < self.n_base else VIEW_PENALTY for v in used])

    def _newton_step(self, stack: Stack) -> tuple[Vector, Vector, float]:
        """Return the steps of weights and offsets, and twice the expected decrease of the loss."""
        m, used = len(stack.used), np.array(stack.used, dtype=np.intp)
        by_views = np.empty((self._n_chunks, m, m + 1))
        by_classes = np.empty((self._n_chunks, m + 2, self.n_classes))
        over_rows(
            kernels.moments, by_views, by_classes, self.probs, self.features, used, self.labels, self.rows,
            size=self.probs.size * m,
        )  # fmt: skip
        views, classes = by_views.sum(axis=0), by_classes.sum(axis=0)
        ridge = self._view_penalties(stack.used)
        slope = views[:, 0] + 2.0 * ridge * stack.weights
        block = np.tril(views[:, 1:])
        block = block + np.tril(block, -1).T + np.diag(2.0 * ridge + 1e-12)
        free = ~((stack.weights <= 0.0) & (slope >= 0.0))
        slope_offsets = classes[0] + 2.0 * self.offset_penalty * stack.offsets
        step = np.zeros(m)
        across = classes[2:][free]
        solved = self._solve_offsets(classes[1], np.vstack([across, slope_offsets]))
        schur = block[np.ix_(free, free)] - across @ solved[:-1].T
        step[free] = -np.linalg.solve(schur, slope[free] - across @ solved[-1])
        step_offsets = -solved[-1] - step[free] @ solved[:-1]
        return step, step_offsets, float(-slope @ step - slope_offsets @ step_offsets)

    def _solve_offsets(self, shares: Vector, right: Vector) -> Vector:
        """Solve with the offsets' block of the Hessian: diag(shares) - sum p p^T, and the ridge."""
        diagonal = shares + 2.0 * self.offset_penalty + 1e-12
        if self.n_classes > _DENSE_CLASSES:
            return right / diagonal
        from scipy.linalg import cho_factor, cho_solve  # not needed to apply a saved stack

        weighted = self.probs * np.sqrt(self.rows).astype(np.float32)[:, None]
        block = np.diag(diagonal + 1e-9) - (weighted.T @ weighted).astype(np.float64)
        solved: Vector = cho_solve(cho_factor(block), right.T).T
        return solved

    def _line_search(
        self, now: Stack, loss: float, step_weights: Vector, step_offsets: Vector, decrement: float
    ) -> tuple[Stack, float] | None:
        """Halve the step, projected onto weights >= 0, until the loss falls;

        None if rounding hides any decrease.
        """
        size = 1.0
        while size > _SHORTEST_STEP:
            weights = np.maximum(now.weights + size * step_weights, 0.0)
            trial = Stack(now.used, weights, now.offsets + size * step_offsets, 0.0, self.n_base)
            value = self.evaluate(trial)
            if value <= loss - _ARMIJO * size * decrement:
                return trial, value
            size *= 0.5
        return None
