"""A model and its calibration as one ONNX file: inputs in, calibrated probabilities out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signals import SignalCalibration
from recal.decisions.rule import DecisionRule
from recal.errors import InputError, Remedy
from recal.export.calibration import Calibration, calibration_of
from recal.export.graph import BOOL, DOUBLE, FLOAT, INT64, IR_VERSION, Nodes, model_of, onnx, tensor
from recal.export.network import (
    Part,
    channel_part,
    check_runs,
    element_type,
    example_of,
    fix_reshapes,
    normalize_part,
    open_batch,
    opsets_of,
    read_model,
    rows_of,
    sizes,
    takes_no_rows,
    trace_module,
    two_column_part,
    view_part,
)
from recal.export.traced_calibration import answers, calibration_model, needs_views, own_probs
from recal.files.atomic import replacing
from recal.maps.plan import Plan
from recal.transforms import BuiltIn, Transform
from recal.transforms.preprocessing import (
    Normalize,
    Outputs,
    check_outputs,
    least_probability,
    match_outputs,
    match_preprocess,
)

__all__ = ["export_calibration", "export_onnx"]
# A gate below every confidence: no sample needs its views.
_NEVER = 1e-300
# As in Python: a little above full scale is rounding, more is another scale.
_ABOVE = 1.001
# The name of the number of rows that go through the model with their views.
_ROWS = "view_rows"


def export_calibration(plan: Plan | Any, path: str | os.PathLike[str], n_classes: int | None = None) -> Path:
    """Write the calibration alone: from logits to calibrated probabilities.

    Parameters
    ----------
    plan : Plan, or a fitted calibrator
    path : where to write
    n_classes : int, needed for a plan, which does not know its classes

    Returns
    -------
    The path. The file's inputs are `logits` (n, n_classes) and, if views are needed, `transformed` (m, n, n_classes),
    the logits through ``plan.transforms`` in that order, both float32. Its outputs are `probs` and `confidence`, the
    chance that each prediction is right. Views of samples above a plan's gate are not read.
    """
    calibration = calibration_of(plan)
    classes = n_classes if n_classes is not None else len(getattr(plan, "classes_", ()))
    if not classes:
        raise InputError("A plan does not know how many classes there are: pass n_classes.")
    rule = getattr(plan, "decision_", None)
    return _write(calibration_model(calibration, int(classes)), path, _metadata(plan, calibration.transforms, rule))


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
    model : CalibratedModule, torch.nn.Module, the path of an ONNX file, or a fitted SignalCalibration
        A CalibratedModule brings its calibration and its preprocessing. An ONNX file needs no torch, except for
        transformations or a `preprocess` of your own. A fixed batch is opened if predictions stay the same. A
        SignalCalibration needs `path` alone; its file reads `signals` and returns `confidence`.
    example : array or tensor of shape (n, ...)
        A batch of inputs as the file will get them; only its shape (without n) and dtype matter. Not needed for a
        calibrator that knows what its views were collected from, nor for an ONNX model with a fixed input shape.
    path : where to write
    plan : Plan, or a fitted calibrator
        Any of recal's methods.
    preprocess : callable, optional
        Runs after the transformations and before the model; must consist of torch operations. By default, and for
        `outputs` too, what the calibrator's views were collected with; a contradiction is refused.
    outputs : {"logits", "probabilities", "votes"} or "probabilities:FLOOR", optional
        What the model returns, as in `recal.collect`; logits by default.
    accept : DecisionRule, float, or one number per class, optional
        The confidence from which on a prediction is accepted, of any class or of the predicted one; by default that of
        the calibrator's `decision_`.

    Returns
    -------
    The path. The file has one input, `inputs` (or the ONNX model's own, if nothing is put before it), of any number of
    rows. Its outputs are `probs` (n, n_classes), `prediction` (n,), the index of the class, `confidence` (n,), the
    chance that it is right, as `predict_confidence` gives it, `passes` (n,), how many forward passes each row took,
    `accept` (n,) if there is a threshold, and `logits` (n, n_classes), the model's own, for a watch. If the plan has a
    gate, views are computed only for the rows below it. Rows that a transformation would refuse in Python, such as
    floats above white, get NaN and the prediction -1.

    The file's metadata holds, as JSON: `recal_classes`, `recal_transforms`, `recal_thresholds`, `recal_risk`,
    `recal_confidence`, `recal_reads` and `recal_preprocessing`, as far as they are known.

    Examples
    --------
    >>> import tempfile, torch
    >>> from recal import CalibratedModule, Plan, export_onnx
    >>> calibrated = CalibratedModule(torch.nn.Linear(4, 3), Plan(start=0.5))
    >>> export_onnx(calibrated, torch.rand(1, 4), tempfile.mkdtemp() + "/model.onnx").name
    'model.onnx'
    """
    if isinstance(model, SignalCalibration):
        from recal.export.signals import export_signals

        # It has no example, so the path may come second.
        return export_signals(model, example if isinstance(example, str | os.PathLike) else path)
    if outputs is not None:
        check_outputs(outputs)
    stored = getattr(plan, "preprocessing_", None)
    preprocess, outputs = match_preprocess(stored, preprocess), match_outputs(stored, outputs)
    if example is None and stored is not None and stored.shape is not None:
        example = np.zeros((1, *stored.shape), stored.dtype)
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        calibration = calibration_of(plan)
        _check_traceable(calibration.transforms)
        front, batch = _onnx_front(model, calibration.transforms, preprocess, example, outputs)
    else:
        from recal.export.torch_onnx import parts_of

        model, plan, preprocess = parts_of(model, plan, preprocess)
        calibration = calibration_of(plan)
        _check_traceable(calibration.transforms)
        if example is None:
            raise InputError(
                "A torch model is exported with an example input: pass a batch such as torch.rand(1, 3, 32, 32)."
            )
        front, batch = _torch_front(model, preprocess, example, outputs), example
    n_classes = _classes_of(front[-1])
    calibration.check_classes(n_classes)
    views = _views(calibration.transforms, batch, opsets_of(*(part.model for part in front))[""])
    rule = _rule(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    file = _File(front, views, calibration, n_classes, outputs, batch, rule)
    if calibration.gate is not None:
        file = _gateable(file)
    whole = file.model()
    check_runs(whole, _zeros(front[0] if batch is None else batch, rows_of(front[-1])))
    return _write(whole, path, _metadata(plan, calibration.transforms, rule))


@dataclass(frozen=True)
class _Rule:
    """The confidence from which on a prediction is accepted, of any class or of each, and what is compared with it."""

    thresholds: NDArray[np.float64]
    reads: str
    risk: float | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class _File:
    """What is put together: parts from inputs to logits, the views, the calibration.

    `branched` is for models that cannot take a batch of no rows: views behind a gate then stand in a branch, which
    runtimes do not optimise as they do the main graph.
    """

    front: Sequence[Part]
    views: Part | None
    calibration: Calibration
    n_classes: int
    outputs: str
    example: Any = None
    rule: _Rule | None = None
    branched: bool = False

    @property
    def input(self) -> tuple[str, int, list[int]]:
        """The name of the file's input, its element type and its shape: the example's, or the model's own."""
        first = self.front[0].input
        own = self.views is None and len(self.front) == 1 and first.name != "logits"
        name = first.name if own else "inputs"
        if self.example is None:
            return name, element_type(first), sizes(first)
        dtype = np.dtype(str(self.example.dtype).removeprefix("torch."))
        return name, onnx.helper.np_dtype_to_tensor_dtype(dtype), list(self.example.shape)

    def model(self) -> onnx.ModelProto:
        (name, kind, shape), g = self.input, Nodes()
        logits, own, passes = self._answers(g, name, kind, shape[1:])
        rows = rows_of(self.front[-1]) or "batch"  # a batch that could not be opened stays fixed
        inputs = [tensor(name, kind, [rows, *(size or None for size in shape[1:])])]
        parts = [*self.front, self.views] if self.views is not None else [*self.front]
        results = self._results(g, logits, own, passes)
        versions = opsets_of(*(part.model for part in parts))
        return model_of(g, inputs, results, versions, max(IR_VERSION, *(part.model.ir_version for part in parts)))

    def _logits(self, g: Nodes, rows: str, kind: int) -> str:
        """Put the model behind rows of this element type."""
        for number, part in enumerate(self.front):
            needed = element_type(part.input)
            rows = rows if needed == kind else g.cast(rows, needed)
            rows, kind = part.put(g, rows, f"model{number}_"), element_type(part.output)
        if self.outputs != "logits":
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
            least = g.const(np.array(least_probability(self.outputs, self.n_classes), dtype))
            rows = g.op("Log", g.op("Max", rows, least))
        return rows

    def _answers(self, g: Nodes, inputs: str, kind: int, shape: list[int]) -> tuple[str, str, str]:
        """Return the originals' logits, the map's own float64 probabilities, and the passes that each row takes."""
        calibration, n_classes, n_views = self.calibration, self.n_classes, len(self.calibration.transforms)
        if self.views is not None and calibration.gate is not None:
            return self._gated_answers(g, inputs, kind, shape)
        if self.views is None:
            logits, transformed = self._logits(g, inputs, kind), ""
        else:
            rows = g.op("Concat", inputs, self.views.put(g, inputs, "views_"), axis=0)
            rows = g.shaped(rows, kind, [_ROWS, *shape])
            stack = g.op("Reshape", self._logits(g, rows, kind), g.const([1 + n_views, -1, n_classes]))
            stack = _refused(g, stack, calibration.transforms, inputs, kind)
            logits, transformed = g.row(stack, 0), g.part(stack, 1, 1 + n_views, axis=0)
        own = own_probs(calibration, g, logits, transformed, n_classes)
        zeros = g.op("Mul", g.op("ArgMax", logits, axis=1, keepdims=0), g.const(np.int64(0)))
        return logits, own, g.op("Add", zeros, g.const(np.int64(1 + n_views)))

    def _gated_answers(self, g: Nodes, inputs: str, kind: int, shape: list[int]) -> tuple[str, str, str]:
        """The same with a gate: the rows below it are gathered, run with their views and put back."""
        calibration, n_classes, n_views = self.calibration, self.n_classes, len(self.calibration.transforms)
        assert self.views is not None
        logits = _refused(g, self._logits(g, inputs, kind), calibration.transforms, inputs, kind)
        needed = needs_views(calibration, g, logits, n_classes)
        above = own_probs(calibration, g, logits, "", n_classes)
        inside = Nodes(g) if self.branched else g
        rows = inside.op("Reshape", inside.op("NonZero", needed), inside.const([-1]))
        inputs = self.views.put(inside, inside.op("Gather", inputs, rows, axis=0), "views_")
        inputs = inside.shaped(inputs, kind, [_ROWS, *shape])
        seen = inside.op("Reshape", self._logits(inside, inputs, kind), inside.const([n_views, -1, n_classes]))
        own_logits = inside.op("Gather", logits, rows, axis=0)
        below = own_probs(calibration.with_gate(None), inside, own_logits, seen, n_classes)
        probs = inside.op("ScatterND", above, inside.op("Unsqueeze", rows, inside.const([1])), below)
        if self.branched:
            otherwise = Nodes(g)
            unchanged = otherwise.op("Identity", above)
            some = g.op("Greater", g.op("ReduceMax", g.cast(needed, FLOAT), keepdims=0), g.const(np.float32(0)))
            probs = g.choose(some, inside, otherwise, [(probs, unchanged, DOUBLE)])[0]
        passes = g.op("Add", g.op("Mul", g.cast(needed, INT64), g.const(np.int64(n_views))), g.const(np.int64(1)))
        return logits, probs, passes

    def _results(self, g: Nodes, logits: str, own: str, passes: str) -> list[onnx.ValueInfoProto]:
        """Add the outputs and return them."""
        probs, answer, confidence = answers(self.calibration, g, own, logits, self.n_classes)
        largest = g.op("GatherElements", probs, answer, axis=1)
        answer, confidence, largest = (g.op("Squeeze", value, g.const([1])) for value in (answer, confidence, largest))
        unknown = g.op("IsNaN", g.cast(confidence, FLOAT))
        g.rename(g.cast(probs, FLOAT), "probs")
        g.rename(g.op("Where", unknown, g.const(np.int64(-1)), answer), "prediction")
        g.rename(g.cast(confidence, FLOAT), "confidence")
        g.rename(passes, "passes")
        g.rename(g.cast(logits, FLOAT), "logits")
        kinds = {"prediction": INT64, "confidence": FLOAT, "passes": INT64}
        if self.rule is not None:
            limits = self.rule.thresholds
            threshold = g.const(limits[0]) if len(limits) == 1 else g.op("Gather", g.const(limits), answer, axis=0)
            read = confidence if self.rule.reads == "confidence" else largest
            g.rename(g.op("GreaterOrEqual", read, threshold), "accept")
            kinds["accept"] = BOOL
        wide = ["batch", self.n_classes]
        flat = [tensor(name, kind, ["batch"]) for name, kind in kinds.items()]
        # The model's own logits come last; a watch compares them with those of the fit.
        return [tensor("probs", FLOAT, wide), *flat, tensor("logits", FLOAT, wide)]


def _refused(g: Nodes, logits: str, transforms: tuple[Transform, ...], inputs: str, kind: int) -> str:
    """Return logits, (..., n, K), with NaN in the rows of inputs that a transformation would refuse in Python."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name
    limits = [scale(dtype) for t in transforms if (scale := getattr(t, "full_scale", None)) is not None]
    limits = [limit for limit in limits if limit is not None]
    if not limits:
        return logits
    values = g.op("Abs", g.cast(g.op("Flatten", inputs, axis=1), DOUBLE))
    fits = g.op("LessOrEqual", g.reduce("ReduceMax", values, 1), g.const(min(limits) * _ABOVE))  # (n, 1)
    return g.op("Where", fits, logits, g.op("CastLike", g.const(np.float32(np.nan)), logits))


def _gateable(file: _File) -> _File:
    """Return the file in a form that takes a batch of which no row needs views; in a branch if there is no other."""
    one = _zeros(file.example)
    assert one is not None
    front, never = list(file.front), file.calibration.with_gate(_NEVER)
    inner = tuple(file.example.shape[1:]) if len(front) == 1 else tuple(sizes(front[-2].output)[1:])
    for parts in (front, [*front[:-1], fix_reshapes(front[-1], inner)]):
        if takes_no_rows(replace(file, front=parts, calibration=never, rule=None).model(), "inputs", one):
            return replace(file, front=parts)
    return replace(file, branched=True)


def _zeros(source: Any, fixed: int = 0) -> NDArray[Any] | None:
    """Return zeros like a batch, or like a model's own inputs if their shape is known: one, or the fixed number."""
    if isinstance(source, Part):
        if len(sizes(source.input)) < 2 or 0 in sizes(source.input)[1:]:
            return None
        source = example_of(source)
    return np.zeros((fixed or 1, *source.shape[1:]), str(source.dtype).removeprefix("torch."))


def _rule(accept: Any, n_classes: int) -> _Rule | None:
    if accept is None:
        return None
    known = isinstance(accept, DecisionRule)
    thresholds = np.asarray(accept.thresholds if known else accept, dtype=np.float64).reshape(-1)
    if len(thresholds) not in (1, n_classes):
        raise InputError(
            f"is one number, or one for each of {n_classes} classes", argument="accept", came=f"got {len(thresholds)}"
        )
    return _Rule(thresholds, accept.reads, accept.risk, accept.confidence) if known else _Rule(thresholds, "confidence")


def _torch_front(model: Any, preprocess: Any, example: Any, outputs: str) -> list[Part]:
    from recal.export.torch_onnx import Logits, gives_probabilities

    if outputs == "logits" and gives_probabilities(model, preprocess, example):
        raise _ends_in_softmax()
    return _with_two_columns([trace_module(Logits(model, preprocess), example)], outputs)


def _onnx_front(
    model: Any, transforms: tuple[Transform, ...], preprocess: Any, example: Any, outputs: str
) -> tuple[list[Part], Any]:
    """Return the parts that turn inputs into logits, and an example of the inputs."""
    own = read_model(model)
    if outputs == "logits" and own.ends_in_softmax:
        raise _ends_in_softmax()
    batch = example
    if batch is None and (transforms or preprocess is not None):
        batch = example_of(own)
    front: list[Part] = []
    if isinstance(preprocess, Normalize):
        front = [normalize_part(preprocess, batch)]
    elif preprocess is not None:
        from recal.export.torch_onnx import Prepared

        front = [trace_module(Prepared(preprocess), batch)]
    shape = sizes(front[-1].output) if front else [] if batch is None else list(batch.shape)
    if len(shape) == 3 and len(sizes(own.input)) == 4:
        front.append(channel_part(own))
        shape = [*shape, 1] if sizes(own.input)[1] != 1 else [shape[0], 1, *shape[1:]]
    if rows_of(own):
        inner = [size or other for size, other in zip(sizes(own.input)[1:], shape[1:] or sizes(own.input)[1:])]
        try:
            own = open_batch(own, tuple(inner))
        except InputError:
            if transforms:
                raise
    return _with_two_columns([*front, own], outputs), batch


def _with_two_columns(front: list[Part], outputs: str) -> list[Part]:
    """Return the parts, with one more if the model is binary and has one output."""
    columns = two_column_part(front[-1], outputs)
    return front if columns is None else [*front, columns]


def _ends_in_softmax() -> InputError:
    before, after = "Export the model without its softmax, or say", ", as when the views were collected"
    return InputError(
        "The model ends in a softmax: it gives probabilities, and logits are needed",
        remedy=Remedy(f"{before} outputs='probabilities'{after}", typed=f"{before} --outputs probabilities{after}"),
    )


def _views(transforms: tuple[Transform, ...], batch: Any, opset: int) -> Part | None:
    if not transforms:
        return None
    if all(isinstance(transform, BuiltIn) for transform in transforms):
        return view_part(transforms, batch, opset)
    from recal.export.torch_onnx import Views

    return trace_module(Views(transforms), batch)


def _classes_of(part: Part) -> int:
    shape = part.output.type.tensor_type.shape.dim
    if len(shape) != 2 or shape[1].dim_value < 2:
        sizes = [axis.dim_value or axis.dim_param or "?" for axis in shape]
        raise InputError(f"The model must give logits of the shape (n, n_classes) with known n_classes, got {sizes}.")
    return int(shape[1].dim_value)


def _check_traceable(transforms: tuple[Transform, ...]) -> None:
    for transform in transforms:
        if isinstance(transform, BuiltIn) and not transform.traceable:
            raise InputError(
                f"{str(transform)!r} cannot be written as ONNX operations. Calibrate with others (such as zoom, "
                "brightness, contrast, blur, flip, shift), or export the calibration alone and compute the views "
                "yourself."
            )


def _metadata(source: Any, transforms: tuple[Transform, ...], rule: Any) -> dict[str, Any]:
    """Return what a service should know besides the graph: names of classes, thresholds, preprocessing."""
    stored = getattr(source, "preprocessing_", None)
    values: dict[str, Any] = {"transforms": [str(transform) for transform in transforms]}
    if (classes := getattr(source, "classes_", None)) is not None:
        values["classes"] = np.asarray(classes).tolist()
    if rule is not None:
        values["thresholds"] = [None if np.isinf(limit) else float(limit) for limit in rule.thresholds]
        values |= {"reads": rule.reads, "risk": rule.risk, "confidence": rule.confidence}
    if stored is not None:
        values["preprocessing"] = stored.as_json()
    return {name: value for name, value in values.items() if value is not None}


def _write(model: onnx.ModelProto, path: str | os.PathLike[str], metadata: dict[str, Any]) -> Path:
    for name, value in metadata.items():
        model.metadata_props.add(key=f"recal_{name}", value=json.dumps(value))
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
