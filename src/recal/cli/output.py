"""How every command prints: a table for people, one JSON value for machines, and signs of life on a terminal only."""

from __future__ import annotations

import json
import math
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

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value for machines and nothing else.")]

# Nothing is shown for what is over sooner than this.
_PATIENCE_SECONDS = 2.0


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


def command_line() -> str:
    """Return what was typed, for a report that says how it was made."""
    return shlex.join(["recal", *sys.argv[1:]])


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
    console.print(title, style="bold")  # not the table's own title, which would be broken to the table's width
    for chosen in _columns_that_fit(columns, rows, console.width):
        console.print(_table(columns, rows, chosen))
    if note:
        console.print(note)


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
        table.add_column(columns[index], justify="right" if index else "left", no_wrap=bool(index))
    for row in rows:
        table.add_row(*(str(row[index]) for index in chosen))
    return table


def say(sentence: str, *, quiet: bool = False) -> None:
    """Print one line for people; `quiet` where machines listen."""
    if not quiet:
        print(sentence)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal, after two seconds, that `what` is still going on and since when."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    started, done = time.monotonic(), threading.Event()

    def show() -> None:
        if done.wait(_PATIENCE_SECONDS):
            return
        with Console(stderr=True).status(what) as status:
            while not done.wait(0.5):
                status.update(f"{what} ... {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
