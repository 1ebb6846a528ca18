"""`recal evaluate`, `recal compare` and `recal groups`: measure probabilities, methods and reactions to views."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from recal.cli.files import LabelColumn, LabelsFile, labelled_probs, rows_of_views
from recal.cli.fit import listed
from recal.cli.printing import AsJson, command_line, print_json, print_table, say, typed, working


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
        options = {"confidences": found.confidence, "clusters": rows_of_views(source).get("clusters")}
        result = measure(found.probs, found.labels, bootstrap, n_bins=bins, random_state=seed, **options)
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
        rows.append([LABELS[name], f"{value:.5f}", result.describe_interval(name)])
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
    from recal.cli.files import open_views

    fit, test = open_views(fit_views), None if test_views is None else open_views(test_views)
    from recal.comparison import compare as run
    from recal.comparison import recommend
    from recal.comparison.run import usual_methods
    from recal.comparison.tables import number, passes, seconds, signed
    from recal.errors import InputError
    from recal.metrics import LABELS
    from recal.reporting.page import write_results
    from recal.reporting.verdict import advice

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


def groups(
    views: Annotated[Path, typer.Argument(help="Views with transformations: an .npz file or a .zarr folder.")],
    confidence_at: Annotated[
        str,
        typer.Option(
            "--confidence-at", help="Compare the confidence in the `original` prediction, or in each copy's `own`."
        ),
    ] = "original",
    ties: Annotated[str, typer.Option("--ties", help="Compare confidences as `float32` or `exact`.")] = "float32",
    scaled: Annotated[
        bool, typer.Option("--scaled", help="First apply one fitted temperature, as the paper did.")
    ] = False,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of the ECE.")] = 15,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Also draw a bar chart of the groups' ranks (.png, .svg, .pdf).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the model's answers react to each transformation, and how well it is calibrated in each group.

    Every sample falls in one of four groups: was the prediction kept or changed, and did the confidence in it rise or
    not? Shown are each group's share and, where the views have labels, its calibration error (ECE). The paper's group
    tables are made with --scaled --confidence-at own.

    Example: [bold]recal groups held-out.npz --scaled --confidence-at own[/bold]
    """
    from recal.cli.files import open_views

    source = open_views(views)
    from recal.errors import InputError
    from recal.maps.plan import ConfidenceAt, Rule, Ties
    from recal.reporting.groups import FEWEST_RANKED, GROUP_LABELS, group_study

    if not source.transforms:
        raise InputError(f"{views} holds no transformations, so there is nothing to group.")
    rule = Rule(confidence_at=cast(ConfidenceAt, confidence_at), ties=cast(Ties, ties))  # refuses other words
    with working("Grouping"):
        study = group_study(source, confidence_at=rule.confidence_at, ties=rule.ties, scaled=scaled, n_bins=bins)
    if chart is not None:
        from recal.reporting.charts import group_ranks_chart
        from recal.reporting.plots import figure_of, save_figure

        if source.labels is None:
            raise InputError(f"{views} holds no labels; without them groups have no error by which to rank them.")
        save_figure(figure_of([("", group_ranks_chart(study))]), chart)
    if as_json:
        print_json({"samples": source.n_samples, **study.to_dict()})
        return
    lines = []
    for spec, sizes, errors in study.lines():
        cells = []
        for size, error in zip(sizes, errors):
            known = "" if error != error else f", ECE {error:.4f}"  # an empty group has none
            cells.append(f"{size:,} ({size / source.n_samples:.1%}){known}")
        lines.append([spec, *cells])
    print_table(
        f"Groups of {source.n_samples:,} samples",
        ["transformation", *GROUP_LABELS.values()],
        lines,
        note="kept/changed: the prediction, seen through the transformation; rose/fell: the confidence in it.",
    )
    if source.labels is not None:
        places = ["smallest", "second", "third", "largest"]
        named = zip(GROUP_LABELS.values(), study.ranks.tolist(), study.usual_sizes)
        print_table(
            "How often each group's ECE ranks so over the transformations",
            ["group", *places, "median size"],
            [[label, *row, size] for label, row, size in named],
            note=f"Groups of fewer than {FEWEST_RANKED} samples are not ranked.",
        )
    if chart is not None:
        say(f"Written to {chart}.")
    labelled = () if source.labels is not None else ("--labels", "FILE")
    say(f"Next: {typed('recal', 'fit', views, *labelled, '--method', 'recal', '--out', 'calibration.recal')}")
