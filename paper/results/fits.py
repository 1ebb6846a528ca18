"""Fit every compared method on one part of the views and judge it on another."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.results.paper import COMPARED, Compared
from recal.calibrators.base import Calibrator
from recal.errors import ConvergenceWarning
from recal.maps.arrays import softmax
from recal.maps.guard import bounded, lift_answers
from recal.metrics import evaluate
from recal.transforms import Transform, pool
from recal.views import Views

# Where the paper prints ECE, Brier and error, we add what does not depend on bins.
METRICS = ("ece", "brier", "error_rate", "nll", "aurc")
_BOOTSTRAP = 1000


@dataclass(frozen=True)
class Protocol:
    """Which views a calibration is learnt from, and which it is judged on."""

    name: str
    fit: Views
    test: Views


def pool_of(method: Compared, seed: int) -> tuple[Transform, ...]:
    """Return the transformations that a method draws from; none for those that see the originals
    only.
    """
    return pool(method.pool, seed=seed) if method.pool else ()


def all_transforms(seed: int, methods: Iterable[Compared] = COMPARED) -> tuple[Transform, ...]:
    """Return every transformation of every pool once, so that each is computed once."""
    return tuple(
        dict.fromkeys(transform for method in methods for transform in pool_of(method, seed))
    )


def judge(
    method: Compared, protocol: Protocol, *, seed: int
) -> tuple[dict[str, Any], Calibrator | None]:
    """Fit and test one method; return plain values for a file, and the fitted calibrator.

    Learning time is CPU seconds of this process, after the compiled parts have been loaded.
    """
    transforms = pool_of(method, seed)
    fit, test = _with_pool(protocol.fit, transforms), _with_pool(protocol.test, transforms)
    said: list[str] = []
    seconds: float | None = None
    calibrator = None
    if method.build is None:
        probs = uncalibrated(test)
    else:
        _warm_up(method.name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            began = time.process_time()
            calibrator = method.build(seed).fit(fit)
            seconds = time.process_time() - began
        said = sorted(
            {
                str(warning.message)
                for warning in caught
                if issubclass(warning.category, ConvergenceWarning)
            }
        )
        probs = calibrator.predict_proba(test)
    assert test.labels is not None  # collected with them
    found = evaluate(probs, test.labels, bootstrap=_BOOTSTRAP)
    result = {
        "method": method.name,
        "protocol": protocol.name,
        "n_fit": fit.n_samples,
        "n_test": test.n_samples,
        "seconds": seconds,
        "metrics": {name: found[name] for name in METRICS},
        "intervals": {name: list(found.intervals[name]) for name in METRICS},
        "changed_predictions": int((probs.argmax(1) != test.logits.argmax(1)).sum()),
        "warnings": said,
    }
    return result, calibrator


def uncalibrated(views: Views) -> NDArray[np.float64]:
    """Return the network's own probabilities."""
    return lift_answers(bounded(softmax(views.logits)), views.logits.argmax(1)[:, None])


def _with_pool(views: Views, transforms: tuple[Transform, ...]) -> Views:
    return Views(
        views.logits,
        {transform: views.transformed(transform) for transform in transforms},
        views.labels,
    )


@cache
def _warm_up(name: str) -> None:
    """Fit once on next to nothing, so that compiling is not counted as learning."""
    method = next(method for method in COMPARED if method.name == name)
    assert method.build is not None
    rng = np.random.default_rng(0)
    labels: NDArray[np.intp] = np.arange(60) % 3
    logits = (rng.normal(0, 1, (60, 3)) + np.eye(3)[labels]).astype(np.float32)
    view = (logits + rng.normal(0, 1, (60, 3))).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sixty made-up samples are few, and nobody reads this fit
        method.build(0).fit(Views(logits, {"zoom:0.5": view}, labels))
