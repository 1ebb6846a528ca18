"""Checks of the samples of a fit: missing views, wrong labels, a single class, near-copies, too few
mistakes.

The tests ask whether labels are related to their rows. The score of a sample is the rank of its
label's log-odds within their column, minus the expected rank of a label drawn at random from the
same set. If the labels were in random order, the mean score would be 0 up to chance. No accuracy is
too low by itself: a weak model passes if it beats chance.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import ASIDES, Floats, Labels, check_labels, is_single_column
from recal.copies import near_duplicates
from recal.errors import (
    DependentRowsWarning,
    DoubtfulLabelsWarning,
    FewSamplesWarning,
    InputError,
    Remedy,
)
from recal.maps.arrays import class_scores, log_softmax
from recal.views import Views

# With fewer samples, or mistakes, per class, a curve per class fits noise.
_SAMPLES_PER_CLASS = 10
# Temperatures are learned from mistakes; with fewer mistakes, the result depends on individual
# samples.
FEWEST_MISTAKES = 10
# At most this many evenly spaced rows are checked: enough for every test, and cheap compared with a
# fit.
_MOST_ROWS = 20_000
_FEWEST_ROWS = 20
# Labels in a random order exceed this many standard deviations in one of fifty data sets.
_CHANCE = 2.0
# Two columns look swapped if they contradict their labels by this many standard deviations.
_SWAPPED = 4.0
# A part of the rows is reported only if the other rows are this clearly related to their labels.
_BEYOND_DOUBT = 8.0
_SHORTEST_PART = 50
# A change is reported if chance alone would show one this large, anywhere, in at most one of ten
# thousand data sets.
_SURELY_NO_CHANGE = 1e-4
# The most numbers that are ranked.
_MOST_VALUES, _ENOUGH_ROWS = 500_000, 1_000

_COLLECT = Remedy("Use `collect` with a pool", typed="Make them with recal collect --pool")


def warn_of_suspicions(logits: Floats, labels: Labels, names: NDArray[Any] | None = None) -> None:
    """Warn of the most serious problem with these samples, if there is one."""
    message, kind = "", cast(type[Warning], DoubtfulLabelsWarning)
    if len(labels) >= _FEWEST_ROWS and labels.min() == labels.max():
        message = (
            f"All {len(labels)} labels are of one class, column {labels[0]}: nothing can be learned about the others. "
            "Were the samples sorted by class before they were split?"
        )
    message = message or _other_labels(_Match(logits, labels), len(labels), names)
    if not message:
        message, kind = _few_mistakes(logits, labels), FewSamplesWarning
    if message:
        warnings.warn(message, kind, stacklevel=3)


def warn_of_copies(logits: Floats, labels: Labels) -> None:
    """Warn if rows are near-copies of each other.

    If there are many rows, only the first ones are compared.
    """
    rows = slice(_most_rows(logits))
    scores, labels = log_softmax(np.asarray(logits[rows])), labels[rows]
    count = near_duplicates(scores, scores.argmax(axis=1) != labels)
    if count:
        warnings.warn(
            f"{count:,} of {len(labels):,} rows are near-copies of another row, such as frames of one video. "
            "Cross-validation then overfits. Pass clusters=, one name for all rows that belong together "
            "(--cluster COLUMN).",
            DependentRowsWarning,
            stacklevel=3,
        )


def _most_rows(logits: Floats) -> int:
    return min(_MOST_ROWS, max(_ENOUGH_ROWS, _MOST_VALUES // logits.shape[1]))


def as_views(X: Views | ArrayLike, *, needs_views: bool, method: str) -> Views:
    """Return X as Views; plain logits become views without transformations."""
    if isinstance(X, Views):
        if needs_views and not X.transforms:
            raise InputError(
                f"{method} needs logits of transformed inputs; these views hold none",
                remedy=_COLLECT,
            )
        return X
    if needs_views:
        raise InputError(
            f"{method} needs Views, with logits of transformed inputs, got an array",
            remedy=_COLLECT,
        )
    return Views(X)


def read_labels(X: Any, y: Any, views: Views, names: Any, method: str) -> Labels:
    """Return the labels as column indices, from `y` or else from the views."""
    if y is None and views.labels is None:
        raise InputError(
            "Labels are needed to fit",
            remedy=Remedy(
                f"Pass them as `y`, or use views that hold them. {ASIDES['no y'].format(method)}",
                typed="Add --labels FILE",
            ),
        )
    if y is None:
        return cast(Labels, views.labels)
    try:
        labels = check_labels(y, views.n_samples, views.n_classes, names)
    except InputError as error:
        if not isinstance(X, Views) and is_single_column(np.shape(X)):
            error.args = (f"{error} {ASIDES['columns'].format(1, np.shape(X))}.",)
        raise
    if not isinstance(X, Views):
        refuse_codes(views.logits, y, labels, names)
    return labels


def refuse_codes(logits: Floats, y: Any, labels: Labels, names: Any) -> None:
    """Refuse integers that number the sorted names rather than the columns.

    scikit-learn's `cross_val_predict` turns text labels into such numbers before a calibrator sees
    them. If the class names are not in alphabetical order, the numbers would be read as column
    indices and the fit would be wrong.
    """
    words = np.asarray([] if names is None else names)
    if (
        words.dtype.kind not in "US"
        or np.asarray(y).dtype.kind not in "iu"
        or (words[:-1] <= words[1:]).all()
    ):
        return
    rows = np.linspace(0, len(labels) - 1, min(len(labels), _MOST_ROWS)).astype(np.intp)
    answers = np.asarray(logits[rows]).argmax(axis=1)
    as_columns, as_codes = answers == labels[rows], answers == np.argsort(words)[labels[rows]]
    gain = as_codes.astype(float) - as_columns
    if gain.mean() > 0.1 and gain.mean() > 4.0 * gain.std() / np.sqrt(len(rows)):
        raise InputError(
            f"These integers seem to number the sorted class names, not the columns: accuracy is {as_codes.mean():.3g} "
            f"so, and {as_columns.mean():.3g} as columns. Pass the names themselves; where scikit-learn numbers them "
            "(cross_val_predict), give `classes` and the columns in sorted order."
        )


def _few_mistakes(logits: Floats, labels: Labels) -> str:
    mistakes, n_samples = int((logits.argmax(axis=1) != labels).sum()), len(labels)
    if mistakes >= FEWEST_MISTAKES:
        return ""
    own = (
        " If these are the samples that the model was trained on, use others."
        if n_samples >= 100
        else ""
    )
    if mistakes == 0:
        return (
            f"All {n_samples} predictions are right, so no finite temperature is best. The fit uses the temperature "
            f"that one more, wrong, sample would give.{own} Fit on more held-out samples."
        )
    return (
        f"{mistakes} of {n_samples} predictions are wrong. With fewer than about 200 samples or 20 mistakes, results "
        f"depend on individual samples.{own} Fit on more held-out samples."
    )


class _Match:
    """How well labels match rows: correct predictions, and the rank scores of the labels.

    Like an AUC, ranks show whether the rows of a class have its higher scores, even if the class is
    rare or never predicted. With two classes the sum of the scores is the statistic of Mann and
    Whitney.
    """

    def __init__(self, logits: Floats, labels: Labels) -> None:
        # Evenly spaced rows if there are many.
        count = min(len(labels), _most_rows(logits))
        rows = np.linspace(0, len(labels) - 1, count).astype(np.intp)
        self.rows, self.labels = rows, labels[rows]
        self.n_classes = logits.shape[1]
        self.shares = np.bincount(self.labels, minlength=self.n_classes) / len(rows)
        some = logits[rows]
        self.answers = some.argmax(axis=1)
        self.hits = self.answers == self.labels
        # Classes without labels are left out of all tests.
        present, self.own = np.unique(self.labels, return_inverse=True)
        self.ranks = _ranks(class_scores(some)[:, present])
        place = np.arange(len(rows))
        self.scores = self.ranks[place, self.own] - self.ranks @ self.shares[present]

    def by_chance(self, part: slice) -> tuple[bool, float]:
        """Return whether the labels of this part look unrelated to the rows, and the accuracy
        expected by chance.
        """
        hits = self.hits[part]
        own = np.bincount(self.labels[part], minlength=self.n_classes) / len(hits)
        expected = float(
            own @ np.bincount(self.answers[part], minlength=self.n_classes) / len(hits)
        )
        spread = np.sqrt(expected * (1.0 - expected) / len(hits))
        unrelated = hits.mean() <= expected + _CHANCE * spread and self.evidence(part) <= _CHANCE
        # A part with few classes, or with a single prediction, says nothing about the order of its
        # labels.
        mixed = (
            float(own @ own) <= 1.5 * float(self.shares @ self.shares)
            and np.ptp(self.answers[part]) > 0
        )
        return bool(unrelated and mixed and len(hits) >= _FEWEST_ROWS), expected

    def evidence(self, part: slice) -> float:
        """Return by how many standard deviations the ranks of the labels exceed those of shuffled
        labels.

        Mean and variance over all permutations are exact (Hoeffding, 1951).
        """
        ranks, labels = self.ranks[part], self.own[part]
        counts = np.bincount(labels, minlength=ranks.shape[1])
        shares = counts / len(labels)
        apart = ranks - (ranks @ shares)[:, None]
        apart -= apart.mean(axis=0)
        total = float(apart[np.arange(len(labels)), labels].sum())
        variance = float(np.square(apart).sum(axis=0) @ counts) / max(len(labels) - 1, 1)
        # If all rows or all labels are equal, the variance is 0.
        return total / np.sqrt(variance) if variance > 1e-20 else 0.0

    def likeliest_change(self) -> tuple[int, float]:
        """Return the row at which the mean score most likely changes, and the p-value of the
        change.

        The p-value accounts for the search over all rows (Miller and Siegmund, 1982).
        """
        count = len(self.scores)
        before = np.cumsum(self.scores - self.scores.mean())[:-1]
        place = np.arange(1, count)
        weight = (
            np.abs(before)
            / np.sqrt(place * (count - place) / count)
            / max(self.scores.std(), 1e-300)
        )
        weight[: _SHORTEST_PART - 1] = weight[count - _SHORTEST_PART :] = 0.0
        change = int(np.argmax(weight))
        peak, edge = max(float(weight[change]), 1.0), _SHORTEST_PART / count
        density = np.exp(-0.5 * peak**2) / np.sqrt(2.0 * np.pi)
        chance = density * ((peak - 1.0 / peak) * 2.0 * np.log((1.0 - edge) / edge) + 4.0 / peak)
        return change + 1, float(chance)


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each score in its column as a share of the rows; ties get their mean rank."""
    ranks = np.empty(scores.shape)
    middles = 2.0 * np.arange(len(scores)) + 1.0
    for k in range(scores.shape[1]):
        column = np.ascontiguousarray(scores[:, k])
        order = column.argsort()
        ordered = column[order]
        if (ordered[1:] > ordered[:-1]).all():
            ranks[order, k] = middles
        else:
            ranks[:, k] = ordered.searchsorted(column, "left") + ordered.searchsorted(
                column, "right"
            )
    return ranks / (2.0 * len(scores))


