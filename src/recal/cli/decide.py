"""`recal decide`: how much can be automated, with a guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.files import (
    check_calibration,
    check_kind,
    check_views,
    columns_of_rows,
    is_graded,
    load_saved,
    open_views,
    read_probs,
    typed_columns,
)
from recal.cli.inputs import group_words, without_none
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.decisions import Decision, Decisions
    from recal.files.probabilities import Probabilities


def decide(
    sources: Annotated[
        list[Path],
        Argument(
            help="Labelled probabilities (.npz, .csv, .parquet) or views; several are compared "
            "on the same samples.",
            metavar="PROBS|VIEWS...",
        ),
    ],
    calibration: Annotated[
        Path | None, Option(help="The calibration to apply to the views first.")
    ] = None,
    risk: Annotated[
        float | None,
        Option(help="The largest share of errors among accepted answers.  [default: 0.01]"),
    ] = None,
    confidence: opt.Confidence = 0.95,
    cost_error: Annotated[float | None, Option(help="The cost of an accepted error.")] = None,
    cost_review: Annotated[float | None, Option(help="The cost of a review by a person.")] = None,
    per_class: Annotated[
        bool, Option("--per-class", help="Find a threshold with its own guarantee for each class.")
    ] = False,
    group: opt.Group = None,
    cluster: opt.Cluster = None,
    rows: opt.Rows = None,
    curve: Annotated[
        bool, Option("--curve", help="Also show the share that can be accepted at other risks.")
    ] = False,
    more_labels: Annotated[
        bool,
        Option("--more-labels", help="Also estimate the share with two and four times the labels."),
    ] = False,
    labels: opt.Labels = None,
    label_column: opt.LabelColumn = None,
    out: Annotated[
        Path | None,
        Option(help="Save the rule here; with --calibration, the calibration and the rule."),
    ] = None,
    correct: opt.Correct = None,
    cross_fit: opt.CrossFit = False,
    guarantee: opt.Guarantee = "confidence",
    seed: opt.Seed = 0,
    force: opt.Force = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find the confidence threshold above which answers can be automated, with a guarantee.

    With the given confidence, at most this share (--risk) of accepted answers is wrong on inputs
    like these; the search for the threshold is accounted for. Use samples that the calibration was
    not fitted on. For views without a calibration, the model's own probabilities are used. If there
    are too few samples, the command says how many more are needed.

    Example: [bold]recal decide test.npz --calibration calibration.recal --risk 0.01 --out
    ready.recal[/bold]

    Example: [bold]recal decide probs.csv --cost-error 50 --cost-review 1[/bold]
    """
    from recal import save
    from recal.decisions import decide_each

    if risk is not None and (cost_error is not None or cost_review is not None):
        raise InputError("Give either --risk or the two costs: costs set the risk by themselves.")
    if (cost_error is None) is not (cost_review is None):
        raise InputError(
            "The two costs belong together: give --cost-error and --cost-review, or --risk alone."
        )
    if out is not None and len(sources) > 1:
        raise InputError(f"--out saves the rule of one file, got {len(sources)}.")
    if cross_fit and (calibration is None or len(sources) > 1 or curve or more_labels):
        raise InputError(
            "--cross-fit takes one file of labelled views and --calibration, whose method is fitted again; it goes "
            "without --curve and --more-labels."
        )
    by = columns_of_rows(sources[0], rows, group, cluster)
    rules: dict[str, Any] = {
        "cost_error": cost_error,
        "cost_review": cost_review,
        "per_class": per_class,
        **by,
    }
    rules |= {
        "guarantee": guarantee,
        "confidence": confidence,
        "random_state": seed,
        **without_none(risk=risk),
    }
    calibrator: Any = None
    if calibration is not None:
        file, calibrator = load_saved(calibration)
        if is_graded(calibrator):
            what = "a calibration of graded answers (recal calibrate TABLE has --cross-fit)"
            opt.refuse(what, ("cross_fit", "curve", "more_labels"))
            _decide_graded(calibrator, sources[0], correct, cluster, out, rules)
            return
        check_calibration(file, calibrator)
    if cross_fit:
        _decide_crossfitted(calibrator, sources[0], labels, out, rules)
        return
    samples: dict[str, Probabilities] = {}
    has_unique_stems = len({path.stem for path in sources}) == len(sources)
    for path in sources:
        if calibration is None:
            one = read_probs(path, labels, label_column, typed_columns(group, cluster))
        else:
            one = _calibrated(path, labels, calibration, calibrator, by["groups"])
        try:
            samples[path.stem if has_unique_stems else str(path)] = one.in_order_of(
                next(iter(samples.values()), one)
            )
        except InputError as error:
            raise error.at(f"{path} does not go with {sources[0]}") from None
    _refuse_fitted(samples)
    name, first = next(iter(samples.items()))
    assert first.labels is not None
    probs, confidences = (
        {name: getattr(one, f) for name, one in samples.items()} for f in ("probs", "confidence")
    )
    with working("Deciding"):
        decisions = decide_each(
            probs,
            first.labels,
            confidences=confidences,
            draws=200 if len(samples) > 1 else 0,
            **rules,
        )
    decision = decisions[name]
    _print_decisions(decisions, first)
    extra: dict[str, Any] = {}
    if curve:
        extra["curve"] = _print_curve(samples, first.labels, confidence, by["clusters"])
    if more_labels:
        extra["more_labels"] = _print_more_labels(first, decision, seed, by)
    if out is not None:
        if calibrator is not None:
            calibrator.decision_ = decision.rule
        save(decision.rule if calibrator is None else calibrator, out)
        new = "NEW_PROBS.npz" if calibration is None else "NEW_VIEWS.npz"
        words = group_words(group)
        if group is not None and rows is None:  # the groups are in the table of probabilities
            new, words = f"NEW_PROBS{sources[0].suffix}", group_words(group, in_rows=False)
            words += [] if cluster is None else ["--cluster", cluster]
        elif (
            decision.rule.groups and group is None and calibration is None
        ):  # views hold groups, probabilities do not
            words = group_words()
        say(
            f"Written to {out}. Next: {shell_line('apply', out, new, *words, '--out', 'answers.csv')}"
        )
    elif decision.possible and len(decisions) == 1:
        say("To keep the rule, run the same command with --out rule.recal")
    whole = decision.to_dict() if len(decisions) == 1 else decisions.to_dict()
    print_json({"files": sources, **whole, **extra, "out": out})


