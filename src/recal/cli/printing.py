"""How every command prints: a table for people, one JSON value for machines, and progress only on a
terminal.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Control characters except line ends and tabs, and marks that change the direction of text.
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"
)


@dataclass
class Session:
    """What was typed after `recal`, and how to print. A process runs one command at a time."""

    words: Sequence[str] = ()
    quiet: bool = False
    as_json: bool = False
    typed: dict[str, str] = field(default_factory=dict)  # the options among them, by parameter
    method_options: dict[str, Any] = field(default_factory=dict)  # of `recal fit --method`

    @property
    def command(self) -> str:
        """What was typed, for a report that says how it was made."""
        return _joined(self.words)

    def value(self, flag: str) -> str | None:
        """Return the value of an option from the words that were typed, or None."""
        for place, word in enumerate(self.words):
            if word == flag and place + 1 < len(self.words):
                return self.words[place + 1]
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
        return None

    @property
    def progress(self) -> bool:
        """Whether long runs of a model may show their progress."""
        return not self.quiet and not self.as_json


SESSION = Session()


def print_json(value: Any) -> None:
    """With --json, print one JSON value; values that JSON cannot represent (NaN, infinity) become
    null.
    """
    if SESSION.as_json:
        from recal.files.paths import json_text

        print(json_text(value), end="")


def say(sentence: str) -> None:
    """Print one line for people."""
    if not SESSION.as_json:
        print(printable(sentence))


def say_facts(**facts: str | None) -> None:
    """Print one line for each fact, with its name in front; a fact that is None is left out."""
    for name, text in facts.items():
        if text is not None:
            say(f"{name.replace('_', ' '):<10} {text}")


def say_skipped(files: Sequence[str]) -> None:
    """Say how many files of the data could not be read."""
    if files:
        say(f"{len(files)} files could not be read and were skipped, such as {files[0]}.")


def printable(text: str) -> str:
    r"""Return the text with terminal control characters escaped, because names in a file may
    contain them.

    Examples
    --------
    >>> from recal.cli.printing import printable
    >>> print(printable("a column \x1b[2J that clears the screen"))
    a column \x1b[2J that clears the screen
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shell_line(*words: object) -> str:
    """Return a command that can be pasted into a shell; empty words are left out.

    Examples
    --------
    >>> from recal.cli.printing import shell_line
    >>> shell_line("apply", "my folder", "--out", "answers.csv")
    "recal apply 'my folder' --out answers.csv"
    """
    return _joined([text for word in words if (text := str(word))])


def _joined(words: Sequence[str]) -> str:
    """Join the words of a command, without passwords in addresses."""
    return shlex.join(["recal", *(re.sub(r"^(\w+://)[^/]*@", r"\1", word) for word in words)])


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = ""
) -> None:
    """Print a table: first column left-aligned, numbers right-aligned; plain text if the output is
    not a terminal.

    Numbers are never cut off: if a terminal is too narrow, the remaining columns follow in another
    table, which repeats the first column.
    """
    if SESSION.as_json:
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    class Pipe(Console):
        """Raises an error if the reader closes the pipe; rich would end the program with a failure
        code.
        """

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # A pipe has no width: make the table as wide as it needs rather than cutting numbers off.
    console = Pipe(highlight=False, markup=False, width=None if sys.stdout.isatty() else 400)
    console.print(
        printable(title), style="bold"
    )  # the table's own title would be wrapped to the table's width
    lines = [[printable(str(cell)) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    parts: list[list[int]] = [[0]]  # the columns of each table
    for index in range(1, len(columns)):
        # Columns are three blanks apart. A single column that is too wide stays as it is.
        if (
            len(parts[-1]) > 1
            and sum(widths[i] + 3 for i in parts[-1]) + widths[index] > console.width
        ):
            parts.append([0])
        parts[-1].append(index)
    for part in parts:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index in part:
            # Only the first column may wrap; numbers never do.
            table.add_column(
                lines[0][index], justify="right" if index else "left", no_wrap=bool(index)
            )
        for line in lines[1:]:
            table.add_row(*(line[index] for index in part))
        console.print(table)
    if note:
        console.print(printable(note))


@contextmanager
def working(what: str) -> Iterator[None]:
    """On a terminal, after two seconds, show what is running, its progress and the time left."""
    from recal.progress import shown

    with shown(what, show=not SESSION.quiet):
        yield


@contextmanager
def on_interrupt(note: str) -> Iterator[None]:
    """If the work in the block is interrupted, also say how to resume it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(note)
        raise
