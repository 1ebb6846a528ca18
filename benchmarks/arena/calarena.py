"""A plug-in for the public benchmark CalArena.

In a clone of CalArena, `custom_calibrators.py` becomes two lines (with this repository on
PYTHONPATH):

    from benchmarks.arena.calarena import calibrators
    CUSTOM_CALIBRATORS = calibrators()

and `python run_benchmark.py --benchmark tabrepo-binary --calibrator recal-auto` runs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators import find_method

Probs = NDArray[np.float64]
SMALLEST = 1e-12


def as_columns(probs: ArrayLike) -> Probs:
    """Return (n, K) probabilities; (n,) and (n, 1) are those of the second of two classes."""
    given = np.asarray(probs, np.float64)
    if given.ndim == 2 and given.shape[1] > 1:
        return given
    positive = given.reshape(-1)
    return np.stack([1 - positive, positive], axis=1)


class RecalCalibrator:
    """One of recal's methods behind CalArena's interface: `fit(probas, labels)` and
    `predict_proba(probas)`.

    Parameters
    ----------
    method : a method's short name, such as `auto`, `ensemble` or `sms`
    answers : "free" or "kept"
        "free" lets the most probable class change, as CalArena's own methods do.

    Examples
    --------
    >>> from benchmarks.arena.calarena import RecalCalibrator
    >>> model = RecalCalibrator("ts").fit(np.array([0.9, 0.8, 0.3, 0.4]), np.array([1, 0, 0, 1]))
    >>> model.predict_proba(np.array([0.9])).shape
    (1, 2)
    """

    def __init__(self, method: str = "auto", answers: str = "free") -> None:
        self.method, self.answers = method, answers

    def fit(self, probas: ArrayLike, labels: ArrayLike) -> Self:
        family, fixed = find_method(self.method)
        if "answers" in family().get_params():
            fixed = {"answers": self.answers} | fixed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # small sets are part of the benchmark
            self.calibrator_ = family(**fixed).fit(
                _logits(probas), np.asarray(labels).reshape(-1).astype(np.intp)
            )
        return self

    def predict_proba(self, probas: ArrayLike) -> Probs:
        return self.calibrator_.predict_proba(_logits(probas))


def _logits(probas: ArrayLike) -> Probs:
    return np.log(np.maximum(as_columns(probas), SMALLEST))


def calibrators() -> dict[str, Callable[[], RecalCalibrator]]:
    """Return what CalArena's `CUSTOM_CALIBRATORS` takes: names and functions that make a
    calibrator.
    """
    return {f"recal-{name}": partial(RecalCalibrator, name) for name in ("auto", "ensemble")}
