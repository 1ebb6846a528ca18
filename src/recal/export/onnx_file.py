"""ONNX files: a model with its calibration, or the calibration alone (of logits or signals)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recal.calibrators.signals import SignalCalibration
from recal.checks import is_single_column, looks_like_probabilities
from recal.decisions.decision import Decision
from recal.decisions.rule import DecisionRule
from recal.errors import InputError, in_both
from recal.export import network
from recal.export import traced_functions as xp
from recal.export.calibration import Calibration, calibration_of
from recal.export.network import NetworkPart, sizes
from recal.export.tracer import OPEN, Graph, Shape, Symbol, dtype_of, onnx
from recal.files.paths import replacing
from recal.maps.base import wide
from recal.maps.guard import bounded, guarded
from recal.maps.steps import Plan
from recal.transforms import BuiltIn, Transform
from recal.transforms.arrays import dtype_name
from recal.transforms.preprocessing import (
    Normalize,
    Outputs,
    check_outputs,
    least_probability,
    match_outputs,
    match_preprocess,
)


def export_onnx(
    model: Any,
    example: Any = None,
    path: str | os.PathLike[str] = "calibrated.onnx",
    *,
    plan: Plan | Any = None,
    preprocess: Callable[[Any], Any] | None = None,
    outputs: Outputs | None = None,
    accept: DecisionRule | None = None,
) -> Path:
    """Write a model with its transformations and its calibration to one ONNX file.

    Parameters
    ----------
    model : CalibratedModule, torch.nn.Module, path of an ONNX file, or SignalCalibration
        A CalibratedModule has its own calibration and preprocessing. A fixed batch size of an ONNX
        file is made variable if predictions stay the same. A SignalCalibration needs only `path`;
        its file reads `signals` and returns `confidence`.
    example : array or tensor of shape (n, ...)
        A batch of inputs as the file will get them; only its shape (without n) and dtype matter.
        Not needed if the calibrator knows the inputs of its views, or if an ONNX model has a fixed
        input shape.
    path : where to write
    plan : Plan, or a fitted calibrator
        Any of recal's methods.
    preprocess : callable, optional
        Runs after the transformations and before the model: a `Normalize`, or for a torch module
        any torch operations. The default, also for `outputs`, is what the calibrator's views were
        collected with; a contradiction is refused.
    outputs : {"logits", "probabilities", "votes"}, optional
        What the model returns, as in `recal.collect`; logits by default.
    accept : DecisionRule, optional
        Which predictions to accept; by default the calibrator's `decision_`.

    Returns
    -------
    The path. The file has one input, `inputs`, with any number of rows. Its outputs are `probs` (n,
    n_classes), `prediction` (n,), the index of the class (-1 for NaN), `confidence` (n,), the
    chance that it is right, as `predict_confidence` gives it, `passes` (n,), the number of forward
    passes of each row, `accept` (n,) if there is a rule, and `logits` (n, n_classes), the model's
    own, for a watch. If the plan has a gate, views are computed only for the rows below it, unless
    the model cannot take an empty batch.

    The file's metadata holds, as JSON: `recal_classes`, `recal_transforms`, `recal_thresholds`,
    `recal_risk`, `recal_groups` and `recal_preprocessing`, as far as they are known.

    Examples
    --------
    >>> import tempfile, torch
    >>> from recal import CalibratedModule, Plan, export_onnx
    >>> calibrated = CalibratedModule(torch.nn.Linear(4, 3), Plan(start=0.5))
    >>> export_onnx(calibrated, torch.rand(1, 4), tempfile.mkdtemp() + "/model.onnx").name
    'model.onnx'
    """
    if isinstance(model, SignalCalibration):
        # A SignalCalibration has no example, so the path may be the second argument.
        return export_signals(model, example if isinstance(example, str | os.PathLike) else path)
    if outputs is not None:
        check_outputs(outputs)
    is_file = isinstance(model, str | os.PathLike)
    if not is_file:
        from recal.export.torch_module import OwnLogits, as_onnx, parts_of

        model, plan, preprocess = parts_of(model, plan, preprocess)
    stored = getattr(plan, "preprocessing_", None)
    preprocess, outputs = match_preprocess(stored, preprocess), match_outputs(stored, outputs)
    calibration = calibration_of(plan)
    transforms = calibration.map.transforms
    _check_traceable(transforms)
    if example is None and stored is not None and stored.shape is not None:
        example = np.zeros((1, *stored.shape), stored.dtype)
    if is_file:
        own = network.read_model(model)
        shape, dtype = network.input_form(own) if example is None else _batch_form(example)
    elif example is None:
        raise InputError(
            "A torch model is exported with an example input: pass a batch such as torch.rand(1, "
            "3, 32, 32)."
        )
    else:
        own = network.as_part(as_onnx(OwnLogits(model, preprocess), example), "logits")
        preprocess, (shape, dtype) = None, _batch_form(example)
    if transforms and OPEN in shape[1:]:
        raise InputError(
            f"The model's input {own.input.name!r} leaves its shape open: pass an example batch "
            "(--shape)."
        )
    own, before = _prepared(own, preprocess, shape, dtype)
    n_classes = _classes_of(own)
    calibration.check_classes(n_classes)
    rule = _rule(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    gated = None if calibration.map.gate is None else _gateable(own)
    file = _File(
        gated or own, before, calibration, n_classes, outputs, shape, dtype, rule, gated is not None
    )
    return write(file.run(), path, metadata(plan, transforms, rule))


@dataclass(frozen=True)
class _File:
    """The pieces of a file: functions from inputs to logits, and the calibration.

    If `gated`, views are computed only for the rows that need them, with the same answers.
    """

    network: NetworkPart
    before: Sequence[Callable[[Symbol], Symbol]]
    calibration: Calibration
    n_classes: int
    outputs: Outputs
    shape: Shape
    dtype: str
    rule: DecisionRule | None
    gated: bool

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self.calibration.map.transforms

    def run(self) -> onnx.ModelProto:
        """Return the model after a trial on random rows, if the shape of the rows is known."""
        opsets, version = network.versions_of(self.network)
        inputs = Graph(opsets[""]).input("inputs", self.dtype, self.shape)
        results = self._results(*self._answers(inputs))
        whole = inputs.device.model([inputs], results, opsets, version)
        is_known = len(self.shape) > 1 and OPEN not in self.shape[1:]
        rows = network.random_rows(2, self.shape[1:], self.dtype) if is_known else None
        found = network.run_model(whole, inputs.name, rows)
        if is_known and self.outputs == "logits" and looks_like_probabilities(found["logits"]):
            how = in_both(outputs="probabilities")
            raise InputError(
                "The model ends in a softmax: it gives probabilities, and logits are needed",
                remedy=f"Export it without its softmax, or say {how}, as when the views were "
                "collected",
            )
        return whole

    def _logits(self, rows: Symbol) -> Symbol:
        """Return the model's logits for rows."""
        rows = self.network(_prepared_rows(self.before, rows))
        if is_single_column(sizes(self.network.output)):  # that of the second of two classes
            second = rows.reshape((OPEN, 1))
            first = second - second if self.outputs == "logits" else 1 - second
            rows = xp.concat([first, second], axis=1)
        if self.outputs != "logits":
            rows = xp.log(xp.maximum(rows, least_probability(self.outputs, self.n_classes)))
        return rows

    def _answers(self, inputs: Symbol) -> tuple[Symbol, Symbol, Symbol]:
        """Return the logits of the originals, the map's own float64 probabilities, and the passes
        of each row.
        """
        fitted, shape = self.calibration.map, (len(self.transforms), OPEN, self.n_classes)
        if not self.gated:
            rows = [inputs, *(transform(inputs) for transform in self.transforms)]
            stack = self._logits(xp.concat(rows) if len(rows) > 1 else inputs)
            layers = _layers(stack.reshape((1 + shape[0], *shape[1:])))
            passes = xp.argmax(layers[0], axis=1) * 0 + len(layers)
            return layers[0], fitted.probs(wide(layers[0]), list(map(wide, layers[1:]))), passes
        logits = self._logits(inputs)
        is_below = fitted.needs_views(wide(logits))
        above = fitted.probs(wide(logits))
        # Gather the rows below the gate, run them with their views, and put their probabilities
        # back.
        rows = is_below.op("NonZero", shape=(1, OPEN), dtype="int64").reshape((OPEN,))
        some = inputs[rows]
        stack = self._logits(xp.concat([transform(some) for transform in self.transforms]))
        views = _layers(wide(stack.reshape(shape)))
        below = fitted.probs(wide(logits[rows]), views)
        probs = above.op("ScatterND", rows[:, None], below, shape=above.shape)
        return logits, probs, is_below.long() * shape[0] + 1

    def _results(self, logits: Symbol, own: Symbol, passes: Symbol) -> dict[str, Symbol]:
        """Return the outputs by name."""
        calibration = self.calibration
        probs, confidence = guarded(calibration.map, own, wide(logits), kept=calibration.kept)
        answer, unknown = xp.argmax(probs, axis=1), xp.isnan(confidence.float())
        results = {"probs": bounded(probs.float()), "prediction": xp.where(unknown, -1, answer)}
        results |= {"confidence": bounded(confidence.float()), "passes": passes}
        if self.rule is not None:
            limits, read = np.asarray(self.rule.thresholds), confidence
            if self.rule.reads != "confidence":
                read = xp.take_along_axis(probs, answer[:, None], axis=1)[:, 0]
            results["accept"] = read >= (limits[0] if len(limits) == 1 else xp.take(limits, answer))
        # The model's own logits come last; a watch compares them with those of the fit.
        return results | {"logits": logits.float()}


