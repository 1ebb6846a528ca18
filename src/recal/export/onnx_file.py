"""A model and its calibration as one ONNX file: inputs in, calibrated probabilities out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signals import SignalCalibration
from recal.decisions.decision import Decision
from recal.decisions.rule import DecisionRule
from recal.errors import InputError, in_both
from recal.export import traced_functions as xp
from recal.export.calibration import Calibration, calibration_of
from recal.export.calibration_file import answers, export_signals, metadata, own_probs, write
from recal.export.network import (
    Part,
    channel_part,
    example_of,
    fix_reshapes,
    normalize_part,
    open_batch,
    opsets_of,
    read_model,
    rows_of,
    run,
    sizes,
    trace_module,
    two_column_part,
    view_part,
)
from recal.export.tracer import IR_VERSION, OPEN, Graph, Nodes, Symbol, dtype_of, onnx
from recal.maps.guard import bounded
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

_THRESHOLDS = Either(Number(0.0, 1.0), ListOf(Number(0.0, 1.0)))
_THRESHOLDS.rule = "a threshold in [0, 1], or one for each class"


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
        from recal.export.torch_onnx import gives_probabilities, logits_of, parts_of

        model, plan, preprocess = parts_of(model, plan, preprocess)
        calibration = calibration_of(plan)
        _check_traceable(calibration.map.transforms)
        if example is None:
            raise InputError(
                "A torch model is exported with an example input: pass a batch such as torch.rand(1, 3, 32, 32)."
            )
        if outputs == "logits" and gives_probabilities(model, preprocess, example):
            raise _ends_in_softmax()
        front, batch = (
            _with_two_columns([trace_module(logits_of(model, preprocess), example)], outputs),
            example,
        )
    n_classes = _classes_of(front[-1])
    calibration.check_classes(n_classes)
    views = _views(
        calibration.map.transforms, batch, opsets_of(*(part.model for part in front))[""]
    )
    rule = _rule(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    file = _File(front, views, calibration, n_classes, outputs, batch, rule)
    if calibration.map.gate is not None:
        file = _gateable(file)
    whole = file.model()
    run(
        whole,
        whole.graph.input[0].name,
        _zeros(front[0] if batch is None else batch, rows_of(front[-1])),
    )
    return write(whole, path, metadata(plan, calibration.map.transforms, rule))


@dataclass(frozen=True)
class _Rule:
    """Thresholds given as numbers: a DecisionRule without a guarantee."""

    thresholds: tuple[float, ...]
    reads: str = "confidence"
    risk: float | None = None
    confidence: float | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class _File:
    """The pieces of a file: parts from inputs to logits, the views, the calibration.

    `branched` is for models that cannot take an empty batch: views behind a gate are then computed
    in a branch, which runtimes optimise less than the main graph.
    """

    front: Sequence[Part]
    views: Part | None
    calibration: Calibration
    n_classes: int
    outputs: str
    example: Any = None
    rule: DecisionRule | _Rule | None = None
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
        version = max(IR_VERSION, *(part.model.ir_version for part in parts))
        results = self._results(*self._answers(inputs))
        whole = inputs.device.model(
            [inputs], results, opsets_of(*(part.model for part in parts)), version
        )
        if fixed := rows_of(self.front[-1]):  # a fixed batch that could not be opened
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
        stack = self._logits(self.views.put(inputs[rows], "views_")).reshape(
            (len(self.calibration.map.transforms), OPEN, self.n_classes)
        )
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
    limits = [
        scale(inputs.dtype)
        for t in transforms
        if (scale := getattr(t, "full_scale", None)) is not None
    ]
    limits = [limit for limit in limits if limit is not None]
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
    for parts in (front, [*front[:-1], fix_reshapes(front[-1], inner)]):
        with suppress(InputError):
            run(replace(file, front=parts, calibration=never, rule=None).model(), "inputs", one)
            return replace(file, front=parts)
    return replace(file, branched=True)


def _zeros(source: Any, fixed: int = 0) -> NDArray[Any] | None:
    """Return zeros like a batch, or like a model's inputs if their shape is known: one row, or
    `fixed` rows.
    """
    if isinstance(source, Part):
        if len(sizes(source.input)) < 2 or 0 in sizes(source.input)[1:]:
            return None
        source = example_of(source)
    return np.zeros((fixed or 1, *source.shape[1:]), dtype_name(source))


def _rule(accept: Any, n_classes: int) -> DecisionRule | _Rule | None:
    if accept is None:
        return None
    accept = accept.rule if isinstance(accept, Decision) else accept
    rule = accept if isinstance(accept, DecisionRule) else _Rule(_thresholds(accept))
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


def _thresholds(accept: Any) -> tuple[float, ...]:
    numbers = check(
        accept.tolist() if isinstance(accept, np.ndarray) else accept, _THRESHOLDS, "accept"
    )
    return tuple(np.ravel(numbers).astype(float).tolist())


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
        from recal.export.torch_onnx import Function

        front = [trace_module(Function(preprocess), batch)]
    shape = sizes(front[-1].output) if front else [] if batch is None else list(batch.shape)
    if len(shape) == 3 and len(sizes(own.input)) == 4:
        front.append(channel_part(own))
        shape = [*shape, 1] if sizes(own.input)[1] != 1 else [shape[0], 1, *shape[1:]]
    if rows_of(own):
        inner = [
            size or other
            for size, other in zip(sizes(own.input)[1:], shape[1:] or sizes(own.input)[1:])
        ]
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
    before, after = (
        "Export the model without its softmax, or say",
        ", as when the views were collected",
    )
    return InputError(
        "The model ends in a softmax: it gives probabilities, and logits are needed",
        remedy=f"{before} {in_both(outputs='probabilities')}{after}",
    )


def _views(transforms: tuple[Transform, ...], batch: Any, opset: int) -> Part | None:
    if not transforms:
        return None
    if all(isinstance(transform, BuiltIn) for transform in transforms):
        return view_part(transforms, batch, opset)
    from recal.export.torch_onnx import views_of

    return trace_module(views_of(transforms), batch)


def _classes_of(part: Part) -> int:
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
