"""A view during a fit: what is remembered of it between two draws, so that few of its logits need be read again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.grouping import GroupIndex
from recal.kernels import screening
from recal.kernels.threads import over_rows
from recal.plan import Rule
from recal.scaled import ScaledLogits, Vector


class ScreenedView:
    """The scales of one view's rows and the last look at each; the logits themselves are not held."""

    def __init__(self, scale: float, n_samples: int) -> None:
        self.scales = np.full(n_samples, scale)
        self._last: Vector | None = None

    def rescale(self, factors: Vector) -> None:
        self.scales = np.clip(self.scales * factors, *ScaledLogits.SCALE_RANGE)

    def groups(
        self,
        original: ScaledLogits,
        log_confidence: Vector,
        logits: Floats,
        where: NDArray[np.intp] | None,
        rule: Rule,
    ) -> GroupIndex:
        """Return the groups, counted from 0, at the present scales.

        `where` tells in which row of `logits` each sample's stand; None, that they are in order.
        """
        groups = np.full(len(self.scales), screening.UNDECIDED, dtype=np.int8)
        exact = rule.ties == "exact"
        if self._last is None:
            self._first_look(original, logits, where, rule)
        else:
            over_rows(
                screening.screen, self.scales, self._last, self._gaps, self._ranges, self._kept,
                np.log(logits.shape[1]), log_confidence, exact, groups,
            )  # fmt: skip
        chosen = np.flatnonzero(groups == screening.UNDECIDED)
        if len(chosen):
            block, index = _readable(logits, where, chosen)
            over_rows(
                screening.decide, chosen, original.logits, original.maxima, original.scales, original.columns,
                log_confidence, block, index, self._maxima, self.scales, self._at, self._kept, exact, self._last,
                groups, size=len(chosen) * logits.shape[1],
            )  # fmt: skip
        return groups

    def _first_look(self, original: ScaledLogits, logits: Floats, where: NDArray[np.intp] | None, rule: Rule) -> None:
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
        self._last = np.empty((n_samples, 4))


def _readable(
    logits: Floats, where: NDArray[np.intp] | None, chosen: NDArray[np.intp]
) -> tuple[Floats, NDArray[np.intp]]:
    """Return an array that kernels can read, the logits or a copy of the chosen rows, and where in it they stand."""
    rows = chosen if where is None else where[chosen]
    if logits.dtype != np.float16 and logits.flags.c_contiguous:
        return logits, rows
    copy = np.ascontiguousarray(logits[rows], dtype=np.float32 if logits.dtype == np.float16 else logits.dtype)
    return copy, np.arange(len(chosen))
