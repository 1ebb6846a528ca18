"""Run a kernel over the rows on all cores.

Plain threads over kernels that release the interpreter, rather than numba's own parallel loops: these compile four
times faster, start nothing at import, may be called from several threads at once and survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from recal.engine.kernels.mapped import PIECE_VALUES, MappedRows

# Below this many values a second thread costs more than it gives.
_WORTH_A_THREAD = 60_000
# A matrix product with at least this many multiplications is worth a second thread.
WORTH_THREADS = 200_000_000
# How many rows of a mapped array are picked before their memory is given back.
_PICKED = 500


def thread_count() -> int:
    """The number of threads in use: RECAL_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use."""
    for name in ("RECAL_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _workers(process: int, count: int) -> ThreadPoolExecutor:
    # The process id is part of the key because threads do not survive a fork.
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix="recal")


def over_rows(kernel: Callable[..., None], rows: Any, *arguments: Any, size: int | None = None) -> None:
    """Call kernel(rows, start, stop, *arguments) so that all rows are covered once.

    `size` is how many values the kernel reads, where that is not what `rows` holds.
    """
    count = len(rows)
    work = rows.size if size is None else size
    mapped = [value for value in (rows, *arguments) if isinstance(value, MappedRows)]
    if not mapped:
        _over_part(kernel, (rows, *arguments), 0, count, work)
        return
    plain = tuple(value.view(np.ndarray) if isinstance(value, MappedRows) else value for value in (rows, *arguments))
    # Rows that are picked here and there each bring their neighbours with them: 64 kB, or several times that.
    most = count if isinstance(rows, MappedRows) else _PICKED
    pieces = max(1, min(count, -(-work // PIECE_VALUES)), -(-count // most))
    for start, stop in pairwise([count * piece // pieces for piece in range(pieces + 1)]):
        _over_part(kernel, plain, start, stop, work // pieces)
        for value in mapped:
            value.release()


def _over_part(kernel: Callable[..., None], arguments: tuple[Any, ...], first: int, last: int, work: int) -> None:
    rows, *others = arguments
    threads = 1 if work < 2 * _WORTH_A_THREAD else min(thread_count(), work // _WORTH_A_THREAD, last - first)
    if threads <= 1:
        kernel(rows, first, last, *others)
        return
    edges = [first + (last - first) * part // threads for part in range(threads + 1)]
    pool = _workers(os.getpid(), thread_count())
    jobs = [pool.submit(kernel, rows, start, stop, *others) for start, stop in pairwise(edges[1:])]
    kernel(rows, edges[0], edges[1], *others)
    for job in jobs:
        job.result()


@lru_cache(maxsize=1)
def _libraries() -> Any:
    # Finding the libraries takes a millisecond, setting their threads takes microseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(multiplications: int = 0) -> Iterator[None]:
    """Keep matrix products on one thread unless they have very many multiplications.

    numpy's products take every core, also for small matrices, where threads wait for memory and for each other: a fit
    of 3,000 x 300 took twice the CPU and no less time.
    """
    if multiplications >= WORTH_THREADS:
        yield
        return
    with _libraries().limit(limits=1, user_api="blas"):
        yield
