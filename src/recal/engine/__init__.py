"""Compile loops with numba, load them when they are needed, and run them over rows on all cores.

Kernel modules import numba, which takes longer than a command that reads a file and predicts.
Therefore ``from recal.engine import rows`` gives a stand-in that imports the module when one of its
kernels is first used. Other modules refer to a kernel through its module, as ``rows.fill_softmax``;
kernels import each other by name.

A first fit waits for its kernels, so each is compiled once and kept on disk, without an entry for C
callers. Division by zero gives the same result as in numpy; otherwise loops that divide would not
be vectorised.

Kernels run on plain threads and release the interpreter. numba's own parallel loops would take four
times as long to compile, start threads at import and fail after a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

# Below this many values numpy is used: it finishes before a compiler has been loaded.
SMALL = 100_000
# Sums may be reordered to use vector instructions; the order depends on the number of classes
# alone.
FAST = {"reassoc", "contract", "nsz"}


def kernel(*function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function, or return a decorator that compiles it."""
    from numba import njit

    return njit(
        *function, cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options
    )


def part_of_kernel(*function: Callable[..., Any], **options: Any) -> Any:
    """Do the same for a function that only other kernels call."""
    return kernel(*function, no_cpython_wrapper=True, **options)


def thread_count() -> int:
    """Return the number of threads to use: RECAL_NUM_THREADS, else OMP_NUM_THREADS, else the cores
    that this process may use.
    """
    for name in ("RECAL_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _workers(process: int, count: int) -> ThreadPoolExecutor:
    # The process id is part of the key because threads do not survive a fork.
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix="recal")


def over_rows(
    kernel: Callable[..., None], rows: Any, *arguments: Any, size: int | None = None
) -> None:
    """Call kernel(rows, start, stop, *arguments) so that all rows are covered once.

    `size` is how many values the kernel reads, if that differs from the size of `rows`.
    """
    # Below about this many values a second thread costs more time than it saves.
    shares = (rows.size if size is None else size) // 60_000
    threads = min(thread_count(), shares, len(rows)) if shares > 1 else 1
    if threads == 1:
        kernel(rows, 0, len(rows), *arguments)
        return
    edges = [len(rows) * part // threads for part in range(threads + 1)]
    pool = _workers(os.getpid(), thread_count())
    jobs = [
        pool.submit(kernel, rows, start, stop, *arguments) for start, stop in pairwise(edges[1:])
    ]
    kernel(rows, edges[0], edges[1], *arguments)
    for job in jobs:
        job.result()


def row_blocks(n_rows: int, width: int, values: int = 1_000_000) -> Iterator[slice]:
    """Return slices that cover all rows of this width, about so many values each.

    A million values are a few megabytes: enough to be fast, and small enough for many arrays.
    """
    size = max(1, min(n_rows, values // width))
    return (slice(start, start + size) for start in range(0, n_rows, size))


@lru_cache(maxsize=1)
def _libraries() -> Any:
    # Finding the libraries takes a millisecond, setting their threads takes microseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(multiplications: int = 0) -> Iterator[None]:
    """Keep matrix products on one thread unless they have very many multiplications.

    numpy's products use every core, even for small matrices, where threads wait for memory and for
    each other: a fit of 3,000 x 300 used twice the CPU time and was no faster.
    """
    if multiplications >= 200_000_000:
        yield
        return
    with _libraries().limit(limits=1, user_api="blas"):
        yield


class _Module:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self.__name__ = f"{__name__}.{name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # later accesses skip __getattr__
        return value


def __getattr__(name: str) -> Any:
    if name not in ("images", "rows"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _Module(name)
