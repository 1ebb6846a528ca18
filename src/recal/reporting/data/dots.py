"""Every method's value of one metric, on an axis that one bad method does not squash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recal.comparison import Comparison, Row
from recal.metrics import LABELS

# A method further from the best than so many times the usual distance is drawn at the axis's end, with its number.
_FAR = 4.0


@dataclass(frozen=True)
class Dots:
    """The rows of one metric, and the range of the axis; `beyond` names those that lie outside of it."""

    metric: str
    label: str
    digits: int
    rows: Sequence[Row]
    baseline: str
    low: float
    high: float
    beyond: frozenset[str]

    @property
    def reference(self) -> float:
        """The baseline's value."""
        return next(row.value for row in self.rows if row.method == self.baseline)


def dots(comparison: Comparison, metric: str) -> Dots:
    """Choose the axis by the middle of the methods: the best half decides how far is far."""
    rows = comparison.rows(metric)
    values = np.array([row.value for row in rows])
    known = values[np.isfinite(values)]
    far: set[str] = {row.method for row in rows if not np.isfinite(row.value)}
    if len(known) > 2:
        best, middle = float(known.min()), float(np.median(known))
        widths = [row.interval[1] - row.interval[0] for row in rows if np.isfinite(row.interval).all()]
        usual = max(middle - best, float(np.median(widths)) if widths else 0.0)
        far |= {row.method for row in rows if usual > 0 and row.value > best + _FAR * usual}
    shown = [row for row in rows if row.method not in far] or list(rows)
    ends = [value for row in shown for value in (row.value, *row.interval) if np.isfinite(value)] or [0.0]
    low, high = min(ends), max(ends)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    return Dots(
        metric, LABELS[metric], comparison.digits(metric), rows, comparison.baseline, low - pad, high + pad,
        frozenset(far),
    )  # fmt: skip
