"""What an exported model does with logits: a map, and whether predictions are kept. Needs neither torch nor onnx."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from recal.calibrators.base import Calibrator
from recal.errors import InputError
from recal.maps.base import Array, Map, Views
from recal.maps.guard import answer
from recal.maps.plan import Plan, plan_of
from recal.transforms import Transform


@dataclass(frozen=True)
class Calibration:
    """A map, and whether predictions stay the model's own."""

    map: Map
    kept: bool
    n_classes: int | None = None

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.map.transforms

    @property
    def gate(self) -> float | None:
        """The confidence from which on no view is computed; None if views are computed for all samples or for none."""
        return getattr(self.map, "gate", None)

    def with_gate(self, gate: float | None) -> Calibration:
        """Return the same calibration with another gate; None computes the views of all samples."""
        return replace(self, map=self.map.with_gate(gate))  # type: ignore[attr-defined]

    def answer(self, z: Array, views: Views) -> tuple[Array, Array]:
        """Return probabilities, (n, n_classes), and the confidence in each prediction, (n,); for any kind of array."""
        return answer(self.map, z, views, kept=self.kept)

    def check_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that a classifier, or this calibration, cannot have."""
        if n_classes < 2:
            raise InputError(f"A classifier has at least two classes, got {n_classes}.")
        self.map.check_classes(n_classes)
        if self.n_classes not in (None, n_classes):
            raise InputError(f"The calibration was fitted on {self.n_classes} classes, got {n_classes}.")

    def describe(self) -> str:
        """Return the shape of the calibration in a few words."""
        if not isinstance(self.map, Plan):
            return type(self.map).__name__
        steps = len(self.map.steps)
        return "a blend" if self.map.blend is not None else f"{steps} step{'' if steps == 1 else 's'}"


def calibration_of(source: Any) -> Calibration:
    """Return what a plan or a fitted calibrator does."""
    if isinstance(source, Calibration):
        return source
    if isinstance(source, Calibrator) and hasattr(source, "classes_"):
        if not isinstance(getattr(source, "map_", None), Map):
            raise InputError(
                f"{type(source).__name__} has no map_ (recal.maps.base.Map), so only Python can run it",
                remedy="Set map_ in its fit, or use one of recal's own methods",
            )
        return Calibration(source.map_, bool(source.keeps_accuracy), len(source.classes_))
    plan = plan_of(source)
    return Calibration(plan, plan.keeps_answers)
