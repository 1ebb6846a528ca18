"""What a fit's views teach about following: the sets, their statistics, temperatures and accuracies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels
from recal.decisions.following.condition import SIZES, Following
from recal.decisions.following.labelled_sets import LabelledRows, labelled_rows
from recal.decisions.following.statistics import entropies, statistics
from recal.transforms import as_transform
from recal.views import Views

Vector = NDArray[np.float64]

# More rows make a set's accuracy known better than damage can be told apart by nine numbers.
_MAX_ROWS = 4000
FEWEST_ROWS = 100
# So many small sets for each size of a batch, of the unchanged inputs and of each view: what chance does to the
# statistics of a small batch is not to be taken for damage.
_CLEAN_DRAWS = 20
_VIEW_DRAWS = 3
_CHANCE_SIZE = SIZES[1]
# Small sets are drawn of no more views than this, in even steps.
_MOST_VIEWS = 40
_CLASS_MIXES = 10
# Concentration of the class mixes that are drawn: well below 1, so that a few classes dominate.
_CONCENTRATION = 0.5
# A kind of view counts as damage where it loses this share of the right answers at least.
_LOSS = 0.05


class _Made(NamedTuple):
    kind: str  # of its view; "" for inputs as they are
    rows: LabelledRows


class _Set(NamedTuple):
    kind: str
    statistics: Vector
    change: tuple[float, float]
    size: int = 0  # of the batches that it serves; 0 for all


def learn(views: Views, labels: Labels, beta: float, rng: np.random.Generator) -> Following | None:
    """Learn to follow from the views of a fit; None where there are too few samples for it.

    Sets are: the inputs as they are, each view, mixtures of a view with the inputs as they are or with another view
    (a batch may be damaged in part), and the inputs with other class mixes (which are no damage, and must not be taken
    for it). Small sets of all of these teach what chance does to a batch of each size.
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
        _Made(kind_of(str(transform)), labelled_rows(views.transformed(transform), labels, beta, cut))
        for transform in views.transforms
    ]
    mixed, mixes = _mixtures(clean, damaged, rng), _class_mixes(clean, labels, rng)
    sets = [_whole(one, clean) for one in (_Made("", clean), *damaged, *mixed, *mixes)]
    spread = np.array([one.statistics for one in sets[: 1 + len(damaged)]]).std(axis=0)
    small = _small(clean, damaged, mixed, rng)
    # A statistic that no view moves would otherwise make much of what chance does to it in a small batch.
    chance = [one.statistics for one in small if one.kind == "" and one.size == _CHANCE_SIZE]
    spread = np.maximum(spread, np.std(chance, axis=0))
    sets += small
    return Following(
        beta=beta,
        cut=cut,
        accuracy=accuracy,
        n_samples=len(labels),
        kinds=tuple(one.kind for one in sets),
        damaging=_damaging(clean, damaged),
        statistics=np.array([one.statistics for one in sets]),
        spread=np.where(spread > 0, spread, 1.0),
        changes=np.array([one.change for one in sets]),
        sizes=np.array([one.size for one in sets]),
    )


def _whole(made: _Made, clean: LabelledRows) -> _Set:
    change = made.rows.log_ratio, made.rows.log_odds - clean.log_odds
    return _Set(made.kind, statistics(made.rows.numbers), change)


def _small(clean: LabelledRows, damaged: list[_Made], mixed: list[_Made], rng: np.random.Generator) -> list[_Set]:
    """Draws of a few rows, which show other statistics than the whole and have its temperature and accuracy."""
    step = -(-len(damaged) // _MOST_VIEWS) or 1
    drawn = [(_Made("", clean), _CLEAN_DRAWS), *((one, _VIEW_DRAWS) for one in damaged[::step])]
    sources = [(made, _whole(made, clean), draws) for made, draws in (*drawn, *((one, 1) for one in mixed[::step]))]
    return [
        whole._replace(statistics=statistics(made.rows.numbers[_draw(len(made.rows.right), size, rng)]), size=size)
        for size in SIZES
        for made, whole, draws in sources
        for _ in range(draws)
    ]


def kind_of(spec: str) -> str:
    """The kind of a view: its spec up to the strength."""
    return str(as_transform(spec)).split(":")[0]


def _damaging(clean: LabelledRows, damaged: list[_Made]) -> tuple[str, ...]:
    """The kinds of views that do damage; mirrored or shifted inputs teach nothing about it."""
    worst: dict[str, float] = {}
    for kind, rows in damaged:
        worst[kind] = min(worst.get(kind, 1.0), float(rows.right.mean()))
    return tuple(kind for kind, accuracy in worst.items() if accuracy <= (1 - _LOSS) * clean.right.mean())


def _mixtures(clean: LabelledRows, damaged: list[_Made], rng: np.random.Generator) -> list[_Made]:
    """For each view, some samples seen through it and the others as they are."""
    made = []
    for kind, rows in damaged:
        order = rng.permutation(len(rows.right))
        part = int(rng.uniform(0.25, 0.75) * len(order))
        made.append(_Made(kind, rows[order[:part]].joined(clean[order[part:]])))
    return made


def _class_mixes(clean: LabelledRows, labels: Labels, rng: np.random.Generator) -> list[_Made]:
    """The inputs as they are, drawn by class with other shares."""
    made = []
    classes, members = np.unique(labels, return_inverse=True)
    for _ in range(_CLASS_MIXES):
        shares = rng.dirichlet(np.full(len(classes), _CONCENTRATION))[members]
        rows = rng.choice(len(labels), len(labels) // 2, p=shares / shares.sum())
        made.append(_Made("", clean[rows]))
    return made


def _draw(n: int, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return rng.choice(n, size, replace=size > n)
