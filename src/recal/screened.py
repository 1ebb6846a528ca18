"""A view during a fit: what is remembered of it between two draws, so that few of its logits need be read again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.grouping import GroupIndex, ViewRows, confidence_fell
from recal.kernels import screening
from recal.kernels.grouping import CLOSE
from recal.kernels.threads import over_rows
from recal.plan import Rule
from recal.scaled import Columns, ScaledLogits, Vector


class ScreenedView:
    """The scales of one view's rows and the last look at each; the logits themselves are not held."""

    def __init__(self, scale: float, n_samples: int) -> None:
        self.scales = np.full(n_samples, scale)
        self._looked = False

    def rescale(self, factors: Vector) -> None:
        self.scales = np.clip(self.scales * factors, *ScaledLogits.SCALE_RANGE)

    def groups(
        self,
        original: ScaledLogits,
        log_confidence: Vector,
        slack: Vector,
        logits: Floats,
        where: Columns | None,
        rule: Rule,
    ) -> GroupIndex:
        """Return the groups, counted from 0, at the present scales.

        `slack` is how far `log_confidence` can be off. `where` tells in which row of `logits` each sample's stand;
        None, that they are in order.
        """
        if self._looked:
            fell, rose = self._screen(log_confidence, CLOSE + slack)
            if rule.ties == "exact":  # in log-odds a saturated pair may differ although its logarithms do not
                saturated = log_confidence > -CLOSE
                fell, rose = fell & ~saturated, rose & ~saturated
            groups = (2 * self._kept + fell).astype(np.int8)
            chosen = np.flatnonzero(~(fell | rose))
        else:
            self._first_look(original, logits, where, rule)
            groups = np.empty(len(self.scales), dtype=np.int8)
            chosen = np.arange(len(groups))
        if len(chosen):
            groups[chosen] = self._look_again(chosen, original, log_confidence, slack, logits, where, rule)
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

    def _look_again(
        self,
        chosen: Columns,
        original: ScaledLogits,
        log_confidence: Vector,
        slack: Vector,
        logits: Floats,
        where: Columns | None,
        rule: Rule,
    ) -> GroupIndex:
        """Return the groups of the rows `chosen` from a pass over their logits, and remember what it gave."""
        block, index = _readable(logits, where, chosen)
        over_rows(
            screening.look_again, chosen, block, index, self._maxima, self.scales, self._last,
            size=len(chosen) * block.shape[1],
        )  # fmt: skip
        view_log_confidence = self.scales[chosen] * self._gaps[chosen] - self._last[screening.VALUE, chosen]
        rows = ViewRows(block, index, self._maxima, self.scales, self._at)
        fell = confidence_fell(chosen, original, log_confidence, rows, view_log_confidence, rule, slack)
        return (2 * self._kept[chosen] + fell).astype(np.int8)

    def _first_look(self, original: ScaledLogits, logits: Floats, where: Columns | None, rule: Rule) -> None:
        n_samples = len(self.scales)
        block, index = _readable(logits, where, np.arange(n_samples))
        self._maxima = np.empty(n_samples, dtype=block.dtype)
        self._ranges = np.empty(n_samples, dtype=np.float32)
        columns = np.empty(n_samples, dtype=np.intp)
        over_rows(screening.look, index, block, self._maxima, columns, self._ranges, size=n_samples * block.shape[1])
        self._kept = columns == original.columns
        self._at = columns if rule.confidence_at == "own" else original.columns
        picked = block[index, self._at]
        self._gaps = picked.astype(np.float64) - self._maxima.astype(np.float64)
        self._last = np.empty((4, n_samples))
        self._log_classes = np.log(block.shape[1])
        self._looked = True


def _readable(logits: Floats, where: Columns | None, chosen: Columns) -> tuple[Floats, Columns]:
    """Return an array that kernels can read, the logits or a copy of the chosen rows, and where in it they stand."""
    rows = chosen if where is None else where[chosen]
    if logits.dtype != np.float16 and logits.flags.c_contiguous:
        return logits, rows
    copy = np.ascontiguousarray(logits[rows], dtype=np.float32 if logits.dtype == np.float16 else logits.dtype)
    return copy, np.arange(len(chosen))
