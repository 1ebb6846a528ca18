"""Progress of long fits: a bar where a person watches a terminal, silence everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def track(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield `items`, drawing a bar on standard error if that is a terminal and there is more than one item."""
    if len(items) < 2 or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    yield from rich_track(items, description, console=Console(stderr=True), transient=True)
