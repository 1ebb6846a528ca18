"""`recal demo`: the main job, end to end, on real images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.printing import AsJson, print_json, print_table, say

NEEDS_ARGUMENTS = False


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for figures and files.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same numbers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """See the whole job on real images, in about a minute.

    A small network learns handwritten digits and becomes overconfident. Temperature scaling, ReCal and the default of
    recal correct its confidence, without retraining it and without changing an answer. Then the answers that can be
    automated with at most 1 % errors are counted, before and after. You get a table, a report, two figures, and the
    files with which the other commands can be tried.

    Example: [bold]recal demo --out demo-output[/bold]
    """
    from recal.demo.job import METRICS, RISK, run_demo
    from recal.metrics import LABELS

    result = run_demo(out, seed, say=lambda line: say(line, quiet=as_json))
    if as_json:
        print_json(
            {
                "seed": seed,
                "methods": {name: found.to_dict() for name, found in result.evaluations.items()},
                "decisions": {name: found.to_dict() for name, found in result.decisions.items()},
                "reason": result.reason,
                "passes_per_answer": result.passes_per_answer,
                "calibration_is_the_same": result.calibration_is_the_same,
                "predictions_are_the_same": result.predictions_are_the_same,
                "files": result.files,
            }
        )
        return
    rows = []
    for name, found in result.evaluations.items():
        automated = f"{result.decisions[name].coverage:.1%}"
        rows.append([name, *(f"{found[metric]:.4f}" for metric in METRICS), automated])
        rows.append(["", *("{:.4f}–{:.4f}".format(*found.intervals[metric]) for metric in METRICS), ""])
    size = next(iter(result.evaluations.values())).n_samples
    say("")
    print_table(
        f"{size:,} digits used for nothing else; below each value its 95 % interval",
        ["", *(LABELS[metric] for metric in METRICS), f"automated at {RISK:.0%} errors"],
        rows,
        note="Lower is better, except for the last column. The error rate stays the same: no answer changes.",
    )
    before, after = (result.decisions[name] for name in ("uncalibrated", "default"))
    say(f"\n{result.reason}")
    say(f"It takes {result.passes_per_answer:.2f} forward passes per answer.")
    say(
        f"Automated with at most {RISK:.0%} errors, at 95 % confidence: {before.coverage:.1%} of the answers before, "
        f"{after.coverage:.1%} after calibration."
    )
    say(f"Saved and loaded again, the calibration is {_same(result.calibration_is_the_same)}.")
    say(f"Before and after, every answer is {_same(result.predictions_are_the_same)}.")
    say("\nOpen")
    for name in ("report", "summary", "zoomed"):
        say(f"  {result.files[name]}")
    say("\nNext: the same, step by step")
    say(f"  recal fit {result.files['views to fit on']} --out digits.recal")
    say(f"  recal decide {result.files['views to decide on']} --calibration digits.recal --risk 0.01 --out ready.recal")
    say(f"  recal apply ready.recal {result.files['new views']} --out answers.csv")
    say("With your own model")
    say("  recal calibrate --model MODEL --data LABELLED --out FOLDER")


def _same(yes: bool) -> str:
    return "the same" if yes else "NOT THE SAME, which is a bug in recal"
