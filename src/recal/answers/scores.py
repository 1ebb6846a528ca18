"""Scores of answer options: log-probabilities from a log or an endpoint, and how they become Views.

`multiple_choice` is a model for `recal.collect` from any function that scores options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.answers.templates import Asked
from recal.checks import Vector
from recal.collecting.fingerprint import digest
from recal.collecting.models.base import Model, as_numpy
from recal.errors import InputError
from recal.files.tables import cell_text
from recal.transforms.preprocessing import Preprocessing
from recal.views import Views

Score = Callable[[list[str], Sequence[str]], Any]

# An option that was not returned gets half of the smallest returned probability, but at most this.
MOST_FOR_MISSING = 1e-5
# Fields that identify a question, best first.
IDS = ("custom_id", "doc_hash", "id", "question_id", "doc_id")
_PUNCTUATION = " \t\r\n.,:;)('\"*`▁Ġ"
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
    named : the column of the option that each answer's text names, -1 for none; None if unknown
    has_ids : whether the ids come from the file; otherwise they are the numbers of its rows
    asked : what is known about how the answers came about
    n_failed : requests that got no answer at all; they are not among the questions
    """

    ids: tuple[str, ...]
    log_probs: Vector
    options: tuple[str, ...] | None = None
    labels: NDArray[Any] | None = None
    named: NDArray[np.intp] | None = None
    has_ids: bool = True
    asked: Asked | None = None
    n_failed: int = 0

    def take(self, rows: list[int]) -> OptionScores:
        """Return some of the questions."""
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            log_probs=self.log_probs[rows],
            labels=None if self.labels is None else self.labels[rows],
            named=None if self.named is None else self.named[rows],
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
    n_other : answers whose text names another option than the likeliest
    n_failed : requests that failed and were left out
    """

    views: Views
    floor: float
    n_missing: int
    n_cells: int
    n_unanswered: int
    n_left_out: int
    n_other: int = 0
    n_failed: int = 0

    def __str__(self) -> str:
        sentences = []
        if self.n_left_out:
            sentences.append(
                f"{self.n_left_out:,} questions are not in every file and were left out."
            )
        if self.n_failed:
            sentences.append(f"{self.n_failed:,} requests failed and were left out.")
        if self.n_missing:
            sentences.append(
                f"{self.n_missing:,} of {self.n_cells:,} option scores ({self.n_missing / self.n_cells:.1%}) were not "
                f"returned; they count as probability {self.floor:.1e} (change it with --floor)."
            )
        if self.n_unanswered:
            sentences.append(
                f"{self.n_unanswered:,} answers name no option, such as refusals; all options count as equally likely."
            )
        if self.n_other:
            sentences.append(
                f"{self.n_other:,} answers name another option in their text than the likeliest; "
                "the likeliest counts."
            )
        return " ".join(sentences)


def join_scores(
    scores: OptionScores,
    others: Mapping[str, OptionScores],
    floor: float | None = None,
    asked: Asked | None = None,
) -> JoinedViews:
    """Join runs over the same questions by their ids: the first gives the logits, the others are
    views.

    Parameters
    ----------
    floor : float, optional
        The probability of options that were not returned; by default half of the smallest returned
        probability, and at most 1e-5.
    asked : optional
        How the answers came about; the views keep it. The default is what the first run knows.
    """
    asked = scores.asked if asked is None else asked
    if floor is not None and not 0.0 < floor < 1.0:
        raise InputError(
            f"must be a probability above 0 and below 1, got {floor!r}", argument="floor"
        )
    for name, other in others.items():
        _check_joinable(scores, other, name)
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
        Views(
            logits.pop(""),
            logits,
            labels=labels,
            classes=main.options,
            preprocessing=None if asked is None else Preprocessing(asked=asked),
        ),
        floor,
        n_missing=sum(int(cells.sum()) for cells in missing.values()),
        n_cells=sum(cells.size for cells in missing.values()),
        n_unanswered=sum(int(cells.all(axis=1).sum()) for cells in missing.values()),
        n_left_out=len(scores.ids) - len(rows),
        n_other=sum(_count_others(run) for run in runs.values()),
        n_failed=scores.n_failed + sum(other.n_failed for other in others.values()),
    )


def _count_others(run: OptionScores) -> int:
    """Return how many answers name another option than the likeliest."""
    if run.named is None:
        return 0
    likeliest = np.where(np.isnan(run.log_probs), -np.inf, run.log_probs).argmax(axis=1)
    return int(np.sum((run.named >= 0) & (run.named != likeliest)))


def _check_joinable(main: OptionScores, other: OptionScores, name: str) -> None:
    """Refuse to join ids with row numbers, or rows of files that differ in length."""
    if main.has_ids != other.has_ids:
        lacking = f"the view {name!r}" if main.has_ids else "the first file"
        raise InputError(
            f"Only one of two files has ids: {lacking} has none of {', '.join(IDS)}. Give it the "
            "ids of the other one; the order of rows proves nothing."
        )
    counts = (len(main.ids) + main.n_failed, len(other.ids) + other.n_failed)
    if not main.has_ids and counts[0] != counts[1]:
        raise InputError(
            f"Without ids, files are joined row by row, and the first has {counts[0]:,} rows and "
            f"the view {name!r} {counts[1]:,}. Add a column of ids, such as {IDS[2]}."
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
        columns = [other.options.index(option) for option in main.options]
        log_probs = log_probs[:, columns]
        if other.named is not None:
            places = np.array([*np.argsort(columns), -1])  # -1 stays -1
            other = replace(other, named=places[other.named])
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
        raise InputError(
            f"must be two or more distinct answers, such as ['A', 'B', 'C'], got {options!r}",
            argument="options",
        )
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
            raise InputError(
                f"The answer {so_far!r} is the beginning of {len(left)} options "
                f"({', '.join(options[place] for place in left)}), and the tokens that follow are "
                "missing. Ask for longer answers (--max-tokens 5), or for letters such as A, B, C."
            )
        if named is None and len(left) == 1:
            named = left[0]
    if so_far.strip(_PUNCTUATION):
        count(left, log_prob)
        if named is not None and np.isinf(row[named]):  # in one token with other characters
            count([named], log_prob)
    return np.where(np.isfinite(row), row, np.nan), named


def answer_rows(
    answers: Iterable[Sequence[tuple[str, Mapping[str, float]]]], options: Sequence[str]
) -> tuple[Vector, NDArray[np.intp]]:
    """Return `answer_row` of many answers; -1 if a text names no option."""
    rows, named = zip(*(answer_row(positions, options) for positions in answers))
    return np.array(rows), np.array([-1 if one is None else one for one in named])


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
        raise InputError(
            f"Several options begin with {shared!r}, and an answer of one token cannot tell them "
            "apart. Ask for longer answers (--max-tokens 5), or for letters such as A, B, C."
        )


class MultipleChoice(Model):
    """Prompts in, one score per answer option out."""

    gives_logits = True

    def __init__(self, score: Score, options: Sequence[str], template: str) -> None:
        if template.count("{input}") != 1:
            raise InputError(
                f"must hold {{input}} once, where the question goes, got {template!r}",
                argument="template",
            )
        self.score, self.options, self.template = score, check_options(options), template
        self.name = str(getattr(score, "__name__", type(score).__name__))
        self.classes = np.array(self.options)

    def fingerprint(self) -> str:
        return digest([self.score, list(self.options), self.template])

    def answer(self, batch: Any) -> NDArray[Any]:
        prompts = [self.template.replace("{input}", str(text)) for text in batch]
        scores = np.asarray(
            as_numpy(self.score(prompts, self.options), self.name), dtype=np.float64
        )
        if scores.shape != (len(prompts), len(self.options)):
            raise InputError(
                f"{self.name} gave scores of the shape {scores.shape} for {len(prompts)} prompts and "
                f"{len(self.options)} options; one row per prompt and one column per option are needed."
            )
        return scores


def multiple_choice(score: Score, options: Sequence[str], *, template: str = "{input}") -> Model:
    """Return a model from any function that scores answers: an API, a local language model, a
    search engine.

    Transformations change only the question; the template with its instructions is added
    afterwards, so a lossy view never loses the list of answers.

    Parameters
    ----------
    score : callable
        ``score(prompts, options)`` returns an array (n_prompts, n_options): log-probabilities, or
        any scores that are higher for likelier answers.
    options : sequence of str
        The answers, which become the classes.
    template : str
        Text around the question, with ``{input}`` in place of the question.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import collect
    >>> from recal.answers import multiple_choice
    >>> def score(prompts, options):  # stands for a language model
    ...     return np.array([[prompt.lower().count(option) for option in options] for prompt in prompts], dtype=float)
    >>> model = multiple_choice(score, ["cat", "dog"], template="Which animal is it? {input}")
    >>> views = collect(model, ["the cat and the dog and the cat", "a dog"], "tokendrop:0.3", labels=["cat", "dog"])
    >>> views.logits.tolist(), views.transforms
    ([[2.0, 1.0], [0.0, 1.0]], (DropTokens(share=0.3, seed=0, pad=0, special=()),))
    """
    return MultipleChoice(score, options, template)
