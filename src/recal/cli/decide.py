"""`recal decide`: how much can be automated, with a guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.files import LabelColumn, LabelsFile
from recal.cli.printing import AsJson, print_json, print_table, say, typed, working

if TYPE_CHECKING:
    from recal.decisions import Decision, Decisions
    from recal.files.probabilities import Probabilities


def decide(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="PROBS|VIEWS...",
            help="Labelled probabilities (.npz, .csv, .parquet) or views; several are compared on the same samples.",
        ),
    ],
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="The calibration to apply to the views first.")
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option("--risk", help="The largest share of errors among accepted answers.  [default: 0.01]"),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="The probability that the guarantee holds.")] = 0.95,
    cost_error: Annotated[float | None, typer.Option("--cost-error", help="The cost of an accepted error.")] = None,
    cost_review: Annotated[
        float | None, typer.Option("--cost-review", help="The cost of a review by a person.")
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Find a threshold with its own guarantee for each class.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", help="The column of groups; each gets a threshold with its own guarantee."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="The column that names rows that belong together: a video, a patient."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="A table with these columns, one row per sample; by default the first file."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Also show the share that can be accepted at other risks.")
    ] = False,
    more_labels: Annotated[
        bool, typer.Option("--more-labels", help="Also estimate the share with two and four times the labels.")
    ] = False,
    labels: LabelsFile = None,
    label_column: LabelColumn = "label",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Save the rule here; with --calibration, the calibration and the rule."),
    ] = None,
    cross_fit: Annotated[
        bool,
        typer.Option("--cross-fit", help="Fit the method of --calibration again and decide on the same samples."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same intervals and folds.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find the confidence threshold above which answers can be automated, with a guarantee.

    With the given confidence, at most this share (--risk) of accepted answers is wrong on inputs like these; the search
    for the threshold is accounted for. Use samples that the calibration was not fitted on. For views without a
    calibration, the model's own probabilities are used. If there are too few samples, the command says how many more
    are needed.

    Example: [bold]recal decide test.npz --calibration calibration.recal --risk 0.01 --out ready.recal[/bold]

    Example: [bold]recal decide probs.csv --cost-error 50 --cost-review 1[/bold]
    """
    from recal.cli.files import row_columns, rows_of_views
    from recal.decisions import decide_each
    from recal.engine.same_rows import matters
    from recal.errors import InputError

    if risk is not None and (cost_error is not None or cost_review is not None):
        raise InputError("Give either --risk or the two costs: costs set the risk by themselves.")
    if (cost_error is None) is not (cost_review is None):
        raise InputError("The two costs belong together: give --cost-error and --cost-review, or --risk alone.")
    if out is not None and len(sources) > 1:
        raise InputError(f"--out saves the rule of one file, got {len(sources)}.")
    if cross_fit:
        _check_cross_fit(sources, calibration, curve or more_labels)
    names = [name for name in (group, cluster) if name is not None]
    by: dict[str, Any] = {"groups": None, "clusters": None, **rows_of_views(sources[0])}
    by |= row_columns(rows or sources[0], group, cluster)
    given: dict[str, Any] = {"cost_error": cost_error, "cost_review": cost_review, "per_class": per_class, **by}
    if risk is not None:
        given["risk"] = risk
    if cross_fit:
        assert calibration is not None
        fitted, alone = _cross_fitted(sources[0], calibration, labels, confidence, seed, given)
        if out is not None:
            from recal import save

            save(fitted, out)
        if as_json:
            print_json({"files": sources, **alone.to_dict(), "cross_fitted": True, "out": out})
            return
        say(str(alone))
        say(
            "Cross-fitted: each sample's confidence comes from a fit without it. The share of mistakes is bounded as "
            "measured in simulations, not proved; see the page on deciding."
        )
        if out is not None:
            say(f"The calibration, fitted on all samples, with its rule is in {out}.")
        return
    read = _methods(sources, calibration, label_column, labels, names, by["groups"])
    first = next(iter(read.values()))
    assert first.labels is not None
    methods = {name: one.probs for name, one in read.items()}
    sure = {name: one.confidence for name, one in read.items()}
    for name, one in read.items():
        if matters(one.fitted_rows, len(one.probs)):
            raise InputError(
                f"The calibration of {name} was fitted on about {one.fitted_rows:,} of these {len(one.probs):,} "
                "samples, so nothing can be guaranteed. Decide on other labelled samples, or use the same for both: "
                "recal decide VIEWS --calibration CALIBRATION --cross-fit"
            )
    with working("Deciding"):
        found = decide_each(
            methods,
            first.labels,
            confidence=confidence,
            confidences=sure,
            random_state=seed,
            draws=200 if len(methods) > 1 else 0,
            **given,
        )
    name, decision = next(iter(found.items()))
    extra: dict[str, Any] = {}
    if curve:
        extra["curve"] = _curve(read, first, confidence, by["clusters"])
    if more_labels:
        from recal.decisions import more_labels as project

        with working("Resampling"):
            extra["more_labels"] = [
                vars(row)
                for row in project(
                    methods[name], first.labels, decision, confidences=sure[name], random_state=seed, **by
                )
            ]
    if out is not None:
        _save(decision, calibration, out)
    if as_json:
        whole = decision.to_dict() if len(found) == 1 else found.to_dict()
        print_json({"files": sources, **whole, **extra, "out": out})
        return
    _print(found, first)
    _print_extra(extra)
    if out is not None:
        new = "NEW_PROBS.npz" if calibration is None else "NEW_VIEWS.npz"
        say(f"Written to {out}. Next: {typed('recal', 'apply', out, new, '--out', 'answers.csv')}")
    elif decision.possible and len(found) == 1:
        say("To keep the rule, run the same command with --out rule.recal")


