"""Progress of long loops, reported to a watcher if there is one.

Loops that may take seconds go through `track`. The command line watches (`cli/printing.py`) and
shows one line with the time left; a library call shows nothing and pays nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Stage:
    """A running loop: what it does, how many rounds it has, and how many are finished."""

    what: str
    total: int
    done: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass
class Watcher:
    """The running loops, outermost first."""

    thread: int
    stages: list[Stage] = field(default_factory=list)

    def share(self) -> float:
        """Return the finished share of the outermost loop, including the inner loops."""
        share = 0.0
        for stage in reversed(tuple(self.stages)):
            share = min(1.0, (stage.done + share) / max(1, stage.total))
        return share

    def seconds_left(self) -> float | None:
        """Return how many seconds the outermost loop still needs at its average speed;

        None before its first round.
        """
        stages, share = tuple(self.stages), self.share()
        if not stages or share <= 0.0:
            return None
        return (time.monotonic() - stages[0].began) * (1.0 - share) / share


_watched: Watcher | None = None


@contextmanager
def watching() -> Iterator[Watcher]:
    """Watch the loops of this thread while the block runs.

    Examples
    --------
    >>> from recal.progress import track, watching
    >>> with watching() as watcher:
    ...     for number in track(range(4), "counting"):
    ...         if number == 2:
    ...             print(watcher.stages[0].what, watcher.share())
    counting 0.5
    """
    global _watched
    before, _watched = _watched, Watcher(threading.get_ident())
    try:
        yield _watched
    finally:
        _watched = before


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items`, and report the progress if a watcher watches this thread.

    `total` is the number of items, if they have no length or may end early.
    """
    watcher = _watched
    if watcher is None or watcher.thread != threading.get_ident():
        yield from items
        return
    stage = Stage(
        what, total if total is not None else len(items) if isinstance(items, Sized) else 1
    )
    watcher.stages.append(stage)
    try:
        for item in items:
            yield item
            stage.done += 1
    finally:
        watcher.stages.remove(stage)
