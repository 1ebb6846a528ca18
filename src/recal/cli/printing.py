"""How every command prints: a table for people, one JSON value for machines, and progress only on a
terminal.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

    @property
    def command(self) -> str:
        """What was typed, for a report that says how it was made."""
        return shell_line(*self.words)

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
    """Return a command that can be pasted into a shell, without passwords in addresses.

    Examples
    --------
    >>> from recal.cli.printing import shell_line
    >>> shell_line("apply", "my folder", "--out", "answers.csv")
    "recal apply 'my folder' --out answers.csv"
    """
    return shlex.join(["recal", *(re.sub(r"^(\w+://)[^/]*@", r"\1", str(word)) for word in words)])


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = ""
) -> None:
    """Print a table: first column left-aligned, numbers right-aligned; plain text if the output is
    not a terminal. In a narrow terminal, cells are wrapped and never cut off.
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

    # A pipe has no width: make the table as wide as it needs.
    console = Pipe(highlight=False, markup=False, width=None if sys.stdout.isatty() else 400)
    # The table's own title would be wrapped to the table's width.
    console.print(printable(title), style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(printable(name), justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
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
