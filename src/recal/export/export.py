"""A model and its calibration as one ONNX file: inputs in, calibrated probabilities out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.signals import SignalCalibration
from recal.decisions.rule import DecisionRule
from recal.errors import InputError, Remedy
from recal.export.graph import onnx
from recal.export.heads import Head, head_model, head_of
from recal.export.normalize import normalized
from recal.export.pieces import (
    Piece,
    channel_axis,
    example_of,
    opsets_of,
    read_model,
    rows_of,
    sizes,
    traced,
    written_views,
)
from recal.export.rows import check_runs, opened, settled, takes_no_rows
from recal.export.whole import Accept, whole_model
from recal.files.atomic import replacing
from recal.plan import Plan
from recal.transforms import BuiltIn, Transform
from recal.transforms.preprocessing import Normalize, Outputs, check_outputs, match_outputs, match_preprocess

__all__ = ["export_onnx", "export_replay"]
# A gate below every confidence.
_NEVER = 1e-300


def export_replay(plan: Plan | Any, path: str | os.PathLike[str], n_classes: int | None = None) -> Path:
    """Write the replay alone: from logits to calibrated probabilities.

    Parameters
    ----------
    plan : Plan, or a fitted calibrator
    path : where to write
    n_classes : int, optional where `plan` is a calibrator, which knows its classes

    The file's inputs are `logits` (n, n_classes) and, where the plan needs views, `transformed` (m, n, n_classes), the
    logits through ``plan.transforms`` in that order, both float32; its outputs are `probs` and `confidence`, the chance
    that each answer is right. Rows of samples above a
    plan's gate are not read.
    """
    head = head_of(plan)
    classes = n_classes if n_classes is not None else len(getattr(plan, "classes_", ()))
    if not classes:
        raise InputError("A plan does not know how many classes there are: pass n_classes.")
    return _write(head_model(head, int(classes)), head.transforms, path)


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
        A CalibratedModule brings its plan and its preprocessing. An ONNX file needs no torch, except for
        transformations or a `preprocess` of your own. A fixed batch is opened where answers stay the same. A
        SignalCalibration needs `path` alone; its file reads `signals` and returns `confidence`.
    example : array or tensor of shape (n, ...)
        A batch of inputs as the file will get them; only its shape (without n) and dtype matter. A calibrator that
        knows what its views were collected from needs none, and an ONNX model with a fixed input shape neither.
    path : where to write
    plan : Plan, or a fitted calibrator
        Any of recal's methods.
    preprocess : callable, optional
        Runs after the transformations and before the model; must consist of torch operations. By default, and for
        `outputs` too, what the calibrator's views were collected with; a contradiction is refused.
    outputs : {"logits", "probabilities", "votes"} or "probabilities:FLOOR", optional
        What the model returns, as in `recal.collect`; logits, where nothing is known.
    accept : DecisionRule, float, or one number per class, optional
        The confidence from which on an answer is accepted, of any class or of the predicted one; by default that of
        the calibrator's `decision_`, where it has one.

    Returns
    -------
    The path. The file has one input, `inputs` (or the ONNX model's own, where nothing is put before it), of any number
    of rows. Its outputs are `probs` (n, n_classes), `prediction` (n,), the index of the answer, `confidence` (n,), the
    chance that it is right, as `predict_confidence` gives it, `passes` (n,), how many forward passes each answer took,
    `accept` (n,) where a threshold is given, and `logits` (n, n_classes), the model's own, for a watch. Where the plan
    has a gate, views are computed only for the rows below it. Rows that a transformation would refuse in Python, such
    as floats above white, are answered by NaN and the prediction -1.

    Examples
    --------
    >>> import tempfile, torch
    >>> from recal import CalibratedModule, Plan
    >>> from recal.export import export_onnx
    >>> calibrated = CalibratedModule(torch.nn.Linear(4, 3), Plan(start=0.5))
    >>> export_onnx(calibrated, torch.rand(1, 4), tempfile.mkdtemp() + "/model.onnx").name
    'model.onnx'
    """
    if isinstance(model, SignalCalibration):
        from recal.export.signals import export_signals

        return export_signals(model, path)
    if outputs is not None:
        check_outputs(outputs)
    stored = getattr(plan, "preprocessing_", None)
    preprocess, outputs = match_preprocess(stored, preprocess), match_outputs(stored, outputs)
    if example is None and stored is not None and stored.shape is not None:
        example = np.zeros((1, *stored.shape), stored.dtype)
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        head = head_of(plan)
        _check_traceable(head.transforms)
        front, batch = _onnx_front(model, head.transforms, preprocess, example, outputs)
    else:
        from recal.export.torch_onnx import parts_of

        model, plan, preprocess = parts_of(model, plan, preprocess)
        head = head_of(plan)
        _check_traceable(head.transforms)
        if example is None:
            raise InputError(
                "A torch model is exported with an example input: pass a batch such as torch.rand(1, 3, 32, 32)."
            )
        front, batch = _torch_front(model, preprocess, example, outputs), example
    n_classes = _classes_of(front[-1])
    head.check_classes(n_classes)
    views = _views(head.transforms, batch, opsets_of(*(piece.model for piece in front))[""])
    wanted = _accept(getattr(plan, "decision_", None) if accept is None else accept, n_classes)
    front, branched = (front, False) if head.gated is None else _gateable(front, views, head, n_classes, batch)
    whole = whole_model(front, views, head, n_classes, batch, outputs=outputs, accept=wanted, branched=branched)
    check_runs(whole, _some_of(front[0] if batch is None else batch, rows_of(front[-1])))
    return _write(whole, head.transforms, path)