def _methods(
    sources: list[Path],
    calibration: Path | None,
    label_column: str,
    labels: Path | None,
    leave_out: list[str],
    groups: Any,
) -> dict[str, Probabilities]:
    """The probabilities of each file, by its name, all of the same samples as the first."""
    from recal.errors import InputError

    read = [_probs(path, calibration, label_column, labels, leave_out, groups) for path in sources]
    first = read[0]
    names = [path.stem for path in sources]
    if len(set(names)) < len(names):
        names = [str(path) for path in sources]
    found: dict[str, Probabilities] = {}
    for name, path, one in zip(names, sources, read):
        try:
            found[name] = one.in_order_of(first)
        except InputError as error:
            raise error.at(f"{path} does not go with {sources[0]}") from None
    return found


def _probs(
    path: Path, calibration: Path | None, label_column: str, labels: Path | None, leave_out: list[str], groups: Any
) -> Probabilities:
    from recal.cli.files import check_kind, check_views_held, labelled_probs, load_calibration, open_views
    from recal.errors import InputError
    from recal.files.probabilities import Probabilities

    if calibration is None:
        return labelled_probs(path, label_column, leave_out, labels=labels)
    if check_kind(path, "views", "probabilities") != "views":
        raise InputError(f"{path} holds probabilities, and --calibration is applied to views: leave it out.")
    views, calibrator = open_views(path, labels), load_calibration(calibration)
    if views.labels is None:
        raise InputError(f"{path} holds no labels, and without them nothing can be guaranteed: add --labels FILE.")
    if not hasattr(calibrator, "predict_proba"):
        raise InputError(f"{calibration} holds a {type(calibrator).__name__}, which cannot be applied to views.")
    check_views_held(calibrator, calibration, views, path)
    probs, sure = calibrator.predict_both(views.assign(groups=groups))
    return Probabilities(probs, views.labels, views.classes, sure, calibrator.fitted_rows(views))


def _check_cross_fit(sources: list[Path], calibration: Path | None, more: bool) -> None:
    from recal.errors import InputError

    if calibration is None or len(sources) > 1 or more:
        raise InputError(
            "--cross-fit takes one file of labelled views and --calibration, whose method is fitted again; it goes "
            "without --curve and --more-labels."
        )


def _cross_fitted(
    source: Path, calibration: Path, labels: Path | None, confidence: float, seed: int, given: dict[str, Any]
) -> tuple[Any, Decision]:
    from recal.cli.files import check_kind, load_calibration, open_views
    from recal.decisions import decide_crossfitted

    check_kind(source, "views")
    views, calibrator = open_views(source, labels), load_calibration(calibration)
    with working("Fitting and deciding"):
        return decide_crossfitted(calibrator, views, confidence=confidence, random_state=seed, **given)


