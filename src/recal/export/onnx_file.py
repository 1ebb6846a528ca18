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
from numpy.typing import NDArray

from recal.calibrators.signals import SignalCalibration
from recal.collecting.models.onnx import open_session
from recal.decisions.decision import Decision
from recal.decisions.rule import DecisionRule
from recal.decisions.sets import PredictionSets
from recal.errors import InputError, in_both
from recal.export import network
from recal.export import traced_functions as xp
from recal.export.calibration import Calibration, calibration_of, keep_classes
from recal.export.network import NetworkPart, sizes
from recal.export.tracer import IR_VERSION, OPEN, Graph, Nodes, Symbol, dtype_of, onnx
from recal.files.paths import replacing
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
        front, batch = _onnx_front(model, calibration.map.transforms, preprocess, example, outputs)
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
        traced = network.trace_module(logits_of(model, preprocess), example)
        front, batch = _with_two_columns([traced], outputs), example
    n_classes = _classes_of(front[-1])
    calibration.check_classes(n_classes)
    opset = network.opsets_of(*(part.model for part in front))[""]
    views = _views(calibration.map.transforms, batch, opset)
    rule = _rule(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    file = _File(front, views, calibration, n_classes, outputs, batch, rule)
    if calibration.map.gate is not None:
        file = _gateable(file)
    whole = file.model()
    example = _zeros(front[0] if batch is None else batch, network.rows_of(front[-1]))
    network.run_model(whole, whole.graph.input[0].name, example)
    return write(whole, path, metadata(plan, calibration.map.transforms, rule))


@dataclass(frozen=True)
class _File:
    """The pieces of a file: parts from inputs to logits, the views, the calibration.

    `branched` is for models that cannot take an empty batch: views behind a gate are then computed
    in a branch, which runtimes optimise less than the main graph.
    """

    front: Sequence[NetworkPart]
    views: NetworkPart | None
    calibration: Calibration
    n_classes: int
    outputs: str
    example: Any = None
    rule: Any = None
    branched: bool = False

    @property
    def input(self) -> tuple[str, str, list[int]]:
        """The name, dtype and shape of the file's input, from the example or from the model."""
        first = self.front[0].input
        own = self.views is None and len(self.front) == 1 and first.name != "logits"
        name = first.name if own else "inputs"
        if self.example is None:
            return name, dtype_of(first), sizes(first)
        return name, dtype_name(self.example), list(self.example.shape)

    def model(self) -> onnx.ModelProto:
        name, dtype, shape = self.input
        inputs = Graph().input(name, dtype, (OPEN, *(size or OPEN for size in shape[1:])))
        parts = [*self.front, self.views] if self.views is not None else [*self.front]
        models = [part.model for part in parts]
        version = max(IR_VERSION, *(model.ir_version for model in models))
        results = self._results(*self._answers(inputs))
        whole = inputs.device.model([inputs], results, network.opsets_of(*models), version)
        if fixed := network.rows_of(self.front[-1]):  # a fixed batch that could not be opened
            whole.graph.input[0].type.tensor_type.shape.dim[0].dim_value = fixed
        return whole

    def _logits(self, rows: Symbol) -> Symbol:
        """Return the model's logits for rows."""
        for number, part in enumerate(self.front):
            rows = part.put(rows, f"model{number}_")
        if self.outputs != "logits":
            rows = xp.log(xp.maximum(rows, least_probability(self.outputs, self.n_classes)))
        return rows

    def _answers(self, inputs: Symbol) -> tuple[Symbol, Symbol, Symbol]:
        """Return the logits of the originals, the map's own float64 probabilities, and the passes
        of each row.
        """
        calibration, n_views = self.calibration, len(self.calibration.map.transforms)
        if self.views is None:
            logits = self._logits(inputs)
            return logits, own_probs(calibration, logits), xp.argmax(logits, axis=1) * 0 + 1
        if calibration.map.gate is None:
            rows = xp.concat([inputs, self.views.put(inputs, "views_")], axis=0)
            stack = self._logits(rows).reshape((1 + n_views, OPEN, self.n_classes))
            stack = _refused(stack, calibration.map.transforms, inputs)
            logits = stack[0]
            own = own_probs(calibration, logits, stack[1:])
            return logits, own, xp.argmax(logits, axis=1) * 0 + (1 + n_views)
        logits = _refused(self._logits(inputs), calibration.map.transforms, inputs)
        is_below = calibration.map.needs_views(logits.to("float64"))
        above, passes = own_probs(calibration, logits), is_below.long() * n_views + 1
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
        stack = self._logits(self.views.put(inputs[rows], "views_")).reshape(shape)
        below = own_probs(self.calibration.with_gate(None), logits[rows], stack)
        return above.op("ScatterND", rows[:, None], below, shape=above.shape)

    def _results(self, logits: Symbol, own: Symbol, passes: Symbol) -> dict[str, Symbol]:
        """Return the outputs by name."""
        probs, answer, confidence = answers(self.calibration, own, logits)
        unknown = xp.isnan(confidence.float())
        results = {"probs": bounded(probs.float()), "prediction": xp.where(unknown, -1, answer)}
        results |= {"confidence": bounded(confidence.float()), "passes": passes}
        if self.rule is not None:
            limits, read = np.asarray(self.rule.thresholds), confidence
            if self.rule.reads != "confidence":
                read = xp.take_along_axis(probs, answer[:, None], axis=1)[:, 0]
            results["accept"] = read >= (limits[0] if len(limits) == 1 else xp.take(limits, answer))
        # The model's own logits come last; a watch compares them with those of the fit.
        return results | {"logits": logits.float()}


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
    one = _zeros(file.example)
    assert one is not None
    front, never = list(file.front), file.calibration.with_gate(1e-300)  # no row is below it
    inner = tuple(file.example.shape[1:]) if len(front) == 1 else tuple(sizes(front[-2].output)[1:])
    for parts in (front, [*front[:-1], network.fix_reshapes(front[-1], inner)]):
        with suppress(InputError):
            network.run_model(
                replace(file, front=parts, calibration=never, rule=None).model(), "inputs", one
            )
            return replace(file, front=parts)
    return replace(file, branched=True)


def _zeros(source: Any, fixed: int = 0) -> NDArray[Any] | None:
    """Return zeros like a batch, or like a model's inputs if their shape is known: one row, or
    `fixed` rows.
    """
    if isinstance(source, NetworkPart):
        if len(sizes(source.input)) < 2 or 0 in sizes(source.input)[1:]:
            return None
        source = network.example_of(source)
    return np.zeros((fixed or 1, *source.shape[1:]), dtype_name(source))


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


def _onnx_front(
    model: Any, transforms: tuple[Transform, ...], preprocess: Any, example: Any, outputs: str
) -> tuple[list[NetworkPart], Any]:
    """Return the parts that turn inputs into logits, and an example of the inputs."""
    own = network.read_model(model)
    if outputs == "logits" and own.ends_in_softmax:
        raise _ends_in_softmax()
    batch = example
    if batch is None and (transforms or preprocess is not None):
        batch = network.example_of(own)
    front: list[NetworkPart] = []
    if isinstance(preprocess, Normalize):
        front = [network.normalize_part(preprocess, batch)]
    elif preprocess is not None:
        from recal.export.torch_module import Function

        front = [network.trace_module(Function(preprocess), batch)]
    shape = sizes(front[-1].output) if front else [] if batch is None else list(batch.shape)
    if len(shape) == 3 and len(sizes(own.input)) == 4:
        front.append(network.channel_part(own))
        shape = [*shape, 1] if sizes(own.input)[1] != 1 else [shape[0], 1, *shape[1:]]
    if network.rows_of(own):
        declared = sizes(own.input)[1:]
        inner = [size or other for size, other in zip(declared, shape[1:] or declared)]
        try:
            own = network.open_batch(own, tuple(inner))
        except InputError:
            if transforms:
                raise
    return _with_two_columns([*front, own], outputs), batch


def _with_two_columns(front: list[NetworkPart], outputs: str) -> list[NetworkPart]:
    """Return the parts, with one more if the model is binary and has one output."""
    columns = network.two_column_part(front[-1], outputs)
    return front if columns is None else [*front, columns]


def _ends_in_softmax() -> InputError:
    how = in_both(outputs="probabilities")
    return InputError(
        "The model ends in a softmax: it gives probabilities, and logits are needed",
        remedy=f"Export it without its softmax, or say {how}, as when the views were collected",
    )


def _views(transforms: tuple[Transform, ...], batch: Any, opset: int) -> NetworkPart | None:
    if not transforms:
        return None
    if all(isinstance(transform, BuiltIn) for transform in transforms):
        return network.view_part(transforms, batch, opset)
    from recal.export.torch_module import views_of

    return network.trace_module(views_of(transforms), batch)


def _classes_of(part: NetworkPart) -> int:
    shape = part.output.type.tensor_type.shape.dim
    if len(shape) != 2 or shape[1].dim_value < 2:
        sizes = [axis.dim_value or axis.dim_param or "?" for axis in shape]
        raise InputError(
            f"The model must give logits of the shape (n, n_classes) with known n_classes, got {sizes}."
        )
    return int(shape[1].dim_value)


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
    own = own_probs(calibration, *inputs)
    probs, _, confidence = answers(calibration, own, inputs[0])
    outputs = {"probs": bounded(probs.float()), "confidence": bounded(confidence.float())}
    return graph.model(inputs, outputs)


def own_probs(
    calibration: Calibration, logits: Symbol, transformed: Symbol | None = None
) -> Symbol:
    """Return the map's own probabilities, (n, K) float64, from logits, (n, K), and those of all
    views, (m, n, K).

    Without views, all samples count as above the gate.
    """
    views: list[Symbol] = []
    if transformed is not None:
        stack = transformed.to("float64")
        views = [stack[number] for number in range(len(calibration.map.transforms))]
    probs: Symbol = calibration.map.probs(logits.to("float64"), views)
    return probs


def answers(calibration: Calibration, own: Symbol, logits: Symbol) -> tuple[Symbol, Symbol, Symbol]:
    """Return probabilities, (n, K), the index of the prediction and the confidence in it, both
    (n,).

    All come from the map's own probabilities, and the first and the last are float64. The
    confidence is the prediction's probability before the guard raises it to keep the model's answer.
    """
    probs, confidence = guarded(calibration.map, own, logits.to("float64"), kept=calibration.kept)
    return probs, xp.argmax(probs, axis=1), confidence


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
