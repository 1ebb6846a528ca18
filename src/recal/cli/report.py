"""`recal report`: one HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.compare import method_names
from recal.cli.printing import SESSION, print_json, say, working
from recal.errors import InputError

INPUTS = opt.ROWS


def report(
    ctx: Context,
    source: opt.ProbsFile,
    test_views: Annotated[
        Path | None, Argument(help="Views to test on. By default VIEWS is split into halves.")
    ] = None,
    before: Annotated[Path | None, Option(help="The probabilities before calibration.")] = None,
    methods: opt.MethodNames = None,
    splits: opt.Splits = None,
    out: Annotated[Path, Option(help="Where to write the page.")] = Path("report.html"),
    by: Annotated[
        list[str] | None,
        Option("--slice", help="Also evaluate each value of this column separately; repeatable."),
    ] = None,
    risk: opt.Risk = 0.01,
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
) -> None:
    """Write one HTML page: verdict, threshold slider, tables, figures.

    With views, methods are fitted on one file and tested on the other, or on random halves of the
    first. With probabilities (.npz, .csv, .parquet), those are evaluated and compared with
    --before. --rows has one row for each tested sample, in the same order.

    Example: [bold]recal report probs.csv --before raw.csv --out report.html[/bold]
    """
    about: opt.Inputs = ctx.obj
    columns, sliced = about.columns(source), files.table_columns(about.rows or source, by or [])
    kind = files.check_kind(source, "probabilities", "views")
    from recal.comparison import compare, compare_probs
    from recal.reporting.page import Page

    how: dict[str, Any] = {"clusters": columns.get("clusters"), "random_state": seed}
    with working("Writing the report"):
        if kind == "views":
            if before is not None:
                raise InputError(
                    "--before goes with probabilities; views begin with the uncalibrated model."
                )
            test = None if test_views is None else opt.Inputs().views(test_views)
            fit = replace(about, group=None, cluster=None).views(source)
            result = compare(method_names(methods, fit), fit, test, splits=splits, **how)
        else:
            opt.refuse(ctx, f"the probabilities {source}", ("test_views", "methods", "splits"))
            read = _read_pair(source, before, about, tuple(by or ()))
            after = read[list(read)[-1]]
            result = compare_probs(
                {name: one.probs for name, one in read.items()},
                after.named_labels,
                confidences={name: one.confidence for name, one in read.items()},
                classes=after.classes,
                **how,
            )
        page = Page(
            result,
            command=SESSION.command,
            columns={name: sliced[name] for name in by or []},
            groups={} if about.group is None else {about.group: columns["groups"]},
            risk=risk,
        )
        page.write(out)
    best, judgement = page.choice, page.verdicts[page.shown]
    sentences = [*page.headline, *judgement.sentences]
    facts = {"file": out, "verdict": sentences, "outcome": judgement.outcome or None}
    chosen = {"method": best.method, "forward_passes": best.passes, "contenders": best.contenders}
    print_json({**facts, "recommended": chosen, **result.to_dict()})
    for sentence in sentences:
        say(sentence)
    say(f"Written to {out}.")


def _read_pair(
    source: Path, before: Path | None, about: opt.Inputs, columns: tuple[str, ...]
) -> dict[str, Any]:
    """Return the probabilities to report on, and those before calibration in the same order."""
    from recal.copies import warn_of_fitted

    after = about.probs(source, columns)
    better = "the page looks better than new inputs will"
    warn_of_fitted(after.fitted_rows, len(after.probs), better, "Report on other samples.")
    if before is None:
        return {"given": after}
    aside = tuple(name for name in (about.group, about.cluster, *columns) if name is not None)
    try:
        first = replace(about, group=None, cluster=None).probs(before, aside)
        first.check_same_samples(after)
        return {"before": first, "after": after}
    except InputError as error:
        raise error.at(f"{before} does not go with {source}") from None
