"""`recal evaluate`, `compare`, `groups`, `report` and `demo`: measure, and show the results in
tables and pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recal.cli.files import (
    check_kind,
    open_views,
    profile_in,
    read_probs,
    refuse_unused,
    rows_of_views,
    table_columns,
)
from recal.cli.options import BINS, LABEL_COLUMN, LABELS, METHODS, RISK, SPLITS, argument, option
from recal.cli.printing import SESSION, print_json, print_table, say, shell_line, working
from recal.errors import InputError


def evaluate(
    *,
    source: Path = argument(
        "Probabilities (.npz, .csv, .parquet) or views (.npz, .zarr).", ..., metavar="PROBS|VIEWS"
    ),
    bootstrap: int = option("Bootstrap draws for the 95 % intervals; 0 for none.", 1000),
    bins: int = BINS,
    labels: Path | None = LABELS,
    label_column: str = LABEL_COLUMN,
    report: Path | None = option("Also write a report (.html)."),
    seed: int = option("Same seed, same intervals.", 0),
) -> None:
    """Measure how well probabilities are calibrated: metrics with 95 % intervals, and a calibration
    test.

    For views, the model's own uncalibrated probabilities are measured. A table has one column for
    each class, named after the class, and one for the labels.

    Example: [bold]recal evaluate probs.csv --label-column truth --report report.html[/bold]
    """
    read = read_probs(source, labels, label_column)
    assert read.labels is not None
    from recal import evaluate as measure
    from recal.copies import warn_of_fitted
    from recal.metrics import LABELS as METRIC_NAMES
    from recal.metrics import calibration_test

    probs, confidences = read.probs, read.confidence
    warn_of_fitted(
        read.fitted_rows,
        len(probs),
        "these metrics are better than on new inputs",
        "Evaluate on other samples.",
    )
    with working("Measuring"):
        clusters = rows_of_views(source).get("clusters")
        how: dict[str, Any] = {"confidences": confidences, "random_state": seed}
        result = measure(probs, read.labels, bootstrap, n_bins=bins, clusters=clusters, **how)
        test = calibration_test(probs, read.labels, bins, **how)
        if report is not None:
            from recal.reporting import report as write_report

            write_report(
                probs, report, y=read.named_labels, classes=read.classes, command=SESSION.command
            )
    print_json(
        {"file": source, **result.to_dict(), "calibration_test": test.to_dict(), "report": report}
    )
    disagreement = test.beside(result.intervals["ece"]) if result.intervals else ""
    print_table(
        str(result).splitlines()[0],
        ["metric", "value", "95 % interval" if result.intervals else ""],
        [
            [METRIC_NAMES[name], f"{value:.5f}", result.describe_interval(name)]
            for name, value in result.items()
        ],
        note=f"Lower is better, except for AUROC. Calibration test, {test} {disagreement}".rstrip(),
    )
    if report is not None:
        say(f"Written to {report}.")
    more: tuple[object, ...] = () if labels is None else ("--labels", labels)
    more += () if label_column == "label" else ("--label-column", label_column)
    say(f"Next: {shell_line('decide', source, *more, '--risk', 0.01)}")
    say(f"Or a page about it: {shell_line('report', source, *more, '--out', 'report.html')}")


def compare(
    *,
    fit_views: Path = argument("Views with labels to fit on: an .npz file or a .zarr folder.", ...),
    test_views: Path | None = argument(
        "Views with labels to test on. By default the first file is split into halves."
    ),
    methods: str | None = METHODS,
    splits: int | None = SPLITS,
    baseline: str = option("Show differences to this method.", "ts"),
    bootstrap: int = option("Bootstrap draws for the intervals of a single split.", 500),
    bins: int = BINS,
    seed: int = option("Same seed, same result.", 0),
    out: Path | None = option(
        "Folder for the tables (.md .tex .csv .json) and the report (.html)."
    ),
) -> None:
    """Compare methods on the same data, with intervals and paired differences.

    By default the file is split ten times into random halves. If you give a second file, methods
    are tested on it and its rows are resampled. A method that cannot be fitted is left out, with
    the reason.

    Example: [bold]recal compare views.npz --methods ts,vs,ms-odir,dir-odir,recal --splits 10 --out
    results[/bold]
    """
    fit, test = open_views(fit_views), None if test_views is None else open_views(test_views)
    from recal.comparison import compare as run
    from recal.comparison import recommend
    from recal.comparison.results import MAIN_METRICS, Row
    from recal.comparison.tables import number
    from recal.metrics import LABELS as METRIC_NAMES
    from recal.reporting.page import write_results
    from recal.reporting.verdict import advice

    if test is not None and test.n_classes != fit.n_classes:
        raise InputError(
            f"{fit_views} has {fit.n_classes} classes and {test_views} has {test.n_classes}: both must be views of one "
            "model."
        )
    names = _method_names(methods, fit)
    with working(f"Comparing {len(names)} methods"):
        result = run(
            names,
            fit,
            test,
            splits=splits,
            baseline=baseline,
            bootstrap=bootstrap,
            n_bins=bins,
            random_state=seed,
        )
        files = [] if out is None else write_results(result, out, SESSION.command)
    best = recommend(result)
    print_json({"recommended": vars(best), **result.to_dict()})

    def cell(row: Row, digits: int) -> str:
        return (
            number(row.value, digits)
            + row.change(digits)
            + {"best": "*", "second": "+", "": " "}[row.mark]
        )

    print_table(
        f"{len(result.methods)} methods",
        ["method", *(METRIC_NAMES[metric] for metric in MAIN_METRICS), "fit, CPU", "passes"],
        result.table(MAIN_METRICS, cell),
        note=f"* best, + second best; in brackets the difference to {baseline} where its interval excludes zero. "
        + result.describe(),
    )
    say(advice(result, best))
    for name, why in result.failures.items():
        say(f"{name} was left out: {why}")
    if files:
        say(f"Written: {', '.join(map(str, files))}")
    if best.method in names:
        say(
            f"Next: {shell_line('fit', fit_views, '--method', best.method, '--out', 'calibration.recal')}"
        )


def groups(
    *,
    views: Path = argument("Views with transformations: an .npz file or a .zarr folder.", ...),
    confidence_at: str = option(
        "Compare the confidence in the `original` prediction, or in each copy's `own`.", "original"
    ),
    ties: str = option("Compare confidences as `float32` or `exact`.", "float32"),
    scaled: bool = option("First apply one fitted temperature, as the paper did.", False),
    bins: int = option("Number of bins of the ECE.", 15),
    chart: Path | None = option("Also draw a bar chart of the groups' ranks (.png, .svg, .pdf)."),
) -> None:
    """Show how the model's answers react to each transformation, and how well it is calibrated in
    each group.

    Every sample falls in one of four groups: was the prediction kept or changed, and did the
    confidence in it rise or not? Shown are each group's share and, where the views have labels, its
    calibration error (ECE). The paper's group tables are made with --scaled --confidence-at own.

    Example: [bold]recal groups held-out.npz --scaled --confidence-at own[/bold]
    """
    source = open_views(views)
    from recal.reporting.view_studies import FEWEST_RANKED, GROUP_LABELS, group_study

    if not source.transforms:
        raise InputError(f"{views} holds no transformations, so there is nothing to group.")
    how: dict[str, Any] = {"confidence_at": confidence_at, "ties": ties}
    with working("Grouping"):
        study = group_study(source, scaled=scaled, n_bins=bins, **how)
    if chart is not None:
        from recal.reporting.charts import group_ranks_chart
        from recal.reporting.plots import figure_of, save_figure

        if source.labels is None:
            raise InputError(
                f"{views} holds no labels; without them groups have no error by which to rank them."
            )
        save_figure(figure_of(group_ranks_chart(study)), chart)
    print_json({"samples": source.n_samples, **study.to_dict()})
    lines = []
    for spec, sizes, errors in study.lines():
        cells = []
        for size, error in zip(sizes, errors):
            ece = "" if error != error else f", ECE {error:.4f}"  # an empty group has none
            cells.append(f"{size:,} ({size / source.n_samples:.1%}){ece}")
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
    say(
        f"Next: {shell_line('fit', views, *labelled, '--method', 'recal', '--out', 'calibration.recal')}"
    )


def _method_names(text: str | None, views: Any) -> list[str]:
    """Return the short names in a comma-separated list; `all` means every method, None the usual
    ones.
    """
    from recal.calibrators import short_names
    from recal.comparison.run import usual_methods

    names = (
        usual_methods(views)
        if text is None
        else [name.strip() for name in text.split(",") if name.strip()]
    )
    if not names:
        raise InputError(
            "--methods names no method; give short names such as ts,ets,recal, or all."
        )
    return list(short_names()) if names == ["all"] else names


def report(
    *,
    source: Path = argument(
        "Views to fit on, or probabilities to evaluate.", ..., metavar="VIEWS|PROBS"
    ),
    test_views: Path | None = argument("Views to test on. By default VIEWS is split into halves."),
    before: Path | None = option("With PROBS: the probabilities or views before calibration."),
    methods: str | None = METHODS,
    splits: int | None = SPLITS,
    out: Path = option("Where to write the page.", Path("report.html")),
    title: str = option("The title of the page.", "Calibration report"),
    labels: Path | None = LABELS,
    label_column: str = LABEL_COLUMN,
    by: list[str] | None = option(
        "Also evaluate each value of this column separately; repeatable.", flag="--slice"
    ),
    group: str | None = option(
        "Also show the errors among automated answers for each value of this column."
    ),
    rows: Path | None = option("A .csv or .parquet with these columns; by default PROBS itself."),
    inputs: Path | None = option(
        "The inputs of the tested views, to show them: a folder of images, .npy, .npz, ..."
    ),
    risk: float = RISK,
    profile: Path | None = option(
        "A calibration or profile fitted with damaged inputs. Default: from VIEWS."
    ),
    new: Path | None = option("Views or logits of new inputs, whose accuracy is estimated."),
    seed: int = option("Same seed, same page.", 0),
) -> None:
    """Write one HTML page: verdict, threshold slider, tables, figures.

    With views, methods are fitted on one file and tested on the other, or on random halves of the
    first. With probabilities (.npz, .csv, .parquet), those are evaluated and compared with
    --before. --rows and --inputs have one row for each tested sample, in the same order. Views of
    several kinds, or --profile, add a section on damaged inputs, and --new adds the estimated
    accuracy of new ones.

    Example: [bold]recal report probs.csv --before raw.csv --out report.html[/bold]
    """
    groups = [] if group is None else [group]
    kind = check_kind(source, "probabilities", "views")
    fit_profile = None if profile is None else profile_in(profile, seed)
    new_logits = None if new is None else open_views(new).logits
    from recal import profile as take_profile
    from recal.comparison import compare, compare_probs, recommend
    from recal.copies import warn_of_fitted
    from recal.reporting import report as write_report
    from recal.reporting.verdict import automation, headline, shown_first, verdict

    with working("Writing the report"):
        if kind == "views":
            if before is not None:
                raise InputError(
                    "--before goes with probabilities; views begin with the uncalibrated model."
                )
            test = None if test_views is None else open_views(test_views)
            fit = open_views(source, labels)
            names = _method_names(methods, fit)
            result = compare(names, fit, test, splits=splits, random_state=seed)
            n_rows = (fit if test is None else test).n_samples
            if fit_profile is None and fit.transforms:
                fit_profile = take_profile(fit, random_state=seed)
        else:
            options = {"TEST_VIEWS": test_views, "--methods": methods, "--splits": splits}
            refuse_unused(options, f"the probabilities {source}")
            columns = [*(by or ()), *groups]
            after = read_probs(source, labels, label_column, columns)
            read, n_rows = {"given": after}, len(after.probs)
            warn_of_fitted(
                after.fitted_rows,
                n_rows,
                "the page looks better than new inputs will",
                "Report on other samples.",
            )
            if before is not None:
                try:
                    first = read_probs(before, labels, label_column, columns).in_order_of(after)
                except InputError as error:
                    raise error.at(f"{before} does not go with {source}") from None
                read = {"before": first, "after": after}
            result = compare_probs(
                {name: one.probs for name, one in read.items()},
                after.named_labels,
                confidences={name: one.confidence for name, one in read.items()},
                classes=after.classes,
                random_state=seed,
            )
        write_report(
            result,
            out,
            title=title,
            command=SESSION.command,
            inputs=None if inputs is None else _Inputs(inputs, n_rows),
            columns=table_columns(rows or source, by or []),
            groups=table_columns(rows or source, groups),
            risk=risk,
            profile=fit_profile,
            new=new_logits,
        )
        best = recommend(result)
        judgement = verdict(result, shown_first(result, best))
        shares = {name: automation(result, name, risk) for name in {result.methods[0], best.method}}
        sentences = [*headline(result, best, shares), *judgement.sentences]
    recommended = {
        "method": best.method,
        "forward_passes": best.passes,
        "contenders": best.contenders,
    }
    outcome = {
        "verdict": sentences,
        "outcome": judgement.outcome or None,
        "recommended": recommended,
    }
    print_json({"file": out, **outcome, **result.to_dict()})
    for sentence in sentences:
        say(sentence)
    say(f"Written to {out}.")


class _Inputs:
    """Inputs by row, for the page: paths if they are files, so that the page can link them."""

    def __init__(self, path: Path, n_rows: int) -> None:
        from recal.collecting.sources import as_source

        self.source: Any = as_source(path)
        n_inputs = self.source.n_samples
        if n_inputs is not None and n_inputs != n_rows:
            raise InputError(
                f"--inputs {path} holds {n_inputs:,} inputs, and {n_rows:,} answers are judged."
            )
        if not hasattr(self.source, "paths") and not hasattr(self.source, "read"):
            raise InputError(
                f"The inputs in {path} cannot be read one by one; give a folder of images, .npy or .npz."
            )

    def __getitem__(self, row: int) -> Any:
        if not hasattr(self.source, "paths"):
            return self.source.read([row])[0]
        path: Path = self.source.paths[row]
        is_inside = path.resolve().is_relative_to(self.source.root.resolve())
        return path if is_inside else f"{path.name} (a link out of the folder)"


def demo(
    *,
    out: Path = option("The folder for figures and files.", Path("demo-output")),
    seed: int = option("Same seed, same numbers.", 0, min=0),
) -> None:
    """See the whole job on real images, in about a minute.

    A small network learns handwritten digits and becomes overconfident. Temperature scaling, ReCal
    and the default of recal correct its confidence, without retraining it and without changing an
    answer. Then the answers that can be automated with at most 1 % errors are counted, before and
    after. You get a table, a report, two figures, and the files with which the other commands can
    be tried.

    Example: [bold]recal demo --out demo-output[/bold]
    """
    from recal.demo import METRICS, run_demo
    from recal.demo import RISK as risk
    from recal.metrics import LABELS as METRIC_NAMES

    result = run_demo(out, seed, say=say)
    print_json(
        {
            "seed": seed,
            "methods": {
                name: evaluation.to_dict() for name, evaluation in result.evaluations.items()
            },
            "automated": result.shares,
            "decisions": {name: decision.to_dict() for name, decision in result.decisions.items()},
            "reason": result.reason,
            "passes_per_answer": result.passes_per_answer,
            "calibration_is_the_same": result.calibration_is_the_same,
            "predictions_are_the_same": result.predictions_are_the_same,
            "files": result.files,
        }
    )
    rows = []
    for name, evaluation in result.evaluations.items():
        rows.append(
            [
                name,
                *(f"{evaluation[metric]:.4f}" for metric in METRICS),
                f"{result.shares[name]:.1%}",
            ]
        )
        rows.append(
            ["", *("{:.4f}–{:.4f}".format(*evaluation.intervals[metric]) for metric in METRICS), ""]
        )
    size = next(iter(result.evaluations.values())).n_samples
    say("")
    print_table(
        f"{size:,} digits used for nothing else; below each value its 95 % interval",
        ["", *(METRIC_NAMES[metric] for metric in METRICS), f"automated at {risk:.0%} errors"],
        rows,
        note="Lower is better, except for the last column. The error rate stays the same: no answer changes.",
    )
    before, after = (result.shares[name] for name in ("uncalibrated", "default"))
    same = {True: "the same", False: "NOT THE SAME, which is a bug in recal"}
    say(
        f"\n{result.reason}\n"
        f"It takes {result.passes_per_answer:.2f} forward passes per answer.\n"
        f"Automated with at most {risk:.0%} errors, at 95 % confidence: {before:.1%} of the answers before, "
        f"{after:.1%} after calibration. The rules were chosen on other digits.\n"
        f"Saved and loaded again, the calibration is {same[result.calibration_is_the_same]}.\n"
        f"Before and after, every answer is {same[result.predictions_are_the_same]}.\n\n"
        "Open\n"
        f"  {result.files['report']}\n"
        f"  {result.files['summary']}\n"
        f"  {result.files['zoomed']}\n\n"
        "Next: the same, step by step\n"
        f"  recal fit {result.files['views to fit on']} --out digits.recal\n"
        f"  recal decide {result.files['views to decide on']} --calibration digits.recal --risk 0.01 "
        "--out ready.recal\n"
        f"  recal apply ready.recal {result.files['new views']} --out answers.csv\n"
        "With your own model\n"
        "  recal calibrate --model MODEL --data LABELLED --out FOLDER"
    )
