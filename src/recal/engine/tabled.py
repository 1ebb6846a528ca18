"""Scaled logits with a table of their log-partition, for fits of many iterations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.kernels import rows, table
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import ScaledLogits, Vector

Groups = NDArray[np.int8]
_LOWEST, _HIGHEST = float(np.log(0.02)), float(np.log(20.0))
# A node is worth a pass over all logits when it was asked for by this share of the rows, all questions together; until
# then rows get a pass of their own.
_WORTH_A_NODE = 0.1
# How many bytes all nodes may take, beyond which rows get a pass of their own: of a million samples, 33 nodes.
_MOST_TABLE = 800_000_000


class TabledLogits(ScaledLogits):
    """The same as `ScaledLogits` within a known bound; nodes of the table are filled when first needed.

    Parameters
    ----------
    logits, scales
        As for `ScaledLogits`.
    n_bins : int
        Confidences so close to the edge of one of as many bins that the table cannot tell the bin are computed in full;
        with 0 none is.
    """

    def __init__(self, logits: Floats, scales: Vector | None = None, n_bins: int = 0) -> None:
        super().__init__(logits, scales)
        n_samples, n_classes = self.logits.shape
        self._n_bins = n_bins
        self._rivals = np.empty(n_samples)
        over_rows(rows.runners_up, self.logits, self.columns, self._rivals)
        self._gaps = self._rivals - self.maxima
        # The effect of an error on a confidence is within a per cent of the error.
        self.error = 1.01 * table.error_bound(n_classes)
        nodes = int((_HIGHEST - _LOWEST) / table.SPACING) + 2
        self._node_scales = np.exp(_LOWEST + table.SPACING * np.arange(nodes))
        self._filled = np.zeros(nodes, dtype=bool)
        self._asked = np.zeros(nodes)
        # Untouched pages of this array cost no memory.
        self._table = np.empty((nodes, n_samples, 3))
        self._everyone = np.zeros(n_samples, dtype=np.int8)
        self.n_blocks = -(-n_samples // table.LANES)
        self._pieces = np.zeros((self.n_blocks, table.PIECE, table.LANES))
        self._pieces[:, table.LOW] = np.inf  # none loaded
        self._pieces[:, table.GAP].flat[:n_samples] = self._gaps
        # What is known at the present scales, and at others that are only asked about.
        self._known, self._others = np.zeros((2, self.n_blocks, table.KNOWN, table.LANES))
        self._is_known = False

    @property
    def known(self) -> Vector:
        """What `kernels.table.evaluate` knows of each row at its present scale, (n_blocks, KNOWN, LANES)."""
        if not self._is_known:
            self._evaluate(self._everyone, np.ones(1), self._n_bins, self._known)
            self._is_known = True
        return self._known

    def at(self, groups: Groups, betas: Vector, near_edges: bool = False) -> Vector:
        """Return the same as it would be after `rescale(betas[groups])`, until asked again.

        Nothing is known of groups of beta 0. Only with `near_edges` is every confidence sure to be in its bin.
        """
        self._evaluate(groups, betas, self._n_bins if near_edges else 0, self._others)
        return self._others

    def field(self, known: Vector, field: int) -> Vector:
        """Return one field of what is known, (n_samples,)."""
        return known[:, field].reshape(-1)[: len(self.scales)]

    def _evaluate(self, groups: Groups, betas: Vector, n_bins: int, known: Vector) -> None:
        for may_fill in (True, False):
            over_rows(
                table.evaluate, known, self.scales, groups, betas, self._pieces.reshape(-1), known.reshape(-1),
                self._table, _LOWEST, self._node_scales, self._filled, self.error, n_bins, size=len(self.scales),
            )  # fmt: skip
            to_read = self.field(known, table.TO_READ)
            chosen = np.flatnonzero(to_read)
            if not len(chosen):
                return
            scales = self.scales[chosen] * betas[groups[chosen]]
            if not (may_fill and self._fill(scales[to_read[chosen] == table.MISSING])):
                break
        block, lane = np.divmod(chosen, table.LANES)
        for field, values in enumerate(self._read(chosen, scales)):
            known[block, field, lane] = values

    def rescale(self, factors: Vector | float) -> None:
        super().rescale(factors)
        self._is_known = False

    def log_partition(self) -> Vector:
        return self.field(self.known, table.VALUE)

    def sums(self, groups: Groups, n_groups: int, known: Vector, drops: Vector) -> Vector:
        """Return (n_groups, 7) sums over each group's samples; see `kernels.table.sum_groups`."""
        chunks = np.empty((-(-self.n_blocks // table.CHUNK), n_groups, table.N_SUMS))
        over_rows(table.sum_groups, chunks, groups, known.reshape(-1), self.scales, drops, size=len(groups))
        out: Vector = chunks.sum(axis=0)
        return out

    def runner_up_drop(self) -> Vector:
        return self._gaps

    def _fill(self, scales: Vector) -> bool:
        """Fill the nodes that enough of these scales need; say whether there were any."""
        below = np.floor((np.log(scales) - _LOWEST) / table.SPACING).clip(0, len(self._asked) - 2).astype(np.intp)
        self._asked += np.bincount(below, minlength=len(self._asked))
        needed = self._asked >= max(1.0, _WORTH_A_NODE * len(self.scales))
        needed[1:] |= needed[:-1].copy()
        room = int(_MOST_TABLE / (24 * len(self.scales))) - int(self._filled.sum())
        empty = np.flatnonzero(needed & ~self._filled)[: max(0, room)]
        everyone = np.arange(len(self.scales))
        for node in empty:
            scales = np.full(len(everyone), self._node_scales[node])
            over_rows(
                table.read_rows, everyone, self.logits, self.columns, self._rivals, scales, self._table[node],
                size=self.logits.size,
            )  # fmt: skip
            self._filled[node] = True
        return len(empty) > 0

    def _read(self, chosen: NDArray[np.intp], scales: Vector) -> Vector:
        """Return what is known of some rows from a pass over their logits."""
        out = np.empty((len(chosen), 5))
        over_rows(
            table.read_rows, chosen, self.logits, self.columns, self._rivals, scales, out,
            size=len(chosen) * self.logits.shape[1],
        )  # fmt: skip
        apart = scales * self._gaps[chosen]
        x, x1, x2, x3, x4 = (out * scales[:, None] ** np.arange(5)).T
        x, x1 = x + apart, x1 + apart
        small = np.exp(-np.abs(x))
        against = np.where(x < 0.0, small, 1.0) / (1.0 + small)
        bend = small / (1.0 + small) ** 2
        turn = bend * (1.0 - 2.0 * against)
        return np.array(
            [
                np.maximum(x, 0.0) + np.log1p(small),
                against * x1,
                against * x2 + bend * x1**2,
                against * x3 + 3.0 * bend * x1 * x2 + turn * x1**3,
                against * x4
                + bend * (4.0 * x1 * x3 + 3.0 * x2**2 + (1.0 - 6.0 * bend) * x1**4)
                + 6.0 * turn * x1**2 * x2,
                against,
            ]
        )
