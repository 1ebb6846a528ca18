"""The penalty of raps, chosen on a part of the labelled samples that the limit is then not made from.

A score must be fixed before the samples that its limit comes from are looked at; else the coverage would not hold. So a
random part of the samples chooses the score whose sets are smallest, and the others make the limit, as Angelopoulos,
Bates, Malik and Jordan (2021) do.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Rows = NDArray[np.intp]

# What is tried: a penalty of 0 is aps.
PENALTIES = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
FREE_RANKS = (1, 2, 5)
# The part that chooses, and at most so many rows of it.
_PART = 0.2
_MOST = 2_000
# Fewer rows than this choose by luck.
_FEWEST = 50


def parted(n_samples: int, coverage: float) -> tuple[Rows, Rows]:
    """The rows that choose the penalty and those that make the limit, at random; no rows choose where they are few."""
    order = np.random.default_rng(0).permutation(n_samples)
    size = min(int(_PART * n_samples), _MOST)
    if size < max(_FEWEST, needed(coverage)):
        size = 0
    return np.sort(order[:size]), np.sort(order[size:])


def smallest(scores: Matrix, ranks: Matrix, labels: Rows, coverage: float) -> tuple[float, int]:
    """The penalty and the free ranks that give the smallest sets on average; of equal ones the mildest."""
    rows = np.arange(len(labels))
    found = []
    for penalty in PENALTIES:
        for free in FREE_RANKS if penalty else FREE_RANKS[:1]:
            penalised = scores + penalty * np.maximum(ranks - free, 0)
            kept = penalised <= limit(penalised[rows, labels], coverage)
            found.append((float(kept.sum(axis=1).mean()), penalty, free))
    _, penalty, free = min(found, key=lambda one: one[0])
    return penalty, free


def needed(coverage: float) -> int:
    """The fewest scores that have a finite limit."""
    return math.ceil(coverage / (1.0 - coverage) - 1e-9)


def limit(scores: Vector, coverage: float) -> float:
    """The k-th smallest score, k = ceil((n + 1) coverage): a new score is at most that with this probability."""
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)  # 10 x 0.9 is meant as 9
    return float(np.partition(scores, rank - 1)[rank - 1]) if rank <= len(scores) else math.inf
