"""Fair measurements: contestants take turns in one process, and the smallest of several CPU times
counts.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from recal import Views, read_views
from recal.comparison.results import markdown_table
from recal.engine import over_rows
from recal.errors import FileError, InputError


@dataclass(frozen=True)
class Ratio:
    """CPU seconds of recal and of another contestant for the same work."""

    part: str
    """The heading in tables, such as "Fits with 20 views"."""
    what: str
    """The work, with its size: "ts, 10,000 x 100"."""
    beside: str
    """The other contestant: "scikit-learn", "a float32 softmax in numpy", "a bare sum"."""
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def take_turns(
    contestants: dict[str, Callable[[], Any]], turns: int = 3, warm_up: bool = True
) -> dict[str, float]:
    """Run every contestant `turns` times, one after the other in each round; return the least CPU
    seconds of each.
    """
    if warm_up:
        for run in contestants.values():
            run()
    best = dict.fromkeys(contestants, np.inf)
    for _ in range(turns):
        for name, run in contestants.items():
            gc.collect()
            begin = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - begin)
    return best


def beside_recal(
    part: str,
    what: str,
    contestants: dict[str, Callable[[], Any]],
    turns: int = 3,
    warm_up: bool = True,
) -> list[Ratio]:
    """Measure the contestant "recal" beside each of the others."""
    best = take_turns(contestants, turns, warm_up)
    ours = best.pop("recal")
    return [Ratio(part, what, name, ours, theirs) for name, theirs in best.items()]


def made_up(n_samples: int, n_classes: int, n_views: int = 0, seed: int = 0) -> Views:
    """Return labelled views of an overconfident made-up model in float32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_samples)
    evidence = rng.standard_normal((n_samples, n_classes), dtype=np.float32)
    luck = rng.standard_normal(n_samples).astype(np.float32)
    evidence[np.arange(n_samples), y] += 1.0 + 0.5 * np.log(n_classes) + 1.5 * luck
    evidence *= 2.2
    views = {}
    for i in range(n_views):
        keep = np.float32(0.4 + 0.55 * i / n_views)
        noise = rng.standard_normal((n_samples, n_classes), dtype=np.float32)
        views[f"zoom:{0.1 + 0.01 * i:.2f}"] = evidence * keep + noise * (2 * (1 - keep))
    wrong = rng.random(n_samples) < 0.1
    y[wrong] = rng.integers(0, n_classes, int(wrong.sum()))
    return Views(evidence, views, y)


def real_views(paths: Iterable[Path]) -> Iterator[tuple[str, Views]]:
    """Yield name and views of the files that hold labelled views; others are named and left out."""
    for path in paths:
        try:
            views = read_views(path)
        except (FileError, InputError) as error:
            print(f"{path.name} is left out: {type(error).__name__}", file=sys.stderr)
            continue
        if views.labels is None:
            print(f"{path.name} is left out: it holds no labels", file=sys.stderr)
        else:
            yield path.stem, views


@njit(nogil=True, fastmath=True)
def _bare(values, start, stop, out):
    for i in range(start, stop):
        total = np.float32(0)
        for j in range(values.shape[1]):
            total += values[i, j]
        out[i] = total


def bare_sum(values: np.ndarray) -> Callable[[], None]:
    """The physical limit: add up every value once."""
    out = np.empty(len(values))
    return lambda: over_rows(_bare, values, out)


def describe(text: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a module's docstring."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def show(ratios: Callable[..., Iterable[Ratio]], text: str | None) -> None:
    """Measure one part on its own and print its table."""
    parser = describe(text)
    parser.add_argument("views", nargs="*", type=Path, help="files of logits")
    parser.add_argument("--small", action="store_true", help="small sizes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found = ratios(given.small, given.views) if given.views else ratios(given.small)
    rows = [
        [one.part, one.what, one.beside, f"{one.ours:.3g}", f"{one.theirs:.3g}", f"{one.ratio:.2f}"]
        for one in found
    ]
    head = ["part", "work", "beside", "recal, CPU s", "other, CPU s", "ratio"]
    print(*markdown_table(head, rows), sep="\n")
