"""`recal decide`: how much can be automated, with a guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.inputs import Inputs, group_words, without_none
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.decisions import Decision, Decisions
    from recal.files.probabilities import Probabilities


def decide(
    *,
    sources: Annotated[
        list[Path],
        Argument(
            help="Labelled probabilities or views; several are compared on the same samples.",
            metavar="PROBS|VIEWS...",
        ),
    ],
    calibration: Annotated[Path | None, Option(help="A calibration to apply to the views.")] = None,
    risk: Annotated[float | None, Option(help="The share of errors.", show_default="0.01")] = None,
    confidence: opt.Confidence = 0.95,
    cost_error: Annotated[float | None, Option(help="The cost of an accepted error.")] = None,
    cost_review: Annotated[float | None, Option(help="The cost of a review by a person.")] = None,
    per_class: Annotated[
        bool, Option("--per-class", help="Find a threshold with its own guarantee for each class.")
    ] = False,
    inputs: Annotated[Inputs, "group cluster rows labels label_column"],
    curve: Annotated[bool, Option("--curve", help="Also show the share at other risks.")] = False,
    out: Annotated[Path | None, Option(help="Save the rule (and the calibration) here.")] = None,
    correct: opt.Correct = None,
    cross_fit: opt.CrossFitting = False,
    guarantee: opt.GuaranteeKind = "confidence",
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
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
    if risk is not None and (cost_error is not None or cost_review is not None):
        raise InputError("Give either --risk or the two costs: costs set the risk by themselves.")
    if (cost_error is None) is not (cost_review is None):
        raise InputError("Give both costs, --cost-error and --cost-review, or --risk alone.")
    if out is not None and len(sources) > 1:
        raise InputError(f"--out saves the rule of one file, got {len(sources)}.")
    if cross_fit and (calibration is None or len(sources) > 1 or curve):
        raise InputError(
            "--cross-fit takes one file of labelled views and --calibration, whose method is "
            "fitted again; it goes without --curve."
        )
    first = sources[0]
    by = inputs.groups_and_clusters(first)
    rules: dict[str, Any] = {"per_class": per_class, "guarantee": guarantee}
    rules |= {"confidence": confidence, "random_state": seed}
    rules |= without_none(risk=risk, cost_error=cost_error, cost_review=cost_review)
    calibrator: Any = None
    again = "decide VIEWS --calibration CALIBRATION --cross-fit"
    if calibration is not None:
        file, calibrator = files.load_saved(calibration)
    graded = files.is_signal_calibration(calibrator)
    if graded:
        again = "calibrate TABLE --cross-fit"
        what = "a calibration of graded answers (recal calibrate TABLE has --cross-fit)"
        opt.refuse(what, ("cross_fit", "curve", "rows", "labels", "label_column"))
        _check_group(calibrator, inputs.group)
    elif calibration is not None:
        files.check_calibration(file, calibrator)
    if cross_fit:
        _decide_crossfitted(calibrator, first, inputs, out, rules | by)
        return
    from recal.decisions import decide_each

    samples: dict[str, Probabilities] = {}
    has_unique_stems = len({path.stem for path in sources}) == len(sources)
    for path in sources:
        if graded:
            one = inputs.graded(path, correct, calibrator)
            by = {"groups": one.groups, "clusters": one.clusters}
        elif calibration is None:
            one = inputs.probs(path)
        elif files.check_kind(path, "views", "probabilities") == "views":
            one = inputs.calibrated(path, calibration, calibrator)
        else:
            raise InputError(
                f"{path} holds probabilities, and --calibration is applied to views: leave it out."
            )
        _refuse_fitted(path, one.fitted_rows, len(one.probs), again)
        try:
            one = one.in_order_of(next(iter(samples.values()), one))
        except InputError as error:
            raise error.at(f"{path} does not go with {first}") from None
        samples[path.stem if has_unique_stems else str(path)] = one
    main = next(iter(samples.values()))
    assert main.labels is not None
    with working("Deciding"):
        decisions = decide_each(
            {name: one.probs for name, one in samples.items()},
            main.labels,
            confidences={name: one.confidence for name, one in samples.items()},
            draws=200 if len(samples) > 1 else 0,
            **rules,
            **by,
        )
    decision = next(iter(decisions.values()))
    if len(decisions) > 1:
        _print_side_by_side(decisions)
    else:
        _print_decision(decision, main)
    extra: dict[str, Any] = {}
    if curve:
        extra["curve"] = _print_curve(samples, main.labels, confidence, by["clusters"])
    if out is not None:
        line = _next_line(decision, first, calibration, inputs, out, graded=graded)
        _save(decision, calibrator, out, line)
    elif decision.possible and len(decisions) == 1 and not graded:
        say("To keep the rule, run the same command with --out rule.recal")
    whole = decision.to_dict() if len(decisions) == 1 else decisions.to_dict()
    print_json({"files": sources, **whole, **extra, "out": out})


def _save(decision: Decision, calibrator: Any, out: Path, next_line: str) -> None:
    """Save the rule, in the calibration if there is one."""
    from recal import save

    if calibrator is not None:
        calibrator.decision_ = decision.rule
    save(decision.rule if calibrator is None else calibrator, out)
    say(f"Written to {out}. Next: {next_line}")


def _next_line(
    decision: Decision,
    source: Path,
    calibration: Path | None,
    inputs: Inputs,
    out: Path,
    *,
    graded: bool,
) -> str:
    """Return the command that applies the rule to new inputs."""
    if graded:
        new = f"new{source.suffix}"
        return shell_line("apply", out, new, "--out", f"accepted{source.suffix}")
    new, words = "NEW_VIEWS.npz", group_words(inputs.group)
    if calibration is None:
        new = "NEW_PROBS.npz"
    if inputs.group is not None and inputs.rows is None:  # in the table of probabilities
        new, words = f"NEW_PROBS{source.suffix}", group_words(inputs.group, in_rows=False)
        words += [] if inputs.cluster is None else ["--cluster", inputs.cluster]
    elif decision.rule.groups and inputs.group is None and calibration is None:
        words = group_words()  # views hold groups, probabilities do not
    return shell_line("apply", out, new, *words, "--out", "answers.csv")


def _check_group(calibrator: Any, group: str | None) -> None:
    """Refuse groups that the calibration of graded answers was not fitted with."""
    table = calibrator.table_
    if group is not None and not (table.grouped and group == table.names[-1]):
        raise InputError(
            f"This calibration was not fitted with groups by {group!r}, so its rule cannot have "
            f"them. Make one that is: recal calibrate TABLE --group {group}"
        )


def _decide_crossfitted(
    calibrator: Any, source: Path, inputs: Inputs, out: Path | None, rules: dict[str, Any]
) -> None:
    """Fit the calibration's method again, and decide on the same samples."""
    from recal.decisions import decide_crossfitted

    views = inputs.views(source)
    with working("Fitting and deciding"):
        fitted, decision = decide_crossfitted(calibrator, views, **rules)
    print_json({"files": [source], **decision.to_dict(), "cross_fitted": True, "out": out})
    say(str(decision))
    say(
        "Cross-fitted: each sample's confidence comes from a fit without it. The share of mistakes "
        "is bounded as measured in simulations, not proved; see the page on deciding."
    )
    if out is not None:
        _save(decision, fitted, out, shell_line("apply", out, "NEW_VIEWS", "--out", "answers.csv"))


