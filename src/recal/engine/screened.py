"""A view during a fit: what is remembered of it between two draws, so that few of its logits need be read again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.engine.grouping import GroupIndex, ViewRows, confidence_fell
from recal.engine.kernels import screening
from recal.engine.kernels.grouping import CLOSE
from recal.engine.kernels.threads import over_rows
from recal.engine.scaled import Columns, ScaledLogits, Vector
from recal.plan import Rule

# Gives an array that holds the rows asked for, perhaps among others, and where in it they stand.
ReadRows = Callable[[Columns], tuple[Floats, Columns]]
# How many logits are looked at together: what is on disk need not fit in memory.
_PIECE = 16_000_000


class ScreenedView:
    """The scales of one view's rows and the last look at each; the logits themselves are not held."""

    def __init__(self, scale: float, n_samples: int) -> None:
        self.scales = np.full(n_samples, scale)
        self._looked = False

    def rescale(self, factors: Vector) -> None:
        self.scales = np.clip(self.scales * factors, *ScaledLogits.SCALE_RANGE)

    def groups(
        self, original: ScaledLogits, log_confidence: Vector, slack: Vector, read: ReadRows, rule: Rule
    ) -> GroupIndex:
        """Return the groups, counted from 0, at the present scales. `slack` is how far `log_confidence` can be off."""
        n_samples, n_classes = original.logits.shape
        if self._looked:
            fell, rose = self._screen(log_confidence, CLOSE + slack)
            if rule.ties == "exact":  # in log-odds a saturated pair may differ although its logarithms do not
                saturated = log_confidence > -CLOSE
                fell, rose = fell & ~saturated, rose & ~saturated
            groups = (2 * self._kept + fell).astype(np.int8)
            chosen = np.flatnonzero(~(fell | rose))
        else:
            groups = np.empty(n_samples, dtype=np.int8)
            chosen = np.arange(n_samples)
        step = max(1, _PIECE // n_classes)
        for begin in range(0, len(chosen), step):
            part = chosen[begin : begin + step]
            block, index = _readable(*read(part))
            if not self._looked:
                if begin == 0:
                    self._prepare(n_samples, block)
                self._first_look(part, original, block, index, rule)
            groups[part] = self._look_again(part, original, log_confidence, slack, block, index, rule)
        self._looked = True
        return groups

    def _screen(self, log_confidence: Vector, close: Vector) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return where the confidence certainly fell and where it certainly rose, by the bounds of the last look."""
        at, value, slope, curvature = self._last
        upper = screening.upper_bound(at, value, slope, self._gaps, self.scales)
        with np.errstate(over="ignore"):  # a bound of minus infinity decides nothing
            lower = screening.lower_bound(
                at, value, slope, curvature, self._gaps, self._ranges, self._log_classes, self.scales
            )
        return log_confidence > upper + close, log_confidence < lower - close

    def _prepare(self, n_samples: int, block: Floats) -> None:
        """Make room for what is remembered."""
        self._log_classes = np.log(block.shape[1])
        self._maxima = np.empty(n_samples, dtype=block.dtype)
        self._ranges = np.empty(n_samples, dtype=np.float32)
        self._gaps = np.empty(n_samples)
        self._at = np.empty(n_samples, dtype=np.intp)
        self._kept = np.empty(n_samples, dtype=bool)
        self._last = np.empty((4, n_samples))

    def _first_look(self, part: Columns, original: ScaledLogits, block: Floats, index: Columns, rule: Rule) -> None:
        """Find what never changes: each row's largest logit, where it stands, how far the others lie below."""
        maxima = np.empty(len(part), dtype=block.dtype)
        ranges = np.empty(len(part), dtype=np.float32)
        columns = np.empty(len(part), dtype=np.intp)
        over_rows(screening.look, index, block, maxima, columns, ranges, size=len(part) * block.shape[1])
        at = columns if rule.confidence_at == "own" else original.columns[part]
        self._maxima[part], self._ranges[part], self._at[part] = maxima, ranges, at
        self._kept[part] = columns == original.columns[part]
        self._gaps[part] = block[index, at].astype(np.float64) - maxima.astype(np.float64)

    def _look_again(
        self,
        part: Columns,
        original: ScaledLogits,
        log_confidence: Vector,
        slack: Vector,
        block: Floats,
        index: Columns,
        rule: Rule,
    ) -> GroupIndex:
        """Return the groups of these rows from a pass over their logits, and remember what it gave."""
        over_rows(
            screening.look_again, part, block, index, self._maxima, self.scales, self._last,
            size=len(part) * block.shape[1],
        )  # fmt: skip
        view_log_confidence = self.scales[part] * self._gaps[part] - self._last[screening.VALUE, part]
        rows = ViewRows(block, index, self._maxima, self.scales, self._at)
        fell = confidence_fell(part, original, log_confidence, rows, view_log_confidence, rule, slack)
        return (2 * self._kept[part] + fell).astype(np.int8)


def _readable(logits: Floats, rows: Columns) -> tuple[Floats, Columns]:
    """Return an array that kernels can read, the given one or a copy of the rows, and where in it they stand."""
    if logits.dtype != np.float16 and logits.flags.c_contiguous:
        return logits, rows
    copy = np.ascontiguousarray(logits[rows], dtype=np.float32 if logits.dtype == np.float16 else logits.dtype)
    return copy, np.arange(len(rows))
