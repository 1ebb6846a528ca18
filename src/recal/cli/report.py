"""`recal report` and `recal demo`: one HTML page about your model, or about a demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.evaluate import Methods, Splits
from recal.cli.files import LabelColumn, LabelsFile, check_kind, labelled_probs, open_views, profile_in, table_columns
from recal.cli.fit import listed
from recal.cli.printing import AsJson, command_line, print_json, print_table, say, working


def report(
    source: Annotated[
        Path, typer.Argument(metavar="VIEWS|PROBS", help="Views to fit on, or probabilities to evaluate.")
    ],
    test_views: Annotated[
        Path | None, typer.Argument(help="Views to test on. By default VIEWS is split into halves.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option("--before", help="With PROBS: the probabilities or views before calibration.")
    ] = None,
    methods: Methods = None,
    splits: Splits = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="The title of the page.")] = "Calibration report",
    labels: LabelsFile = None,
    label_column: LabelColumn = "label",
    by: Annotated[
        list[str] | None,
        typer.Option("--slice", help="Also evaluate each value of this column separately; repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Also show the errors among automated answers for each value of this column."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="A .csv or .parquet with these columns; by default PROBS itself."),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs", help="The inputs of the tested views, to show them: a folder of images, .npy, .npz, ..."
        ),
    ] = None,
    risk: Annotated[float, typer.Option("--risk", help="The largest share of errors among automated answers.")] = 0.01,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="A calibration or profile fitted with damaged inputs. Default: from VIEWS."),
    ] = None,
    new: Annotated[
        Path | None, typer.Option("--new", help="Views or logits of new inputs, whose accuracy is estimated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same page.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: verdict, threshold slider, tables, figures.

    With views, methods are fitted on one file and tested on the other, or on random halves of the first. With
    probabilities (.npz, .csv, .parquet), those are evaluated and compared with --before. --rows and --inputs
    have one row for each tested sample, in the same order. Views of several kinds, or --profile, add a section on
    damaged inputs, and --new adds the estimated accuracy of new ones.

    Example: [bold]recal report probs.csv --before raw.csv --out report.html[/bold]
    """
    others = [*(by or ()), *(() if group is None else (group,))]
    held = check_kind(source, "probabilities", "views")
    known = None if profile is None else profile_in(profile, seed)
    batch = None if new is None else open_views(new).logits
    from recal import profile as take_profile
    from recal.comparison import compare, compare_probs, recommend
    from recal.comparison.run import usual_methods
    from recal.engine.same_rows import warn_of_fitted
    from recal.errors import InputError
    from recal.reporting import report as write_report
    from recal.reporting.verdict import automation, headline, shown_first, verdict

    with working("Writing the report"):
        if held == "views":
            if before is not None:
                raise InputError("--before goes with probabilities; views begin with the uncalibrated model.")
            test = None if test_views is None else open_views(test_views)
            fit = open_views(source, labels)
            names = usual_methods(fit) if methods is None else listed(methods)
            result = compare(names, fit, test, splits=splits, random_state=seed)
            n_rows = (fit if test is None else test).n_samples
            known = take_profile(fit, random_state=seed) if known is None and fit.transforms else known
        else:
            after = labelled_probs(source, label_column, others, labels)
            read, n_rows = {"given": after}, len(after.probs)
            warn_of_fitted(
                after.fitted_rows, n_rows, "the page looks better than new inputs will", "Report on other samples."
            )
            if before is not None:
                try:
                    first = labelled_probs(before, label_column, others, labels).in_order_of(after)
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
            command=command_line(),
            inputs=None if inputs is None else _open_inputs(inputs, n_rows),
            columns=table_columns(rows or source, by or []),
            groups=table_columns(rows or source, [] if group is None else [group]),
            risk=risk,
            profile=known,
            new=batch,
        )
        found = recommend(result)
        judged = verdict(result, shown_first(result, found))
        automated = {name: automation(result, name, risk) for name in {result.methods[0], found.method}}
        sentences = [*headline(result, found, automated), *judged.sentences]
    if as_json:
        chosen_method = {"method": found.method, "forward_passes": found.passes, "contenders": found.contenders}
        told = {"verdict": sentences, "outcome": judged.outcome or None, "recommended": chosen_method}
        print_json({"file": out, **told, **result.to_dict()})
        return
    for sentence in sentences:
        say(sentence)
    say(f"Written to {out}.")


