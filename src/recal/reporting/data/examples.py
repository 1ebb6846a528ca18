"""Which inputs a person should look at: the most confident mistakes, and the answers that views doubt most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recal.comparison import Comparison
from recal.views import Views

# Readings of so many numbers cost about a second.
_MOST_NUMBERS = 200_000_000


@dataclass(frozen=True)
class Example:
    """One input of the test rows.

    Attributes
    ----------
    row : its place in the file that was tested on, from 0
    before, after : the confidence in the answer
    doubt : the share of the views in which the model answers otherwise; NaN where there are no views
    """

    row: int
    answer: str
    truth: str
    before: float
    after: float
    doubt: float

    @property
    def right(self) -> bool:
        return self.answer == self.truth


@dataclass(frozen=True)
class Examples:
    mistakes: tuple[Example, ...]
    doubted: tuple[Example, ...]


def examples(comparison: Comparison, method: str, most: int = 8) -> Examples:
    """The `most` confident mistakes of a method, and as many answers that most views contradict."""
    rows, labels = comparison.samples[method], comparison.test_labels
    answers, before = comparison.answers[method], comparison.samples[comparison.methods[0]].confidence
    doubt = view_doubt(comparison.test)
    names = comparison.classes

    def example(index: int) -> Example:
        answer, truth = (int(column[index]) for column in (answers, labels))
        words = [str(value if names is None else names[value]) for value in (answer, truth)]
        place = index if comparison.test_rows is None else int(comparison.test_rows[index])
        share = float("nan") if doubt is None else float(doubt[index])
        return Example(place, words[0], words[1], float(before[index]), float(rows.confidence[index]), share)

    wrong = np.flatnonzero(~rows.correct)
    surest = wrong[np.argsort(-rows.confidence[wrong], kind="stable")[:most]]
    most_doubted: NDArray[np.intp] = np.empty(0, np.intp)
    if doubt is not None:
        # Of equally doubted answers the surest first: there views know something that confidence does not.
        ranked = np.lexsort((-rows.confidence, -doubt))[:most]
        most_doubted = ranked[doubt[ranked] > 0]
    return Examples(tuple(map(example, surest.tolist())), tuple(map(example, most_doubted.tolist())))


def view_doubt(views: Views | None) -> NDArray[np.float64] | None:
    """The share of the views in which the model answers otherwise; None without views, or where there are too many."""
    if views is None or not views.transforms:
        return None
    if views.n_samples * views.n_classes * len(views.transforms) > _MOST_NUMBERS:
        return None
    own = views.logits.argmax(axis=1)
    changed = np.zeros(views.n_samples)
    for transform in views.transforms:
        changed += views.transformed(transform).argmax(axis=1) != own
    return changed / len(views.transforms)
