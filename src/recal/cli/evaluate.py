"""`recal evaluate`: metrics with intervals, and a calibration test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.printing import SESSION, print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.files.probabilities import Probabilities

INPUTS = opt.ROWS


def evaluate(
    ctx: Context,
    source: opt.ProbsFile,
    bootstrap: Annotated[int, Option(help="Bootstrap draws for the intervals; 0 for none.")] = 1000,
    bins: opt.BinCount = 15,
    correct: opt.Correct = None,
    calibration: Annotated[
        Path | None,
        Option(help="With --correct: the calibration to measure.", show_default="`confidence`"),
    ] = None,
    report: Annotated[Path | None, Option(help="Also write a report (.html).")] = None,
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
) -> None:
    """Measure how well probabilities are calibrated: metrics with 95 % intervals, and a calibration
    test.

    For views, the model's own uncalibrated probabilities are measured. A table has one column for
    each class, named after the class, and one for the labels.

    A table of graded answers is measured with --correct COLUMN.

    Example: [bold]recal evaluate probs.csv --label-column truth --report report.html[/bold]
    """
    about: opt.Inputs = ctx.obj
    if correct is not None:
        opt.refuse(ctx, "graded answers (--correct)", ("labels", "label_column", "classes", "rows"))
        calibrator = None
        if calibration is not None:
            file, calibrator = files.load_saved(calibration)
            if not files.is_signal_calibration(calibrator):
                raise InputError(f"{file} is no calibration of graded answers.")
        read = about.graded(source, correct, calibrator)
    else:
        opt.refuse(ctx, "probabilities; apply it to views first", ("calibration",))
        read = about.probs(source)
    from recal import evaluate as measure
    from recal.copies import warn_of_fitted
    from recal.metrics import LABELS as METRIC_NAMES
    from recal.metrics import calibration_test

    assert read.labels is not None
    better = "these metrics are better than on new inputs"
    warn_of_fitted(read.fitted_rows, len(read.probs), better, "Evaluate on other samples.")
    how: dict[str, Any] = {"n_bins": bins, "random_state": seed, "confidences": read.confidence}
    with working("Measuring"):
        result = measure(read.probs, read.labels, bootstrap, clusters=read.clusters, **how)
        test = calibration_test(read.probs, read.labels, **how)
        if report is not None:
            from recal.comparison import compare_probs
            from recal.reporting import report as write_report

            page = compare_probs(
                {"given": read.probs},
                read.named_labels,
                confidences={"given": read.confidence},
                bootstrap=bootstrap,
                classes=read.classes,
                clusters=read.clusters,
                random_state=seed,
            )
            shown = {} if read.groups is None else {about.group or "group": read.groups}
            write_report(page, report, groups=shown, command=SESSION.command)
    groups = _by_group(read, bins)
    apart = "" if read.clusters is None else " The test treats rows of a cluster as independent."
    facts = {"file": source, **result.to_dict(), "calibration_test": test.to_dict()}
    print_json({**facts, "groups": groups, "report": report})
    print_table(
        str(result).splitlines()[0],
        ["metric", "value", "95 % interval" if result.intervals else ""],
        [
            [METRIC_NAMES[name], f"{value:.5f}", result.describe_interval(name)]
            for name, value in result.items()
        ],
        note=f"Lower is better, except for AUROC. Calibration test, {test}{apart}",
    )
    if groups:
        print_table(
            "By group",
            ["group", "samples", *next(iter(groups.values()))["metrics"]],
            [
                [name, one["samples"], *(f"{value:.4f}" for value in one["metrics"].values())]
                for name, one in groups.items()
            ],
        )
    if report is not None:
        say(f"Written to {report}.")
    words = about.words(*opt.ROWS)
    words += [] if correct is None else ["--correct", correct]
    words += [] if calibration is None else ["--calibration", calibration]
    say(f"Next: {shell_line('decide', source, *words, '--risk', 0.1)}")


def _by_group(read: Probabilities, bins: int) -> dict[str, Any]:
    """Return the main metrics of each group; empty without groups."""
    import numpy as np

    from recal import evaluate as measure

    found: dict[str, Any] = {}
    if read.groups is None or read.labels is None:
        return found
    for name in np.unique(read.groups).tolist():
        rows = np.flatnonzero(read.groups == name)
        confidences = None if read.confidence is None else read.confidence[rows]
        one = measure(read.probs[rows], read.labels[rows], n_bins=bins, confidences=confidences)
        metrics = {metric: one[metric] for metric in ("error_rate", "nll", "ece")}
        found[str(name)] = {"samples": len(rows), "metrics": metrics}
    return found