def _batch_form(batch: Any) -> tuple[Shape, str]:
    """Return the shape and the dtype of such batches, of any number of rows."""
    return (OPEN, *(int(size) for size in batch.shape[1:])), dtype_name(batch)


def _prepared_rows(steps: Sequence[Callable[[Symbol], Symbol]], rows: Symbol) -> Symbol:
    for step in steps:
        rows = step(rows)
    return rows


def _layers(stack: Symbol) -> list[Symbol]:
    return [stack[number] for number in range(stack.shape[0])]


def _gateable(own: NetworkPart) -> NetworkPart | None:
    """Return the network in a form that takes an empty batch; None if there is none."""
    empty = network.random_rows(0, sizes(own.input)[1:], dtype_of(own.input))
    for one in (own, network.fix_reshapes(own)):
        with suppress(InputError):
            network.run_model(one.model, one.input.name, empty)
            return one
    return None


def _rule(accept: Any, n_classes: int) -> DecisionRule | None:
    """Return the rule of a file, which has one threshold or one for each class."""
    rule = accept.rule if isinstance(accept, Decision) else accept
    if rule is not None and (
        not isinstance(rule, DecisionRule)
        or rule.groups
        or len(rule.thresholds) not in (1, n_classes)
    ):
        raise InputError(
            f"is a DecisionRule with one threshold or one for each of {n_classes} classes, got "
            f"{rule!r}",
            argument="accept",
        )
    return rule


