"""`recal demo`: the whole job on real images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.printing import print_json, print_table, say


def demo(
    out: Annotated[Path, Option(help="The folder for the report and other files.")] = Path(
        "demo-output"
    ),
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
) -> None:
    """See the whole job on real images, in about a minute.

    A small network learns handwritten digits and becomes overconfident. Temperature scaling, ReCal
    and the default of recal correct its confidence, without retraining it and without changing an
    answer. Then the answers that can be automated with at most 1 % errors are counted, before and
    after. You get a table, a report, and the files with which the other commands can be tried.

    Example: [bold]recal demo --out demo-output[/bold]
    """
    from recal.demo import RISK as risk
    from recal.demo import SHOWN_METRICS, run_demo
    from recal.metrics import LABELS as METRIC_NAMES

    result = run_demo(out, seed, say=say)
    facts: dict[str, Any] = {"reason": result.reason}
    facts["passes_per_answer"] = result.passes_per_answer
    facts |= {"seed": seed, "automated": result.shares, "files": result.files}
    facts["methods"] = {name: one.to_dict() for name, one in result.evaluations.items()}
    facts["decisions"] = {name: one.to_dict() for name, one in result.decisions.items()}
    print_json(facts)
    rows = []
    for name, evaluation in result.evaluations.items():
        values = (f"{evaluation[metric]:.4f}" for metric in SHOWN_METRICS)
        intervals = (
            "{:.4f}–{:.4f}".format(*evaluation.intervals[metric]) for metric in SHOWN_METRICS
        )
        rows.append([name, *values, f"{result.shares[name]:.1%}"])
        rows.append(["", *intervals, ""])
    say("")
    print_table(
        f"{evaluation.n_samples:,} digits used for nothing else; below, the 95 % intervals",
        [
            "",
            *(METRIC_NAMES[metric] for metric in SHOWN_METRICS),
            f"automated at {risk:.0%} errors",
        ],
        rows,
        note="Lower is better, except for the last column. The error rate stays the same: no "
        "answer changes.",
    )
    before, after = (result.shares[name] for name in ("uncalibrated", "default"))
    files = result.files
    say(
        f"\n{result.reason}\n"
        f"It takes {result.passes_per_answer:.2f} forward passes per answer.\n"
        f"Automated with at most {risk:.0%} errors, at 95 % confidence: {before:.1%} of the "
        f"answers before, {after:.1%} after calibration. The rules were chosen on other digits.\n\n"
        f"Open\n  {files['report']}\n\n"
        "Next: the same, step by step\n"
        f"  recal fit {files['views to fit on']} --out digits.recal\n"
        f"  recal decide {files['views to decide on']} --calibration digits.recal --risk 0.01 "
        "--out ready.recal\n"
        f"  recal apply ready.recal {files['new views']} --out answers.csv\n"
        "With your own model\n"
        "  recal calibrate --model MODEL --data LABELLED --out FOLDER"
    )
