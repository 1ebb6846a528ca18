"""Answers of one system with their signals, as a table: what a panel of systems is calibrated on.

The signals are the mean log-probability of the tokens, the confidence that the answer states, its
length, and how many further samples agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recal.answers.endpoint import AnswerLog, Endpoint, Tokens
from recal.answers.scores import answer_row, check_beginnings, check_options
from recal.answers.templates import Template
from recal.errors import InputError
from recal.files.tables import Table, write_with_columns
from recal.schema import Number, check

_STATED = re.compile(
    r"confidence(?: level| score)?(?:\s*\([^)]*\))?\W*?(\d*\.?\d+)\s*(?:(%)|/\s*(\d+))?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^\s*(?:final )?answer\s*:\s*", re.IGNORECASE)


def split_answer(text: str, *, stated: bool) -> tuple[str, float | None]:
    """Return an answer and the confidence that it states, as a share; None if it states none.

    Examples
    --------
    >>> from recal.answers.systems import split_answer
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
        if not self.name.strip():
            raise InputError("must be a name for the columns of the answers", argument="system")
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
        columns = dict(table)
        order = range(len(self.options or ()))
        return {
            row: self.template.fill(
                {name: values[row] for name, values in columns.items()}, self.options or (), order
            )
            for row in self.rows(table)
        }

    def answer(self, table: Table, out: Path, ledger: AnswerLog, on_error: str = "stop") -> int:
        """Ask, and write a copy of the table with the answers; return how many there are.

        Other rows keep what the table has in these columns.
        """
        prompts = self.prompts(table)
        servers = [replace(self.endpoint, needs_logprobs=False)]
        drawn = replace(servers[0], temperature=1.0)
        servers += [replace(drawn, sample=number) for number in range(1, self.samples + 1)]
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
        write_with_columns(table.path, out, added, overwrite=True)
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
