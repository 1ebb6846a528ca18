"""`recal export`: a calibrated model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.output import AsJson, print_json, say, working


def export(
    calibration: Annotated[Path, typer.Argument(help="What `recal fit` wrote, by a method that makes a plan.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the ONNX file.")],
    model: Annotated[
        Path | None, typer.Option("--model", help="The model: an .onnx file, or a .pt2 file of torch.export.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="One input's shape, such as 3,32,32; an ONNX model may know it.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="The inputs' dtype: float32, uint8, ...")] = "float32",
    divide: Annotated[float | None, typer.Option("--divide", help="Divide inputs by this before the model.")] = None,
    mean: Annotated[str | None, typer.Option("--mean", help="Then subtract this, one number or one a channel.")] = None,
    std: Annotated[str | None, typer.Option("--std", help="Then divide by this, one number or one a channel.")] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", help="How many classes, where a plan is exported.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a calibrated model as one ONNX file: inputs in, honest probabilities out.

    The file holds the transformations, the model and the plan, and needs neither Python nor recal to run. Without
    [bold]--model[/bold] it holds the plan alone: from `logits`, and `transformed` logits, to `probs`.

    Example: [bold]recal export calibration.recal --model model.onnx --shape 3,32,32 --out calibrated.onnx[/bold]
    """
    from recal import load
    from recal.errors import InputError
    from recal.runtime.onnx import export_onnx, export_replay

    source = load(calibration)
    with working("Exporting"):
        if model is None:
            if any(value is not None for value in (shape, divide, mean, std)):
                raise InputError("--shape, --divide, --mean and --std describe a model's inputs; give --model too.")
            export_replay(source, out, n_classes=classes)
        else:
            preprocess = _preprocess(divide, mean, std)
            export_onnx(_opened(model), _example(shape, dtype), out, plan=source, preprocess=preprocess)
    plan = getattr(source, "plan_", source)
    views = [str(transform) for transform in plan.transforms]
    if as_json:
        print_json({"file": out, "transforms": views, "steps": len(plan.steps), "bytes": out.stat().st_size})
        return
    cost = f"each answer costs {1 + len(views)} forward passes" if model is not None else "inputs: logits, transformed"
    say(f"Written to {out}: {len(plan.steps)} steps, {len(views)} views; {cost}.")


def _opened(model: Path) -> Any:
    if model.suffix.lower() == ".onnx":
        return model
    from recal.collecting.models.torch import read_program

    return read_program(model).module()


def _example(shape: str | None, dtype: str) -> Any:
    import numpy as np

    from recal.errors import InputError

    if shape is None:
        return None
    try:
        return np.zeros((1, *(int(size) for size in shape.split(","))), dtype=dtype)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"--shape is written like 3,32,32 and --dtype like float32, got {shape} and {dtype}."
        ) from error


def _preprocess(divide: float | None, mean: str | None, std: str | None) -> Any:
    if divide is None and mean is None and std is None:
        return None
    from recal.collecting.preprocess import Normalize

    return Normalize(_numbers(mean, 0.0), _numbers(std, 1.0), 1.0 if divide is None else divide, channels="keep")


def _numbers(text: str | None, otherwise: float) -> Any:
    from recal.errors import InputError

    if text is None:
        return otherwise
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--mean and --std are numbers joined by commas, got {text!r}.") from error
    return values[0] if len(values) == 1 else values
