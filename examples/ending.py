"""How each example ends: which method, whether views were worth it, and what can be automated at 1 and 5 % error.

The rule is the same for every example and was written before their results were seen:

1. Half of the samples, drawn at random, is for fitting. Two thirds of it fit every method, and the third that is left
   chooses, by the lowest NLL, one method that needs no views and one that does. Both are then fitted on the whole half.
2. The other half judges these two. Each guarantee holds with 97.5 % confidence, so that the guarantee of whichever is
   taken holds with 95 %.
3. Views were worth their passes if more answers can be automated with them, at 1 % or at 5 % error, by more than
   chance: the 97.5 % interval of the paired difference lies above zero, and at the other risk not below it. How many
   passes each further automated answer costs is printed, since only the user knows what a pass and a review cost.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from recal import Views, metrics
from recal.calibrators.names import find_method
from recal.decisions import Decisions, decide_each
from recal.errors import RecalError

STARTED = time.perf_counter()
PLAIN = ("ts", "ets", "spline", "svs (kept)", "svs")
WITH_VIEWS = ("recal", "stack", "stack (free)")
RISKS = (0.01, 0.05)
CONFIDENCE = 0.975  # two methods may be taken, and two risks are compared
DRAWS = 400


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return the parser of an example's command line, with the one option that all of them have."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--record", type=Path, help="also write the result to this .json file (make examples does)")
    return made


def end_in_a_decision(views: Views, *, what: str = "answers", record: Path | None = None) -> None:
    """Choose, judge and decide by the rule above; print what was found, and keep it where `record` says."""
    collected = time.perf_counter() - STARTED
    print(f"\n{views}: {collected:.0f} s so far. Fitting on one half:", flush=True)
    order = np.random.default_rng(0).permutation(views.n_samples)
    half, third = views.n_samples // 2, views.n_samples // 3
    parts = (order[:third], order[third:half], order[:half], order[half:])
    inner, left_out, fit, judge = (views[np.sort(rows)] for rows in parts)
    found = {name: row for name in (*PLAIN, *WITH_VIEWS) if (row := _fit(name, inner, left_out, fit, judge))}
    pair = [min((name for name in names if name in found), key=lambda name: found[name]["chosen_by"])
            for names in (PLAIN, WITH_VIEWS)]  # fmt: skip
    raw = _softmax(judge.logits)
    probs = {pair[0]: found[pair[0]]["probs"], pair[1]: found[pair[1]]["probs"]}
    others = {"as it is": raw} | {name: row["probs"] for name, row in found.items()}
    print(f"\nOn the other half ({judge.n_samples:,} samples):\n")
    print(f"{'':<14}{'error':>7}{'ECE':>8}{'NLL':>8}{'automated at 1 %':>18}{'at 5 %':>8}{'passes':>8}")
    table = {name: _scores(one, judge) for name, one in others.items()}
    for name, row in table.items():
        row["passes"] = found[name]["passes"] if name in found else 0.0
        shares = f"{row['automated'][0]:>17.1%}{row['automated'][1]:>9.1%}"
        print(f"{name:<14}{row['error']:>7.3f}{row['ece']:>8.4f}{row['nll']:>8.4f}{shares}{row['passes']:>8.2f}")
    decisions = [decide_each(probs, judge.labels, risk, CONFIDENCE, draws=DRAWS) for risk in RISKS]
    verdict = _verdict(pair, decisions, found[pair[1]]["passes"], what)
    verdict["said"] += _only_those_that_occur(fit, judge)
    seconds = time.perf_counter() - STARTED
    print("\n" + "\n".join([*verdict["said"], f"Time: {seconds:.0f} s, of which {collected:.0f} s asked the model."]))
    if record is not None:
        kept = {"example": Path(sys.argv[0]).name, "views": str(views), "judged": judge.n_samples, "what": what}
        kept |= {"table": table, "verdict": verdict, "seconds": round(seconds), "collected": round(collected)}
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(kept, indent=1))


def _fit(name: str, inner: Views, left_out: Views, fit: Views, judge: Views) -> dict[str, Any] | None:
    """Return a method's NLL where it is chosen, its probabilities where it is judged, and passes per answer."""
    began = time.perf_counter()
    method, options = find_method(name)
    if "random_state" in inspect.signature(method).parameters:
        options["random_state"] = 0
    if name in PLAIN:  # what can be had without a single further pass
        inner, left_out, fit, judge = (Views(part.logits, labels=part.labels) for part in (inner, left_out, fit, judge))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few mistakes or samples: the half that judges shows what they cost
            chosen_by = metrics.nll(method(**options).fit(inner).predict_proba(left_out), left_out.labels)
            fitted = method(**options).fit(fit)
    except RecalError as error:
        print(f"  {name} is left out: {error}")
        return None
    needed, plan = len(fitted.needed_transforms()), getattr(fitted, "plan_", None)
    passes = needed * (1.0 if plan is None else float(plan.needs_views(judge.logits).mean())) if needed else 0.0
    probs = fitted.predict_proba(judge)
    print(f"  {name:<13} NLL of samples left out {chosen_by:.4f} ({time.perf_counter() - began:.1f} s)", flush=True)
    return {"chosen_by": chosen_by, "probs": probs, "passes": passes}