def _prepared(
    own: NetworkPart, preprocess: Any, shape: Shape, dtype: str
) -> tuple[NetworkPart, list[Callable[[Symbol], Symbol]]]:
    """Return the network for any number of rows, and what comes before it in the file."""
    if preprocess is not None and not isinstance(preprocess, Normalize):
        raise InputError(
            "is a Normalize for an ONNX file, which cannot hold your own code",
            argument="preprocess",
            remedy="Make it part of the model, and export that again",
        )
    before: list[Callable[[Symbol], Symbol]] = [] if preprocess is None else [preprocess]
    inner = _prepared_rows(before, Graph().input("inputs", dtype, shape)).shape[1:]
    declared = sizes(own.input)
    if len(inner) == 2 and len(declared) == 4:  # grey images without an axis of channels
        axis = 1 if declared[1] == 1 else 3
        before.append(lambda rows: xp.expand_dims(rows, axis=axis))
        inner = (1, *inner) if axis == 1 else (*inner, 1)
    return network.open_batch(own, inner), before


def _classes_of(part: NetworkPart) -> int:
    shape = sizes(part.output)
    if is_single_column(shape):
        return 2
    if len(shape) != 2 or shape[1] < 2:
        raise InputError(
            "The model must give logits of the shape (n, n_classes) with known n_classes, got "
            f"{shape}."
        )
    return shape[1]


