"""`recal plan`: what a fitted file is and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.printing import AsJson, print_json, say, typed
from recal.cli.recognise import check_kind


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
    from recal.saving.saved import load
    from recal.workflow.folder import file_or_in

    file = file_or_in(file)
    check_kind(file, "calibration")
    loaded = load(file)
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
    found = loaded if isinstance(loaded, Plan) else getattr(holder, "plan_", None)
    views = loaded.transforms if isinstance(loaded, Plan) else holder.needed_transforms()
    classes = None if isinstance(loaded, Plan) else len(holder.classes_)
    kept = getattr(getattr(found, "blend", None), "answers", "kept") != "free"
    return {
        "what": "a plan" if isinstance(loaded, Plan) else repr(loaded if holder is loaded else holder),
        "class": type(loaded).__name__,
        "classes": classes,
        "fitted_on": getattr(holder, "n_fitted_", None),
        "keeps_answers": kept if isinstance(loaded, Plan) else bool(holder.keeps_accuracy),
        "views": [str(view) for view in views],
        "cost": _cost(len(views), getattr(getattr(found, "blend", None), "gate", None)),
        "plan": found,
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
