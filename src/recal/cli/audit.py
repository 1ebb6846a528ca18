"""`recal audit`: does a calibration keep its promise while it is used?"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context, Option

from recal.cli import options as opt
from recal.cli.files import load_saved
from recal.cli.printing import print_json, say, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.workflow.auditing import FolderAudit


INPUTS = ("group",)


def audit(
    ctx: Context,
    folder: opt.CalibrationPath,
    answers: Annotated[
        Path | None, Argument(help="Answers that recal apply wrote: .csv, .parquet or .jsonl.")
    ] = None,
    checks: Annotated[int | None, Option(help="How many answers a person should check.")] = None,
    checked: Annotated[Path | None, Option(help="The table of --checks, filled in.")] = None,
    update: Annotated[
        bool, Option("--update", help="Write the looser or stricter rule that the grades support.")
    ] = False,
    out: Annotated[Path | None, Option(help="Where to write the answers to check.")] = None,
    force: opt.Force = False,
) -> None:
    """Check a few automated answers by hand, and learn whether the promise still holds.

    First draw answers; some lie just below the threshold, so that the rule can be loosened. Fill in
    the column `right` with yes or no. Then add the grades. The error rate has an interval that is
    valid however often you look. The exit status is 1 if the promise is refuted.

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
    is_cascade = rule is not getattr(content, "decision_", None)
    if is_cascade and update:
        raise InputError("--update cannot change a cascade. Calibrate again with more labels.")
    below = 0.0 if is_cascade else 0.1  # a cascade has no single threshold
    found = FolderAudit(file.parent, rule, below=below)
    if answers is not None and checks is not None and out is not None:
        n, column = write_checks(found, answers, checks, out, group=ctx.obj.group)
        print_json({"drawn": n, "file": out, **found.facts(), "pending": len(found.pending)})
        say(f"{n} answers to check are in {out}. Fill in the column `{column}` with yes or no.")
        say(f"Next: {shell_line('audit', folder, '--checked', out)}")
        return
    added = 0 if checked is None else found.add(read_checked(checked))
    changed = _update(file, content, found) if update else None
    facts = {"added": added, "updated": changed is not None, "pending": len(found.pending)}
    print_json({**facts, **found.facts()})
    say(str(found.audit))
    if found.pending:
        say(f"{len(found.pending)} drawn answers are not graded yet.")
    if changed is not None:
        say(changed)
    elif update:
        say("The rule stays as it is: the grades do not support another one.")
    elif found.audit.verdict in ("refuted", "can be loosened") and not is_cascade:
        say(f"Next: {shell_line('audit', folder, '--update')}")
    if found.audit.alarm and changed is None:
        raise typer.Exit(1)


def _update(file: Path, content: Any, found: FolderAudit) -> str | None:
    """Write the rule that the grades support; return what changed, None if nothing did."""
    from recal import save
    from recal.workflow.auditing import keep_previous

    rule = found.audit.updated_rule()
    if rule is None:
        return None
    previous = keep_previous(file)
    content.decision_ = rule
    save(content, file)
    before, after = (
        ", ".join("none" if value == inf else f"{value:.3g}" for value in one.thresholds)
        for one in (found.rule, rule)
    )
    none = "" if min(rule.thresholds) < inf else " The rule accepts no answer now."
    return f"Threshold: {before} -> {after}.{none} The previous version is {previous}."
