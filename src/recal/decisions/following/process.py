"""A Gaussian process over labelled sets: what is expected of a set whose statistics are known, and how well.

Far from every set it says "no change", which is the prior, and its variance there is that of the prior, 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# In units of the spread of each statistic over the sets of a fit, and of the prior's variance.
LENGTH = 2.0
NOISE = 0.05


class Process:
    """Gaussian process regression with one kernel for all outputs, exp(-d^2 / (2 LENGTH^2)).

    Parameters
    ----------
    places : array of shape (n_sets, n_statistics)
    changes : array of shape (n_sets, n_outputs)
        What is learned, as differences from the set of no change.
    noise : array of shape (n_sets,), optional
        The variance of each set's own noise, `NOISE` where not given.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions.following.process import Process
    >>> learned = Process(np.array([[0.0], [1.0]]), np.array([[0.0], [-1.0]]))
    >>> near, far = learned(np.array([[1.0], [50.0]]))[1]
    >>> bool(near < 0.1), float(far)
    (True, 1.0)
    """

    def __init__(self, places: Vector, changes: Vector, noise: Vector | None = None) -> None:
        self.places = places
        kernel = _kernel(places, places)
        kernel[np.diag_indices_from(kernel)] += NOISE if noise is None else noise
        self._root = np.linalg.cholesky(kernel)
        self._weights = np.linalg.solve(kernel, changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        """Return the expected changes, (n, n_outputs), and the variance of each place, (n,), in [0, 1]."""
        kernel = _kernel(places, self.places)
        explained = np.linalg.solve(self._root, kernel.T)
        return kernel @ self._weights, np.clip(1.0 - (explained**2).sum(axis=0), 0.0, 1.0)


class TwoReadings:
    """Two processes over the same sets, one of which does not see one statistic: the mix of answered classes.

    Damage makes a model answer few classes, and so do inputs of few classes, which are no damage. Of the two readings
    the one nearer to "no change" is taken.
    """

    def __init__(self, places: Vector, changes: Vector, *, hidden: int) -> None:
        self._hidden = hidden
        self._all, self._blind = Process(places, changes), Process(self._blinded(places), changes)

    def __call__(self, places: Vector) -> tuple[Vector, Vector]:
        (seen, variance), blind = self._all(places), self._blind(self._blinded(places))[0]
        nearer = np.abs(blind[:, :1]) < np.abs(seen[:, :1])
        return np.where(nearer, blind, seen), variance

    def _blinded(self, places: Vector) -> Vector:
        return np.delete(places, self._hidden, axis=1)


def _kernel(first: Vector, second: Vector) -> Vector:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * LENGTH**2)))
