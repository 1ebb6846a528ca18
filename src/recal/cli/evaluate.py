"""`recal evaluate`: how well probabilities are calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.printing import AsJson, command_line, print_json, print_table, say, typed, working
from recal.cli.sources import LabelColumn, LabelsFile, labelled_probs


def evaluate(
    source: Annotated[
        Path,
        typer.Argument(metavar="PROBS|VIEWS", help="Probabilities (.npz, .csv, .parquet) or views (.npz, .zarr)."),
    ],
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", help="Bootstrap draws for the 95 % intervals; 0 for none.")
    ] = 1000,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of ECE and other binned errors.")] = 15,
    labels: LabelsFile = None,
    label_column: LabelColumn = "label",
    report: Annotated[Path | None, typer.Option("--report", help="Also write a report (.html).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how well probabilities are calibrated: metrics with 95 % intervals, and a calibration test.

    For views, the model's own uncalibrated probabilities are measured. A table has one column for each class, named
    after the class, and one for the labels.

    Example: [bold]recal evaluate probs.csv --label-column truth --report report.html[/bold]
    """
    found = labelled_probs(source, label_column, labels=labels)
    assert found.labels is not None
    from recal import evaluate as measure
    from recal.engine.same_rows import warn_of_fitted
    from recal.metrics import LABELS, calibration_test

    warn_of_fitted(
        found.fitted_rows, len(found.probs), "these metrics are better than on new inputs", "Evaluate on other samples."
    )
    with working("Measuring"):
        result = measure(
            found.probs, found.labels, bootstrap, confidences=found.confidence, n_bins=bins, random_state=seed
        )
        tested = calibration_test(found.probs, found.labels, bins, confidences=found.confidence, random_state=seed)
        if report is not None:
            from recal.reporting import report as write_report

            write_report(found.probs, report, y=found.named_labels, classes=found.classes, command=command_line())
    if as_json:
        print_json({"file": source, **result.to_dict(), "calibration_test": tested.to_dict(), "report": report})
        return
    disagreement = tested.beside(result.intervals["ece"]) if result.intervals else ""
    rows = []
    for name, value in result.items():
        low, high = result.intervals.get(name, (None, None))
        rows.append([LABELS[name], f"{value:.5f}", "" if low is None else f"{low:.5f} to {high:.5f}"])
    print_table(
        str(result).splitlines()[0],
        ["metric", "value", "95 % interval" if result.intervals else ""],
        rows,
        note=" ".join(filter(None, [f"Lower is better, except for AUROC. Calibration test, {tested}", disagreement])),
    )
    if report is not None:
        say(f"Written to {report}.")
    more: tuple[object, ...] = () if labels is None else ("--labels", labels)
    more += () if label_column == "label" else ("--label-column", label_column)
    say(f"Next: {typed('recal', 'decide', source, *more, '--risk', 0.01)}")
    say(f"Or a page about it: {typed('recal', 'report', source, *more, '--out', 'report.html')}")