def _gateable(
    front: list[Piece], views: Piece | None, head: Head, n_classes: int, batch: Any
) -> tuple[list[Piece], bool]:
    """Return the front such that a batch of which no row needs views goes through it, and whether it takes a branch."""
    assert head.plan is not None
    assert head.plan.blend is not None
    never = replace(head, plan=replace(head.plan, blend=replace(head.plan.blend, gate=_NEVER)))
    one = _some_of(batch)
    assert one is not None
    inner = tuple(batch.shape[1:]) if len(front) == 1 else tuple(sizes(front[-2].output)[1:])
    for tried in (front, [*front[:-1], settled(front[-1], inner)]):
        if takes_no_rows(whole_model(tried, views, never, n_classes, batch), "inputs", one):
            return tried, False
    return front, True


def _some_of(source: Any, fixed: int = 0) -> NDArray[Any] | None:
    """Return zeros like a batch, or like a model's own inputs if their shape is known: one, or the fixed number."""
    if isinstance(source, Piece):
        if len(sizes(source.input)) < 2 or 0 in sizes(source.input)[1:]:
            return None
        source = example_of(source)
    return np.zeros((fixed or 1, *source.shape[1:]), str(source.dtype).removeprefix("torch."))


def _accept(accept: Any, n_classes: int) -> Accept | None:
    if accept is None:
        return None
    reads = accept.reads if isinstance(accept, DecisionRule) else "confidence"
    values = accept.thresholds if isinstance(accept, DecisionRule) else accept
    thresholds = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(thresholds) not in (1, n_classes):
        raise InputError(
            f"is one number, or one for each of {n_classes} classes", argument="accept", came=f"got {len(thresholds)}"
        )
    return Accept(thresholds, reads)


def _torch_front(model: Any, preprocess: Any, example: Any, outputs: str) -> list[Piece]:
    from recal.export.torch_onnx import Logits, gives_probabilities

    if outputs == "logits" and gives_probabilities(model, preprocess, example):
        raise _ends_in_softmax()
    return [traced(Logits(model, preprocess), example)]


def _onnx_front(
    model: Any, transforms: tuple[Transform, ...], preprocess: Any, example: Any, outputs: str
) -> tuple[list[Piece], Any]:
    """Return what turns inputs into logits, one piece after the other, and an example of the inputs."""
    own = read_model(model)
    if outputs == "logits" and own.ends_in_softmax:
        raise _ends_in_softmax()
    batch = example
    if batch is None and (transforms or preprocess is not None):
        batch = example_of(own)
    front: list[Piece] = []
    if isinstance(preprocess, Normalize):
        front = [normalized(preprocess, batch)]
    elif preprocess is not None:
        from recal.export.torch_onnx import Prepared

        front = [traced(Prepared(preprocess), batch)]
    given = sizes(front[-1].output) if front else [] if batch is None else list(batch.shape)
    if len(given) == 3 and len(sizes(own.input)) == 4:
        front.append(channel_axis(own))
        given = [*given, 1] if sizes(own.input)[1] != 1 else [given[0], 1, *given[1:]]
    if rows_of(own):
        known = [size or said for size, said in zip(sizes(own.input)[1:], given[1:] or sizes(own.input)[1:])]
        try:
            own = opened(own, tuple(known))
        except InputError:
            if transforms:
                raise
    return [*front, own], batch


def _ends_in_softmax() -> InputError:
    before, after = "Export the model without its softmax, or say", ", as when the views were collected"
    return InputError(
        "The model ends in a softmax: it gives probabilities, and logits are needed",
        remedy=Remedy(f"{before} outputs='probabilities'{after}", typed=f"{before} --outputs probabilities{after}"),
    )


def _views(transforms: tuple[Transform, ...], batch: Any, opset: int) -> Piece | None:
    if not transforms:
        return None
    if all(isinstance(transform, BuiltIn) for transform in transforms):
        return written_views(transforms, batch, opset)
    from recal.export.torch_onnx import Views

    return traced(Views(transforms), batch)


def _classes_of(piece: Piece) -> int:
    shape = piece.output.type.tensor_type.shape.dim
    if len(shape) != 2 or shape[1].dim_value < 2:
        given = [axis.dim_value or axis.dim_param or "?" for axis in shape]
        raise InputError(f"The model must give logits of the shape (n, n_classes) with known n_classes, got {given}.")
    return int(shape[1].dim_value)


def _check_traceable(transforms: tuple[Transform, ...]) -> None:
    for transform in transforms:
        if isinstance(transform, BuiltIn) and not transform.traceable:
            raise InputError(
                f"{str(transform)!r} cannot be written as ONNX operations. Calibrate with others (such as zoom, "
                "brightness, contrast, blur, flip, shift), or export the replay alone and compute the views yourself."
            )


def _write(model: onnx.ModelProto, transforms: tuple[Transform, ...], path: str | os.PathLike[str]) -> Path:
    listed = onnx.StringStringEntryProto(key="recal_transforms", value=",".join(str(t) for t in transforms))
    model.metadata_props.append(listed)
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
