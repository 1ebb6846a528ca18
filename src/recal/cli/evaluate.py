"""`recal evaluate`: metrics with intervals, and a calibration test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.inputs import Inputs
from recal.cli.printing import SESSION, print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.files.probabilities import Probabilities
    from recal.metrics import Evaluation


def evaluate(
    *,
    source: opt.ProbsFile,
    bootstrap: Annotated[int, Option(help="Bootstrap draws for the intervals; 0 for none.")] = 1000,
    bins: opt.BinCount = 15,
    inputs: Annotated[Inputs, "labels label_column cluster group rows"],
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
    from recal import evaluate as measure
    from recal.copies import warn_of_fitted
    from recal.metrics import calibration_test

    how: dict[str, Any] = {"n_bins": bins, "random_state": seed}
    if correct is not None:
        opt.refuse("graded answers (--correct)", ("labels", "label_column", "rows"))
        read = _graded(source, correct, calibration, inputs)
    else:
        opt.refuse("probabilities; apply it to views first", ("calibration",))
        read = inputs.probs(source)
    assert read.labels is not None
    better = "these metrics are better than on new inputs"
    warn_of_fitted(read.fitted_rows, len(read.probs), better, "Evaluate on other samples.")
    with working("Measuring"):
        by = inputs.groups_and_clusters(source)
        how["confidences"] = read.confidence
        result = measure(read.probs, read.labels, bootstrap, clusters=by["clusters"], **how)
        test = calibration_test(read.probs, read.labels, **how)
        if report is not None:
            from recal.reporting import report as write_report

            about: dict[str, Any] = {"classes": read.classes, "command": SESSION.command}
            write_report(read.probs, report, y=read.named_labels, **about)
    groups = _by_group(read, by["groups"], bins)
    facts = {"file": source, **result.to_dict(), "calibration_test": test.to_dict()}
    print_json({**facts, "groups": groups, "report": report})
    _print_metrics(result, f" Calibration test, {test}")
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
    if correct is not None:
        if calibration is not None:
            of = ("--calibration", calibration, "--correct", correct)
            say(f"Next: {shell_line('decide', source, *of, '--risk', 0.1)}")
        return
    labels, column = inputs.labels, inputs.label_column
    more: tuple[object, ...] = () if labels is None else ("--labels", labels)
    more += () if column is None else ("--label-column", column)
    say(f"Next: {shell_line('decide', source, *more, '--risk', 0.01)}")
    say(f"Or a page about it: {shell_line('report', source, *more, '--out', 'report.html')}")


def _print_metrics(result: Evaluation, note: str = "") -> None:
    from recal.metrics import LABELS as names

    print_table(
        str(result).splitlines()[0],
        ["metric", "value", "95 % interval" if result.intervals else ""],
        [
            [names[name], f"{value:.5f}", result.describe_interval(name)]
            for name, value in result.items()
        ],
        note=f"Lower is better, except for AUROC.{note}",
    )


def _graded(table: Path, correct: str, calibration: Path | None, inputs: Inputs) -> Probabilities:
    """Return graded answers with their confidence: its column, or that of a calibration."""
    files.check_exists(table)
    if calibration is None:
        return inputs.graded(table, correct)
    file, content = files.load_saved(calibration)
    if not files.is_signal_calibration(content):
        raise InputError(f"{file} is no calibration of graded answers.")
    return inputs.graded(table, correct, content)


def _by_group(read: Any, groups: Any, bins: int) -> dict[str, Any]:
    """Return the main metrics of each group; empty without groups."""
    import numpy as np

    from recal import evaluate as measure

    found = {}
    for name in [] if groups is None else np.unique(groups).tolist():
        rows = np.flatnonzero(groups == name)
        confidences = None if read.confidence is None else read.confidence[rows]
        one = measure(read.probs[rows], read.labels[rows], n_bins=bins, confidences=confidences)
        metrics = {metric: one[metric] for metric in ("error_rate", "nll", "ece")}
        found[str(name)] = {"samples": len(rows), "metrics": metrics}
    return found
