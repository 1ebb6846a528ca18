"""`recal check`: does the promise of a calibration hold on fresh labelled data?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.printing import print_json, say, working
from recal.errors import InputError

INPUTS = opt.ROWS


def check(
    ctx: Context,
    calibration: opt.CalibrationPath,
    data: Annotated[Path, Argument(help="Fresh labelled rows: views, or a table of answers.")],
    correct: opt.Correct = None,
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
    from recal.copies import warn_of_fitted
    from recal.metrics import evaluate

    about: opt.Inputs = ctx.obj
    found: Any
    with working("Checking"):
        if files.is_panel(content):
            if about.label_column is None:
                raise InputError(
                    f"Name the column of right answers in {data}: --label-column COLUMN."
                )
            from recal.workflow.scoring import grade_systems

            accepted, found = grade_systems(
                content, file.parent, data, about.label_column, about.cluster
            )
        else:
            if files.is_signal_calibration(content):
                found = about.graded(data, correct, content)
            else:
                found = about.calibrated(data, file, files.check_calibration(file, content))
            files.check_groups(rule, found.groups, data)
            accepted = rule.accept(found.probs, found.confidence, found.groups)
        better = ("these figures are better than on new inputs", "Check on other samples.")
        warn_of_fitted(found.fitted_rows, len(accepted), *better)
        verdict = check_promise(rule, accepted, found.correct, found.clusters, alpha=alpha)
        metrics = evaluate(found.probs, found.labels, clusters=found.clusters)
    facts: dict[str, Any] = {"file": file, "data": data, **verdict.to_dict()}
    print_json({**facts, "nll": metrics["nll"], "ece": metrics["ece"]})
    note = rule.note_on_refuted if verdict.refuted else ""
    say(f"{verdict} {note}".rstrip())
    scores = f"NLL {metrics['nll']:.4f}, ECE {metrics['ece']:.4f}"
    say(f"Calibration on these {len(accepted):,} rows: {scores}.")
    if verdict.refuted:
        raise typer.Exit(1)
