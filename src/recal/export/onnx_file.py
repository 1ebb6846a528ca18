"""ONNX files: a model with its calibration, or the calibration alone (of logits, signals or sets)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from recal.calibrators.signals import SignalCalibration
from recal.checks import is_single_column
from recal.collecting.models.onnx import open_session
from recal.decisions.decision import Decision
from recal.decisions.rule import DecisionRule
from recal.decisions.sets import PredictionSets
from recal.errors import InputError, in_both
from recal.export import network
from recal.export import traced_functions as xp
from recal.export.calibration import Calibration, calibration_of, keep_classes
from recal.export.network import NetworkPart, sizes
from recal.export.tracer import IR_VERSION, OPEN, OPSET, Graph, Nodes, Symbol, dtype_of, onnx
from recal.files.paths import replacing
from recal.maps.base import wide
from recal.maps.guard import bounded, guarded
from recal.maps.steps import Plan
from recal.schema import Either, ListOf, Number, check
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
    accept: DecisionRule | float | Sequence[float] | None = None,
) -> Path:
    """Write a model with its transformations and its calibration to one ONNX file.

    Parameters
    ----------
    model : CalibratedModule, torch.nn.Module, the path of an ONNX file, or a fitted
    SignalCalibration
        A CalibratedModule has its own calibration and preprocessing. An ONNX file needs no torch,
        except for your own transformations or `preprocess`. A fixed batch size is made variable if
        predictions stay the same. A SignalCalibration needs only `path`; its file reads `signals`
        and returns `confidence`.
    example : array or tensor of shape (n, ...)
        A batch of inputs as the file will get them; only its shape (without n) and dtype matter.
        Not needed if the calibrator knows the inputs of its views, or if an ONNX model has a fixed
        input shape.
    path : where to write
    plan : Plan, or a fitted calibrator
        Any of recal's methods.
    preprocess : callable, optional
        Runs after the transformations and before the model; must consist of torch operations. The
        default, also for `outputs`, is what the calibrator's views were collected with; a
        contradiction is refused.
    outputs : {"logits", "probabilities", "votes"} or "probabilities:FLOOR", optional
        What the model returns, as in `recal.collect`; logits by default.
    accept : DecisionRule, float, or one number per class, optional
        The confidence threshold for accepting a prediction, one for all classes or one per
        predicted class; by default that of the calibrator's `decision_`.

    Returns
    -------
    The path. The file has one input, `inputs` (or the ONNX model's own name, if nothing comes
    before the model), with any number of rows. Its outputs are `probs` (n, n_classes), `prediction`
    (n,), the index of the class, `confidence` (n,), the chance that it is right, as
    `predict_confidence` gives it, `passes` (n,), the number of forward passes of each row, `accept`
    (n,) if there is a threshold, and `logits` (n, n_classes), the model's own, for a watch. If the
    plan has a gate, views are computed only for the rows below it. Rows that a transformation would
    refuse in Python, such as floats above white, get NaN and the prediction -1.

    The file's metadata holds, as JSON: `recal_classes`, `recal_transforms`, `recal_thresholds`,
    `recal_risk`, `recal_confidence`, `recal_reads` and `recal_preprocessing`, as far as they are
    known.

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
    stored = getattr(plan, "preprocessing_", None)
    preprocess, outputs = match_preprocess(stored, preprocess), match_outputs(stored, outputs)
    if example is None and stored is not None and stored.shape is not None:
        example = np.zeros((1, *stored.shape), stored.dtype)
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        calibration = calibration_of(plan)
        _check_traceable(calibration.map.transforms)
        own, before, example = _onnx_network(
            model, calibration.map.transforms, preprocess, example, outputs
        )
    else:
        from recal.export.torch_module import gives_probabilities, logits_of, parts_of

        model, plan, preprocess = parts_of(model, plan, preprocess)
        calibration = calibration_of(plan)
        _check_traceable(calibration.map.transforms)
        if example is None:
            raise InputError(
                "A torch model is exported with an example input: pass a batch such as torch.rand(1, 3, 32, 32)."
            )
        if outputs == "logits" and gives_probabilities(model, preprocess, example):
            raise _ends_in_softmax()
        own = network.trace_module(logits_of(model, preprocess), example, "model")
        before = []
    n_classes = _classes_of(own)
    calibration.check_classes(n_classes)
    views = _views(calibration.map.transforms, example)
    rule = _rule(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    file = _File(own, before, views, calibration, n_classes, outputs, example, rule)
    if calibration.map.gate is not None:
        file = _gateable(file)
    return write(file.run(), path, metadata(plan, calibration.map.transforms, rule))


@dataclass(frozen=True)
class _File:
    """The pieces of a file: functions from inputs to logits and to views, and the calibration.

    Parts and functions of arrays are called alike, with the symbol of the rows. `branched` is for
    models that cannot take an empty batch: views behind a gate are then computed in a branch, which
    runtimes optimise less than the main graph.
    """

    network: NetworkPart
    before: Sequence[Callable[[Symbol], Symbol]]
    views: Callable[[Symbol], Symbol] | None
    calibration: Calibration
    n_classes: int
    outputs: str
    example: Any = None
    rule: Any = None
    branched: bool = False

    @property
    def gate(self) -> float | None:
        return self.calibration.map.gate

    def inputs(self, opset: int = OPSET) -> Symbol:
        """Return the file's input in a new graph, like the example or like the network's own."""
        if self.example is not None:
            like = _symbol(self.example, opset)
        else:
            shape = (OPEN, *(size or OPEN for size in sizes(self.network.input)[1:]))
            like = Graph(opset).input("inputs", dtype_of(self.network.input), shape)
        is_first = not self.before and self.views is None
        if is_first and not self.is_binary and self.network.input.name != "logits":
            like.name = self.network.input.name
        return like

    def model(self) -> onnx.ModelProto:
        pieces = (*self.before, self.network, self.views)
        parts = [piece for piece in pieces if isinstance(piece, NetworkPart)]
        opsets = network.opsets_of(parts)
        inputs = self.inputs(opsets[""])
        version = max(IR_VERSION, *(part.model.ir_version for part in parts))
        results = self._results(*self._answers(inputs))
        whole = inputs.device.model([inputs], results, opsets, version)
        if fixed := network.rows_of(self.network):  # a fixed batch that could not be opened
            whole.graph.input[0].type.tensor_type.shape.dim[0].dim_value = fixed
        return whole

    def run(self) -> onnx.ModelProto:
        """Return the model after a trial on a row of zeros, if the shape of the rows is known."""
        whole, inputs = self.model(), self.inputs()
        shape, rows = inputs.shape[1:], network.rows_of(self.network) or 1
        is_known = bool(shape) and OPEN not in shape
        zeros = np.zeros((rows, *shape), inputs.dtype) if is_known else None
        network.run_model(whole, inputs.name, zeros)
        return whole

    @property
    def is_binary(self) -> bool:
        """Whether the network has one output, that of the second of two classes."""
        return is_single_column(sizes(self.network.output))

    def _logits(self, rows: Symbol) -> Symbol:
        """Return the model's logits for rows."""
        rows = self.network(_prepared(rows, self.before))
        if self.is_binary:
            second = rows.reshape((OPEN, 1))
            first = second - second if self.outputs == "logits" else 1 - second
            rows = xp.concat([first, second], axis=1)
        if self.outputs != "logits":
            rows = xp.log(xp.maximum(rows, least_probability(self.outputs, self.n_classes)))
        return rows

    def _own(self, logits: Symbol, stack: Symbol | None = None) -> Symbol:
        """Return the map's own float64 probabilities, from logits and those of all views.

        Without views, all rows count as above the gate; with them, as below.
        """
        if stack is None:
            return self.calibration.map.probs(wide(logits))
        return self.calibration.map.with_gate(None).probs(wide(logits), _layers(wide(stack)))

    def _answers(self, inputs: Symbol) -> tuple[Symbol, Symbol, Symbol]:
        """Return the logits of the originals, the map's own float64 probabilities, and the passes
        of each row.
        """
        transforms = self.calibration.map.transforms
        if self.gate is None:
            rows = inputs
            if self.views is not None:
                rows = xp.concat([inputs, self.views(inputs)], axis=0)
            stack = self._logits(rows).reshape((1 + len(transforms), OPEN, self.n_classes))
            stack = _refused(stack, transforms, inputs)
            passes = xp.argmax(stack[0], axis=1) * 0 + stack.shape[0]
            return stack[0], self._own(stack[0], stack[1:] if transforms else None), passes
        logits = _refused(self._logits(inputs), transforms, inputs)
        is_below = self.calibration.map.needs_views(wide(logits))
        above, passes = self._own(logits), is_below.long() * len(transforms) + 1
        if not self.branched:
            return logits, self._below_gate(inputs, logits, is_below, above), passes
        graph, some = inputs.device, xp.max(is_below.float()) > 0.0
        then, otherwise = Nodes(graph.nodes), Nodes(graph.nodes)
        with graph.inside(then):
            changed = self._below_gate(inputs, logits, is_below, above)
        with graph.inside(otherwise):
            same = above.op("Identity", shape=above.shape)
        branches = {
            "then_branch": then.as_graph("recal_then", outputs=[changed.described(changed.name)]),
            "else_branch": otherwise.as_graph("recal_else", outputs=[same.described(same.name)]),
        }
        return logits, some.op("If", shape=above.shape, dtype=above.dtype, **branches), passes

    def _below_gate(
        self, inputs: Symbol, logits: Symbol, is_below: Symbol, above: Symbol
    ) -> Symbol:
        """Gather the rows below the gate, run them with their views, and put their probabilities
        back.
        """
        assert self.views is not None
        rows = is_below.op("NonZero", shape=(1, OPEN), dtype="int64").reshape((OPEN,))
        shape = (len(self.calibration.map.transforms), OPEN, self.n_classes)
        below = self._own(logits[rows], self._logits(self.views(inputs[rows])).reshape(shape))
        return above.op("ScatterND", rows[:, None], below, shape=above.shape)

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


def _symbol(batch: Any, opset: int = OPSET) -> Symbol:
    """Return the input of a new graph for such batches, of any number of rows."""
    shape = (OPEN, *(int(size) for size in batch.shape[1:]))
    return Graph(opset).input("inputs", dtype_name(batch), shape)


def _prepared(rows: Symbol, before: Sequence[Callable[[Symbol], Symbol]]) -> Symbol:
    for step in before:
        rows = step(rows)
    return rows


def _layers(stack: Symbol) -> list[Symbol]:
    return [stack[number] for number in range(stack.shape[0])]


def _refused(logits: Symbol, transforms: tuple[Transform, ...], inputs: Symbol) -> Symbol:
    """Return logits, (..., n, K), with NaN in the rows of inputs that a transformation would refuse
    in Python.
    """
    scales = [t.full_scale(inputs.dtype) for t in transforms if hasattr(t, "full_scale")]
    limits = [scale for scale in scales if scale is not None]
    if not limits:
        return logits
    values = abs(inputs.op("Flatten", shape=(OPEN, OPEN), axis=1).to("float64"))
    # As in Python: values slightly above full scale are rounding errors.
    fits = xp.max(values, axis=1, keepdims=True) <= 1.001 * min(limits)
    return xp.where(fits, logits, np.nan)


def _gateable(file: _File) -> _File:
    """Return the file in a form that also works if no row of a batch needs views; use a branch as a
    last resort.
    """
    never = replace(file.calibration, map=file.calibration.map.with_gate(1e-300))  # none is below
    inner = _prepared(file.inputs(), file.before).shape[1:]
    for own in (file.network, network.fix_reshapes(file.network, inner)):
        with suppress(InputError):
            replace(file, network=own, calibration=never, rule=None).run()
            return replace(file, network=own)
    return replace(file, branched=True)


def _rule(accept: Any, n_classes: int) -> Any:
    """Return a rule; thresholds given as numbers are a rule without a guarantee."""
    if accept is None:
        return None
    rule = accept.rule if isinstance(accept, Decision) else accept
    if not isinstance(rule, DecisionRule):
        kind = Either(Number(0.0, 1.0), ListOf(Number(0.0, 1.0)))
        kind.rule = "a threshold in [0, 1], or one for each class"
        numbers = np.ravel(check(accept, kind, "accept")).tolist()
        unknown = {"risk": None, "confidence": None, "groups": ()}
        rule = SimpleNamespace(thresholds=numbers, reads="confidence", **unknown)
    if rule.groups:
        raise InputError(
            f"has a threshold for each of {len(rule.groups)} groups, and an ONNX file does not read groups",
            argument="accept",
            remedy="Give one number, or one for each class",
        )
    count = len(rule.thresholds)
    if count not in (1, n_classes):
        raise InputError(
            f"is one number, or one for each of {n_classes} classes, got {count}", argument="accept"
        )
    return rule


def _onnx_network(
    model: Any, transforms: tuple[Transform, ...], preprocess: Any, example: Any, outputs: str
) -> tuple[NetworkPart, list[Callable[[Symbol], Symbol]], Any]:
    """Return the user's network, what comes before it, and an example of the inputs."""
    own = network.read_model(model)
    if outputs == "logits" and own.ends_in_softmax:
        raise _ends_in_softmax()
    if example is None and (transforms or preprocess is not None):
        example = network.example_of(own)
    before: list[Callable[[Symbol], Symbol]] = []
    if isinstance(preprocess, Normalize):
        before = [preprocess]
    elif preprocess is not None:
        from recal.export.torch_module import Function

        before = [network.trace_module(Function(preprocess), example, "before")]
    declared = sizes(own.input)
    inner = [] if example is None else _prepared(_symbol(example), before).shape[1:]
    if len(inner) == 2 and len(declared) == 4:  # grey images without an axis of channels
        axis = 1 if declared[1] == 1 else 3
        before.append(lambda rows: xp.expand_dims(rows, axis=axis))
        inner = (1, *inner) if axis == 1 else (*inner, 1)
    if network.rows_of(own):
        fixed = [size or other for size, other in zip(declared[1:], inner or declared[1:])]
        try:
            own = network.open_batch(own, tuple(fixed))
        except InputError:
            if transforms:
                raise
    return own, before, example


def _ends_in_softmax() -> InputError:
    how = in_both(outputs="probabilities")
    return InputError(
        "The model ends in a softmax: it gives probabilities, and logits are needed",
        remedy=f"Export it without its softmax, or say {how}, as when the views were collected",
    )


def _views(transforms: tuple[Transform, ...], example: Any) -> Callable[[Symbol], Symbol] | None:
    """Return a function from inputs to the rows of all views, one transformation after the other."""
    if not transforms:
        return None
    if all(isinstance(transform, BuiltIn) for transform in transforms):
        return lambda inputs: xp.concat([transform(inputs) for transform in transforms], axis=0)
    from recal.export.torch_module import views_of

    return network.trace_module(views_of(transforms), example, "views")


def _classes_of(part: NetworkPart) -> int:
    shape = sizes(part.output)
    if is_single_column(shape):
        return 2
    if len(shape) != 2 or shape[1] < 2:
        raise InputError(
            f"The model must give logits of the shape (n, n_classes) with known n_classes, got {shape}."
        )
    return shape[1]


def _check_traceable(transforms: tuple[Transform, ...]) -> None:
    for transform in transforms:
        if isinstance(transform, BuiltIn) and not transform.traceable:
            raise InputError(
                f"{str(transform)!r} cannot be written as ONNX operations. Calibrate with others (such as zoom, "
                "brightness, contrast, blur, flip, shift), or export the calibration alone and compute the views "
                "yourself."
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


def export_sets(sets: PredictionSets, path: str | os.PathLike[str], n_classes: int) -> Path:
    """Write prediction sets as an ONNX file: `probs` (n, n_classes) float32 in, `sets` (n,
    n_classes) bool out.

    aps and raps derive random numbers from the bits of the probabilities, which ONNX cannot read.
    Make such sets with ``randomised=False``, which keeps the guarantee and makes them a little
    larger.

    Examples
    --------
    >>> import tempfile
    >>> from recal.decisions import PredictionSets
    >>> from recal.export import export_sets
    >>> export_sets(PredictionSets("lac", 0.9, (0.7,)), tempfile.mkdtemp() + "/sets.onnx", n_classes=3).name
    'sets.onnx'
    """
    if sets.method != "lac" and sets.randomised:
        raise InputError(
            f"Randomised {sets.method} sets read the bits of the probabilities, which ONNX cannot; "
            "make them with randomised=False."
        )
    graph = Graph()
    probs = graph.input("probs", "float32", (OPEN, n_classes))
    return write(graph.model([probs], {"sets": keep_classes(sets, probs)}), path, {})


def metadata(source: Any, transforms: tuple[Transform, ...], rule: Any) -> dict[str, Any]:
    """Return what a service needs besides the graph: class names, thresholds, preprocessing."""
    stored = getattr(source, "preprocessing_", None)
    values: dict[str, Any] = {"transforms": [str(transform) for transform in transforms]}
    if (classes := getattr(source, "classes_", None)) is not None:
        values["classes"] = np.asarray(classes).tolist()
    if rule is not None:
        values["thresholds"] = [
            None if np.isinf(limit) else float(limit) for limit in rule.thresholds
        ]
        values |= {"reads": rule.reads, "risk": rule.risk, "confidence": rule.confidence}
        values["groups"] = list(rule.groups) or None
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


def measure(
    path: str | os.PathLike[str], calibration: Calibration, n_classes: int, *, with_model: bool
) -> tuple[float | None, float]:
    """Return the milliseconds per row of the whole file (None if it holds no model), and of the
    calibration alone: medians of a few runs on one thread, with random inputs.
    """
    alone = _median(calibration_model(calibration, n_classes).SerializeToString())
    return _median(os.fspath(path)) if with_model else None, alone


def _median(model: str | bytes, n_runs: int = 15) -> float:
    session, rng, feeds = open_session(model, *network.ON_ONE_THREAD), np.random.default_rng(0), {}
    for value in session.get_inputs():
        kind = {"float": "float32", "double": "float64"}
        dtype = value.type.removeprefix("tensor(").removesuffix(")")
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        feeds[value.name] = rng.random(shape).astype(kind.get(dtype, dtype))
    session.run(None, feeds)  # warm up
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))
