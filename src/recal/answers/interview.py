"""Questions put to a language model: templates, options, several ways to ask, or free text.

An `Interview` asks every question with each template; the first gives the logits, the others are
views. A `System` answers the rows of a table with text and signals, for a panel of systems.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal.answers.endpoint import AnswerLog, Endpoint, Tokens
from recal.answers.scores import (
    Asked,
    JoinedViews,
    OptionScores,
    answer_row,
    answer_rows,
    check_beginnings,
    check_options,
    join_scores,
    row_ids,
)
from recal.checks import Flags, Floats
from recal.errors import InputError
from recal.files.paths import file_errors
from recal.files.tables import Table, write_with_columns
from recal.schema import Number, check
from recal.transforms import as_transform

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")
OPTIONS = "options"
_STATED = re.compile(
    r"confidence(?: level| score)?(?:\s*\([^)]*\))?\W*?(\d*\.?\d+)\s*(?:(%)|/\s*(\d+))?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^\s*(?:final )?answer\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Template:
    """Text with ``{column}`` for a column of the questions, and ``{options}`` for the list of
    options.

    Double braces give single ones. If the questions have one column per option, such as A, B, C, D
    with the texts of the answers, ``{options}`` lists one line for each, "A. text"; otherwise it
    lists the options themselves.
    """

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Template:
        """Read a template; the file's name without its ending is the name of the view."""
        with file_errors(path, "read"):
            return cls(path.stem, path.read_text(encoding="utf-8").rstrip("\n"))

    def names(self) -> list[str]:
        """Return the columns that the template uses."""
        return [match[1].strip() for match in _PLACE.finditer(self.text) if match[1] is not None]

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a template that names no column, or a column that the questions do not have."""
        names = self.names()
        unknown = [name for name in names if name != OPTIONS and name not in columns]
        if unknown or not names:
            what = f"the column {unknown[0]!r}" if unknown else "no column"
            raise InputError(
                f"The template {self.name!r} names {what}; the questions have {', '.join(columns)}",
                remedy=f"Write {{{columns[0]}}} for a column, and {{{{ and }}}} for braces",
            )

    def fill(self, row: Mapping[str, Any], options: Sequence[str]) -> str:
        """Return the prompt of one question."""
        listed = ", ".join(options)
        if options and all(option in row for option in options):
            listed = "\n".join(f"{option}. {row[option]}" for option in options)
        texts = {OPTIONS: listed, **row}

        def text_at(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else str(texts[match[1].strip()])

        return _PLACE.sub(text_at, self.text)


class Cost(NamedTuple):
    """The number of requests of a run, of earlier answers, and an estimate of the tokens."""

    n_requests: int
    n_kept: int
    prompt_tokens: int
    answer_tokens: int

    def __str__(self) -> str:
        kept = f" {self.n_kept:,} others are answered already." if self.n_kept else ""
        return (
            f"{self.n_requests:,} requests, about {self.prompt_tokens:,} prompt tokens and at most "
            f"{self.answer_tokens:,} answer tokens.{kept}"
        )


class Interview:
    """All questions with all templates, and the answers so far.

    Parameters
    ----------
    endpoint : the server
    questions : columns by name, as `read_table` returns them
    options : the answers, such as A, B, C, D
    templates : the first gives the logits, the others are views
    ledger : the path of the file of answers
    labels : the right option of each question, optional
    """

    def __init__(
        self,
        endpoint: Endpoint,
        questions: Mapping[str, NDArray[Any]],
        options: Sequence[str],
        templates: Sequence[Template],
        ledger: Path,
        labels: NDArray[Any] | None = None,
    ) -> None:
        self.endpoint, self.templates, self.labels = endpoint, templates, labels
        self.options = check_options(options)
        check_beginnings(self.options, endpoint.max_tokens)
        check(endpoint.top_logprobs, Number(1, whole=True), "top_logprobs")
        if len({template.name for template in templates}) != len(templates):
            raise InputError("Templates must have different file names: they name the views.")
        for template in templates:
            template.check(list(questions))
        for template in templates[1:]:
            as_transform(template.name)  # refuse what cannot name a view before the first request
        self.ledger = AnswerLog(ledger)
        rows = [dict(zip(questions, values)) for values in zip(*questions.values())]
        self.ids, _ = row_ids(rows)
        self.prompts = [[each.fill(row, self.options) for row in rows] for each in templates]

    @property
    def asked(self) -> Asked:
        """What determines the answers, to be kept with the views."""
        one, first = self.endpoint, self.templates[0].text
        names = ("max_tokens", "top_logprobs", "temperature")
        return (
            ("model", one.model),
            ("options", *self.options),
            ("first template", first),
            *((f"template {each.name}", each.text) for each in self.templates),
            *((name, f"{getattr(one, name):g}") for name in names),
        )

    def cost(self) -> Cost:
        """Return the number of requests left, and an estimate of their tokens."""
        prompts = {self.endpoint.key_of(prompt): prompt for way in self.prompts for prompt in way}
        left = [prompt for key, prompt in prompts.items() if key not in self.ledger.answers]
        tokens = round(sum(map(len, left)) / 4.0)  # characters per token of English text
        n_left, most = len(left), self.endpoint.max_tokens
        return Cost(n_left, len(prompts) - n_left, tokens, n_left * most)

    def run(
        self, on_error: str = "stop", needs_views: Callable[[Floats], Flags] | None = None
    ) -> None:
        """Send the prompts that have no answer yet.

        After an error or Ctrl-C, the answers so far are kept. With `needs_views`, a function of the
        first answers' logits, the first answer is the view of all questions that need no other.
        """
        if needs_views is not None:
            first, *others = self.prompts
            self.prompts = [first]
            self.run(on_error)
            needed = needs_views(self.views().views.logits).tolist()
            for way in others:
                asked = zip(needed, way, first)
                self.prompts.append([own if need else one for need, own, one in asked])
        prompts = [prompt for way in self.prompts for prompt in way]
        self.endpoint.answer(prompts, self.ledger, on_error)

    def views(self) -> JoinedViews:
        """Return the options' log-probabilities as Views."""
        runs: dict[str, OptionScores] = {}
        for template, prompts in zip(self.templates, self.prompts):
            keys = map(self.endpoint.key_of, prompts)
            answers = [self.ledger.answers.get(key, []) for key in keys]
            rows, n_other = answer_rows(answers, self.options)
            runs[template.name] = OptionScores(self.ids, rows, self.options, n_other=n_other)
        main = replace(runs.pop(self.templates[0].name), labels=self.labels)
        return join_scores(main, runs, self.asked)


