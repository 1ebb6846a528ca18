"""A model and its plan as one ONNX file: inputs in, calibrated probabilities out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recal.collecting.models.onnx_weights import check_external_data
from recal.errors import FileError, InputError, MissingExtraError
from recal.files.atomic import replacing
from recal.plan import Plan, plan_of
from recal.runtime.onnx_replay import OPSET, PROBS, ROWS, replay_after_model, replay_model
from recal.transforms import BuiltIn, Transform

try:
    import onnx
except ImportError:
    raise MissingExtraError("onnx", "onnx", "Writing ONNX files") from None

__all__ = ["export_onnx", "export_replay"]
_MODEL_INPUT, _LOGITS = "recal_model_input", "recal_logits"


def export_replay(plan: Plan | Any, path: str | os.PathLike[str], n_classes: int | None = None) -> Path:
    """Write the replay alone: from logits to calibrated probabilities.

    Parameters
    ----------
    plan : Plan, or a fitted calibrator that has one
    path : where to write
    n_classes : int, optional where `plan` is a calibrator, which knows its classes

    The file's inputs are `logits` (n, n_classes) and, where the plan needs views, `transformed` (m, n, n_classes), the
    logits through ``plan.transforms`` in that order, both float32; its output is `probs`.
    """
    steps = plan_of(plan)
    classes = n_classes if n_classes is not None else len(getattr(plan, "classes_", ()))
    if not classes:
        raise InputError("A plan does not know how many classes there are: pass n_classes.")
    return _write(replay_model(steps, int(classes)), steps, path)


def export_onnx(
    model: Any,
    example: Any = None,
    path: str | os.PathLike[str] = "calibrated.onnx",
    *,
    plan: Plan | Any = None,
    preprocess: Callable[[Any], Any] | None = None,
) -> Path:
    """Write a model with its transformations and its plan to one ONNX file.

    Parameters
    ----------
    model : CalibratedModule, torch.nn.Module, or the path of an ONNX file
        A CalibratedModule brings its plan and its preprocessing. torch is needed to write transformations, not for a
        temperature behind an ONNX model.
    example : array or tensor of shape (n, ...)
        A batch of inputs as the file will get them; only its shape (without n) and dtype matter. An ONNX model with a
        fixed input shape needs none.
    path : where to write
    plan : Plan, or a fitted calibrator that has one
    preprocess : callable, optional
        Runs after the transformations and before the model; must consist of torch operations.

    Returns
    -------
    The path. The file has one input, `inputs` (or the ONNX model's own, where nothing is put before it), of any number
    of rows, and one output, `probs`.

    Examples
    --------
    >>> import tempfile, torch
    >>> from recal import CalibratedModule, Plan
    >>> from recal.runtime.onnx import export_onnx
    >>> calibrated = CalibratedModule(torch.nn.Linear(4, 3), Plan(start=0.5))
    >>> export_onnx(calibrated, torch.rand(1, 4), tempfile.mkdtemp() + "/model.onnx").name
    'model.onnx'
    """
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        steps, own = plan_of(plan), _read(model)
        _check_traceable(steps.transforms)
        whole, logits = _with_rows(own, steps.transforms, preprocess, example)
    else:
        from recal.runtime.torch import parts_of, rows_as_onnx

        model, plan, preprocess = parts_of(model, plan, preprocess)
        steps = plan_of(plan)
        _check_traceable(steps.transforms)
        if example is None:
            raise InputError(
                "A torch model is written along an example: pass a batch such as torch.rand(1, 3, 32, 32)."
            )
        whole, logits = rows_as_onnx(steps.transforms, preprocess, model, example, _LOGITS), _LOGITS
    return _write(_with_replay(whole, logits, steps), steps, path)


def _check_traceable(transforms: tuple[Transform, ...]) -> None:
    for transform in transforms:
        if isinstance(transform, BuiltIn) and not transform.traceable:
            raise InputError(
                f"{str(transform)!r} cannot be written as ONNX operations. Calibrate with others (such as zoom, "
                "brightness, contrast, blur, flip, shift), or export the replay alone and compute the views yourself."
            )


def _read(model: Any) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, str | os.PathLike):
        raise InputError(f"A torch module or the path of an ONNX file is needed, got {type(model).__name__}.")
    check_external_data(Path(model))
    try:
        return onnx.load(os.fspath(model))
    except OSError as error:
        raise FileError(f"Cannot read {model}: {error.strerror or error}.") from error
    except Exception as error:
        raise FileError(f"{model} is not an ONNX model: {error}.") from error


def _example_of(model: onnx.ModelProto) -> np.ndarray[Any, Any]:
    own = _only_input(model)
    sizes = [axis.dim_value for axis in own.type.tensor_type.shape.dim]
    if len(sizes) < 2 or 0 in sizes[1:]:
        raise InputError(f"The model's input {own.name!r} leaves its shape open: pass an example batch.")
    return np.zeros((1, *sizes[1:]), onnx.helper.tensor_dtype_to_np_dtype(own.type.tensor_type.elem_type))


def _only_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    constants = {constant.name for constant in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise InputError(f"The ONNX model must have one input, the batch; it has {len(inputs)}.")
    return inputs[0]


def _with_rows(
    model: onnx.ModelProto, transforms: tuple[Transform, ...], preprocess: Any, example: Any
) -> tuple[onnx.ModelProto, str]:
    """Put the transformations before an ONNX model; return the whole and the name of its logits."""
    outputs = [value.name for value in model.graph.output]
    logits = outputs[0] if len(outputs) == 1 else "logits"
    if logits not in outputs:
        raise InputError(f"The ONNX model has {len(outputs)} outputs ({', '.join(outputs)}) and none is called logits.")
    if not transforms and preprocess is None:
        return _at_opset(model, max(_opset(model), OPSET)), logits
    from recal.runtime.torch import rows_as_onnx

    batch = _example_of(model) if example is None else example
    rows = rows_as_onnx(transforms, preprocess, None, batch, _MODEL_INPUT)
    model = onnx.compose.add_prefix(_at_opset(model, _opset(rows)), "model_")
    rows.ir_version = model.ir_version = max(rows.ir_version, model.ir_version)
    joined = onnx.compose.merge_models(
        rows, model, [(_MODEL_INPUT, _only_input(model).name)], outputs=[f"model_{logits}"]
    )
    return joined, f"model_{logits}"


def _with_replay(model: onnx.ModelProto, logits: str, plan: Plan) -> onnx.ModelProto:
    """Put the replay behind a model that gives the logits of all rows."""
    output = next(value for value in model.graph.output if value.name == logits)
    shape = output.type.tensor_type.shape.dim
    if len(shape) != 2 or shape[1].dim_value < 2:
        sizes = [axis.dim_value or axis.dim_param or "?" for axis in shape]
        raise InputError(f"The model must give logits of the shape (n, n_classes) with known n_classes, got {sizes}.")
    replay = replay_after_model(plan, shape[1].dim_value, output.type.tensor_type.elem_type, _opset(model))
    replay.ir_version = model.ir_version = max(model.ir_version, replay.ir_version)
    return onnx.compose.merge_models(model, replay, [(logits, ROWS)], outputs=[PROBS])


def _at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if _opset(model) == opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:
        raise InputError(
            f"The ONNX model's operations (version {_opset(model)}) cannot be brought to version {opset}: {error}"
        ) from error


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), OPSET)


def _write(model: onnx.ModelProto, plan: Plan, path: str | os.PathLike[str]) -> Path:
    onnx.helper.set_model_props(model, {"recal_transforms": ",".join(str(t) for t in plan.transforms)})
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