def _decide_graded(
    calibrator: Any,
    table: Path,
    correct: str | None,
    cluster: str | None,
    out: Path | None,
    rules: dict[str, Any],
) -> None:
    """Find a new threshold for the calibration of graded answers."""
    from recal import decide as choose
    from recal import save
    from recal.workflow.graded import graded_answers

    if correct is None:
        raise InputError(
            f"Name the column of {table} that says which answers are right: --correct COLUMN."
        )
    found = graded_answers(calibrator, table, correct, cluster)
    rules |= {"clusters": found.clusters, "groups": found.groups}
    del rules["random_state"]  # of the intervals between several files
    with working("Deciding"):
        decision = choose(found.after, found.truth, **rules)
    calibrator.decision_ = decision.rule
    if out is not None:
        save(calibrator, out)
    print_json({"files": [table], **decision.to_dict(), "out": out})
    say(str(decision))
    if out is not None:
        line = shell_line("apply", out, f"new{table.suffix}", "--out", f"accepted{table.suffix}")
        say(f"Written to {out}. Next: {line}")


def _decide_crossfitted(
    calibrator: Any, source: Path, labels: Path | None, out: Path | None, rules: dict[str, Any]
) -> None:
    """Fit the calibration's method again, and decide on the same samples."""
    from recal import save
    from recal.decisions import decide_crossfitted

    views = open_views(source, labels)
    with working("Fitting and deciding"):
        fitted, decision = decide_crossfitted(calibrator, views, **rules)
    if out is not None:
        save(fitted, out)
    print_json({"files": [source], **decision.to_dict(), "cross_fitted": True, "out": out})
    say(str(decision))
    say(
        "Cross-fitted: each sample's confidence comes from a fit without it. The share of mistakes is bounded as "
        "measured in simulations, not proved; see the page on deciding."
    )
    if out is not None:
        say(f"The calibration, fitted on all samples, with its rule is in {out}.")


def _calibrated(
    path: Path, labels: Path | None, calibration: Path, calibrator: Any, groups: Any
) -> Probabilities:
    """Return the calibrated probabilities of a file of labelled views."""
    from recal.files.probabilities import Probabilities

    if check_kind(path, "views", "probabilities") != "views":
        raise InputError(
            f"{path} holds probabilities, and --calibration is applied to views: leave it out."
        )
    views = open_views(path, labels)
    if views.labels is None:
        raise InputError(
            f"{path} holds no labels, and without them nothing can be guaranteed: add --labels FILE."
        )
    if not hasattr(calibrator, "predict_proba"):
        raise InputError(
            f"{calibration} holds a {type(calibrator).__name__}, which cannot be applied to views."
        )
    check_views(calibrator, calibration, views, path)
    probs, confidences = calibrator.predict_both(views.assign(groups=groups))
    return Probabilities(
        probs, views.labels, views.classes, confidences, calibrator.fitted_rows(views)
    )


