"""`recal export` and `recal plan`: take a calibration elsewhere, or look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.answers import export_signals, reads_signals, tell_signals
from recal.cli.files import check_kind
from recal.cli.options import Outputs, PreprocessOptions, Trust, outputs_for, without_none
from recal.cli.printing import AsJson, print_json, say, typed, working


def export(
    calibration: Annotated[Path, typer.Argument(help="The calibration: a file, or the folder of `recal calibrate`.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the ONNX file.")],
    between: PreprocessOptions,
    model: Annotated[
        Path | None, typer.Option("--model", help="The model: an .onnx file, or a .pt2 file of torch.export.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="The shape of one input, such as 3,32,32, if the model does not tell it."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="The dtype of the inputs, such as uint8. By default the model's own, or float32."),
    ] = None,
    outputs: Outputs = None,
    trust: Trust = None,
    accept: Annotated[
        float | None, typer.Option("--accept", help="Add an output `accept`: confidence at or above this threshold.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", help="The number of classes, if the calibration is a plan alone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a calibrated model as one ONNX file: inputs in, calibrated probabilities out.

    The file holds the transformations, the model and the plan, and needs neither Python nor recal to run. The
    calibration stores how inputs were prepared: shape, dtype and normalisation ([bold]recal plan[/bold] shows them). If
    it does not, give the options that the views were collected with.
    Without [bold]--model[/bold] the file holds the plan alone: from `logits`, and `transformed` logits, to `probs`.

    Example: [bold]recal export calibration.recal --model model.onnx --out calibrated.onnx[/bold]
    """
    from recal.cli.files import load_calibration
    from recal.workflow.result import file_or_in

    if model is None and reads_signals(file_or_in(calibration)):
        export_signals(file_or_in(calibration), out, as_json)
        return
    source = load_calibration(calibration)
    from recal.errors import InputError
    from recal.export import export_calibration, export_onnx
    from recal.export.calibration import calibration_of
    from recal.export.cost import measure

    parts = calibration_of(source)
    of_model = {"shape": shape, "dtype": dtype, **vars(between), "outputs": outputs, "accept": accept}
    with working("Exporting"):
        if model is None:
            if given := [f"--{name}" for name in without_none(**of_model)]:
                raise InputError(f"{', '.join(given)} describe a model's inputs and outputs: give --model, too.")
            n_classes = classes if classes is not None else len(getattr(source, "classes_", ()))
            export_calibration(source, out, n_classes=classes)
        else:
            opened = _opened(model, trust)
            stored = getattr(source, "preprocessing_", None)
            prepared = between.preprocessing(stored)
            example = _example(opened, shape, dtype, stored)
            more = without_none(outputs=outputs_for(outputs, stored), accept=accept)
            export_onnx(opened, example, out, plan=source, preprocess=prepared, **more)
            n_classes = _n_classes(out)
        kept = _keep_profile(source, out) if model is not None else None
        cost = measure(out, parts, n_classes, with_model=model is not None)
    if as_json:
        views = [str(transform) for transform in parts.transforms]
        steps = len(getattr(parts.map, "steps", ()))
        told = {"file": out, "transforms": views, "steps": steps, "bytes": out.stat().st_size}
        print_json({**told, "ms": cost.whole, "calibration_ms": cost.calibration, "profile": kept})
        return
    say(f"Written to {out}: {_described(parts, model is not None)}.")
    if kept is not None:
        say(f"The profile of the fit's inputs is in {kept}: examples/serve.py watches and follows with it.")
    if model is not None and (reading := _not_in_file(source)):
        say(f"Not part of the file: {reading}. Prepare inputs in the same way before you pass them.")
    whole = "" if cost.whole is None else f"One answer takes {cost.whole:.3g} ms on one thread here, of which "
    say(f"{whole}{'the' if whole else 'The'} calibration alone takes {cost.calibration:.2g} ms.")


def _keep_profile(source: Any, out: Path) -> Path | None:
    """Write the profile of the fit beside the file; a service needs it to watch and follow its logits."""
    from recal import save
    from recal.cli.destinations import PROFILE

    profile = getattr(source, "profile_", None)
    return None if profile is None else save(profile, out.with_suffix(PROFILE))


def _not_in_file(source: Any) -> str:
    """Return the options by which files were read, such as --resize 256: the ONNX file starts after them."""
    stored = getattr(source, "preprocessing_", None)
    settings = {} if stored is None else stored.options()
    names = ("read", "pixels", "resize", "crop", "seconds")
    return " ".join(f"--{name} {settings[name]}" for name in names if name in settings)


