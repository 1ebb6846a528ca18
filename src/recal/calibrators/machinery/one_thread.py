"""Matrix products on one thread where a second costs more than it gives.

numpy's matrix products take every core, also of small matrices and of a matrix with a vector, where threads wait for
memory and for each other: a fit of 3,000 x 300 took twice the CPU and no less time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

# Multiplications of one product from which on a second thread pays.
WORTH_THREADS = 200_000_000


@lru_cache(maxsize=1)
def _libraries() -> Any:
    # Looking for them takes a millisecond, setting their threads microseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread(multiplications: int = 0) -> Iterator[None]:
    """Keep products of no more than so many multiplications to one thread, here or as a decorator."""
    if multiplications >= WORTH_THREADS:
        yield
        return
    with _libraries().limit(limits=1, user_api="blas"):
        yield
