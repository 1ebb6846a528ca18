"""`recal export`: a calibrated model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from recal.cli import options as opt
from recal.cli.files import check_exists, is_signal_calibration, load_saved, profile_beside
from recal.cli.printing import print_json, say, working
from recal.errors import InputError

INPUTS = ("outputs", "trust")


def export(
    ctx: Context,
    calibration: opt.CalibrationPath,
    out: Annotated[Path, Option(help="Where to write the ONNX file.")],
    model: Annotated[Path | None, Option(help="The model: an .onnx or .pt2 file.")] = None,
    shape: Annotated[str | None, Option(help="The shape of one input, such as 3,32,32.")] = None,
    dtype: Annotated[str | None, Option(help="The dtype of the inputs, such as uint8.")] = None,
    classes: Annotated[int | None, Option(help="The number of classes, for a plan alone.")] = None,
    force: opt.Force = False,
) -> None:
    """Write a calibrated model as one ONNX file: inputs in, calibrated probabilities out.

    The file holds the transformations, the model and the plan, and needs neither Python nor recal
    to run. The calibration stores how inputs were prepared: shape, dtype and normalisation
    ([bold]recal plan[/bold] shows them). Without [bold]--model[/bold] the file holds the plan
    alone: from `logits`, and `transformed` logits, to `probs`.

    Example: [bold]recal export calibration.recal --model model.onnx --out calibrated.onnx[/bold]
    """
    _, source = load_saved(calibration)
    from recal import export_onnx, save

    if is_signal_calibration(source):
        what, parts_of_model = "a calibration of graded answers", ("model", "shape", "dtype")
        opt.refuse(ctx, what, (*parts_of_model, "outputs", "trust", "classes"))
        export_onnx(source, path=out)
        signals = source.table_.names
        print_json({"file": out, "signals": signals, "bytes": out.stat().st_size})
        order = f"signals (n, {len(signals)}) in the order {', '.join(signals)}"
        say(f"Written to {out}: {order}; confidence (n,) out.")
        return
    from recal.export import export_calibration
    from recal.export.calibration import calibration_of

    parts, profile = calibration_of(source), None
    settings: dict[str, Any] = {}
    with working("Exporting"):
        if model is None:
            opt.refuse(ctx, "a calibration without --model", ("shape", "dtype", "outputs"))
            export_calibration(source, out, n_classes=classes)
        else:
            network = _open_network(model, ctx.obj.trust)
            stored = getattr(source, "preprocessing_", None)
            more = opt.without_none(outputs=ctx.obj.outputs)
            export_onnx(network, _example(network, shape, dtype, stored), out, plan=source, **more)
            settings = {} if stored is None else stored.options()
            # A service needs the profile to watch and follow its logits.
            if getattr(source, "profile_", None) is not None:
                profile = save(source.profile_, profile_beside(out))
    views = [str(transform) for transform in parts.map.transforms]
    facts = {"file": out, "transforms": views, "steps": len(getattr(parts.map, "steps", ()))}
    print_json({**facts, "bytes": out.stat().st_size, "profile": profile})
    what = f"{len(views)} views; inputs: logits{', transformed' if views else ''}"
    if model is not None and parts.map.gate is not None:
        gate = f"{parts.map.gate:g}"
        what = f"1 forward pass from a confidence of {gate} on, {1 + len(views)} below"
    elif model is not None:
        what = f"forward passes for an answer: {1 + len(views)}"
    say(f"Written to {out}: {type(source).__name__}, {what}.")
    if profile is not None:
        say(f"The profile of the fit's inputs, for recal watch, is in {profile}.")
    # The ONNX file gets inputs that have already been read from files.
    names = [name for name in ("pixels", "resize", "crop", "seconds") if name in settings]
    if reading := " ".join(f"--{name} {settings[name]}" for name in names):
        say(f"Not part of the file: {reading}. Prepare inputs in this way before you pass them.")


def _open_network(model: Path, trust: str | None) -> Any:
    """Return the path of an .onnx file, or the torch module of a .pt2 file."""
    if model.suffix.lower() not in (".onnx", ".pt2"):
        raise InputError(
            f"recal export takes an .onnx file, or a .pt2 file of torch.export, got {model}",
            remedy="Convert the model to ONNX first (skl2onnx does so for scikit-learn), or "
            "leave out --model to write the calibration alone, which takes the model's logits",
        )
    check_exists(model)
    if model.suffix.lower() == ".onnx":
        return model
    from recal.collecting.models import as_model, import_model

    adapter: Any = as_model(import_model(str(model), trusted=(trust or "").split(",")))
    return adapter.module


def _example(model: Any, shape: str | None, dtype: str | None, stored: Any) -> Any:
    """Return a batch of zeros, formed as the options, the views or the model say."""
    import numpy as np

    try:
        sizes = None if shape is None else [int(size) for size in shape.split(",")]
    except ValueError:
        raise InputError(f"--shape is written like 3,32,32, got {shape}.") from None
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind is not None and kind.kind not in "fiu":
        raise InputError(f"--dtype names numbers, such as float32, float16 or uint8, got {dtype}.")
    if stored is not None and stored.shape is not None:
        sizes = sizes or list(stored.shape)
        known = np.dtype(stored.dtype)
        if kind not in (None, known):
            raise InputError(f"--dtype must be {known}, as for the fit, got {dtype}. Leave it out.")
        kind = known
    if sizes is None:
        if kind is None and isinstance(model, Path):
            return None
        raise InputError("The file's inputs need a shape: give --shape, such as 3,32,32.")
    return np.zeros((1, *sizes), dtype=kind or "float32")