class _Files:
    """The paths of a folder's files, which the page links; what lies outside, behind a link, is named and not shown."""

    def __init__(self, source: Any) -> None:
        self.paths, self.root = source.paths, source.root.resolve()

    def __getitem__(self, row: int) -> Any:
        path: Path = self.paths[row]
        return path if path.resolve().is_relative_to(self.root) else f"{path.name} (a link out of the folder)"


class _Read:
    """Inputs of a source one by one, as the page asks for them."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getitem__(self, row: int) -> Any:
        return self.source.read(row, row + 1)[0]


def _open_inputs(path: Path, n_rows: int) -> Any:
    """Paths where the inputs are files, so that the page can link them; otherwise the inputs themselves."""
    from recal.collecting.inputs.sources import as_source
    from recal.errors import InputError

    source = as_source(path)
    if source.n_samples is not None and source.n_samples != n_rows:
        raise InputError(f"--inputs {path} holds {source.n_samples:,} inputs, and {n_rows:,} answers are judged.")
    if hasattr(source, "paths"):
        return _Files(source)
    if not hasattr(source, "read"):
        raise InputError(f"The inputs in {path} cannot be read one by one; give a folder of images, .npy or .npz.")
    return _Read(source)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for figures and files.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Same seed, same numbers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """See the whole job on real images, in about a minute.

    A small network learns handwritten digits and becomes overconfident. Temperature scaling, ReCal and the default of
    recal correct its confidence, without retraining it and without changing an answer. Then the answers that can be
    automated with at most 1 % errors are counted, before and after. You get a table, a report, two figures, and the
    files with which the other commands can be tried.

    Example: [bold]recal demo --out demo-output[/bold]
    """
    from recal.demo.job import METRICS, RISK, run_demo
    from recal.metrics import LABELS

    result = run_demo(out, seed, say=lambda line: say(line, quiet=as_json))
    if as_json:
        print_json(
            {
                "seed": seed,
                "methods": {name: found.to_dict() for name, found in result.evaluations.items()},
                "automated": result.shares,
                "decisions": {name: found.to_dict() for name, found in result.decisions.items()},
                "reason": result.reason,
                "passes_per_answer": result.passes_per_answer,
                "calibration_is_the_same": result.calibration_is_the_same,
                "predictions_are_the_same": result.predictions_are_the_same,
                "files": result.files,
            }
        )
        return
    rows = []
    for name, found in result.evaluations.items():
        automated = f"{result.shares[name]:.1%}"
        rows.append([name, *(f"{found[metric]:.4f}" for metric in METRICS), automated])
        rows.append(["", *("{:.4f}–{:.4f}".format(*found.intervals[metric]) for metric in METRICS), ""])
    size = next(iter(result.evaluations.values())).n_samples
    say("")
    print_table(
        f"{size:,} digits used for nothing else; below each value its 95 % interval",
        ["", *(LABELS[metric] for metric in METRICS), f"automated at {RISK:.0%} errors"],
        rows,
        note="Lower is better, except for the last column. The error rate stays the same: no answer changes.",
    )
    before, after = (result.shares[name] for name in ("uncalibrated", "default"))
    say(f"\n{result.reason}")
    say(f"It takes {result.passes_per_answer:.2f} forward passes per answer.")
    say(
        f"Automated with at most {RISK:.0%} errors, at 95 % confidence: {before:.1%} of the answers before, "
        f"{after:.1%} after calibration. The rules were chosen on other digits."
    )
    say(f"Saved and loaded again, the calibration is {_same(result.calibration_is_the_same)}.")
    say(f"Before and after, every answer is {_same(result.predictions_are_the_same)}.")
    say("\nOpen")
    for name in ("report", "summary", "zoomed"):
        say(f"  {result.files[name]}")
    say("\nNext: the same, step by step")
    say(f"  recal fit {result.files['views to fit on']} --out digits.recal")
    say(f"  recal decide {result.files['views to decide on']} --calibration digits.recal --risk 0.01 --out ready.recal")
    say(f"  recal apply ready.recal {result.files['new views']} --out answers.csv")
    say("With your own model")
    say("  recal calibrate --model MODEL --data LABELLED --out FOLDER")


def _same(yes: bool) -> str:
    return "the same" if yes else "NOT THE SAME, which is a bug in recal"
