"""What an exported model does with logits and probabilities.

This module needs neither torch nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.calibrators.base import Calibrator
from recal.decisions.sets import PredictionSets, content_uniforms
from recal.errors import InputError, NotFittedError
from recal.maps.arrays import is_at, take_along, top_column
from recal.maps.base import Array, Map, Views, like, namespace, wide
from recal.maps.blend import Blend
from recal.maps.guard import answer
from recal.maps.steps import Plan


@dataclass(frozen=True)
class Calibration:
    """A map, and whether the model's predictions are kept."""

    map: Map
    kept: bool
    n_classes: int | None = None

    def answer(self, z: Array, views: Views) -> tuple[Array, Array]:
        """Return probabilities, (n, n_classes), and the confidence in each prediction, (n,); for
        any kind of array.
        """
        return answer(self.map, z, views, kept=self.kept)

    def check_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that a classifier, or this calibration, cannot have."""
        if n_classes < 2:
            raise InputError(f"A classifier has at least two classes, got {n_classes}.")
        self.map.check_classes(n_classes)
        if self.n_classes not in (None, n_classes):
            raise InputError(
                f"The calibration was fitted on {self.n_classes} classes, got {n_classes}."
            )

    def describe(self) -> str:
        """Return the shape of the calibration in a few words."""
        if not isinstance(self.map, Plan):
            return "a blend" if isinstance(self.map, Blend) else type(self.map).__name__
        steps = len(self.map.steps)
        return f"{steps} step{'' if steps == 1 else 's'}"


def calibration_of(source: Any) -> Calibration:
    """Return the calibration of a plan or a fitted calibrator."""
    if isinstance(source, Calibration):
        return source
    if isinstance(source, Map) and source.plan is not None:
        return Calibration(source.plan, source.plan.keeps_answers)
    name = type(source).__name__
    if not isinstance(source, Calibrator):
        raise InputError(
            f"A Plan or a fitted calibrator of logits is needed, got {name}",
            remedy="A SignalCalibration is exported by export_onnx(calibration, path); panels and "
            "cascades of systems run in Python and in recal serve",
        )
    if not hasattr(source, "classes_"):
        raise NotFittedError(f"This {name} is not fitted yet; call fit(X, y) first.")
    if not isinstance(getattr(source, "map_", None), Map):
        raise InputError(
            f"{name} has no map_ (recal.maps.base.Map), so only Python can run it",
            remedy="Set map_ in its fit, or use one of recal's own methods",
        )
    return Calibration(source.map_, bool(source.keeps_accuracy), len(source.classes_))


def keep_classes(sets: PredictionSets, probs: Array) -> Array:
    """Return whether each class is in the set, (n, n_classes), as `PredictionSets.predict` does.

    Probabilities may be arrays of any library, such as torch tensors; the result is of the same
    kind.

    Examples
    --------
    >>> import torch
    >>> from recal.decisions import PredictionSets
    >>> from recal.export import keep_classes
    >>> keep_classes(PredictionSets("lac", 0.9, (0.7,)), torch.tensor([[0.6, 0.35, 0.05]])).tolist()
    [[True, True, False]]
    """
    sets.check_classes(probs.shape[1])
    z = wide(probs)
    xp = namespace(z)
    kept = _scores(sets, z) <= like(z, np.asarray(sets.limits))
    if sets.at_least_one:
        kept = kept | (is_at(z, top_column(z)) & ~xp.any(kept, axis=1, keepdims=True))
    return kept


def _scores(sets: PredictionSets, z: Array) -> Array:
    if sets.method == "lac":
        return 1.0 - z
    xp, n_classes = namespace(z), z.shape[1]
    order = xp.argsort(-z, axis=1, stable=True)
    falling = take_along(z, order, axis=1)
    scores = xp.cumulative_sum(falling, axis=1)
    if sets.randomised:
        plain = z.detach().cpu().numpy() if hasattr(z, "detach") else np.asarray(z)
        scores = scores - (1.0 - like(z, content_uniforms(plain)[:, None])) * falling
    if sets.method == "raps":
        beyond = np.maximum(np.arange(1, n_classes + 1) - sets.free_ranks, 0)
        scores = scores + like(z, sets.penalty * beyond)
    return take_along(scores, xp.argsort(order, axis=1), axis=1)
