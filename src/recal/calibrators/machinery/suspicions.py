"""What is wrong with the samples of a fit, said before it is learned: labels of other rows, one class, no mistakes.

Each test asks whether the labels know anything of their rows. A sample's score is the probability that the model gives
to its label, less what it gives to a label drawn at random from the same set; were the labels in another order, the
scores' mean would be 0 up to chance. No accuracy is too low by itself: a weak model passes if it is better than that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.errors import DoubtfulLabelsWarning, FewSamplesWarning, InputError

# Temperatures are learned from mistakes; with fewer the answer hangs on single samples.
FEWEST_MISTAKES = 10
# Rows that are looked at, evenly spaced: enough for every test, and nothing beside the cost of a fit.
_MOST_ROWS = 20_000
_FEWEST_ROWS = 20
_PIECE = 100_000
# Labels in another order reach this many standard deviations once in fifty sets.
_CHANCE = 2.0
# Part of the rows is suspected only where the others leave no doubt.
_BEYOND_DOUBT = 8.0
_SHORTEST_PART = 50


def warn_of_suspicions(logits: Floats, labels: Labels) -> None:
    """Warn of the gravest of what looks wrong with these samples, if anything does."""
    rows = np.arange(len(labels))
    if len(rows) > _MOST_ROWS:
        rows = np.linspace(0, len(labels) - 1, _MOST_ROWS).astype(np.intp)
    said = _one_class(labels) or _other_labels(_Match(logits, labels, rows), len(labels))
    if said:
        warnings.warn(said, DoubtfulLabelsWarning, stacklevel=3)
        return
    said = _few_mistakes(logits, labels)
    if said:
        warnings.warn(said, FewSamplesWarning, stacklevel=3)


def refuse_codes(logits: Floats, given: Any, labels: Labels, names: Any) -> None:
    """Refuse integers that number the sorted names rather than the columns.

    scikit-learn's `cross_val_predict` turns labels that are words into such numbers before a calibrator sees them.
    Beside names in another order than the alphabet's they would be taken for columns, and all that is learned be wrong.
    """
    words = np.asarray([] if names is None else names)
    if words.dtype.kind not in "US" or np.asarray(given).dtype.kind not in "iu" or (words[:-1] <= words[1:]).all():
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


def _one_class(labels: Labels) -> str:
    if len(labels) < _FEWEST_ROWS or labels.min() != labels.max():
        return ""
    return (
        f"All {len(labels)} labels are of one class, column {labels[0]}: nothing can be learned about the others. "
        "Were the samples sorted by class before they were split?"
    )


def _few_mistakes(logits: Floats, labels: Labels) -> str:
    mistakes = 0
    for right in _right_answers(logits, labels):
        mistakes += int(right.size - right.sum())
        if mistakes >= FEWEST_MISTAKES:
            return ""
    n_samples = len(labels)
    own = " If these are the samples that the model was trained on, use others." if n_samples >= 100 else ""
    if mistakes == 0:
        return (
            f"Each of the {n_samples} answers is right, so no finite temperature is best: taken is what one more, "
            f"wrong, sample would give.{own} Fit on more held-out samples for an answer that mistakes have settled."
        )
    return (
        f"{mistakes} of {n_samples} answers are wrong, and confidence is learned from mistakes: with fewer than "
        f"{FEWEST_MISTAKES} the result hangs on single samples.{own} Fit on more held-out samples."
    )


def _right_answers(logits: Floats, labels: Labels) -> Iterator[NDArray[np.bool_]]:
    """Yield whether answers are right, piece by piece: most sets show ten mistakes at once."""
    for first in range(0, len(labels), 4096):
        piece = slice(first, first + 4096)
        yield logits[piece].argmax(axis=1) == labels[piece]


class _Match:
    """How well labels fit rows: hits, and what the model gives to the label beyond what it gives to any."""

    def __init__(self, logits: Floats, labels: Labels, rows: NDArray[np.intp]) -> None:
        self.rows, self.labels = rows, labels[rows]
        self.n_classes = logits.shape[1]
        self.shares = np.bincount(self.labels, minlength=self.n_classes) / len(rows)
        self.answers = np.empty(len(rows), dtype=np.intp)
        self.scores = np.empty(len(rows))
        # A few digits are enough for a test; pieces stay in a processor's cache.
        shares, size = self.shares.astype(np.float32), max(1, _PIECE // self.n_classes)
        for begin in range(0, len(rows), size):
            part = slice(begin, begin + size)
            given = logits[rows[part]]
            place = np.arange(len(given))
            self.answers[part] = given.argmax(axis=1)
            weights = (given - given[place, self.answers[part]][:, None]).astype(np.float32)
            np.exp(weights, out=weights)
            totals = weights.sum(axis=1)
            self.scores[part] = (weights[place, self.labels[part]] - weights @ shares) / totals
        self.hits = self.answers == self.labels

    def by_chance(self, part: slice) -> tuple[bool, float]:
        """Return whether this part's labels could stand in any order, and how many hits another order would give."""
        hits, scores = self.hits[part], self.scores[part]
        own = np.bincount(self.labels[part], minlength=self.n_classes) / len(hits)
        expected = float(own @ np.bincount(self.answers[part], minlength=self.n_classes) / len(hits))
        spread = np.sqrt(expected * (1.0 - expected) / len(hits))
        unrelated = hits.mean() <= expected + _CHANCE * spread and self.evidence(part) <= _CHANCE
        # A part of few classes says nothing about the order of its labels, nor does a model of one answer.
        mixed = float(own @ own) <= 1.5 * float(self.shares @ self.shares) and np.ptp(self.answers[part]) > 0
        return bool(unrelated and mixed and len(scores) >= _FEWEST_ROWS), expected

    def evidence(self, part: slice) -> float:
        """Return by how many standard deviations the scores' mean lies above 0."""
        scores = self.scores[part]
        return float(scores.mean() / max(scores.std() / np.sqrt(len(scores)), 1e-300))

    def likeliest_change(self) -> int:
        """Return where the scores' mean most likely changes."""
        count = len(self.scores)
        before = np.cumsum(self.scores - self.scores.mean())[:-1]
        place = np.arange(1, count)
        weight = np.abs(before) / np.sqrt(place * (count - place))
        weight[: _SHORTEST_PART - 1] = weight[count - _SHORTEST_PART :] = 0.0
        return int(np.argmax(weight)) + 1


def _other_labels(match: _Match, n_samples: int) -> str:
    whole = slice(None)
    chance, expected = match.by_chance(whole)
    if chance:
        return (
            f"Accuracy is at chance: {match.hits.mean():.3g}, where the same labels in any other order would give "
            f"{expected:.3g}. Are labels and rows in the same order?"
        )
    if len(match.rows) < 4 * _SHORTEST_PART:
        return ""
    change = match.likeliest_change()
    for part, rest in ((slice(0, change), slice(change, None)), (slice(change, None), slice(0, change))):
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