def _refuse_fitted(path: Path, fitted: int, n_samples: int, again: str) -> None:
    """Refuse samples that the calibration was fitted on."""
    from recal.copies import matters

    if matters(fitted, n_samples):
        raise InputError(
            f"The calibration of {path} was fitted on about {fitted:,} of these {n_samples:,} "
            "samples, so nothing can be guaranteed. Decide on other labelled samples, or use the "
            f"same for both: recal {again}"
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


def _print_side_by_side(decisions: Decisions) -> None:
    """Print one line for each file, and its gain over the first."""
    rows = []
    for name, one in decisions.items():
        gain, change = decisions.gains.get(name), ""
        if gain is not None:
            change = "{:+.1%} ({:+.1%} to {:+.1%})".format(gain.difference, *gain.interval)
        rows.append([name, *_cells(one), change])
    first = next(iter(decisions.values()))
    print_table(
        f"Accepted at a risk of {first.risk:.3g}, {100 * first.confidence:.4g}% confidence",
        ["file", "threshold", "share", "mistakes", f"more than {decisions.baseline}"],
        rows,
        note="Each guarantee holds for its own file. Choosing the best file afterwards is not "
        "covered.",
    )
    for name, one in decisions.items():
        say(f"{name}: {one}")


def _cells(part: Any) -> list[str]:
    """Return the cells of a table about a threshold: the threshold, its share and mistakes."""
    threshold = "none"
    if part.possible:
        several = len(getattr(part, "thresholds", ())) > 1
        threshold = "" if several else f"{part.threshold:.6g}"
    return [threshold, f"{part.coverage:.1%}", f"{part.n_errors}/{part.n_accepted}"]


def _print_decision(decision: Decision, samples: Probabilities) -> None:
    """Print one decision, its costs, and its parts by class or group."""
    say(str(decision))
    if samples.probs.ndim == 1:
        return
    if decision.costs is not None:
        errors = float((samples.probs.argmax(axis=1) != samples.labels).mean())
        say(
            f"Cost per answer if every answer is reviewed {decision.costs.review:.4g}, if none is "
            f"{decision.costs.error * errors:.4g}."
        )
    if len(decision.parts) == 1:
        return
    by_class = decision.rule.per_class
    parts = decision.parts if by_class else decision.table
    names: Any = [part.name for part in parts]
    if by_class and samples.classes is not None:
        names = samples.classes
    rows = []
    for name, part in zip(names, parts):
        interval, needed = "", part.more_labels()
        if part.possible:
            interval, needed = "{:.1%} to {:.1%}".format(*part.interval), ""
        rows.append([str(name), *_cells(part), interval, f"{part.n_samples:,}", needed])
    columns = ["threshold", "share", "mistakes", "95 % interval", "samples", "more needed"]
    print_table(
        "By predicted class" if by_class else "By group, worst first",
        ["class" if by_class else "group", *columns],
        rows,
    )
