"""Labelled sets made of the views of a fit: damaged, mixed, of other classes, or small, each with what is true of it.

The losses of every row are tabulated once over a grid of temperatures. The best temperature of any set of rows is then
the lowest point of a sum of curves, so that hundreds of sets cost little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.decisions.following.statistics import RowNumbers, join_rows, row_numbers

Vector = NDArray[np.float64]

# Of log(beta / beta of the fit). Damage asks for less confidence: .05 of the fit's beta is the least that is sought.
_GRID = np.arange(-20, 9) * 0.15
# Accuracies are kept so far from 0 and 1, in rows: with n rows nothing beyond can be told.
_HALF = 0.5


@dataclass(frozen=True)
class LabelledRows:
    """The rows of one view with all that sets made of them need."""

    numbers: RowNumbers
    losses: Vector  # (n_samples, n_grid)
    right: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.intp]) -> LabelledRows:
        return LabelledRows(self.numbers[rows], self.losses[rows], self.right[rows])

    def joined(self, other: LabelledRows) -> LabelledRows:
        losses, right = np.concatenate([self.losses, other.losses]), np.concatenate([self.right, other.right])
        return LabelledRows(join_rows([self.numbers, other.numbers]), losses, right)

    @property
    def log_ratio(self) -> float:
        """The logarithm of the best beta of these rows over that of the fit."""
        return lowest(self.losses.mean(axis=0))

    @property
    def log_odds(self) -> float:
        """The log-odds of the share of right answers."""
        n, hits = len(self.right), float(self.right.sum())
        return float(np.log(hits + _HALF) - np.log(n - hits + _HALF))


def labelled_rows(logits: Floats, labels: Labels, beta: float, cut: float) -> LabelledRows:
    """Read all that is needed off the logits of a view."""
    numbers = row_numbers(logits, beta, cut)
    shifted = np.array(logits, dtype=np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels]
    losses = np.empty((len(labels), len(_GRID)))
    for column, scale in enumerate(beta * np.exp(_GRID)):
        losses[:, column] = np.log(np.exp(scale * shifted).sum(axis=1)) - scale * own
    return LabelledRows(numbers, losses, numbers.answers == labels)


def lowest(curve: Vector) -> float:
    """Where a curve over the grid is lowest: the vertex of the parabola through its lowest point and its neighbours."""
    at = int(np.clip(curve.argmin(), 1, len(_GRID) - 2))
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    step = 0.0 if bend <= 0 else float(np.clip(0.5 * (left - right) / bend, -1.0, 1.0))
    return float(_GRID[at] + step * (_GRID[1] - _GRID[0]))
