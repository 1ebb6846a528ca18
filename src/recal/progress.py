"""Progress of long work: loops report it, and one display shows it.

Loops that may take seconds go through `track`; work that is counted otherwise uses `counting`. A
library call shows nothing and pays nothing. Inside `shown` there is one line on a terminal with the
time left, and without a terminal one line every 30 seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Stage:
    """A running loop: what it does, how many rounds it has, and how many are finished.

    `first` rounds were finished before, by an earlier run.
    """

    what: str
    total: int
    done: int = 0
    first: int = 0
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"{self.what} {min(self.done + 1, self.total):,} of {self.total:,}"


@dataclass
class Watcher:
    """The running loops of one thread, outermost first."""

    thread: int
    stages: list[Stage] = field(default_factory=list)

    def share(self) -> float:
        """Return the finished share of the outermost loop, including the inner loops."""
        share = 0.0
        for stage in reversed(tuple(self.stages)):
            share = min(1.0, (stage.done + share) / max(1, stage.total))
        return share

    def line(self, what: str, seconds: float) -> str:
        """Return one line: what is running, how much of it is done, the time left at the average
        speed of the outermost loop, and the current loops.

        Examples
        --------
        >>> from recal.progress import Stage, Watcher
        >>> Watcher(0).line("Fitting gp", 3.2)
        'Fitting gp, 3 s'
        >>> Watcher(0, [Stage("trying methods", 4, 1)]).line("Fitting auto", 12.0)
        'Fitting auto: 25 % in 12 s, about 0 s left; trying methods 2 of 4'
        """
        stages, share = tuple(self.stages), self.share()
        if not stages:
            return f"{what}, {_duration(seconds)}"
        text = f"{what}: {100 * share:.0f} % in {_duration(seconds)}"
        now = share - stages[0].first / max(1, stages[0].total)  # finished by this run
        if now > 0:
            left = (time.monotonic() - stages[0].began) * (1.0 - share) / now
            text += f", about {_duration(left)} left"
        return f"{text}; {', '.join(map(str, stages[:2]))}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


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


@contextmanager
def shown(
    what: str, *, show: bool = True, lines: bool = False, patience: float = 2.0, every: float = 30.0
) -> Iterator[None]:
    """Show the progress of the loops in the block on standard error.

    On a terminal one line appears after `patience` seconds and is updated. With `lines`, output
    that is not a terminal gets a line every `every` seconds. A block inside another adds nothing.
    """
    terminal = sys.stderr.isatty()
    if not show or _watched is not None or not (terminal or lines):
        yield
        return
    started, end = time.monotonic(), threading.Event()

    def line() -> str:
        return watcher.line(what, time.monotonic() - started)

    def display() -> None:
        if not terminal:
            while not end.wait(every):
                print(f"recal: {line()}", file=sys.stderr, flush=True)
        elif not end.wait(patience):
            from rich.console import Console
            from rich.text import Text

            with Console(stderr=True, highlight=False).status(what) as status:
                while not end.wait(0.25):
                    status.update(Text(line(), no_wrap=True, overflow="ellipsis"))

    with watching() as watcher:
        thread = threading.Thread(target=display, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


@contextmanager
def counting(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished items.

    `done` items were finished by an earlier run.
    """
    watcher = _watched
    if watcher is None or watcher.thread != threading.get_ident():
        yield lambda count: None
        return
    stage = Stage(what, total, done, done)

    def advance(count: int) -> None:
        stage.done += count

    watcher.stages.append(stage)
    try:
        yield advance
    finally:
        watcher.stages.remove(stage)


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield `items`, and report the progress if a watcher watches this thread.

    `total` is the number of items, if they have no length or may end early.
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else 1
    with counting(what, total) as advance:
        for item in items:
            yield item
            advance(1)
