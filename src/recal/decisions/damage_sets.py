"""Learn about damage from the views of a fit: labelled sets with their statistics, temperatures and
accuracies.

The losses of every row are tabulated once over a grid of temperatures. The best temperature of any
set of rows is then the minimum of a sum of curves, so hundreds of sets cost little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.decisions.damage import (
    SIZES,
    Following,
    RowNumbers,
    entropies,
    join_rows,
    log_odds_of,
    row_numbers,
    statistics,
)
from recal.transforms import as_transform
from recal.views import Views

Vector = NDArray[np.float64]

# Grid of log(beta / beta of the fit), down to 5 % of the fit's beta: damaged inputs need less
# confidence.
_GRID = np.arange(-20, 9) * 0.15
# More rows would make accuracies more precise than the nine statistics can resolve.
_MAX_ROWS = 4000
FEWEST_ROWS = 100
# Number of small sets per batch size, from the undamaged inputs and from each view. They show what
# chance does to the statistics of a small batch, so that it is not mistaken for damage.
_CLEAN_DRAWS = 20
_VIEW_DRAWS = 3
_CHANCE_SIZE = SIZES[1]
# Small sets are drawn from at most this many views, evenly spaced.
_MOST_VIEWS = 40
_CLASS_MIXES = 10
# Dirichlet concentration of the class mixes: well below 1, so that a few classes dominate.
_CONCENTRATION = 0.5
# A kind of view counts as damage if it loses at least this share of the right predictions.
_LOSS = 0.05


@dataclass(frozen=True)
class LabelledRows:
    """The rows of one view, with all numbers that sets of these rows need."""

    numbers: RowNumbers
    losses: Vector  # (n_samples, n_grid)
    right: NDArray[np.bool_]
    kind: str = ""  # of the view; empty for undamaged inputs

    def __getitem__(self, rows: NDArray[np.intp]) -> LabelledRows:
        return LabelledRows(self.numbers[rows], self.losses[rows], self.right[rows], self.kind)

    def joined(self, other: LabelledRows) -> LabelledRows:
        losses, right = (
            np.concatenate([self.losses, other.losses]),
            np.concatenate([self.right, other.right]),
        )
        return LabelledRows(join_rows([self.numbers, other.numbers]), losses, right, self.kind)

    @cached_property
    def log_ratio(self) -> float:
        """The logarithm of the best beta of these rows divided by the beta of the fit."""
        return lowest(self.losses.mean(axis=0))

    @cached_property
    def log_odds(self) -> float:
        """The log-odds of the accuracy."""
        return log_odds_of(float(self.right.sum()), len(self.right))


def labelled_rows(
    logits: Floats, labels: Labels, beta: float, cut: float, kind: str = ""
) -> LabelledRows:
    """Compute the numbers and losses of every row of a view."""
    numbers = row_numbers(logits, beta, cut)
    shifted = np.array(logits, dtype=np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels]
    losses = np.empty((len(labels), len(_GRID)))
    for column, scale in enumerate(beta * np.exp(_GRID)):
        losses[:, column] = np.log(np.exp(scale * shifted).sum(axis=1)) - scale * own
    return LabelledRows(numbers, losses, numbers.answers == labels, kind)


def lowest(curve: Vector) -> float:
    """Return the minimum of a curve over the grid: the vertex of the parabola through its three
    lowest points.
    """
    at = int(np.clip(curve.argmin(), 1, len(_GRID) - 2))
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    step = 0.0 if bend <= 0 else float(np.clip(0.5 * (left - right) / bend, -1.0, 1.0))
    return float(_GRID[at] + step * (_GRID[1] - _GRID[0]))


class _Set(NamedTuple):
    """One point of the Gaussian process: statistics, and the changes of temperature and accuracy."""

    kind: str
    statistics: Vector
    changes: tuple[float, float]
    size: int  # size of the batches that the set is used for; 0 for all


def learn(views: Views, labels: Labels, beta: float, rng: np.random.Generator) -> Following | None:
    """Learn to follow damage from the views of a fit; return None if there are too few samples.

    The sets are: the undamaged inputs, each view, mixtures of a view with undamaged inputs (a batch
    may be damaged in part), and undamaged inputs with other class mixes (which must not be mistaken
    for damage). Small sets of all of these show what chance does to batches of each size.
    """
    if views.n_samples < FEWEST_ROWS:
        return None
    if views.n_samples > _MAX_ROWS:
        chosen = np.sort(rng.choice(views.n_samples, _MAX_ROWS, replace=False))
        views, labels = views[chosen], labels[chosen]
    accuracy = float((views.logits.argmax(axis=1) == labels).mean())
    cut = float(np.quantile(entropies(views.logits, beta), accuracy))
    clean = labelled_rows(views.logits, labels, beta, cut)
    damaged = [
        labelled_rows(views.transformed(transform), labels, beta, cut, kind_of(str(transform)))
        for transform in views.transforms
    ]
    # Mirrored or shifted inputs teach nothing about damage.
    damaging = dict.fromkeys(
        one.kind for one in damaged if one.right.mean() <= (1 - _LOSS) * clean.right.mean()
    )
    mixed, mixes = _mixtures(clean, damaged, rng), _class_mixes(clean, labels, rng)

    def made_of(rows: LabelledRows, size: int = 0) -> _Set:
        """Make a set of all these rows, or of a draw of `size`: statistics vary, temperature and
        accuracy stay.
        """
        n = len(rows.right)
        chosen = rows.numbers[rng.choice(n, size, replace=size > n)] if size else rows.numbers
        return _Set(
            rows.kind, statistics(chosen), (rows.log_ratio, rows.log_odds - clean.log_odds), size
        )

    step = -(-len(damaged) // _MOST_VIEWS) or 1
    sets = [made_of(rows) for rows in (clean, *damaged, *mixed, *mixes)]
    spread = np.array([one.statistics for one in sets[: 1 + len(damaged)]]).std(axis=0)
    sources = [clean] * _CLEAN_DRAWS
    sources += [rows for rows in damaged[::step] for _ in range(_VIEW_DRAWS)] + mixed[::step]
    small = [made_of(rows, size) for size in SIZES for rows in sources]
    # Without this floor, a statistic that no view changes would amplify chance in small batches.
    chance = [one.statistics for one in small if one.kind == "" and one.size == _CHANCE_SIZE]
    spread = np.maximum(spread, np.std(chance, axis=0))
    sets += small
    return Following(
        beta=beta,
        cut=cut,
        accuracy=accuracy,
        n_samples=len(labels),
        kinds=tuple(one.kind for one in sets),
        damaging=tuple(damaging),
        statistics=np.array([one.statistics for one in sets]),
        spread=np.where(spread > 0, spread, 1.0),
        changes=np.array([one.changes for one in sets]),
        sizes=np.array([one.size for one in sets]),
    )


def kind_of(spec: str) -> str:
    """Return the kind of a view: its spec without the strength."""
    return str(as_transform(spec)).split(":")[0]


def _mixtures(
    clean: LabelledRows, damaged: list[LabelledRows], rng: np.random.Generator
) -> list[LabelledRows]:
    """For each view, mix some damaged samples with undamaged ones."""
    mixtures = []
    for rows in damaged:
        order = rng.permutation(len(rows.right))
        part = int(rng.uniform(0.25, 0.75) * len(order))
        mixtures.append(rows[order[:part]].joined(clean[order[part:]]))
    return mixtures


def _class_mixes(
    clean: LabelledRows, labels: Labels, rng: np.random.Generator
) -> list[LabelledRows]:
    """Draw undamaged inputs with other class shares."""
    mixes = []
    classes, members = np.unique(labels, return_inverse=True)
    for _ in range(_CLASS_MIXES):
        shares = rng.dirichlet(np.full(len(classes), _CONCENTRATION))[members]
        rows = rng.choice(len(labels), len(labels) // 2, p=shares / shares.sum())
        mixes.append(clean[rows])
    return mixes
