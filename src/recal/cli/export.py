"""`recal export` and `recal plan`: export a calibration, or show it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from recal.cli.destinations import PROFILE
from recal.cli.files import check_calibration, check_exists, is_calibration, load_saved
from recal.cli.options import (
    OUTPUTS,
    TRUST,
    PreprocessOptions,
    argument,
    group_words,
    option,
    without_none,
)
from recal.cli.printing import print_json, say, say_facts, shell_line, working
from recal.errors import InputError

# `recal plan` shows the thresholds of at most this many groups.
_MOST_GROUPS = 10


def export(
    *,
    calibration: Path = argument(
        "The calibration: a file, or the folder of `recal calibrate`.", ...
    ),
    out: Path = option("Where to write the ONNX file.", ...),
    between: PreprocessOptions,
    model: Path | None = option("The model: an .onnx file, or a .pt2 file of torch.export."),
    shape: str | None = option(
        "The shape of one input, such as 3,32,32, if the model does not tell it."
    ),
    dtype: str | None = option(
        "The dtype of the inputs, such as uint8. By default the model's own, or float32."
    ),
    outputs: str | None = OUTPUTS,
    trust: str | None = TRUST,
    accept: float | None = option("Add an output `accept`: confidence at or above this threshold."),
    classes: int | None = option("The number of classes, if the calibration is a plan alone."),
) -> None:
    """Write a calibrated model as one ONNX file: inputs in, calibrated probabilities out.

    The file holds the transformations, the model and the plan, and needs neither Python nor recal
    to run. The calibration stores how inputs were prepared: shape, dtype and normalisation
    ([bold]recal plan[/bold] shows them). If it does not, give the options that the views were
    collected with. Without [bold]--model[/bold] the file holds the plan alone: from `logits`, and
    `transformed` logits, to `probs`.

    Example: [bold]recal export calibration.recal --model model.onnx --out calibrated.onnx[/bold]
    """
    file, source = load_saved(calibration)
    from recal import export_onnx, save

    if model is None and type(source).__name__ == "SignalCalibration":
        export_onnx(source, path=out)
        names = source.table_.names
        print_json({"file": out, "signals": names, "bytes": out.stat().st_size})
        say(
            f"Written to {out}: signals (n, {len(names)}) in the order {', '.join(names)}; confidence (n,) out."
        )
        return
    check_calibration(file, source)
    from recal.export import export_calibration
    from recal.export.calibration import calibration_of
    from recal.export.calibration_file import measure

    parts, profile = calibration_of(source), None
    settings: dict[str, Any] = {}
    with working("Exporting"):
        if model is None:
            of_model = without_none(
                shape=shape, dtype=dtype, **vars(between), outputs=outputs, accept=accept
            )
            if flags := [f"--{name}" for name in of_model]:
                raise InputError(
                    f"{', '.join(flags)} describe a model's inputs and outputs: give --model, too."
                )
            n_classes = classes if classes is not None else len(getattr(source, "classes_", ()))
            export_calibration(source, out, n_classes=classes)
        else:
            network = _open_network(model, trust)
            stored = getattr(source, "preprocessing_", None)
            more = without_none(outputs=outputs, accept=accept)
            preprocess, example = (
                between.preprocessing(stored),
                _example(network, shape, dtype, stored),
            )
            export_onnx(network, example, out, plan=source, preprocess=preprocess, **more)
            n_classes = _n_classes(out)
            settings = {} if stored is None else stored.options()
            if (
                getattr(source, "profile_", None) is not None
            ):  # a service needs it to watch and follow its logits
                profile = save(source.profile_, out.with_suffix(PROFILE))
        cost = measure(out, parts, n_classes, with_model=model is not None)
    views = [str(transform) for transform in parts.map.transforms]
    facts = {"file": out, "transforms": views, "steps": len(getattr(parts.map, "steps", ()))}
    times = {"ms": cost.whole, "calibration_ms": cost.calibration}
    print_json({**facts, "bytes": out.stat().st_size, **times, "profile": profile})
    if model is None:
        what = f", {len(views)} views; inputs: logits{', transformed' if views else ''}"
    elif parts.map.gate is not None:
        what = f"; an answer costs 1 forward pass from a confidence of {parts.map.gate:g} on, {1 + len(views)} below"
    else:
        what = f", {len(views)} views; each answer costs {1 + len(views)} forward pass{'es' if views else ''}"
    say(f"Written to {out}: {parts.describe()}{what}.")
    if profile is not None:
        say(
            f"The profile of the fit's inputs is in {profile}: examples/serve.py watches and follows with it."
        )
    # The ONNX file gets inputs that have already been read from files.
    names = [name for name in ("read", "pixels", "resize", "crop", "seconds") if name in settings]
    if reading := " ".join(f"--{name} {settings[name]}" for name in names):
        say(
            f"Not part of the file: {reading}. Prepare inputs in the same way before you pass them."
        )
    whole = (
        "The"
        if cost.whole is None
        else f"One answer takes {cost.whole:.3g} ms on one thread here, of which the"
    )
    say(f"{whole} calibration alone takes {cost.calibration:.2g} ms.")


def _open_network(model: Path, trust: str | None) -> Any:
    """Return the path of an .onnx file, or the torch module of a .pt2 file."""
    if model.suffix.lower() not in (".onnx", ".pt2"):
        raise InputError(
            f"recal export takes an .onnx file, or a .pt2 file of torch.export, got {model}",
            remedy="Convert the model to ONNX first (skl2onnx does so for scikit-learn), or leave out --model to write "
            "the calibration alone, which takes the model's logits",
        )
    check_exists(model)
    if model.suffix.lower() == ".onnx":
        return model
    from recal.collecting.models.base import as_model, import_model

    adapter: Any = as_model(import_model(str(model), trusted=(trust or "").split(",")))
    return adapter.module


def _example(model: Any, shape: str | None, dtype: str | None, stored: Any) -> Any:
    """Return a batch of zeros; its shape and dtype come from the options, the views or the model."""
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
        sizes = list(stored.shape) if sizes is None else sizes
        kind = np.dtype(stored.dtype) if kind is None else kind
        if kind != np.dtype(stored.dtype):
            raise InputError(
                f"--dtype {dtype} contradicts the calibration, whose views were collected from {stored.dtype} inputs. "
                "Leave the option out, or collect and fit again."
            )
    if isinstance(model, Path):
        from recal.export.network import example_of, read_model

        return (
            None if sizes is None and kind is None else example_of(read_model(model), kind, sizes)
        )
    if sizes is None:
        raise InputError(
            "A torch model is exported with an example input: give --shape, such as 3,32,32."
        )
    return np.zeros((1, *sizes), dtype=kind or "float32")


def _n_classes(path: Path) -> int:
    from recal.export.graph import onnx
    from recal.export.network import sizes

    return sizes(next(value for value in onnx.load(path).graph.output if value.name == "probs"))[1]


def plan(
    *,
    file: Path = argument(
        "A calibration, a rule or a profile: a file, or the folder of `recal calibrate`.", ...
    ),
    steps: bool = option("Show every step of a ReCal plan.", False),
) -> None:
    """Show a calibration: its method, the views it needs, forward passes per answer, and how it was
    fitted.

    Example: [bold]recal plan calibration.recal[/bold]
    """
    file, content = load_saved(file)
    if type(content).__name__ == "SignalCalibration":
        _print_signals(file, content)
        return
    if type(content).__name__ == "PanelCalibration":
        _print_panel(file, content)
        return
    if not is_calibration(content):
        _print_record(file, content)
        return
    facts = describe(content)
    print_json({"file": file, **facts})
    n_fitted = facts["fitted_on"]
    say(f"{file}: {facts['what']}")
    say_facts(
        Fitted_on=None
        if n_fitted is None
        else f"{n_fitted:,} samples of {facts['classes']:,} classes",
        Answers="kept: predictions never change" if facts["keeps_answers"] else "may change",
        Views=", ".join(facts["views"]) or "none: only the original input",
        Inputs=facts["inputs"],
        Cost=facts["cost"],
    )
    if facts["plan"] is not None:
        text = str(facts["plan"])
        say("\n" + (text if steps else text.partition("\n")[0]))
        if not steps and "\n" in text:
            say("(--steps shows them all)")
    say_facts(Decides=facts["rule"])
    model_words = ("--model", "MODEL", "--data", "NEW")
    pool = "+".join(facts["views"])
    inputs = model_words if pool or facts["inputs"] is not None else ("NEW_VIEWS",)
    # `apply` finds the groups by itself if they were a column of the table that the calibration was
    # fitted on.
    knows_column = "group_column" in (facts["preprocessing"] or {})
    groups = group_words() if facts["groups"] and not knows_column else []
    say(f"Next: {shell_line('apply', file, *inputs, *groups, '--out', 'answers.csv')}")
    if pool:
        say(
            f"Or keep the views: {shell_line('collect', *model_words, '--pool', pool, '--out', 'new.zarr')}"
        )


def describe(calibration: Any) -> dict[str, Any]:
    """Return the facts about a calibration or a plan that `recal plan` shows."""
    from recal.maps.plan import Plan

    is_plan = isinstance(calibration, Plan)
    holder = getattr(calibration, "calibrator_", calibration)
    fitted_map = calibration if is_plan else holder.map_
    stored = getattr(holder, "preprocessing_", None)
    views = fitted_map.transforms if is_plan else holder.needed_transforms()
    count, inputs = len(views), None
    if count == 0:
        cost = "one forward pass per answer, as without calibration"
    elif fitted_map.gate is not None:
        cost = f"one forward pass per answer, and {count} more where the confidence is below {fitted_map.gate:g}"
    else:
        extra = f"{count} more for each view" if count > 1 else "one more for the view"
        cost = f"{1 + count} forward passes per answer: the input's own and {extra}"
    if stored is not None:
        shape = (
            ""
            if stored.shape is None
            else f"{stored.dtype} of the shape {'x'.join(map(str, stored.shape))}, "
        )
        inputs = f"{shape}{f'with {stored}' if str(stored) else 'as they are'}; apply and export do the same"
    return {
        "what": "a plan" if is_plan else repr(holder),
        "class": type(calibration).__name__,
        "classes": None if is_plan else len(holder.classes_),
        "fitted_on": getattr(holder, "n_fitted_", None),
        "keeps_answers": bool(calibration.keeps_answers if is_plan else holder.keeps_accuracy),
        "views": [str(view) for view in views],
        "cost": cost,
        "plan": fitted_map if is_plan else fitted_map.plan,
        **_rule_facts(getattr(calibration, "decision_", None)),
        "inputs": inputs,
        "preprocessing": None if stored is None else stored.as_json(),
    }


def _print_record(file: Path, record: Any) -> None:
    """Print a file that holds no calibration: a rule of `decide`, a profile of `watch`, prediction
    sets.
    """
    kind, python = type(record).__name__, f"recal.load({str(file)!r})"
    rule, n_samples = _rule_facts(record), len(record.answers) if kind == "Profile" else None
    groups = group_words() if rule["groups"] else []
    apply_line = shell_line("apply", file, "NEW_PROBS.npz", *groups, "--out", "answers.csv")
    what, next_line = {
        "DecisionRule": ("a rule of recal decide", apply_line),
        "Profile": ("a profile for recal watch", shell_line("watch", file, "NEW_VIEWS")),
        "PredictionSets": (
            "prediction sets",
            f"{python}.predict(probs) says which classes remain possible",
        ),
    }.get(kind, (f"a {kind}", python))
    print_json({"file": file, "class": kind, "what": what, **rule})
    say(f"{file}: {what}")
    say_facts(
        Decides=rule["rule"], Taken_from=None if n_samples is None else f"{n_samples:,} samples"
    )
    say(f"Next: {next_line}")


def _print_signals(file: Path, calibration: Any) -> None:
    """Print a calibration of signals."""
    names, importance = calibration.table_.names, calibration.signal_importance_
    rule = _rule_facts(getattr(calibration, "decision_", None))
    facts = {"class": "SignalCalibration", "signals": names, "fitted_on": calibration.n_fitted_}
    facts |= {
        "reason": calibration.reason_,
        "importance": importance,
        "models": calibration.weights_,
        **rule,
    }
    print_json({"file": file, **facts})
    say(f"{file}: SignalCalibration, the confidence of answers from their signals")
    rises = ", ".join(f"{name} {rise:+.4f}" for name, rise in importance.items())
    say_facts(
        Fitted_on=f"{calibration.n_fitted_:,} graded answers",
        Signals=", ".join(names),
        Why=calibration.reason_,
        Importance=f"{rises} (NLL without the signal)" if rises else None,
        Decides=rule["rule"],
    )
    say(f"Next: {shell_line('apply', file, 'new.csv', '--out', 'accepted.csv')}")


def _print_panel(file: Path, panel: Any) -> None:
    """Print a calibration of several systems."""
    rule = _rule_facts(getattr(panel, "decision_", None))
    facts = {"class": "PanelCalibration", "systems": panel.gains_, "fitted_on": panel.n_fitted_}
    facts |= {"reason": panel.reason_, "losses": panel.losses_, **rule}
    print_json({"file": file, **facts})
    say(f"{file}: PanelCalibration, the confidence of answers of several systems")
    say_facts(
        Fitted_on=f"{panel.n_fitted_:,} questions",
        Systems=", ".join(panel.table_.systems),
        Why=panel.reason_,
        Decides=rule["rule"],
    )
    say(f"Next: {shell_line('apply', file, 'new.csv', '--out', 'answers.csv')}")


def _rule_facts(rule: Any) -> dict[str, Any]:
    """Return how a rule decides, in words and for JSON; all None if it is no rule."""
    if not hasattr(rule, "thresholds"):
        return {"rule": None, "thresholds": None, "groups": None}
    return {"rule": _describe_rule(rule), "thresholds": rule.thresholds, "groups": rule.groups}


def _describe_rule(rule: Any) -> str:
    """Return a sentence about how a rule decides."""
    n_thresholds, n_infinite = len(rule.thresholds), rule.thresholds.count(math.inf)
    end = f"wrong, at {rule.confidence:.0%} confidence"
    if n_infinite == n_thresholds:
        return f"accepts nothing yet: no threshold guarantees at most {rule.risk:.3g} {end}"
    bound = f"at most {rule.risk:.3g} of them {end}"
    if n_thresholds == 1 and not rule.groups:
        return f"accepts answers with a confidence of at least {rule.thresholds[0]:.6g}; {bound}"
    each = "accepts answers at or above a threshold for each"
    if rule.per_class:
        verb = "accepts" if n_infinite == 1 else "accept"
        none = f", {n_infinite} of which {verb} nothing yet" if n_infinite else ""
        return f"{each} of {n_thresholds} classes{none}; {bound}"
    texts = [
        "accepts nothing yet" if value == math.inf else f"{value:.6g}" for value in rule.thresholds
    ]
    shown = ", ".join(
        f"{name}: {text}" for name, text in list(zip(rule.groups, texts))[:_MOST_GROUPS]
    )
    rest = f" and {n_thresholds - _MOST_GROUPS:,} more" if n_thresholds > _MOST_GROUPS else ""
    return f"{each} group ({shown}{rest}); {bound}"
