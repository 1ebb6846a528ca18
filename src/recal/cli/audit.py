"""`recal audit`: does a calibration keep its promise while it is used?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.files import load_saved
from recal.cli.printing import print_json, say, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    pass


def audit(
    folder: opt.CalibrationPath,
    answers: Annotated[
        Path | None, Argument(help="Answers that recal apply wrote: .csv, .parquet or .jsonl.")
    ] = None,
    checks: Annotated[int | None, Option(help="How many answers a person should check.")] = None,
    checked: Annotated[Path | None, Option(help="The table of --checks, filled in.")] = None,
    group: opt.GroupColumn = None,
    out: Annotated[Path | None, Option(help="Where to write the answers to check.")] = None,
    force: opt.Force = False,
) -> None:
    """Check a few automated answers by hand, and learn whether the promise still holds.

    First draw answers. Fill in the column `right` with yes or no. Then add the grades. The error
    rate has an interval that is valid however often you look. The exit status is 1 if the promise
    is refuted.

    Example: [bold]recal audit calibrated answers.csv --checks 50 --out to-check.csv[/bold]

    Example: [bold]recal audit calibrated --checked to-check.csv[/bold]
    """
    from recal.workflow.auditing import FolderAudit, audited_rule, read_checked, write_checks

    file, content = load_saved(folder)
    rule = audited_rule(content)
    if rule is None:
        raise InputError(
            f"{file} has no rule, so there is no promise to check",
            remedy="Calibrate with --risk, or use recal decide --calibration",
        )
    if (answers is None) != (checks is None) or (checks is None) != (out is None):
        raise InputError("To draw answers, give the table, --checks N and --out FILE.")
    found = FolderAudit(file.parent, rule)
    if answers is not None and checks is not None and out is not None:
        n, column = write_checks(found, answers, checks, out, group=group)
        print_json({"drawn": n, "file": out, **found.facts(), "pending": len(found.pending)})
        say(f"{n} answers to check are in {out}. Fill in the column `{column}` with yes or no.")
        say(f"Next: {shell_line('audit', folder, '--checked', out)}")
        return
    added = 0 if checked is None else found.add(read_checked(checked))
    print_json({"added": added, "pending": len(found.pending), **found.facts()})
    say(str(found.audit))
    if found.pending:
        say(f"{len(found.pending)} drawn answers are not graded yet.")
    if found.audit.alarm:
        say("Stop automating, and calibrate again with newly labelled rows.")
        raise typer.Exit(1)
