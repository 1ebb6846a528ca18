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

    A small network learns handwritten digits and becomes too sure of itself. Temperature scaling and ReCal make it
    honest, without retraining and without changing an answer. You get a table, a report, three figures, and the files
    with which the other commands can be tried.

    Example: [bold]recal demo --out demo-output[/bold]
    """
    from recal.demo.job import METRICS, run_demo
    from recal.metrics import LABELS

    result = run_demo(out, seed, say=lambda line: say(line, quiet=as_json))
    if as_json:
        print_json(
            {
                "seed": seed,
                "methods": {name: found.to_dict() for name, found in result.evaluations.items()},
                "plan": {"steps": len(result.plan.steps), "views": len(result.plan.transforms)},
                "plan_is_the_same": result.plan_is_the_same,
                "predictions_are_the_same": result.predictions_are_the_same,
                "files": result.files,
            }
        )
        return
    rows = []
    for name, found in result.evaluations.items():
        rows.append([name, *(f"{found[metric]:.4f}" for metric in METRICS)])
        rows.append(["", *("{:.4f}–{:.4f}".format(*found.intervals[metric]) for metric in METRICS)])
    size = next(iter(result.evaluations.values())).n_samples
    say("")
    print_table(
        f"{size:,} digits that nobody had seen; below each value its 95 % interval",
        ["", *(LABELS[metric] for metric in METRICS)],
        rows,
        note="ECE: how far confidence and truth lie apart, 0 is honest. All but the error rate should fall; that one "
        "must not move, since no answer may change.",
    )
    plan = result.plan
    say(f"\nReCal's plan: {len(plan.steps)} steps through {len(plan.transforms)} zoomed views.")
    say(f"Saved and loaded again, it is {_same(result.plan_is_the_same)}.")
    say(f"Before and after, every answer is {_same(result.predictions_are_the_same)}.")
    say("\nOpen")
    for name in ("report", "reliability", "zoomed", "confidence"):
        say(f"  {result.files[name]}")
    say("\nNext, the same by hand, and then with your own model")
    say(f"  recal groups {result.files['held-out views']}")
    say(f"  recal fit {result.files['held-out views']} --method ts --out ts.recal")
    say(f"  recal apply ts.recal {result.files['new views']} --out probs.npz")
    say("  recal evaluate probs.npz")


def _same(yes: bool) -> str:
    return "the same" if yes else "NOT THE SAME, which is a fault in recal"
