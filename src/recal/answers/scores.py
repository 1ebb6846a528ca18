"""Scores of answer options: log-probabilities from a log or an endpoint, and how they become Views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError
from recal.files.tables import text_of
from recal.views import Views

Vector = NDArray[np.float64]

# An option that was not returned gets half of the smallest returned probability, but at most this.
MOST_FOR_MISSING = 1e-5
# Fields that identify a question, best first.
IDS = ("custom_id", "doc_hash", "id", "question_id", "doc_id")
_PUNCTUATION = " \t\r\n.,:;)('\"*`▁Ġ"


@dataclass(frozen=True)
class OptionScores:
    """Log-probabilities of the options of each question.

    Attributes
    ----------
    ids : the keys that join two runs over the same questions
    log_probs : (n_questions, n_options), NaN for options that were not returned
    options : the options' names in the order of the columns, None if columns have only numbers
    labels : the right option of each question, a name or a column; None if unknown
    """

    ids: tuple[str, ...]
    log_probs: Vector
    options: tuple[str, ...] | None = None
    labels: NDArray[Any] | None = None

    def take(self, rows: list[int]) -> OptionScores:
        """Return some of the questions."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            log_probs=self.log_probs[rows],
            labels=labels,
        )


@dataclass(frozen=True)
class JoinedViews:
    """Views of several runs, and which values had to be filled in.

    Attributes
    ----------
    views : Views
    floor : the probability given to options that were not returned
    n_missing, n_cells : the number of options that were not returned, and of all options
    n_unanswered : questions for which no option was returned at all, such as refusals
    n_left_out : questions that some of the files lack
    """

    views: Views
    floor: float
    n_missing: int
    n_cells: int
    n_unanswered: int
    n_left_out: int

    def __str__(self) -> str:
        sentences = []
        if self.n_left_out:
            sentences.append(
                f"{self.n_left_out:,} questions are not in every file and were left out."
            )
        if self.n_missing:
            sentences.append(
                f"{self.n_missing:,} of {self.n_cells:,} option scores ({self.n_missing / self.n_cells:.1%}) were not "
                f"returned; they count as probability {self.floor:.1e} (change it with --floor)."
            )
        if self.n_unanswered:
            sentences.append(
                f"{self.n_unanswered:,} answers name no option, such as refusals; all options count as equally likely."
            )
        return " ".join(sentences)


def join_scores(
    scores: OptionScores, others: Mapping[str, OptionScores], floor: float | None = None
) -> JoinedViews:
    """Join runs over the same questions by their ids: the first gives the logits, the others are
    views.

    Parameters
    ----------
    floor : float, optional
        The probability of options that were not returned; by default half of the smallest returned
        probability, and at most 1e-5.
    """
    if floor is not None and not 0.0 < floor < 1.0:
        raise InputError(
            f"must be a probability above 0 and below 1, got {floor!r}", argument="floor"
        )
    places = {
        name: {one: row for row, one in enumerate(other.ids)} for name, other in others.items()
    }
    rows = [
        row for row, one in enumerate(scores.ids) if all(one in place for place in places.values())
    ]
    if not rows:
        raise InputError(
            "The files have no question in common. They are joined by doc_hash, custom_id or id; such as "
            f"{scores.ids[0]!r} in the first and {next(iter(others.values())).ids[0]!r} in a view."
        )
    main = scores.take(rows)
    runs = {"": main}
    for name, other in others.items():
        runs[name] = _aligned(other.take([places[name][one] for one in main.ids]), main, name)
    returned = np.concatenate([run.log_probs[np.isfinite(run.log_probs)] for run in runs.values()])
    if not len(returned):
        raise InputError(
            "No answer names any of the options. Check --options, and that the log holds logprobs."
        )
    if floor is None:
        floor = min(float(np.exp(returned.min())) / 2.0, MOST_FOR_MISSING)
    floor = max(floor, float(np.finfo(np.float64).tiny))
    missing = {name: ~np.isfinite(run.log_probs) for name, run in runs.items()}
    logits: dict[Any, Vector] = {
        name: np.where(missing[name], np.log(floor), run.log_probs) for name, run in runs.items()
    }
    labels = (
        main.labels
        if main.labels is None or main.options is not None
        else main.labels.astype(np.intp)
    )
    return JoinedViews(
        Views(logits.pop(""), logits, labels=labels, classes=main.options),
        floor,
        n_missing=sum(int(cells.sum()) for cells in missing.values()),
        n_cells=sum(cells.size for cells in missing.values()),
        n_unanswered=sum(int(cells.all(axis=1).sum()) for cells in missing.values()),
        n_left_out=len(scores.ids) - len(rows),
    )


