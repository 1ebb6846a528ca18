"""`recal plan`: what a fitted file is and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.output import AsJson, print_json, say
from recal.cli.sources import load_calibration


def plan(
    file: Annotated[Path, typer.Argument(help="What `recal fit` or `recal.save` wrote.")],
    steps: Annotated[bool, typer.Option("--steps", help="Show every step of a ReCal plan.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a calibration is, which views it needs, what an answer costs, and how it was fitted.

    Example: [bold]recal plan calibration.recal[/bold]
    """
    facts = describe(load_calibration(file))
    if as_json:
        print_json({"file": file, **facts})
        return
    say(f"{file}: {facts['what']}")
    if facts["fitted_on"] is not None:
        say(f"Fitted on  {facts['fitted_on']:,} samples of {facts['classes']:,} classes")
    say(f"Answers    {'kept: never another than the model gave' if facts['keeps_answers'] else 'may change'}")
    say(f"Views      {', '.join(facts['views']) or 'none: only the input as it is'}")
    if facts["inputs"] is not None:
        say(f"Inputs     {facts['inputs']}")
    say(f"Cost       {facts['cost']}")
    if facts["plan"] is not None:
        text = str(facts["plan"])
        say("\n" + (text if steps else text.partition("\n")[0]))
        if not steps and "\n" in text:
            say("(--steps shows them all)")
    pool = "+".join(facts["views"])
    if facts["inputs"] is not None:
        say(f"Next: recal apply {file} --model MODEL --data NEW --out probs.npz")
        return
    need = f"recal collect --model MODEL --data NEW --pool {pool} --out new.zarr" if pool else f"recal apply {file} NEW"
    say(f"Next: {need}" if pool else f"Next: {need} --out probs.npz")


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
        "inputs": _inputs(getattr(holder, "preprocessing_", None)),
        "preprocessing": getattr(getattr(holder, "preprocessing_", None), "as_json", lambda: None)(),
    }


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