def _refuse_fitted(samples: dict[str, Probabilities]) -> None:
    """Refuse samples that the calibration was fitted on."""
    from recal.copies import matters

    for name, one in samples.items():
        if matters(one.fitted_rows, len(one.probs)):
            raise InputError(
                f"The calibration of {name} was fitted on about {one.fitted_rows:,} of these {len(one.probs):,} "
                "samples, so nothing can be guaranteed. Decide on other labelled samples, or use the same for both: "
                "recal decide VIEWS --calibration CALIBRATION --cross-fit"
            )


def _print_curve(
    samples: dict[str, Probabilities], labels: Any, confidence: float, clusters: Any
) -> dict[str, Any]:
    """Print the share that can be accepted at other risks, and return it for JSON."""
    from recal.decisions import risk_curve

    how: dict[str, Any] = {"confidence": confidence, "clusters": clusters}
    curves = {
        name: risk_curve(one.probs, labels, confidences=one.confidence, **how)
        for name, one in samples.items()
    }
    risks = next(iter(curves.values())).risks
    lines = zip(risks, *(one.coverage for one in curves.values()))
    table = [[f"{risk:.2%}", *(f"{share:.1%}" for share in shares)] for risk, *shares in lines]
    print_table("Share that can be accepted, guaranteed", ["risk", *curves], table[::3])
    shares = {name: {"coverage": one.coverage, "seen": one.seen} for name, one in curves.items()}
    return {"risks": risks, "methods": shares}


def _print_more_labels(
    first: Probabilities, decision: Decision, seed: int, by: dict[str, Any]
) -> list[dict[str, Any]]:
    """Print how much more could be accepted with more labels, and return it for JSON."""
    from recal.decisions import more_labels

    assert first.labels is not None
    how: dict[str, Any] = {"confidences": first.confidence, "random_state": seed, **by}
    with working("Resampling"):
        estimates = more_labels(first.probs, first.labels, decision, **how)
    print_table(
        "What more labels would bring",
        ["labels", "samples", "share, mean", "succeeds"],
        [
            [f"{n.times:g}x", f"{n.n_samples:,}", f"{n.coverage:.1%}", f"{n.possible:.0%}"]
            for n in estimates
        ],
        note="From resamples of these samples; the share that a guarantee can reach, on average.",
    )
    return [vars(one) for one in estimates]


def _print_decisions(decisions: Decisions, first: Probabilities) -> None:
    decision = next(iter(decisions.values()))
    if len(decisions) > 1:
        rows = []
        for name, one in decisions.items():
            gain = decisions.gains.get(name)
            change = (
                ""
                if gain is None
                else "{:+.1%} ({:+.1%} to {:+.1%})".format(gain.difference, *gain.interval)
            )
            threshold = (
                "" if len(one.thresholds) > 1 or not one.possible else f"{one.threshold:.6g}"
            )
            rows.append(
                [name, threshold, f"{one.coverage:.1%}", f"{one.n_errors}/{one.n_accepted}", change]
            )
        print_table(
            f"Accepted at a risk of {decision.risk:.3g}, {100 * decision.confidence:.4g}% confidence",
            ["file", "threshold", "share", "mistakes", f"more than {decisions.baseline}"],
            rows,
            note="Each guarantee holds for its own file. Choosing the best file afterwards is not covered.",
        )
    for name, one in decisions.items():
        say((f"{name}: " if len(decisions) > 1 else "") + str(one))
    if decision.costs is not None:
        cost_of_all = decision.costs.error * float(
            (first.probs.argmax(axis=1) != first.labels).mean()
        )
        say(
            f"Cost per answer if every answer is reviewed {decision.costs.review:.4g}, if none is {cost_of_all:.4g}."
        )
    if len(decision.parts) > 1 and len(decisions) == 1:
        by_class = decision.rule.per_class
        parts = decision.parts if by_class else decision.table
        names = (
            first.classes
            if by_class and first.classes is not None
            else [part.name for part in parts]
        )
        rows = [
            [
                str(name),
                f"{part.threshold:.6g}" if part.possible else "none",
                f"{part.coverage:.1%}",
                f"{part.n_errors}/{part.n_accepted}",
                f"{part.interval[0]:.1%} to {part.interval[1]:.1%}" if part.possible else "",
                f"{part.n_samples:,}",
                "" if part.possible else part.more_labels(),
            ]
            for name, part in zip(names, parts)
        ]
        first_column = "class" if by_class else "group"
        print_table(
            "By predicted class" if by_class else "By group, worst first",
            [
                first_column,
                "threshold",
                "share",
                "mistakes",
                "95 % interval",
                "samples",
                "more needed",
            ],
            rows,
        )