def _scores(probs: np.ndarray, judge: Views) -> dict[str, Any]:
    shares = [decide_each({"": probs}, judge.labels, risk, CONFIDENCE, draws=1)[""].coverage for risk in RISKS]
    scores = {name: getattr(metrics, name)(probs, judge.labels) for name in ("ece", "nll")}
    return {"error": metrics.error_rate(probs, judge.labels), **scores, "automated": shares}


def _verdict(pair: list[str], decisions: list[Decisions], passes: float, what: str) -> dict[str, Any]:
    """Apply the rule and say it in words."""
    plain, best = pair
    gains = [found.gains[best] for found in decisions]
    worth = any(gain.interval[0] > 0 for gain in gains) and not any(gain.interval[1] < 0 for gain in gains)
    said = [f"Chosen on samples left out: {plain} without views, {best} with them."]
    for risk, gain in zip(RISKS, gains):
        low, high = gain.interval
        said.append(
            f"At {risk:.0%} error, {best} automates {100 * gain.difference:+.1f} points more than {plain} "
            f"(97.5 % interval {100 * low:+.1f} to {100 * high:+.1f})."
        )
    gain = max(gain.difference for gain in gains)
    price = f" Each further automated answer costs {passes / gain:.0f} passes." if worth and passes else ""
    used = f"{passes:.2f} passes per answer" if passes else f"no pass at all: {best} uses none of them"
    said.append(f"Views {'were' if worth else 'were not'} worth it here ({used}).{price}")
    winner = best if worth else plain
    shares = [found[winner].coverage for found in decisions]
    ends = [f"{share:.0%} at {risk:.0%} error" for risk, share in zip(RISKS, shares) if share]
    said.append(f"Decision: with {winner}, of all {what} {' and '.join(ends) or 'none'} can be automated.")
    said += [f"At {risk:.0%}: {found[winner]}" for risk, found in zip(RISKS, decisions) if not found[winner].possible]
    intervals = [list(gain.interval) for gain in gains]
    return {
        "plain": plain, "with_views": best, "worth": worth, "passes": passes, "winner": winner, "automated": shares,
        "gains": [gain.difference for gain in gains], "intervals": intervals, "said": said,
    }  # fmt: skip


def _only_those_that_occur(fit: Views, judge: Views) -> list[str]:
    """Say what is gained where the model knows more classes than occur, and the columns of the others are left out."""
    here = np.unique(fit.labels)
    if len(here) == fit.n_classes:
        return []
    found = []
    fit, judge = (_columns(part[np.flatnonzero(np.isin(part.labels, here))], here) for part in (fit, judge))
    for name in ("ts", "svs (kept)", "stack"):
        method, options = find_method(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = method(**options).fit(fit)
        probs, used = fitted.predict_proba(judge), ", ".join(map(str, fitted.needed_transforms()))
        views = f" with the views {used}" if used else " without views" if name == "stack" else ""
        found.append(f"{name}{views} NLL {metrics.nll(probs, judge.labels):.4f}")
    error = float((judge.logits.argmax(1) != judge.labels).mean())
    return [
        f"{len(here)} classes occur among those that the model knows. With the columns of these alone, which no method "
        f"above was told, the error is {error:.3f}: {'; '.join(found)}."
    ]


def _columns(views: Views, here: np.ndarray) -> Views:
    transformed = {transform: views.transformed(transform)[:, here] for transform in views.transforms}
    return Views(views.logits[:, here], transformed, np.searchsorted(here, views.labels))


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)
