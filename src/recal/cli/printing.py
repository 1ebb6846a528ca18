"""How every command prints: a table for people, one JSON value for machines, and signs of life on a terminal only."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from recal.progress import Watcher

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value for machines and nothing else.")]

# Nothing is shown for what is over sooner than this.
_PATIENCE_SECONDS = 2.0
_quiet = False
_words: tuple[str, ...] = ()
# Control characters but for line ends and tabs, and marks that turn the direction of the text around them.
_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")


def print_json(value: Any) -> None:
    """Print one JSON value; what JSON cannot say (NaN, infinity) becomes null."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Return `value` as JSON values: numpy numbers and arrays, tuples and paths become what they look like."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def printable(text: str) -> str:
    r"""Return the text with what would steer a terminal written out: names in a file may hold it.

    Examples
    --------
    >>> from recal.cli.printing import printable
    >>> print(printable("a column \x1b[2J that clears the screen"))
    a column \x1b[2J that clears the screen
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def note_words(arguments: Sequence[str]) -> None:
    """Remember what was typed."""
    global _words
    _words = tuple(arguments)


def command_words() -> list[str]:
    """Return what was typed after `recal`."""
    return list(_words)


def command_line() -> str:
    """Return what was typed, for a report that says how it was made."""
    return shlex.join(["recal", *_words])


def typed(*words: object) -> str:
    """Return words as one line that can be pasted into a shell; those that are empty are left out.

    Examples
    --------
    >>> from recal.cli.printing import typed
    >>> typed("recal", "apply", "my folder", "--out", "answers.csv")
    "recal apply 'my folder' --out answers.csv"
    """
    return shlex.join(text for word in words if (text := str(word)))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, note: str = "") -> None:
    """Print a table: first column to the left, numbers to the right; plain text when the output is not a terminal.

    Numbers are never cut off: columns that a narrow terminal cannot hold follow in a further table, beside the first
    column again.
    """
    from rich.console import Console

    class Pipe(Console):
        """Where the reader leaves early, rich would end the program by itself, with the exit code of a failure."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    # A pipe has no width: give the table all it wants rather than cutting numbers off.
    console = Pipe(highlight=False, markup=False, width=None if sys.stdout.isatty() else 400)
    console.print(
        printable(title), style="bold"
    )  # not the table's own title, which would be broken to the table's width
    for chosen in _columns_that_fit(columns, rows, console.width):
        console.print(_table(columns, rows, chosen))
    if note:
        console.print(printable(note))


def _columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> list[list[int]]:
    """The columns in as few tables as fit the width, each with the first one; a single column that is wider stays."""
    sizes = [max(len(str(row[index])) for row in [columns, *rows]) for index in range(len(columns))]
    # Between two columns stand three blanks.
    parts: list[list[int]] = [[0]]
    for index in range(1, len(columns)):
        taken = sum(sizes[i] + 3 for i in parts[-1]) + sizes[index]
        if taken > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(index)
    return parts


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], chosen: Sequence[int]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index in chosen:
        # Words of the first column may be broken where nothing else helps; numbers never.
        table.add_column(printable(columns[index]), justify="right" if index else "left", no_wrap=bool(index))
    for row in rows:
        table.add_row(*(printable(str(row[index])) for index in chosen))
    return table


def say(sentence: str, *, quiet: bool = False) -> None:
    """Print one line for people; `quiet` where machines listen."""
    if not quiet:
        print(printable(sentence))


def be_quiet(quiet: bool) -> None:
    """Show no progress from here on, or show it again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether --quiet was typed."""
    return _quiet


def shows_progress() -> bool:
    """Whether somebody watches: a terminal, and no --quiet."""
    return sys.stderr.isatty() and not _quiet


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal, after two seconds, what is going on, how far it is and how long it will still take.

    The work itself notes its loops with `recal.progress.track`; where it has none, the time since the start is shown.
    """
    if not shows_progress():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    from recal.progress import watching

    started, done = time.monotonic(), threading.Event()

    def show() -> None:
        if done.wait(_PATIENCE_SECONDS):
            return
        with Console(stderr=True, highlight=False).status(what) as status:
            while not done.wait(0.25):
                line = Text(_so_far(what, time.monotonic() - started, seen), no_wrap=True, overflow="ellipsis")
                status.update(line)

    with watching() as seen:
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _so_far(what: str, seconds: float, seen: Watcher) -> str:
    """Return one line: what, how much of it is done, the time left, and the loops under way.

    Examples
    --------
    >>> from recal.cli.printing import _so_far
    >>> from recal.progress import Stage, Watcher
    >>> _so_far("Fitting gp", 3.2, Watcher(0))
    'Fitting gp, 3 s'
    >>> _so_far("Fitting auto", 12.0, Watcher(0, [Stage("trying methods", 4, 1)]))
    'Fitting auto: 25 % in 12 s, about 0 s left; trying methods 2 of 4'
    """
    stages, left = tuple(seen.stages), seen.seconds_left()
    if not stages:
        return f"{what}, {_duration(seconds)}"
    share = f"{100 * seen.share():.0f} % in {_duration(seconds)}"
    rest = "" if left is None else f", about {_duration(left)} left"
    loops = ", ".join(f"{stage.what} {min(stage.done + 1, stage.total)} of {stage.total}" for stage in stages[:2])
    return f"{what}: {share}{rest}; {loops}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