def _aligned(other: OptionScores, main: OptionScores, name: str) -> OptionScores:
    """Return a run with its columns in the order of the main run; refuse different options or
    labels.
    """
    log_probs = other.log_probs
    if main.options is not None and other.options is not None:
        if set(other.options) != set(main.options):
            raise InputError(
                f"The view {name!r} has the options {', '.join(other.options)}; the first file has "
                f"{', '.join(main.options)}."
            )
        log_probs = log_probs[:, [other.options.index(option) for option in main.options]]
    elif log_probs.shape[1] != main.log_probs.shape[1]:
        raise InputError(
            f"The view {name!r} has {log_probs.shape[1]} options per question, and the first file has "
            f"{main.log_probs.shape[1]}."
        )
    comparable = (
        main.labels is not None and other.labels is not None and other.options == main.options
    )
    differ = int(np.sum(np.asarray(main.labels) != np.asarray(other.labels))) if comparable else 0
    if differ:
        raise InputError(
            f"The view {name!r} has other labels than the first file for {differ} questions. Do both ask the same?"
        )
    return replace(other, log_probs=log_probs, options=main.options)


def row_ids(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the id of each question: its first field with a usual name, otherwise its number.

    From its second occurrence on, a repeated question also gets a counter.
    """
    times: dict[str, int] = {}
    ids = []
    for place, row in enumerate(rows):
        one = text_of(next((row[name] for name in IDS if name in row), place))
        times[one] = times.get(one, 0) + 1
        ids.append(one if times[one] == 1 else f"{one} ({times[one]})")
    return tuple(ids)


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or len(options) < 2 or len(set(options)) != len(options):
        raise InputError(
            f"must be two or more distinct answers, such as ['A', 'B', 'C'], got {options!r}",
            argument="options",
        )
    return tuple(options)


def option_of(token: str, options: Sequence[str]) -> int | None:
    """Return the column of the option that a token names or begins, or None if there is none or
    more than one.

    Blanks and punctuation around the token are ignored. Case matters only if some options differ in
    nothing else.

    Examples
    --------
    >>> from recal.answers.scores import option_of
    >>> option_of(" B", ["A", "B"]), option_of("pos", ["positive", "negative"]), option_of("The", ["A", "B"])
    (1, 0, None)
    """
    text = token.strip(_PUNCTUATION)
    if not text:
        return None
    names = [option.strip(_PUNCTUATION) for option in options]
    if text in names:
        return names.index(text)
    folded = [name.casefold() for name in names]
    if len(set(folded)) == len(folded) and text.casefold() in folded:
        return folded.index(text.casefold())
    begun = [
        place for place, name in enumerate(names) if len(name) > len(text) and name.startswith(text)
    ]
    return begun[0] if len(begun) == 1 else None


def option_row(top: Mapping[str, float], options: Sequence[str]) -> Vector:
    """Return the log-probability of each option, summed over the tokens that name it;

    NaN if no token does.
    """
    row = np.full(len(options), np.nan)
    for token, value in top.items():
        place = option_of(token, options)
        if place is not None and np.isfinite(value):
            row[place] = value if np.isnan(row[place]) else np.logaddexp(row[place], value)
    return row


def answer_row(
    positions: Sequence[tuple[str, Mapping[str, float]]], options: Sequence[str]
) -> Vector:
    """Return the options' log-probabilities at the token that gives the answer.

    The answer is the last token that names an option, because reasoning may come before it. If no
    token does, the first position is used: a refusal may still rank the options there. A token that
    only begins an option counts only in the first position, because later it may be any word.

    Parameters
    ----------
    positions : each token of the answer, with the log-probabilities of the likeliest tokens at its
    position
    """
    names = {option.strip(_PUNCTUATION) for option in options}
    for token, top in reversed(positions):
        if token.strip(_PUNCTUATION) in names:
            return option_row(top, options)
    if not positions:
        return np.full(len(options), np.nan)
    return option_row(positions[0][1], options)
