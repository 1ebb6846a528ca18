"""Prompts for multiple-choice questions: templates, and orders of the options, each of which is a view."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recal.errors import FileError, InputError

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")
OPTIONS = "options"


@dataclass(frozen=True)
class Template:
    """Text with ``{column}`` where a column of the questions goes, and ``{options}`` where the options are listed.

    Double braces stand for single ones. If the questions have one column per option, as columns A, B, C, D hold the
    texts of the answers, ``{options}`` lists a line for each, "A. text"; else it lists the options themselves.
    """

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Template:
        """Read a template; the file's name without its ending is the name of the view."""
        try:
            return cls(path.stem, path.read_text(encoding="utf-8").rstrip("\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error

    def names(self) -> list[str]:
        """Return the columns that the template asks for."""
        return [match[1].strip() for match in _PLACE.finditer(self.text) if match[1] is not None]

    def check(self, columns: Sequence[str]) -> None:
        """Refuse a template that names a column that the questions do not have, or none at all."""
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

        If the questions have a column per option, place p shows the text of option order[p] under the name of option p.
        Else ``{options}`` lists the options in this order.
        """
        texts = dict(row)
        if all(option in row for option in options):
            texts |= {option: row[options[source]] for option, source in zip(options, order)}
            listed = "\n".join(f"{option}. {texts[option]}" for option in options)
        else:
            listed = ", ".join(options[place] for place in order)
        texts.setdefault(OPTIONS, listed)
        braces = {"{{": "{", "}}": "}"}
        return _PLACE.sub(lambda match: braces.get(match[0]) or str(texts[match[1].strip()]), self.text)


@dataclass(frozen=True)
class Asking:
    """One way to ask all questions: a template and an order of the options. The first one of a run is no view."""

    template: Template
    order: tuple[int, ...]
    moves_texts: bool
    """Whether options keep their names and exchange their texts, so that answers must be mapped back."""

    @property
    def name(self) -> str:
        straight = self.order == tuple(range(len(self.order)))
        return self.template.name if straight else f"{self.template.name} order {'-'.join(map(str, self.order))}"

    def columns(self) -> list[int]:
        """Return for each option the place under whose name the model was shown it."""
        if not self.moves_texts:
            return list(range(len(self.order)))
        return [self.order.index(option) for option in range(len(self.order))]


def ways_to_ask(
    templates: Sequence[Template], options: Sequence[str], columns: Sequence[str], permute: int, seed: int = 0
) -> list[Asking]:
    """Return each template with the options as they are, then `permute` further orders of each template."""
    if len({template.name for template in templates}) != len(templates):
        raise InputError("Templates must have different file names: they name the views.")
    moves_texts = all(option in columns for option in options)
    for template in templates:
        template.check(columns)
        if permute and not (OPTIONS in template.names() or (moves_texts and set(options) <= set(template.names()))):
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
    """Yield distinct orders: first the rotations, in which each option stands in another place, then random ones."""
    most = int(np.prod(np.arange(1.0, n_options + 1))) - 1 if n_options < 12 else count
    if count > most:
        raise InputError(f"{n_options} options have {most} other orders", argument="permute", came=f"got {count}")
    straight = tuple(range(n_options))
    seen = {straight}
    rng = np.random.default_rng(seed)
    for number in range(1, count + 1):
        order = straight[number:] + straight[:number] if number < n_options else straight
        while order in seen:
            order = tuple(int(place) for place in rng.permutation(n_options))
        seen.add(order)
        yield order
