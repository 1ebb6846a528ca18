"""Ways to ask a question: templates of prompts, orders of the options, and the record of both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from recal.errors import InputError
from recal.files.tables import reading

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")
OPTIONS = "options"
# What determined the answers, each a name and its values, such as ("options", "A", "B").
Asked = tuple[tuple[str, ...], ...]


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
        with reading(path):
            return cls(path.stem, path.read_text(encoding="utf-8").rstrip("\n"))

    def names(self) -> list[str]:
        """Return the columns that the template uses."""
        return [match[1].strip() for match in _PLACE.finditer(self.text) if match[1] is not None]

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a template that names no column, or a column that the questions do not have."""
        names = self.names()
        if not names:
            raise InputError(
                f"The template {self.name!r} names no column, so every question would get the same prompt. Write "
                f"{{{columns[0]}}} where it goes."
            )
        for name in names:
            if name != OPTIONS and name not in columns:
                raise InputError(
                    f"The template {self.name!r} names the column {name!r}; the questions have {', '.join(columns)}. "
                    "Write {{ and }} for braces."
                )

    def fill(self, row: Mapping[str, Any], options: Sequence[str], order: Sequence[int]) -> str:
        """Return the prompt of one question, with the options in this order.

        If the questions have a column per option, position p shows the text of option order[p]
        under the name of option p. Otherwise ``{options}`` lists the options in this order.
        """
        texts = dict(row)
        if all(option in row for option in options):
            texts |= {option: row[options[source]] for option, source in zip(options, order)}
            listed = "\n".join(f"{option}. {texts[option]}" for option in options)
        else:
            listed = ", ".join(options[place] for place in order)
        texts.setdefault(OPTIONS, listed)
        braces = {"{{": "{", "}}": "}"}
        return _PLACE.sub(
            lambda match: braces.get(match[0]) or str(texts[match[1].strip()]), self.text
        )


@dataclass(frozen=True)
class Asking:
    """One way to ask all questions: a template and an order of the options.

    The first one of a run is not a view.
    """

    template: Template
    order: tuple[int, ...]
    moves_texts: bool
    """Whether options keep their names and swap their texts, so that answers must be mapped back.
    """

    @property
    def name(self) -> str:
        straight = self.order == tuple(range(len(self.order)))
        return (
            self.template.name
            if straight
            else f"{self.template.name} order {'-'.join(map(str, self.order))}"
        )

    def columns(self) -> list[int]:
        """Return, for each option, the index of the name under which the model saw it."""
        return [
            self.order.index(option) if self.moves_texts else option
            for option in range(len(self.order))
        ]


def ways_to_ask(
    templates: Sequence[Template],
    options: Sequence[str],
    columns: Sequence[str],
    permute: int,
    seed: int = 0,
) -> list[Asking]:
    """Return each template with the options as they are, then `permute` further orders of each
    template.
    """
    if len({template.name for template in templates}) != len(templates):
        raise InputError("Templates must have different file names: they name the views.")
    moves_texts = all(option in columns for option in options)
    for template in templates:
        template.check(columns)
        if permute and OPTIONS in columns and OPTIONS in template.names():
            raise InputError(
                f"The questions have a column {OPTIONS!r}, so {{options}} in the template "
                f"{template.name!r} shows that column and not the options in their order. Rename "
                "the column, or leave out --permute."
            )
        if permute and not (
            OPTIONS in template.names() or (moves_texts and set(options) <= set(template.names()))
        ):
            raise InputError(
                f"The template {template.name!r} lists no options that could change their order. Write {{options}} "
                "where they go."
            )
    orders = list(_orders(len(options), permute, seed))
    straight = tuple(range(len(options)))
    return [
        *(Asking(template, straight, moves_texts) for template in templates),
        *(Asking(template, order, moves_texts) for template in templates for order in orders),
    ]


def _orders(n_options: int, count: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield distinct orders: first the rotations, which move every option to another position, then
    random ones.
    """
    most = math.factorial(n_options) - 1
    if count > most:
        raise InputError(
            f"{n_options} options have {most} other orders, got {count}", argument="permute"
        )
    straight = tuple(range(n_options))
    orders = {straight}
    rng = np.random.default_rng(seed)
    for number in range(1, count + 1):
        order = straight[number:] + straight[:number] if number < n_options else straight
        while order in orders:
            order = tuple(int(place) for place in rng.permutation(n_options))
        orders.add(order)
        yield order


def check_asked(stored: Asked | None, own: Asked | None, *, force: bool = False) -> None:
    """Refuse answers that came about in another way than those of a calibration.

    What only one of them has is not compared: a calibration need not use every template.

    Examples
    --------
    >>> from recal.answers.templates import check_asked
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
    if differences and not force:
        raise InputError(
            "The calibration was fitted for answers that were asked for otherwise: "
            f"{'; '.join(differences)}. It says nothing about these answers",
            remedy="Ask as for the fit, or use --force to apply it all the same",
        )
