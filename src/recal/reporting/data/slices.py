"""Parts of the answers, by class or by any column: errors expected and made in each, and what is only noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.errors import InputError
from recal.metrics.rows import RowScores
from recal.reporting.data.thresholds import Counts, Vector, calibrated_range, chance_of

# Below so many answers in the usual part, no part can be judged by itself.
FEW = 20


@dataclass(frozen=True)
class Slices:
    """Per part, worst first: answers, errors expected and made, and what a calibrated model makes in 95 % of cases.

    Attributes
    ----------
    p_values : the chance that a calibrated model is at least so far off, corrected for the number of parts
        (Holm), so that in 95 of 100 calibrated models no part at all is found to be off
    """

    by: str
    names: tuple[str, ...]
    counts: Counts
    promised: Vector
    made: Counts
    low: Counts
    high: Counts
    p_values: Vector

    @property
    def gaps(self) -> Vector:
        """Mean confidence minus accuracy: positive where the model was overconfident."""
        return (self.made - self.promised) / self.counts

    @property
    def gap_ranges(self) -> tuple[Vector, Vector]:
        """Within which gaps those of a calibrated model lie."""
        return (self.low - self.promised) / self.counts, (self.high - self.promised) / self.counts

    @property
    def off(self) -> NDArray[np.bool_]:
        """Which parts are miscalibrated by more than chance allows, all parts considered."""
        return self.p_values < 0.05

    @property
    def typical(self) -> int:
        """How many answers the usual part has."""
        return int(np.median(self.counts))

    @property
    def words(self) -> str:
        """What these parts can and cannot tell."""
        if self.typical < FEW:
            start = f"Each {self.by} has about {self.typical} answers: too few to judge one by itself. "
        else:
            start = ""
        found = int(self.off.sum())
        if not found:
            return start + f"No {self.by} is miscalibrated beyond chance (corrected for {len(self.names)} of them)."
        return start + f"{found} of {len(self.names)} are miscalibrated beyond chance (corrected for their number)."

    def of(self, names: Sequence[str]) -> Slices:
        """Only these parts, in this order."""
        index = [self.names.index(name) for name in names]
        counts, made, low, high = (column[index] for column in (self.counts, self.made, self.low, self.high))
        return Slices(self.by, tuple(names), counts, self.promised[index], made, low, high, self.p_values[index])


def slices_of(rows: RowScores, values: ArrayLike, by: str, names: Sequence[Any] | NDArray[Any] | None = None) -> Slices:
    """Part the answers by `values`, one for each row, such as the predicted class or the camera.

    Parameters
    ----------
    by : what a part is called, such as "class"
    names : what each of the whole numbers in `values` stands for, if they stand for something

    Examples
    --------
    >>> import numpy as np
    >>> from recal.metrics.rows import score
    >>> from recal.reporting.data.slices import slices_of
    >>> probs, y = np.tile([0.9, 0.1], (200, 1)), (np.arange(200) < 60).astype(int)
    >>> found = slices_of(score(probs, y), np.where(y == 1, "night", "day"), "time of day")
    >>> found.names, found.made.tolist(), found.off.tolist()
    (('night', 'day'), [60, 0], [True, True])
    """
    column = np.asarray(values)
    if column.shape != (len(rows),):
        raise InputError(
            f"One value per row is needed to part {len(rows):,} answers by {by}, got shape {column.shape}."
        )
    found, place = np.unique(column, return_inverse=True)
    doubt = 1.0 - rows.confidence
    counts, made = np.bincount(place, minlength=len(found)), np.bincount(place[~rows.correct], minlength=len(found))
    sums = [np.bincount(place, weights, len(found)) for weights in (doubt, doubt * rows.confidence)]
    promised, variance = (column.astype(np.float64) for column in sums)
    low, high = calibrated_range(promised, variance)
    chances = holm(chance_of(made, promised, variance))
    # Worst first: by how sure it is that something is off, then by how much.
    order = np.lexsort((-np.abs(made - promised) / counts, chances))
    labels = tuple(str(found[i] if names is None else names[int(found[i])]) for i in order)
    whole = [column.astype(np.int64)[order] for column in (counts, made, low, high)]
    return Slices(by, labels, whole[0], promised[order], whole[1], whole[2], whole[3], chances[order])


def holm(p_values: Vector) -> Vector:
    """P-values corrected for their number (Holm, 1979): one step better than Bonferroni, and valid for any of them."""
    order = np.argsort(p_values, kind="stable")
    stepped = np.maximum.accumulate(p_values[order] * (len(p_values) - np.arange(len(p_values))))
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
