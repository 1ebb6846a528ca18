"""Scaled logits with a table of their log-partition, for fits with many classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.kernels import rows, table
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import ScaledLogits, Vector

# From how many classes on a table is cheaper than passes over the logits.
FEWEST_CLASSES = 48
_LOWEST, _HIGHEST = float(np.log(0.02)), float(np.log(20.0))
_NODES = int((_HIGHEST - _LOWEST) / table.SPACING) + 2
# A node is worth a pass over all logits when this share of the rows needs it; fewer rows get a pass of their own.
_WORTH_A_NODE = 0.02


class TabledLogits(ScaledLogits):
    """The same as `ScaledLogits` within a known bound; nodes of the table are filled when first needed."""

    def __init__(self, logits: Floats, scales: Vector | None = None) -> None:
        super().__init__(logits, scales)
        n_samples = len(self.scales)
        self._rivals = np.empty(n_samples)
        over_rows(table.rivals, self.logits, self.columns, self._rivals)
        self._gaps = self._rivals - self.maxima
        self._error_bound = table.error_bound(self.logits.shape[1])
        self._node_scales = np.exp(_LOWEST + table.SPACING * np.arange(_NODES))
        self._filled = np.zeros(_NODES, dtype=bool)
        # Untouched pages of this array cost no memory.
        self._table = np.empty((_NODES, n_samples, 3))
        self._pieces = np.full((n_samples, 8), np.inf)  # a lower end of infinity: none loaded

    def log_partition_at(self, factors: Vector | float) -> Vector:
        scales = self.scales * factors
        missing = self._load(scales)
        out = np.empty(len(scales))
        over_rows(table.log_partition, scales, self._gaps, self._pieces, out)
        if missing.any():
            out[missing] = self._dense(scales, missing)[0]
        return out

    def slopes(self, factors: Vector, quick: bool = False) -> tuple[Vector, Vector]:
        scales = self.scales * factors
        missing = self._load(scales)
        out = np.zeros((2, len(scales)))
        over_rows(table.slopes, scales, self._gaps, self._pieces, out[0], out[1])
        if missing.any():
            out[:, missing] = self._dense(scales, missing)[1:]
        return out[0], out[1]

    def error_bound(self, log_partition: Vector) -> Vector:
        # F = log(1 + e**x) passes an error in x on times 1 - p; the error's effect on p itself is within a per cent.
        return 1.01 * self._error_bound * -np.expm1(-log_partition)

    def sharpen(self, log_partition: Vector, chosen: NDArray[np.bool_]) -> None:
        if chosen.any():
            log_partition[chosen] = self._dense(self.scales, chosen)[0]

    def _load(self, scales: Vector) -> NDArray[np.bool_]:
        """Load the polynomials around these scales; return which rows have none, being too few to fill nodes for."""
        for may_fill in (True, False):
            missing = np.zeros(len(scales), dtype=bool)
            over_rows(
                table.load_pieces, scales, self._table, _LOWEST, self._node_scales, self._filled, self._pieces, missing
            )
            if not (may_fill and missing.any() and self._fill(scales[missing])):
                break
        return missing

    def _fill(self, scales: Vector) -> bool:
        """Fill the nodes that enough of these scales need; say whether there were any."""
        counts = np.zeros(_NODES, dtype=np.intp)
        table.count_nodes(scales, _LOWEST, counts)
        needed = counts >= max(1.0, _WORTH_A_NODE * len(self.scales))
        needed[1:] |= needed[:-1].copy()
        empty = np.flatnonzero(needed & ~self._filled)
        for node in empty:
            over_rows(
                table.fill_node, self.logits, self.columns, self._rivals, self._node_scales[node], node, self._table
            )
            self._filled[node] = True
        return len(empty) > 0

    def _dense(self, scales: Vector, chosen: NDArray[np.bool_]) -> Vector:
        """Return F and its derivatives of some rows from a pass over their logits."""
        picked = np.ascontiguousarray(self.logits[chosen])
        out = np.empty((3, len(picked)))
        over_rows(rows.log_partition_and_slopes, picked, self.maxima[chosen], scales[chosen], out)
        return out
