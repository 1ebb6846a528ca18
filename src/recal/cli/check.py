"""`recal check`: does the promise of a calibration hold on fresh labelled data?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.inputs import Inputs
from recal.cli.printing import print_json, say, working
from recal.errors import InputError


def check(
    *,
    calibration: opt.CalibrationPath,
    data: Annotated[Path, Argument(help="Fresh labelled rows: views, or a table of answers.")],
    correct: opt.Correct = None,
    inputs: Annotated[Inputs, "labels label_column cluster group rows"],
    alpha: Annotated[
        float, Option(help="The probability of refuting a promise that holds.")
    ] = 0.05,
) -> None:
    """Check on fresh labelled data whether the promise of a calibration's rule still holds.

    The exit code is 0 if the errors among accepted answers are compatible with the promised risk,
    1 if they refute it, and 2 if the input cannot be used. With clusters, the number of errors is
    compared with what as many independent rows as the clusters are worth could show.

    For several systems, name the column of right answers with --label-column.

    Example: [bold]recal check folder fresh.csv --correct right --json[/bold]
    """
    file, content = files.load_saved(calibration)
    from recal.workflow.auditing import audited_rule, check_promise

    rule = audited_rule(content)
    if rule is None:
        raise InputError(
            f"{file} holds no rule, so it promises nothing. Make one: recal decide LABELLED "
            f"--calibration {file} --risk 0.05 --out ready.recal"
        )
    from recal.metrics import evaluate

    with working("Checking"):
        accepted, right, clusters, measured = _answers(file, content, rule, data, correct, inputs)
        verdict = check_promise(rule, accepted, right, clusters, alpha=alpha)
        metrics = evaluate(*measured, clusters=clusters)
    facts: dict[str, Any] = {"file": file, "data": data, **verdict.to_dict()}
    print_json({**facts, "nll": metrics["nll"], "ece": metrics["ece"]})
    say(str(verdict))
    scores = f"NLL {metrics['nll']:.4f}, ECE {metrics['ece']:.4f}"
    say(f"Calibration on these {len(right):,} rows: {scores}.")
    if verdict.refuted:
        raise typer.Exit(1)


def _answers(
    file: Path, content: Any, rule: Any, data: Path, correct: str | None, inputs: Inputs
) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """Return which rows are accepted and right, their clusters, and what is measured."""
    from recal.copies import warn_of_fitted

    better = ("these figures are better than on new inputs", "Check on other samples.")
    if files.is_panel(content):
        if inputs.label_column is None:
            raise InputError(f"Name the column of right answers in {data}: --label-column COLUMN.")
        from recal.workflow.panels import graded_panel

        accepted, found = graded_panel(
            content, file.parent, data, inputs.label_column, inputs.cluster
        )
        warn_of_fitted(found.fitted_rows, len(accepted), *better)
        return accepted, found.correct, found.clusters, (found.probs, found.labels)
    if files.is_signal_calibration(content):
        one = inputs.graded(data, correct, content)
    else:
        one = inputs.calibrated(data, file, files.check_calibration(file, content))
    warn_of_fitted(one.fitted_rows, len(one.probs), *better)
    accepted = rule.accept(one.probs, one.confidence, one.groups if rule.groups else None)
    return accepted, one.correct, one.clusters, (one.probs, one.labels)