def _save(decision: Decision, calibration: Path | None, out: Path) -> None:
    from recal import save
    from recal.cli.files import load_calibration

    if calibration is None:
        save(decision.rule, out)
        return
    calibrator = load_calibration(calibration)
    calibrator.decision_ = decision.rule
    save(calibrator, out)


def _print(found: Decisions, first: Probabilities) -> None:
    decision = next(iter(found.values()))
    if len(found) > 1:
        rows = []
        for name, one in found.items():
            gain = found.gains.get(name)
            paired = (
                "" if gain is None else f"{gain.difference:+.1%} ({gain.interval[0]:+.1%} to {gain.interval[1]:+.1%})"
            )
            where = "" if len(one.thresholds) > 1 or not one.possible else f"{one.threshold:.6g}"
            rows.append([name, where, f"{one.coverage:.1%}", f"{one.n_errors}/{one.n_accepted}", paired])
        print_table(
            f"Accepted at a risk of {decision.risk:.3g}, {100 * decision.confidence:.4g}% confidence",
            ["file", "threshold", "share", "mistakes", f"more than {found.baseline}"],
            rows,
            note="Each guarantee holds for its own file. Choosing the best file afterwards is not covered.",
        )
    for name, one in found.items():
        say((f"{name}: " if len(found) > 1 else "") + str(one))
    if decision.costs is not None:
        say(
            f"Cost per answer if every answer is reviewed {decision.costs.review:.4g}, "
            f"if none is {_all_accepted(found, first):.4g}."
        )
    if len(decision.parts) > 1 and len(found) == 1:
        by_class = decision.rule.per_class
        names = first.classes if by_class and first.classes is not None else [part.name for part in decision.parts]
        rows = [
            [
                str(name),
                f"{part.threshold:.6g}" if part.possible else "none",
                f"{part.coverage:.1%}",
                f"{part.n_errors}/{part.n_accepted}",
                f"{part.interval[0]:.1%} to {part.interval[1]:.1%}" if part.possible else "",
                f"{part.n_samples:,}",
                "" if part.possible else "no number" if part.needed is None else f"{part.needed:,}",
            ]
            for name, part in (
                zip(names, decision.parts) if by_class else ((part.name, part) for part in decision.table)
            )
        ]
        print_table(
            "By predicted class" if by_class else "By group, worst first",
            [
                "class" if by_class else "group",
                "threshold",
                "share",
                "mistakes",
                "95 % interval",
                "samples",
                "more needed",
            ],
            rows,
        )


def _all_accepted(found: Decisions, first: Probabilities) -> float:
    decision = next(iter(found.values()))
    wrong = float((first.probs.argmax(axis=1) != first.labels).mean())
    return (decision.costs.error if decision.costs else 0.0) * wrong


def _curve(read: dict[str, Probabilities], first: Probabilities, confidence: float, clusters: Any) -> dict[str, Any]:
    from recal.decisions import risk_curve

    assert first.labels is not None
    curves = {
        name: risk_curve(one.probs, first.labels, confidence=confidence, confidences=one.confidence, clusters=clusters)
        for name, one in read.items()
    }
    risks = next(iter(curves.values())).risks
    shares = {name: {"coverage": curve.coverage, "seen": curve.seen} for name, curve in curves.items()}
    return {"risks": risks, "methods": shares}


def _print_extra(extra: dict[str, Any]) -> None:
    if "curve" in extra:
        curve = extra["curve"]
        shown = range(0, len(curve["risks"]), 3)
        columns = list(curve["methods"])
        rows = [
            [f"{curve['risks'][i]:.2%}", *(f"{curve['methods'][name]['coverage'][i]:.1%}" for name in columns)]
            for i in shown
        ]
        print_table("Share that can be accepted, guaranteed", ["risk", *columns], rows)
    if "more_labels" in extra:
        rows = [
            [f"{row['times']:g}x", f"{row['n_samples']:,}", f"{row['coverage']:.1%}", f"{row['possible']:.0%}"]
            for row in extra["more_labels"]
        ]
        print_table(
            "What more labels would bring",
            ["labels", "samples", "share, mean", "succeeds"],
            rows,
            note="From resamples of these samples; the share that a guarantee can reach, on average.",
        )
