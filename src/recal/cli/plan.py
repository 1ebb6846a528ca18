"""`recal plan`: show a calibration, a rule or a profile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import is_calibration, is_panel, is_signal_calibration, load_saved
from recal.cli.inputs import group_words
from recal.cli.printing import print_json, say, say_facts, shell_line


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
        return
    if is_signal_calibration(content):
        _print_signals(file, content)
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
        line = shell_line("collect", *model_words, "--pool", pool, "--out", "new.zarr")
        say(f"Or keep the views: {line}")


def _print_panel(file: Path, content: Any) -> None:
    """Show a calibration of several systems, or a cascade."""
    from recal.decisions.cascade import CascadeRule
    from recal.workflow.panels import cascade_facts

    is_cascade = isinstance(content, CascadeRule)
    panel = content.panel if is_cascade else content
    facts: dict[str, Any] = {"file": file, "reason": panel.reason_, "systems": panel.gains_}
    rule = content if is_cascade else getattr(panel, "decision_", None)
    facts |= {"rule": None if rule is None else rule.promise}
    facts |= {"groups": None if rule is None else list(rule.groups)}
    facts |= {"thresholds": None if is_cascade or rule is None else list(rule.thresholds)}
    if is_cascade:
        facts["cascade"] = cascade_facts(content)
    print_json(facts)
    say(f"{file}: {panel.reason_}")
    if is_cascade:
        say(str(content))
    elif rule is not None:
        say_facts(Decides=f"accepts from a confidence of {min(rule.thresholds):.3g} on")
    say(f"Next: {shell_line('apply', file.parent, 'new.csv', '--out', 'answers.csv')}")


def describe(calibration: Any) -> dict[str, Any]:
    """Return the facts about a calibration or a plan that `recal plan` shows."""
    from recal.maps.base import Map

    is_plan = isinstance(calibration, Map)
    holder = getattr(calibration, "calibrator_", calibration)
    fitted_map = calibration if is_plan else holder.map_
    stored = getattr(holder, "preprocessing_", None)
    views = fitted_map.transforms if is_plan else holder.needed_transforms()
    count, inputs = len(views), None
    cost = f"{1 + count} forward passes per answer: the input's own and one for each view"
    if count == 0:
        cost = "one forward pass per answer, as without calibration"
    elif fitted_map.gate is not None:
        below = f"where the confidence is below {fitted_map.gate:g}"
        cost = f"one forward pass per answer, and {count} more {below}"
    if stored is not None:
        inputs = f"with {stored}" if str(stored) else "as they are"
        if stored.shape is not None:
            inputs = f"{stored.dtype} of the shape {'x'.join(map(str, stored.shape))}, {inputs}"
        inputs = f"{inputs}; apply and export do the same"
    return {
        "what": "a plan" if is_plan else repr(holder),
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
    """Print a file without a calibration: a rule of `decide`, a profile of `watch`, or sets."""
    from recal.decisions import DecisionRule, Profile

    rule, taken_from = _rule_facts(record), None
    next_line = f"recal.load({str(file)!r}).predict(probs) says which classes remain possible"
    what = "prediction sets"
    if isinstance(record, DecisionRule):
        what = "a rule of recal decide"
        groups = group_words() if rule["groups"] else []
        next_line = shell_line("apply", file, "NEW_PROBS.npz", *groups, "--out", "answers.csv")
    elif isinstance(record, Profile):
        what, taken_from = "a profile for recal watch", f"{len(record.numbers):,} samples"
        next_line = shell_line("watch", file, "NEW_VIEWS")
    print_json({"file": file, "what": what, **rule})
    say(f"{file}: {what}")
    say_facts(Decides=rule["rule"], Taken_from=taken_from)
    say(f"Next: {next_line}")


def _print_signals(file: Path, calibration: Any) -> None:
    """Print a calibration of signals."""
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
        none = f", {n_infinite} of which accept nothing yet" if n_infinite else ""
        return f"{each} of {n_thresholds} classes{none}; {bound}"
    shown = []
    for name, value in list(zip(rule.groups, rule.thresholds))[:10]:
        shown.append(f"{name}: {'accepts nothing yet' if value == math.inf else f'{value:.6g}'}")
    rest = f" and {n_thresholds - 10:,} more" if n_thresholds > 10 else ""
    return f"{each} group ({', '.join(shown)}{rest}); {bound}"