def _other_labels(match: _Match, n_samples: int, names: NDArray[Any] | None) -> str:
    whole = slice(None)
    if match.n_classes == 2 and match.evidence(whole) < -_SWAPPED and match.hits.mean() < 0.5:
        first, second = (0, 1) if names is None else names.tolist()
        return (
            f"Accuracy is {match.hits.mean():.3g}, clearly below chance: the two columns look swapped. If the first "
            f"column is {second!r}, pass classes={[second, first]!r} (--classes {second},{first})."
        )
    chance, expected = match.by_chance(whole)
    if chance:
        return (
            f"Accuracy is at chance: {match.hits.mean():.3g}, where the same labels in any other order would give "
            f"{expected:.3g}. Are labels and rows in the same order?"
        )
    if len(match.rows) < 4 * _SHORTEST_PART:
        return ""
    change, chance_of_change = match.likeliest_change()
    if chance_of_change > _SURELY_NO_CHANGE:
        return ""
    for part, rest in (
        (slice(0, change), slice(change, None)),
        (slice(change, None), slice(0, change)),
    ):
        chance, expected = match.by_chance(part)
        if chance and match.evidence(rest) > _BEYOND_DOUBT:
            first, last = match.rows[part][[0, -1]]
            last = n_samples - 1 if part.stop is None else last
            return (
                f"Rows {first} to {last} look like another split: accuracy is {match.hits[part].mean():.3g} there, "
                f"where labels in any other order would give {expected:.3g}, and {match.hits[rest].mean():.3g} in the "
                "others. Were parts joined whose labels are in another order?"
            )
    return ""


def warn_if_few(
    method: object, n_samples: int, n_classes: int, mistakes: int | None = None
) -> None:
    """Warn if a method with parameters per class has too few samples for them.

    Methods that do harm if the model makes few mistakes also pass the number of `mistakes` here.
    """
    enough = _SAMPLES_PER_CLASS * n_classes
    few_mistakes = mistakes is not None and mistakes < enough
    if n_samples < enough or few_mistakes:
        have = (
            f"{mistakes} mistakes among {n_samples} samples"
            if few_mistakes
            else f"{n_samples} samples"
        )
        warnings.warn(
            f"{type(method).__name__} learns from each class alone, and {have} of {n_classes} classes are "
            f"fewer than {_SAMPLES_PER_CLASS} per class: expect worse probabilities than the model's own. "
            "Use a method that shares its parameters, such as TemperatureScaling or IsotonicMulticlass.",
            FewSamplesWarning,
            stacklevel=4,
        )
