"""`recal compare`: which method is best on your model, and is the difference real?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.methods import listed
from recal.cli.printing import AsJson, command_line, print_json, print_table, say, typed, working

Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="Short names, joined with commas; `all` for every method.",
        show_default="ts,ets,spline,irm,svs, and of views recal,stack",
    ),
]
Splits = Annotated[
    int | None,
    typer.Option("--splits", help="Random splits. By default 10 halves of one file, or the two files as they are."),
]


def compare(
    fit_views: Annotated[Path, typer.Argument(help="Views with labels to fit on: an .npz file or a .zarr folder.")],
    test_views: Annotated[
        Path | None,
        typer.Argument(help="Views with labels to test on. By default the first file is split into halves."),
    ] = None,
    methods: Methods = None,
    splits: Splits = None,
    baseline: Annotated[str, typer.Option("--baseline", help="Show differences to this method.")] = "ts",
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", help="Bootstrap draws for the intervals of a single split.")
    ] = 500,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of ECE and other binned errors.")] = 15,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the tables (.md .tex .csv .json) and the report (.html).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same data, with intervals and paired differences.

    By default the file is split ten times into random halves. If you give a second file, methods are tested on it and
    its rows are resampled. A method that cannot be fitted is left out, with the reason.

    Example: [bold]recal compare views.npz --methods ts,vs,ms-odir,dir-odir,recal --splits 10 --out results[/bold]
    """
    from recal.cli.sources import open_views

    fit, test = open_views(fit_views), None if test_views is None else open_views(test_views)
    from recal.comparison import compare as run
    from recal.comparison import recommend
    from recal.comparison.run import usual_methods
    from recal.comparison.tables import number, passes, seconds, signed
    from recal.errors import InputError
    from recal.metrics import LABELS
    from recal.reporting.data.verdict import advice
    from recal.reporting.files import write_results

    if test is not None and test.n_classes != fit.n_classes:
        raise InputError(
            f"{fit_views} has {fit.n_classes} classes and {test_views} has {test.n_classes}: both must be views of one "
            "model."
        )
    names = usual_methods(fit) if methods is None else listed(methods)
    with working(f"Comparing {len(names)} methods"):
        found = run(
            names, fit, test, splits=splits, baseline=baseline, bootstrap=bootstrap, n_bins=bins, random_state=seed
        )
        if out is not None:
            files = write_results(found, out, command_line())
    if as_json:
        chosen = recommend(found)
        print_json({"recommended": vars(chosen), **found.to_dict()})
        return
    from recal.comparison.results import MAIN_METRICS
    from recal.comparison.tables import describe

    marks = {"best": "*", "second": "+", "": " "}
    rows = {metric: found.rows(metric) for metric in MAIN_METRICS}
    lines = []
    for index, method in enumerate(found.methods):
        cells = []
        for metric in MAIN_METRICS:
            row, digits = rows[metric][index], found.digits(metric)
            change = f" ({signed(row.difference, digits)})" if row.differs else ""
            cells.append(f"{number(row.value, digits)}{change}{marks[row.mark]}")
        lines.append([method, *cells, seconds(found.fit_seconds[:, index].mean()), passes(found.passes[index])])
    print_table(
        f"{len(found.methods)} methods",
        ["method", *(LABELS[metric] for metric in MAIN_METRICS), "fit, CPU", "passes"],
        lines,
        note=f"* best, + second best; in brackets the difference to {baseline} where its interval excludes zero. "
        + describe(found),
    )
    say(advice(found, recommend(found)))
    for name, why in found.failures.items():
        say(f"{name} was left out: {why}")
    if out is not None:
        say(f"Written: {', '.join(map(str, files))}")
    if (best := recommend(found).method) in names:
        say(f"Next: {typed('recal', 'fit', fit_views, '--method', best, '--out', 'calibration.recal')}")