def split_answer(text: str, *, stated: bool) -> tuple[str, float | None]:
    """Return an answer and the confidence that it states, as a share; None if it states none.

    Examples
    --------
    >>> from recal.answers.interview import split_answer
    >>> split_answer("Answer: Paris\\nConfidence: 85 %", stated=True)
    ('Paris', 0.85)
    """
    found = list(_STATED.finditer(text)) if stated else []
    confidence = None
    if found:
        value, percent, most = found[-1].groups()
        whole = 100 if percent or float(value) > 1 else 1
        share = float(value) / max(1, int(most or whole))
        confidence = share if share <= 1 else None
        text = text[: found[-1].start()]
    return _LABEL.sub("", text).strip(), confidence


@dataclass(frozen=True)
class System:
    """One system that answers the questions of a table.

    Parameters
    ----------
    name : the beginning of the names of its columns
    endpoint : the server
    template : the prompt; if it asks for a confidence, that is read from the answer
    options : the possible answers; None for free text
    samples : how many further answers to draw, to see how many agree
    """

    name: str
    endpoint: Endpoint
    template: Template
    options: Sequence[str] | None = None
    samples: int = 0

    def __post_init__(self) -> None:
        check(self.samples, Number(0, whole=True), "samples")
        if self.options is not None:
            check_beginnings(check_options(self.options), self.endpoint.max_tokens)

    def rows(self, table: Table) -> list[int]:
        """Return the rows to ask: all, or those whose column `next` names this system."""
        if "next" not in table:
            return list(range(table.n_rows))
        wanted = (self.name, f"ask {self.name}")
        return [row for row, value in enumerate(table["next"]) if value in wanted]

    def prompts(self, table: Table) -> dict[int, str]:
        """Return the prompt of each row to ask."""
        self.template.check(list(table))
        columns, prompts = dict(table), {}
        for row in self.rows(table):
            cells = {name: values[row] for name, values in columns.items()}
            prompts[row] = self.template.fill(cells, self.options or ())
        return prompts

    def answer(self, table: Table, out: Path, ledger: AnswerLog, on_error: str = "stop") -> int:
        """Ask, and write a copy of the table with the answers; return how many there are.

        Other rows keep what the table has in these columns.
        """
        prompts = self.prompts(table)
        server = replace(self.endpoint, needs_logprobs=False)
        drawn = replace(server, temperature=1.0)
        servers = [server, *(replace(drawn, sample=1 + place) for place in range(self.samples))]
        for server in servers:
            server.answer(prompts.values(), ledger, on_error)
        found = {}
        for row, prompt in prompts.items():
            tokens = [ledger.answers.get(server.key_of(prompt)) for server in servers]
            if tokens[0]:
                found[row] = self._signals(tokens[0], [one for one in tokens[1:] if one])
        kinds = ["answer", "logprob", "length"]
        kinds += ["stated"] if self._asks_confidence else []
        kinds += ["agreement"] if self.samples else []
        added = {}
        for kind in kinds:
            name = f"{self.name}_{kind}"
            values = np.full(table.n_rows, None, dtype=object)
            if name in table:
                earlier = table[name] if kind == "answer" else table.numbers(name)
                values[:] = [None if one == "" or one != one else one for one in earlier.tolist()]
            for row, signals in found.items():
                values[row] = signals[kind]
            added[name] = values
        write_with_columns(table, out, added, overwrite=True)
        return len(found)

    @property
    def _asks_confidence(self) -> bool:
        return "confidence" in self.template.text.lower()

    def _signals(self, tokens: Tokens, samples: Sequence[Tokens]) -> Mapping[str, Any]:
        answer, confidence = self._text(tokens)
        own = [top[token] for token, top in tokens if np.isfinite(top.get(token, np.nan))]
        same = [_comparable(self._text(sample)[0]) == _comparable(answer) for sample in samples]
        return {
            "answer": answer or None,
            "logprob": float(np.mean(own)) if own else None,
            "length": len(tokens),
            "stated": confidence,
            "agreement": float(np.mean(same)) if same else None,
        }

    def _text(self, tokens: Tokens) -> tuple[str, float | None]:
        text = "".join(token for token, _ in tokens)
        answer, confidence = split_answer(text, stated=self._asks_confidence)
        if self.options is not None:
            try:
                named = answer_row(tokens, self.options)[1]
            except InputError:  # the beginning of several options
                named = None
            answer = "" if named is None else self.options[named]
        return answer, confidence


def _comparable(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def check_asked(stored: Asked | None, own: Asked | None, *, force: bool = False) -> None:
    """Refuse answers that came about in another way than those of a calibration, or warn of them.

    What only one of them has is not compared: a calibration need not use every template.

    Examples
    --------
    >>> from recal.answers.interview import check_asked
    >>> check_asked((("model", "small"),), (("model", "large"),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    recal.errors.InputError: ... model 'large' in place of 'small'. ...
    """
    before = {name: ", ".join(values) for name, *values in stored or ()}
    now = {name: ", ".join(values) for name, *values in own or ()}
    differences = [
        f"{name} {shorten(now[name], 60)!r} in place of {shorten(before[name], 60)!r}"
        for name in before
        if name in now and now[name] != before[name]
    ]
    if not differences:
        return
    listed = "; ".join(differences)
    rule = f"The calibration was fitted for answers to other prompts or settings: {listed}"
    if not force:
        raise InputError(rule, remedy="Ask as for the fit, or use --force to apply it anyway")
    warnings.warn(f"{rule}.", UserWarning, stacklevel=3)