def _check_traceable(transforms: tuple[Transform, ...]) -> None:
    for transform in transforms:
        if not isinstance(transform, BuiltIn) or not transform.traceable:
            raise InputError(
                f"{str(transform)!r} cannot be written as ONNX operations. Calibrate with others "
                "(such as zoom, brightness, contrast, blur, flip, shift), or export the "
                "calibration alone and compute the views yourself."
            )


# --- files without a model


def export_calibration(
    plan: Plan | Any, path: str | os.PathLike[str], n_classes: int | None = None
) -> Path:
    """Write only the calibration: from logits to calibrated probabilities.

    Parameters
    ----------
    plan : Plan, or a fitted calibrator
    path : where to write
    n_classes : int, needed for a plan because it does not know its classes

    Returns
    -------
    The path. The file's inputs are `logits` (n, n_classes) and, if views are needed, `transformed`
    (m, n, n_classes), the logits through ``plan.transforms`` in that order, both float32. Its
    outputs are `probs` and `confidence`, the chance that each prediction is right. Views of samples
    above a plan's gate are not read.
    """
    calibration = calibration_of(plan)
    classes = n_classes if n_classes is not None else len(getattr(plan, "classes_", ()))
    if not classes:
        raise InputError("A plan does not know how many classes there are: pass n_classes.")
    rule = getattr(plan, "decision_", None)
    rule = getattr(rule, "rule", rule)  # of a Decision
    facts = metadata(plan, calibration.map.transforms, rule)
    return write(calibration_model(calibration, int(classes)), path, facts)


def calibration_model(calibration: Calibration, n_classes: int) -> onnx.ModelProto:
    """Return the ONNX model that `export_calibration` writes."""
    calibration.check_classes(n_classes)
    graph, n_views = Graph(), len(calibration.map.transforms)
    inputs = [graph.input("logits", "float32", (OPEN, n_classes))]
    if n_views:
        inputs.append(graph.input("transformed", "float32", (n_views, OPEN, n_classes)))
    probs, confidence = calibration.answer(inputs[0], _layers(inputs[1]) if n_views else [])
    outputs = {"probs": bounded(probs.float()), "confidence": bounded(confidence.float())}
    return graph.model(inputs, outputs)


def export_signals(calibration: SignalCalibration, path: str | os.PathLike[str]) -> Path:
    """Write a fitted SignalCalibration to one ONNX file.

    The input `signals` is (n, n_signals) float64, with NaN for missing signals. Columns of text and
    groups hold codes: the position of the level among the levels of the fit, and NaN for any other
    level. The file's metadata `recal_signals` lists the levels as JSON. The output `confidence`
    (n,) is the probability that each answer is right.
    """
    calibration.state()  # refuses one that is not fitted
    table, graph = calibration.table_, Graph()
    signals = graph.input("signals", "float64", (OPEN, len(table.names)))
    model = graph.model([signals], {"confidence": calibration.map_.confidence(signals)})
    onnx.checker.check_model(model, full_check=True)
    columns = [
        {"name": name, "levels": list(levels)} for name, levels in zip(table.names, table.levels)
    ]
    return write(model, path, {"signals": columns})


def metadata(source: Any, transforms: tuple[Transform, ...], rule: Any) -> dict[str, Any]:
    """Return what a service needs besides the graph: class names, thresholds, preprocessing."""
    stored = getattr(source, "preprocessing_", None)
    values: dict[str, Any] = {"transforms": [str(transform) for transform in transforms]}
    if (classes := getattr(source, "classes_", None)) is not None:
        values["classes"] = np.asarray(classes).tolist()
    if rule is not None:
        limits = [None if np.isinf(limit) else float(limit) for limit in rule.thresholds]
        values |= {"thresholds": limits, "risk": rule.risk, "groups": list(rule.groups) or None}
    if stored is not None:
        values["preprocessing"] = stored.as_json()
    return {name: value for name, value in values.items() if value is not None}


def write(model: onnx.ModelProto, path: str | os.PathLike[str], facts: dict[str, Any]) -> Path:
    """Write a model, with facts in its metadata as JSON."""
    for name, value in facts.items():
        model.metadata_props.add(key=f"recal_{name}", value=json.dumps(value))
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
