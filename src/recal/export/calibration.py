"""What an exported model does with logits.

This module needs neither torch nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recal.calibrators.base import Calibrator
from recal.errors import InputError
from recal.maps.base import Array, Map, ViewLogits
from recal.maps.guard import answer


@dataclass(frozen=True)
class Calibration:
    """A map, and whether the model's predictions are kept."""

    map: Map
    kept: bool
    n_classes: int | None = None

    def answer(self, z: Array, views: ViewLogits) -> tuple[Array, Array]:
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


def calibration_of(source: Any) -> Calibration:
    """Return the calibration of a plan or a fitted calibrator."""
    if isinstance(source, Map) and source.plan is not None:
        return Calibration(source.plan, source.plan.keeps_answers)
    if not isinstance(source, Calibrator):
        raise InputError(
            f"A Plan or a fitted calibrator of logits is needed, got {type(source).__name__}",
            remedy="A SignalCalibration is exported by export_onnx(calibration, path); panels and "
            "cascades of systems run in Python and in recal serve",
        )
    source._check_fitted()
    return Calibration(source.map_, bool(source.keeps_accuracy), len(source.classes_))
