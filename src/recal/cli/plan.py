"""`recal plan`: show a calibration, a rule or a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import is_panel, is_signal_calibration, load_saved
from recal.cli.printing import print_json, say, say_facts, shell_line

# The options by which `recal apply` reads the groups of new inputs.
_NEW_GROUPS = ["--rows", "NEW_ROWS.csv", "--group", "COLUMN"]


def plan(
    file: opt.CalibrationPath,
    steps: Annotated[bool, Option("--steps", help="Show every step of a ReCal plan.")] = False,
) -> None:
    """Show a calibration: its method, the views it needs, forward passes per answer, and how it was
    fitted.

    Example: [bold]recal plan calibration.recal[/bold]
    """
    file, content = load_saved(file)
    if is_panel(content):
        _print_panel(file, content)
    elif is_signal_calibration(content):
        _print_signals(file, content)
    elif hasattr(content, "predict_proba") or hasattr(content, "steps"):
        _print_calibration(file, content, steps=steps)
    else:
        _print_record(file, content)


def _print_calibration(file: Path, calibration: Any, *, steps: bool) -> None:
    """Show a calibration of logits, or a plan alone."""
    from recal.maps.base import Map

    is_plan = isinstance(calibration, Map)
    holder = getattr(calibration, "calibrator_", calibration)
    fitted_map = calibration if is_plan else holder.map_
    stored = getattr(calibration, "preprocessing_", None)
    views = [str(one) for one in (fitted_map.transforms if is_plan else holder.needed_transforms())]
    cost, inputs = f"{1 + len(views)} forward passes per answer", None
    if not views:
        cost = "one forward pass per answer, as without calibration"
    elif fitted_map.gate is not None:
        below = f"where the confidence is below {fitted_map.gate:g}"
        cost = f"one forward pass per answer, and {len(views)} more {below}"
    if stored is not None:
        inputs = f"with {stored}" if str(stored) else "as they are"
        if stored.asked is not None:
            asked = {name: ", ".join(values) for name, *values in stored.asked}
            inputs = f"answers of {asked.get('model', 'a language model')}"
        if stored.shape is not None:
            inputs = f"{stored.dtype} of the shape {'x'.join(map(str, stored.shape))}, {inputs}"
    what = "a plan" if is_plan else repr(holder)
    n_classes = None if is_plan else len(holder.classes_)
    n_fitted = getattr(holder, "n_fitted_", None)
    kept = bool(calibration.keeps_answers if is_plan else holder.keeps_accuracy)
    shown = fitted_map if is_plan else fitted_map.plan
    rule = _rule_facts(getattr(calibration, "decision_", None))
    facts = {"file": file, "what": what, "classes": n_classes, "fitted_on": n_fitted, **rule}
    facts |= {"keeps_answers": kept, "views": views, "cost": cost, "plan": shown, "inputs": inputs}
    print_json({**facts, "preprocessing": None if stored is None else stored.as_json()})
    say(f"{file}: {what}")
    say_facts(
        Fitted_on=None if n_fitted is None else f"{n_fitted:,} samples of {n_classes:,} classes",
        Answers="kept: predictions never change" if kept else "may change",
        Views=", ".join(views) or "none: only the original input",
        Inputs=inputs,
        Cost=cost,
        Decides=rule["rule"],
    )
    if shown is not None:
        first, _, others = str(shown).partition("\n")
        say(f"\n{shown}" if steps else f"\n{first}")
        if others and not steps:
            say("(--steps shows them all)")
    is_model = bool(views) if stored is None else stored.asked is None
    new = ["--model", "MODEL", "--data", "NEW"] if is_model else ["NEW_VIEWS"]
    # `apply` finds groups that were a column of the table that the calibration was fitted on.
    if rule["groups"] and getattr(stored, "group_column", None) is None:
        new += _NEW_GROUPS
    say(f"Next: {shell_line('apply', file, *new, '--out', 'answers.csv')}")


def _print_panel(file: Path, content: Any) -> None:
    """Show a calibration of several systems, or a cascade."""
    from recal.decisions.cascade import CascadeRule
    from recal.workflow.panels import cascade_facts

    is_cascade = isinstance(content, CascadeRule)
    panel = content.panel if is_cascade else content
    facts: dict[str, Any] = {"file": file, "reason": panel.reason_, "systems": panel.gains_}
    rule = _rule_facts(getattr(panel, "decision_", None))
    if is_cascade:
        rule = {"rule": content.promise, "thresholds": None, "groups": list(content.groups)}
        facts["cascade"] = cascade_facts(content)
    print_json(facts | rule)
    say(f"{file}: {panel.reason_}")
    say_facts(Decides=str(content) if is_cascade else rule["rule"])
    say(f"Next: {shell_line('apply', file.parent, 'new.csv', '--out', 'answers.csv')}")


def _print_signals(file: Path, calibration: Any) -> None:
    """Show a calibration of signals."""
    names, importance = calibration.table_.names, calibration.signal_importance_
    rule = _rule_facts(getattr(calibration, "decision_", None))
    facts: dict[str, Any] = {"class": "SignalCalibration", "signals": names}
    facts |= {"fitted_on": calibration.n_fitted_, "reason": calibration.reason_}
    facts |= {"importance": importance, "models": calibration.weights_, **rule}
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


def _print_record(file: Path, record: Any) -> None:
    """Show a file without a calibration: a rule of `decide`, a profile of `watch`, or sets."""
    from recal.decisions import DecisionRule, Profile

    rule, what, taken_from, next_line = _rule_facts(record), "prediction sets", None, None
    if isinstance(record, DecisionRule):
        what = "a rule of recal decide"
        groups = _NEW_GROUPS if rule["groups"] else []
        next_line = shell_line("apply", file, "NEW_PROBS.npz", *groups, "--out", "answers.csv")
    elif isinstance(record, Profile):
        what, taken_from = "a profile for recal watch", f"{len(record.numbers):,} samples"
        next_line = shell_line("watch", file, "NEW_VIEWS")
    print_json({"file": file, "what": what, **rule})
    say(f"{file}: {what}")
    say_facts(Decides=rule["rule"], Taken_from=taken_from)
    if next_line is not None:
        say(f"Next: {next_line}")


def _rule_facts(rule: Any) -> dict[str, Any]:
    """Return how a rule decides, in words and for JSON; all None if it is no rule."""
    if not hasattr(rule, "thresholds"):
        return {"rule": None, "thresholds": None, "groups": None}
    return {"rule": str(rule), "thresholds": rule.thresholds, "groups": rule.groups}
