"""Scores of answer options: log-probabilities from a log or a server, and Views made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Vector
from recal.errors import InputError
from recal.files.tables import cell_text
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

# What determined the answers, each a name and its values, such as ("options", "A", "B").
Asked = tuple[tuple[str, ...], ...]

# An option that was not returned gets half of the smallest returned probability, but at most this.
MOST_FOR_MISSING = 1e-5
# Fields that identify a question, best first.
IDS = ("custom_id", "doc_hash", "id", "question_id", "doc_id")
_PUNCTUATION = " \t\r\n.,:;)('\"*`▁Ġ"
_LONGER = "Ask for longer answers (--max-tokens 5), or for letters such as A, B, C"
# How tokenizers write a blank.
_BLANKS = str.maketrans("▁Ġ", "  ")


@dataclass(frozen=True)
class OptionScores:
    """Log-probabilities of the options of each question.

    Attributes
    ----------
    ids : the keys that join two runs over the same questions
    log_probs : (n_questions, n_options), NaN for options that were not returned
    options : the options' names in the order of the columns, None if columns have only numbers
    labels : the right option of each question, a name or a column; None if unknown
    has_ids : whether the ids come from the file; otherwise they are the numbers of its rows
    asked : what is known about how the answers came about
    n_failed : requests that got no answer at all; they are not among the questions
    n_other : texts that name another option than the likeliest one
    """

    ids: tuple[str, ...]
    log_probs: Vector
    options: tuple[str, ...] | None = None
    labels: NDArray[Any] | None = None
    has_ids: bool = True
    asked: Asked | None = None
    n_failed: int = 0
    n_other: int = 0

    def take(self, rows: list[int]) -> OptionScores:
        """Return some of the questions."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            log_probs=self.log_probs[rows],
            labels=None if self.labels is None else self.labels[rows],
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
    n_left_out : questions that some of the files lack, and requests that failed
    n_other : texts of the first run that name another option than the likeliest one
    """

    views: Views
    floor: float
    n_missing: int
    n_cells: int
    n_unanswered: int
    n_left_out: int
    n_other: int

    def __str__(self) -> str:
        how = self.views.preprocessing
        kinds = [values[0] for name, *values in (how and how.asked) or () if name == "scores"]
        sentences = [f"Scores are read as {kind} (--scores)." for kind in kinds]
        if self.n_left_out:
            sentences.append(f"{self.n_left_out:,} questions failed or are not in every file.")
        if self.n_missing:
            sentences.append(
                f"{self.n_missing:,} of {self.n_cells:,} option scores "
                f"({self.n_missing / self.n_cells:.1%}) were not returned; they count as "
                f"probability {self.floor:.1e}."
            )
        if self.n_unanswered:
            sentences.append(
                f"{self.n_unanswered:,} answers name no option, such as refusals; all options "
                "count as equally likely."
            )
        if self.n_other:
            sentences.append(
                f"{self.n_other:,} texts name another option than the likeliest one, which counts."
            )
        return " ".join(sentences)


def join_scores(
    scores: OptionScores, others: Mapping[str, OptionScores], asked: Asked | None = None
) -> JoinedViews:
    """Join runs over the same questions by their ids: the first gives the logits, the others are
    views.

    An option that was not returned gets half of the smallest returned probability, at most 1e-5.
    The views keep `asked`, how the answers came about; the default is what the first run knows.
    """
    asked = scores.asked if asked is None else asked
    rows, places = list(range(len(scores.ids))), {}
    for name, other in others.items():
        if not (scores.has_ids and other.has_ids):
            raise without_ids(f"The view {name!r}" if scores.has_ids else "The first file")
        places[name] = {one: row for row, one in enumerate(other.ids)}
        rows = [row for row in rows if scores.ids[row] in places[name]]
    if not rows:
        ids = ", ".join(repr(one.ids[0]) for one in (scores, *others.values()) if one.ids)
        raise InputError(f"The files have no question in common. Their ids are such as {ids}.")
    main = scores.take(rows)
    runs = [main]
    for name, other in others.items():
        runs.append(_aligned(other.take([places[name][one] for one in main.ids]), main, name))
    log_probs = np.stack([run.log_probs for run in runs])
    missing = ~np.isfinite(log_probs)
    if missing.all():
        remedy = "Check --options, and that the log holds logprobs"
        raise InputError("No answer names any of the options", remedy=remedy)
    floor = min(float(np.exp(log_probs[~missing].min())) / 2.0, MOST_FOR_MISSING)
    floor = max(floor, float(np.finfo(np.float64).tiny))
    log_probs[missing] = np.log(floor)
    labels = main.labels
    if labels is not None and main.options is None:
        labels = labels.astype(np.intp)
    return JoinedViews(
        Views(
            log_probs[0],
            dict(zip(others, log_probs[1:])),
            labels=labels,
            classes=main.options,
            preprocessing=None if asked is None else Preprocessing(asked=asked),
            ids=main.ids if main.has_ids else None,
        ),
        floor,
        n_missing=int(missing.sum()),
        n_cells=missing.size,
        n_unanswered=int(missing.all(axis=2).sum()),
        n_left_out=scores.n_failed + len(scores.ids) - len(rows),
        n_other=scores.n_other,
    )


def without_ids(file: Any) -> InputError:
    """Return the error for a file whose rows have no ids to join another file by."""
    rule = f"{file} has no ids, by which files are joined; the order of rows proves nothing"
    return InputError(rule, remedy=f"Add those of the other file as a column or field {IDS[2]!r}")


def _aligned(other: OptionScores, main: OptionScores, name: str) -> OptionScores:
    """Return a run with the columns of the main run; refuse different options or labels."""
    log_probs, n_options = other.log_probs, main.log_probs.shape[1]
    same = log_probs.shape[1] == n_options
    if main.options is not None and other.options is not None:
        same = set(other.options) == set(main.options)
    if not same:
        theirs = other.options or f"{log_probs.shape[1]} options"
        own = main.options or f"{n_options} options"
        raise InputError(f"The view {name!r} has {theirs} per question, and the first file {own}.")
    if main.options is not None and other.options is not None:
        log_probs = log_probs[:, [other.options.index(option) for option in main.options]]
    if main.labels is not None and other.labels is not None and other.options == main.options:
        differ = int(np.sum(main.labels != other.labels))
        if differ:
            rule = f"The view {name!r} has other labels than the first file for {differ} questions"
            raise InputError(rule, remedy="Do both ask the same?")
    return replace(other, log_probs=log_probs)


def row_ids(
    rows: Iterable[Mapping[str, Any]], names: Sequence[str] = IDS
) -> tuple[tuple[str, ...], bool]:
    """Return the id of each question, and whether the file has ids: otherwise they are numbers.

    The id is the first field with a usual name. From its second occurrence on, a repeated question
    also gets a counter.
    """
    times: dict[str, int] = {}
    ids = []
    listed = list(rows)
    name = next((name for name in names if any(name in row for row in listed)), None)
    for place, row in enumerate(listed):
        if name is not None and row.get(name) in (None, ""):
            raise InputError(f"Row {place + 1} has no {name!r}, and other rows have one.")
        one = cell_text(place if name is None else row[name])
        times[one] = times.get(one, 0) + 1
        ids.append(one if times[one] == 1 else f"{one} ({times[one]})")
    return tuple(ids), name is not None


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or len(options) < 2 or len(set(options)) != len(options):
        rule = f"must be two or more distinct answers, such as ['A', 'B'], got {options!r}"
        raise InputError(rule, argument="options")
    return tuple(options)


def begun_by(text: str, options: Sequence[str], *, fold: bool = False) -> list[int]:
    """Return the columns of the options that a text names or begins.

    Blanks and punctuation around the text are ignored. Case matters, except for a text that names
    a whole option, or with `fold`.

    Examples
    --------
    >>> from recal.answers.scores import begun_by
    >>> begun_by(" B", ["A", "B"]), begun_by("re", ["refund request", "refund status", "other"])
    ([1], [0, 1])
    """
    text = text.strip(_PUNCTUATION)
    names = [option.strip(_PUNCTUATION) for option in options]
    if not text:
        return []
    begun = [place for place, name in enumerate(names) if name.startswith(text)]
    folded = [name.casefold() for name in names]
    if begun or len(set(folded)) < len(folded):
        return begun
    text = text.casefold()
    if fold:
        return [place for place, name in enumerate(folded) if name.startswith(text)]
    return [place for place, name in enumerate(folded) if name == text]


def answer_row(
    positions: Sequence[tuple[str, Mapping[str, float]]], options: Sequence[str]
) -> tuple[Vector, int | None]:
    """Return the options' log-probabilities where the answer is given, and the option that the
    text names.

    The answer is the last place where the text names an option, because reasoning may come before
    it; without one it is the first token, since a refusal may still rank the options there. From
    there on the tokens are followed until only one option is left. A likely token that was not
    chosen counts for the options that it begins, in equal parts if there are several.

    Parameters
    ----------
    positions : each token of the answer, with the log-probabilities of the likeliest tokens at its
        position
    """
    row = np.full(len(options), -np.inf)
    names = [option.strip(_PUNCTUATION) for option in options]
    tokens = [token.translate(_BLANKS) for token, _ in positions]
    start, named = _find_answer(tokens, names)
    fold = named is not None and names[named] not in "".join(tokens)

    def count(places: Sequence[int], log_prob: float) -> None:
        for place in places:
            row[place] = np.logaddexp(row[place], log_prob - np.log(len(places)))

    def exact(text: str) -> list[int]:
        size = len(text.strip(_PUNCTUATION))
        return [place for place in begun_by(text, options, fold=fold) if len(names[place]) == size]

    so_far, log_prob, left = "", 0.0, list(range(len(options)))
    for token, top in positions[start:]:
        for other, value in top.items():
            text = so_far + other.translate(_BLANKS)
            if other != token and np.isfinite(value):
                begun = begun_by(text, options, fold=fold)
                count(exact(text) or begun or exact(so_far), log_prob + value)
        before, so_far = so_far, so_far + token.translate(_BLANKS)
        if not so_far.strip(_PUNCTUATION):
            continue  # a blank or a quotation mark before the answer
        log_prob += top.get(token, 0.0)
        left = begun_by(so_far, options, fold=fold)
        if not left:
            left = exact(before)
            break
        if left == exact(so_far):
            break
    else:
        left = exact(so_far) or left
        if so_far.strip(_PUNCTUATION) and len(left) > 1:
            listed = ", ".join(options[place] for place in left)
            rule = f"The answer {so_far!r} is the beginning of {len(left)} options ({listed})"
            raise InputError(rule, remedy=_LONGER)
        if named is None and len(left) == 1:
            named = left[0]
    if so_far.strip(_PUNCTUATION) and not np.isnan(log_prob):
        count(left, log_prob)
        if named is not None and np.isinf(row[named]):  # in one token with other characters
            count([named], log_prob)
    return np.where(np.isfinite(row), row, np.nan), named


def answer_rows(
    answers: Iterable[Sequence[tuple[str, Mapping[str, float]]]], options: Sequence[str]
) -> tuple[Vector, int]:
    """Return the log-probabilities of many answers, and how many texts name another option than the
    likeliest one: options of several tokens can be likelier than what begins with the likeliest
    token.
    """
    rows, named = zip(*(answer_row(positions, options) for positions in answers))
    log_probs = np.array(rows)
    likeliest = np.where(np.isnan(log_probs), -np.inf, log_probs).argmax(axis=1).tolist()
    return log_probs, sum(one not in (None, top) for one, top in zip(named, likeliest))


def _find_answer(tokens: Sequence[str], names: Sequence[str]) -> tuple[int, int | None]:
    """Return the token at which the last option named in a text begins, and that option."""
    text = "".join(tokens)
    whole = [name.casefold() == text.strip(_PUNCTUATION).casefold() for name in names]
    if sum(whole) == 1:
        return 0, whole.index(True)
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    words = "|".join(re.escape(name) for name in longest_first)
    found = list(re.finditer(rf"(?<!\w)(?:{words})(?!\w)", text, re.ASCII))
    if not found:
        return 0, None
    ends = np.cumsum([len(token) for token in tokens])
    return int(np.searchsorted(ends, found[-1].start(), side="right")), names.index(found[-1][0])


def check_beginnings(options: Sequence[str], max_tokens: int) -> None:
    """Refuse options with the same first word if an answer has only one token."""
    firsts = [option.split()[0] for option in options if option.split()]
    shared = next((first for first in firsts if firsts.count(first) > 1), None)
    if max_tokens == 1 and shared is not None:
        rule = f"Several options begin with {shared!r}, and an answer has one token"
        raise InputError(rule, remedy=_LONGER)
