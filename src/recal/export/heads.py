"""What an exported file does with logits: replay a plan, or map them as a method without a plan does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recal.calibrators.base import Calibrator
from recal.calibrators.ensemble.ensemble import CalibrationEnsemble
from recal.errors import InputError
from recal.export.blend import keep_answers
from recal.export.graph import DOUBLE, FLOAT, Nodes, model_of, onnx, tensor
from recal.export.methods import check_exportable, method_probs, mixture
from recal.export.plan import check_classes, plan_probs
from recal.plan import Plan, plan_of
from recal.transforms import Transform


@dataclass(frozen=True)
class Head:
    """A plan, a fitted calibrator that has none, or an ensemble, whose plan reads what its members answer."""

    plan: Plan | None
    calibrator: Calibrator | None = None

    @property
    def transforms(self) -> tuple[Transform, ...]:
        if self.plan is not None:
            return self.plan.transforms
        return () if self.calibrator is None else self.calibrator.needed_transforms()

    @property
    def gated(self) -> Plan | None:
        """The plan, where it has a gate that spares samples their views."""
        blend = None if self.plan is None else self.plan.blend
        return self.plan if blend is not None and blend.gate is not None and blend.weights else None

    @property
    def keeps_answers(self) -> bool:
        """Whether the answer is always the model's own."""
        if self.plan is not None:
            return self.plan.blend is None or self.plan.blend.answers == "kept"
        return self.calibrator is not None and bool(self.calibrator.keeps_accuracy)

    def check_classes(self, n_classes: int) -> None:
        """Refuse a number of classes that a classifier, or this calibration, cannot have."""
        check_classes(self.plan or Plan(), n_classes)
        if self.calibrator is not None and len(self.calibrator.classes_) != n_classes:
            name, fitted = type(self.calibrator).__name__, len(self.calibrator.classes_)
            raise InputError(f"This {name} was fitted on {fitted} classes, got {n_classes}.")

    @property
    def guarded(self) -> bool:
        """Whether answers that the map finds unlikely are lifted to the top."""
        if self.plan is not None:
            return self.plan.unguarded is not self.plan
        return self.keeps_answers and hasattr(self.calibrator, "answers")

    def answer(self, g: Nodes, own: str, logits: str, n_classes: int) -> tuple[str, str, str]:
        """Return probabilities, (n, K), the answer's index and the confidence in it, both (n, 1), from the map's own
        probabilities, float64."""
        probs = keep_answers(g, own, logits, n_classes) if self.guarded else own
        answer = g.op("ArgMax", logits if self.keeps_answers else probs, axis=1, keepdims=1)
        return probs, answer, g.op("GatherElements", own, answer, axis=1)

    def own_probs(self, g: Nodes, logits: str, transformed: str, n_classes: int) -> str:
        """Return the map's own probabilities, (n, K) float64, before any guard, from logits, (n, K), and those of all
        views, (m, n, K)."""
        if self.plan is not None:
            return plan_probs(g, logits, transformed, self.plan, n_classes, self.mixed(g, logits, n_classes))
        assert self.calibrator is not None
        return method_probs(g, logits, transformed, self.calibrator, n_classes)

    def mixed(self, g: Nodes, logits: str, n_classes: int) -> str:
        """Return what an ensemble's mixture gives, (n, K) float64; nothing where it is no part of the plan."""
        if self.calibrator is None or self.plan is None:
            return ""
        return mixture(g, g.cast(logits, DOUBLE), self.calibrator, n_classes)


def head_of(source: Any) -> Head:
    """Return what a plan or a fitted calibrator does; of a calibrator that chose among others, what was chosen."""
    while isinstance(getattr(source, "calibrator_", None), Calibrator):
        source = source.calibrator_
    if isinstance(source, CalibrationEnsemble) and hasattr(source, "plan_"):
        return Head(source.plan_, source)
    if isinstance(source, Calibrator) and not hasattr(source, "plan_") and hasattr(source, "classes_"):
        check_exportable(source)
        return Head(None, source)
    return Head(plan_of(source))


def head_model(head: Head, n_classes: int) -> onnx.ModelProto:
    """Return an ONNX model from logits to calibrated probabilities.

    Its inputs are `logits` (n, n_classes) and, where views are needed, `transformed` (m, n, n_classes), the logits
    through each of ``head.transforms`` in that order; its outputs are `probs` (n, n_classes) and `confidence` (n,), all
    float32.
    """
    head.check_classes(n_classes)
    graph, n_views = Nodes(), len(head.transforms)
    own = head.own_probs(graph, "logits", "transformed", n_classes)
    probs, _, confidence = head.answer(graph, own, "logits", n_classes)
    graph.rename(graph.cast(probs, FLOAT), "probs")
    graph.rename(graph.cast(graph.op("Squeeze", confidence, graph.const([1])), FLOAT), "confidence")
    inputs = [tensor("logits", FLOAT, ["batch", n_classes])]
    if n_views:
        inputs.append(tensor("transformed", FLOAT, [n_views, "batch", n_classes]))
    outputs = [tensor("probs", FLOAT, ["batch", n_classes]), tensor("confidence", FLOAT, ["batch"])]
    return model_of(graph, inputs, outputs)
