"""`recal compare`: methods on the same data, with intervals and paired differences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from recal.cli import options as opt
from recal.cli.options import split_names
from recal.cli.printing import SESSION, print_json, print_table, say, shell_line, working
from recal.errors import InputError

INPUTS = ("cluster", "rows")


def compare(
    ctx: Context,
    fit_views: opt.ViewsFile,
    test_views: Annotated[
        Path | None,
        Argument(help="Views with labels to test on. By default the first file is split."),
    ] = None,
    methods: opt.MethodNames = None,
    splits: opt.Splits = None,
    baseline: Annotated[str, Option(help="Show differences to this method.")] = "ts",
    bootstrap: Annotated[int, Option(help="Bootstrap draws, if there is a single split.")] = 500,
    bins: opt.BinCount = 15,
    seed: opt.SeedNumber = 0,
    out: Annotated[
        Path | None,
        Option(help="Folder for the tables (.md .tex .csv .json) and the report (.html)."),
    ] = None,
    force: opt.Force = False,
) -> None:
    """Compare methods on the same data, with intervals and paired differences.

    By default the file is split ten times into random halves. If you give a second file, methods
    are tested on it and its rows are resampled. A method that cannot be fitted is left out, with
    the reason.

    Example: [bold]recal compare views.npz --methods ts,vs,ms-odir,dir-odir,recal --splits 10 --out
    results[/bold]
    """
    fit = opt.Inputs().views(fit_views)
    test = None if test_views is None else opt.Inputs().views(test_views)
    clusters = ctx.obj.columns(fit_views).get("clusters")
    from recal.comparison import compare as run
    from recal.comparison import recommend
    from recal.comparison.results import MAIN_METRICS, Row, number
    from recal.metrics import LABELS as METRIC_NAMES
    from recal.reporting.page import write_results
    from recal.reporting.verdict import advice

    if test is not None and test.n_classes != fit.n_classes:
        raise InputError(
            f"{fit_views} has {fit.n_classes} classes and {test_views} has {test.n_classes}: both "
            "must be views of one model."
        )
    names = method_names(methods, fit)
    how: dict[str, Any] = {"splits": splits, "baseline": baseline, "bootstrap": bootstrap}
    how |= {"n_bins": bins, "clusters": clusters, "random_state": seed}
    with working(f"Comparing {len(names)} methods"):
        result = run(names, fit, test, **how)
        files = [] if out is None else write_results(result, out, SESSION.command)
    best = recommend(result)
    print_json({"recommended": vars(best), **result.to_dict()})

    def cell(row: Row, digits: int) -> str:
        mark = {"best": "*", "second": "+", "": " "}[row.mark]
        return number(row.value, digits) + row.change(digits) + mark

    _, *lines = result.table(MAIN_METRICS, cell)
    print_table(
        f"{len(result.methods)} methods",
        ["method", *(METRIC_NAMES[metric] for metric in MAIN_METRICS), "fit, CPU", "passes"],
        lines,
        note=f"* best, + second best; in brackets the difference to {baseline} where its interval "
        f"excludes zero. {result.describe()}",
    )
    say(advice(result, best))
    for name, why in result.failures.items():
        say(f"{name} was left out: {why}")
    if files:
        say(f"Written: {', '.join(map(str, files))}")
    if best.method in names:
        words = (fit_views, "--method", best.method, "--out", "calibration.recal")
        say(f"Next: {shell_line('fit', *words)}")


def method_names(text: str | None, views: Any) -> list[str]:
    """Return the short names in a list; `all` means every method, None the usual ones."""
    from recal.calibrators import METHODS
    from recal.comparison.run import usual_methods

    names = split_names(text)
    if names is None:
        return list(usual_methods(views))
    return list(METHODS) if names == ["all"] else names