def _described(calibration: Any, with_model: bool) -> str:
    shape, views, gate = calibration.describe(), len(calibration.transforms), calibration.gate
    if not with_model:
        return f"{shape}, {views} views; inputs: logits{', transformed' if views else ''}"
    if gate is not None:
        return f"{shape}; an answer costs 1 forward pass from a confidence of {gate:g} on, {1 + views} below"
    return f"{shape}, {views} views; each answer costs {1 + views} forward pass{'es' if views else ''}"


def _opened(model: Path, trust: str | None) -> Any:
    from recal.cli.files import missing
    from recal.errors import FileError, InputError

    if model.suffix.lower() not in (".onnx", ".pt2"):
        raise InputError(
            f"recal export takes an .onnx file, or a .pt2 file of torch.export, got {model}",
            remedy="Convert the model to ONNX first (skl2onnx does so for scikit-learn), or leave out --model to write "
            "the calibration alone, which takes the model's logits",
        )
    if not model.is_file():
        raise FileError(missing(model))
    if model.suffix.lower() == ".onnx":
        return model
    from recal.collecting.models.base import as_model, import_model

    adapter: Any = as_model(import_model(str(model), trusted=(trust or "").split(",")))
    return adapter.module


def _example(model: Any, shape: str | None, dtype: str | None, stored: Any) -> Any:
    """Return a batch of zeros of the shape and dtype asked for; what is not said the views or the model may know."""
    import numpy as np

    from recal.errors import InputError

    try:
        sizes = None if shape is None else [int(size) for size in shape.split(",")]
    except ValueError:
        raise InputError(f"--shape is written like 3,32,32, got {shape}.") from None
    kind = None if dtype is None else _dtype(dtype)
    if stored is not None and stored.shape is not None:
        sizes = list(stored.shape) if sizes is None else sizes
        kind = np.dtype(stored.dtype) if kind is None else kind
        if kind != np.dtype(stored.dtype):
            raise InputError(
                f"--dtype {dtype} contradicts the calibration, whose views were collected from {stored.dtype} inputs. "
                "Leave the option out, or collect and fit again."
            )
    if isinstance(model, Path):
        from recal.export.network import example_of, read_model

        return None if sizes is None and kind is None else example_of(read_model(model), kind, sizes)
    if sizes is None:
        raise InputError("A torch model is exported with an example input: give --shape, such as 3,32,32.")
    return np.zeros((1, *sizes), dtype=kind or "float32")


def _dtype(name: str) -> Any:
    import numpy as np

    from recal.errors import InputError

    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "fiu":
        raise InputError(f"--dtype names numbers, such as float32, float16 or uint8, got {name}.")
    return found


def _n_classes(path: Path) -> int:
    from recal.export.graph import onnx
    from recal.export.network import sizes

    return sizes(next(value for value in onnx.load(path).graph.output if value.name == "probs"))[1]


