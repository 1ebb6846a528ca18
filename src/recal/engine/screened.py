"""A view during a fit: what is remembered of it between two draws, so that few of its logits need be read again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recal.checks import Floats
from recal.engine.grouping import GroupIndex, ViewRows, confidence_fell
from recal.engine.kernels import grouping as comparing
from recal.engine.kernels import screening, table
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import Columns, ScaledLogits, Vector
from recal.engine.tabled import TabledLogits
from recal.plan import Rule

# Gives an array that holds the rows asked for, perhaps among others, and where in it they stand.
ReadRows = Callable[[Columns], tuple[Floats, Columns]]
# How many logits are looked at together: what is on disk need not fit in memory.
_PIECE = 16_000_000


class ScreenedView:
    """The scales of one view's rows and the last look at each; the logits themselves are not held."""

    def __init__(self, scale: float, n_samples: int) -> None:
        self._scales = np.full(-(-n_samples // table.LANES) * table.LANES, scale)
        self.scales: Vector = self._scales[:n_samples]
        self._looked = False

    def rescale(self, factors: Vector) -> None:
        np.clip(self.scales * factors, *ScaledLogits.SCALE_RANGE, out=self.scales)

    def groups(self, original: TabledLogits, read: ReadRows, rule: Rule) -> GroupIndex:
        """Return the groups, counted from 0, at the present scales."""
        n_samples, n_classes = original.logits.shape
        groups = np.empty(len(self._scales), dtype=np.int8)
        chosen = self._screen(groups, original, rule) if self._looked else np.arange(n_samples)
        step = max(1, _PIECE // n_classes)
        for begin in range(0, len(chosen), step):
            part = chosen[begin : begin + step]
            block, index = _readable(*read(part))
            if not self._looked and begin == 0:
                self._prepare(n_samples, block)
            groups[part] = self._look(part, original, block, index, rule)
        self._looked = True
        return groups[:n_samples]

    def _screen(self, groups: GroupIndex, original: TabledLogits, rule: Rule) -> Columns:
        """Fill the groups that the bounds of the last look decide, and return the samples that they do not."""
        # In log-odds a saturated pair may differ although its logarithms do not.
        saturated = -comparing.CLOSE if rule.ties == "exact" else np.inf
        over_rows(
            screening.screen, self._looks, groups, original.known.reshape(-1), original.error, self._looks.reshape(-1),
            self._scales, self._log_classes, saturated, size=len(groups),
        )  # fmt: skip
        return np.flatnonzero(groups[: len(self.scales)] < 0)

    def _prepare(self, n_samples: int, block: Floats) -> None:
        """Make room for what is remembered."""
        self._log_classes = np.log(block.shape[1])
        self._maxima = np.empty(n_samples, dtype=block.dtype)
        self._columns = np.empty(n_samples, dtype=np.intp)
        self._at = np.empty(n_samples, dtype=np.intp)
        self._looks = np.ones((len(self._scales) // table.LANES, screening.LOOK, table.LANES))

    def _look(self, part: Columns, original: TabledLogits, block: Floats, index: Columns, rule: Rule) -> GroupIndex:
        """Return the groups of these rows from a pass over their logits, and remember what it gave."""
        over_rows(
            screening.look, part, block, index, self.scales, self._maxima, self._columns, self._looks.reshape(-1),
            not self._looked, size=len(part) * block.shape[1],
        )  # fmt: skip
        blocks, lanes = np.divmod(part, table.LANES)
        if not self._looked:  # what never changes
            columns = self._columns[part]
            at = columns if rule.confidence_at == "own" else original.columns[part]
            self._at[part] = at
            gaps = block[index, at].astype(np.float64) - self._maxima[part].astype(np.float64)
            self._looks[blocks, screening.GAP, lanes] = gaps
            self._looks[blocks, screening.KEPT, lanes] = 2 * (columns == original.columns[part])
        last = self._looks[blocks, :, lanes]
        view_log_confidence = self.scales[part] * last[:, screening.GAP] - last[:, screening.VALUE]
        rows = ViewRows(block, index, self._maxima, self.scales, self._at)
        known = original.known[blocks, :, lanes]
        fell = confidence_fell(
            part, original, -known[:, table.VALUE], rows, view_log_confidence, rule,
            original.error * known[:, table.AGAINST],
        )  # fmt: skip
        groups: GroupIndex = (last[:, screening.KEPT] + fell).astype(np.int8)
        return groups


def _readable(logits: Floats, rows: Columns) -> tuple[Floats, Columns]:
    """Return an array that kernels can read, the given one or a copy of the rows, and where in it they stand."""
    if logits.dtype != np.float16 and logits.flags.c_contiguous:
        return logits, rows
    copy = np.ascontiguousarray(logits[rows], dtype=np.float32 if logits.dtype == np.float16 else logits.dtype)
    return copy, np.arange(len(rows))