def plan(
    file: Annotated[
        Path, typer.Argument(help="A calibration, a rule or a profile: a file, or the folder of `recal calibrate`.")
    ],
    steps: Annotated[bool, typer.Option("--steps", help="Show every step of a ReCal plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a calibration: its method, the views it needs, forward passes per answer, and how it was fitted.

    Example: [bold]recal plan calibration.recal[/bold]
    """
    from recal.files.saved import load
    from recal.workflow.result import file_or_in

    file = file_or_in(file)
    check_kind(file, "calibration")
    loaded = load(file)
    if type(loaded).__name__ == "SignalCalibration":
        tell_signals(file, loaded, _rule(getattr(loaded, "decision_", None)), as_json)
        return
    if not hasattr(loaded, "predict_proba") and not hasattr(loaded, "steps"):
        _tell_record(file, loaded, as_json)
        return
    facts = describe(loaded)
    if as_json:
        print_json({"file": file, **facts})
        return
    say(f"{file}: {facts['what']}")
    if facts["fitted_on"] is not None:
        say(f"Fitted on  {facts['fitted_on']:,} samples of {facts['classes']:,} classes")
    say(f"Answers    {'kept: predictions never change' if facts['keeps_answers'] else 'may change'}")
    say(f"Views      {', '.join(facts['views']) or 'none: only the original input'}")
    if facts["inputs"] is not None:
        say(f"Inputs     {facts['inputs']}")
    say(f"Cost       {facts['cost']}")
    if facts["plan"] is not None:
        text = str(facts["plan"])
        say("\n" + (text if steps else text.partition("\n")[0]))
        if not steps and "\n" in text:
            say("(--steps shows them all)")
    if facts["rule"] is not None:
        say(f"Decides    {facts['rule']}")
    asked = ("--model", "MODEL", "--data", "NEW")
    pool = "+".join(facts["views"])
    from_model = bool(pool) or facts["inputs"] is not None
    say(f"Next: {typed('recal', 'apply', file, *(asked if from_model else ('NEW_VIEWS',)), '--out', 'answers.csv')}")
    if pool:
        say(f"Or keep the views: {typed('recal', 'collect', *asked, '--pool', pool, '--out', 'new.zarr')}")


def describe(loaded: Any) -> dict[str, Any]:
    """Return the facts about a plan, a calibrator or a classifier."""
    from recal import Plan

    holder = getattr(loaded, "calibrator_", loaded)
    plan = loaded if isinstance(loaded, Plan) else holder.map_.plan
    views = loaded.transforms if isinstance(loaded, Plan) else holder.needed_transforms()
    classes = None if isinstance(loaded, Plan) else len(holder.classes_)
    kept = getattr(getattr(plan, "blend", None), "answers", "kept") != "free"
    return {
        "what": "a plan" if isinstance(loaded, Plan) else repr(loaded if holder is loaded else holder),
        "class": type(loaded).__name__,
        "classes": classes,
        "fitted_on": getattr(holder, "n_fitted_", None),
        "keeps_answers": kept if isinstance(loaded, Plan) else bool(holder.keeps_accuracy),
        "views": [str(view) for view in views],
        "cost": _cost(len(views), getattr(getattr(plan, "blend", None), "gate", None)),
        "plan": plan,
        "rule": _rule(getattr(loaded, "decision_", None)),
        "inputs": _inputs(getattr(holder, "preprocessing_", None)),
        "preprocessing": getattr(getattr(holder, "preprocessing_", None), "as_json", lambda: None)(),
    }


def _tell_record(file: Path, loaded: Any, as_json: bool) -> None:
    """Tell what a file is that is no calibration: a rule of `decide`, a profile of `watch`, prediction sets."""
    kind, again = type(loaded).__name__, f"recal.load({str(file)!r})"
    told = {
        "DecisionRule": (
            "a rule of recal decide",
            typed("recal", "apply", file, "NEW_PROBS.npz", "--out", "answers.csv"),
        ),
        "Profile": ("a profile for recal watch", typed("recal", "watch", file, "NEW_VIEWS")),
        "PredictionSets": ("prediction sets", f"{again}.predict(probs) says which classes remain possible"),
    }
    what, following = told.get(kind, (f"a {kind}", again))
    if as_json:
        print_json({"file": file, "class": kind, "what": what, "rule": _rule(loaded)})
        return
    say(f"{file}: {what}")
    if kind == "DecisionRule":
        say(f"Decides    {_rule(loaded)}")
    elif kind == "Profile":
        say(f"Taken from {len(loaded.answers):,} samples")
    say(f"Next: {following}")


def _rule(rule: Any) -> str | None:
    """How a rule decides, in words; None where it is none."""
    if not hasattr(rule, "thresholds"):
        return None
    bound = f"at most {rule.risk:.3g} of them wrong, at {rule.confidence:.0%} confidence"
    if rule.per_class:
        return f"accepts answers at or above a threshold for each of {len(rule.thresholds)} classes; {bound}"
    return f"accepts answers with a confidence of at least {rule.thresholds[0]:.6g}; {bound}"


def _inputs(stored: Any) -> str | None:
    """Return how inputs reached the model when the views were collected."""
    if stored is None:
        return None
    what = "" if stored.shape is None else f"{stored.dtype} of the shape {'x'.join(map(str, stored.shape))}, "
    return f"{what}{f'with {stored}' if str(stored) else 'as they are'}; apply and export do the same"


def _cost(count: int, gate: float | None) -> str:
    if count == 0:
        return "one forward pass per answer, as without calibration"
    extra = f"{count} more for each view" if count > 1 else "one more for the view"
    if gate is None:
        return f"{1 + count} forward passes per answer: the input's own and {extra}"
    return f"one forward pass per answer, and {count} more where the confidence is below {gate:g}"
