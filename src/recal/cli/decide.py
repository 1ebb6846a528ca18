"""`recal decide`: how much can be automated, with a guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.decisions import Decision
    from recal.files.probabilities import Probabilities
    from recal.views import Views

INPUTS = opt.ROWS


def decide(
    ctx: Context,
    source: Annotated[
        Path,
        Argument(help="Labelled probabilities, views or graded answers.", metavar="PROBS|VIEWS"),
    ],
    calibration: Annotated[Path | None, Option(help="A calibration to apply to the views.")] = None,
    risk: Annotated[float | None, Option(help="The share of errors.", show_default="0.01")] = None,
    confidence: opt.Confidence = 0.95,
    guarantee: opt.GuaranteeKind = "confidence",
    cost_error: Annotated[float | None, Option(help="The cost of an accepted error.")] = None,
    cost_review: Annotated[float | None, Option(help="The cost of a review by a person.")] = None,
    per_class: Annotated[
        bool, Option("--per-class", help="Find a threshold with its own guarantee for each class.")
    ] = False,
    correct: opt.Correct = None,
    cross_fit: opt.CrossFitting = False,
    curve: Annotated[bool, Option("--curve", help="Also show the share at other risks.")] = False,
    out: Annotated[Path | None, Option(help="Save the rule (and the calibration) here.")] = None,
    seed: Annotated[int, Option(help="With --cross-fit: same seed, same folds.", min=0)] = 0,
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
    if (cost_error is None) is not (cost_review is None) or (cost_error and risk is not None):
        raise InputError("Give either --risk, or both --cost-error and --cost-review.")
    if cross_fit and (calibration is None or curve or correct is not None):
        raise InputError(
            "--cross-fit takes labelled views and --calibration, whose method is fitted again; it "
            "goes without --curve. For graded answers: recal calibrate TABLE --correct COLUMN "
            "--cross-fit --out FOLDER"
        )
    about: opt.Inputs = ctx.obj
    rules: dict[str, Any] = {"per_class": per_class, "guarantee": guarantee}
    rules["confidence"] = confidence
    rules |= opt.without_none(risk=risk, cost_error=cost_error, cost_review=cost_review)
    calibrator: Any = None
    if calibration is not None:
        calibration, calibrator = files.load_saved(calibration)
    extra: dict[str, Any] = {}
    if cross_fit:
        files.check_calibration(Path(str(calibration)), calibrator)
        views = about.views(source, need_labels=True)
        calibrator, decision = _decide_crossfitted(calibrator, views, rules, seed)
        extra["cross_fitted"] = True
    else:
        read = _read_labelled(ctx, source, about, calibration, calibrator, correct)
        decision = _decide(read, rules)
        if curve:
            extra["curve"] = _print_curve(read, confidence)
    if out is not None:
        new = ["NEW_VIEWS.npz", *about.new_words()]
        if calibrator is None:
            # A column of clusters in a table of probabilities is no class.
            clusters = () if about.rows is not None else about.words("cluster")
            ending = source.suffix if files.is_table_of_answers(source) else ".npz"
            new = [f"NEW_PROBS{ending}", *about.new_words(), *clusters]
        elif files.is_signal_calibration(calibrator):
            new = [f"new{source.suffix}"]
        _save(decision, calibrator, out, *new)
    print_json({"files": [source], **decision.to_dict(), **extra, "out": out})


def _read_labelled(
    ctx: Context,
    source: Path,
    about: opt.Inputs,
    file: Path | None,
    calibrator: Any,
    correct: str | None,
) -> Probabilities:
    """Return the labelled answers to decide on; refuse those that the calibration was fitted on."""
    from recal.copies import matters

    again = "decide VIEWS --calibration CALIBRATION --cross-fit --out ready.recal"
    of_answers = files.is_signal_calibration(calibrator)
    if of_answers or (file is None and correct is not None):
        again = "calibrate TABLE --correct COLUMN --cross-fit --out FOLDER"
        not_used = ("curve", "rows", "labels", "label_column", "classes")
        opt.refuse(ctx, "graded answers", not_used)
        if not of_answers:  # only a calibration can find the confidence of new answers
            opt.refuse(ctx, "graded answers without --calibration", ("out",))
        elif about.group is not None and not (
            calibrator.table_.grouped and about.group == calibrator.table_.names[-1]
        ):
            raise InputError(
                f"This calibration was not fitted with groups by {about.group!r}, so its rule "
                "cannot have them. Make one that is: recal calibrate TABLE --correct COLUMN "
                f"--group {about.group} --out FOLDER"
            )
        found = about.graded(source, correct, calibrator)
    elif file is None:
        found = about.probs(source)
    else:
        opt.refuse(ctx, "a calibration of logits", ("correct",))
        found = about.calibrated(source, file, files.check_calibration(file, calibrator))
    n_samples = len(found.probs)
    if matters(found.fitted_rows, n_samples):
        raise InputError(
            f"The calibration of {source} was fitted on about {found.fitted_rows:,} of these "
            f"{n_samples:,} samples, so nothing can be guaranteed. Decide on other labelled "
            f"samples, or use the same for both: recal {again}"
        )
    return found


def _save(decision: Decision, calibrator: Any, out: Path, *new: object) -> None:
    """Save the rule, in the calibration if there is one; `new` are the words for new inputs."""
    from recal import save

    if calibrator is not None:
        calibrator.decision_ = decision.rule
    save(decision.rule if calibrator is None else calibrator, out)
    say(f"Written to {out}. Next: {shell_line('apply', out, *new, '--out', 'answers.csv')}")


def _decide(read: Probabilities, rules: dict[str, Any]) -> Decision:
    """Decide on labelled answers, and print the decision."""
    from recal import decide as run

    assert read.labels is not None
    by: dict[str, Any] = {"groups": read.groups, "clusters": read.clusters}
    with working("Deciding"):
        decision = run(read.probs, read.labels, confidences=read.confidence, **rules, **by)
    _print_decision(decision, read)
    return decision


def _decide_crossfitted(
    calibrator: Any, views: Views, rules: dict[str, Any], seed: int
) -> tuple[Any, Decision]:
    """Fit the calibration's method again, decide on the same samples, and print the decision."""
    from recal.decisions import decide_crossfitted

    by: dict[str, Any] = {"groups": views.groups, "clusters": views.clusters}
    with working("Fitting and deciding"):
        fitted, decision = decide_crossfitted(calibrator, views, **rules, **by, random_state=seed)
    say(str(decision))
    say(
        "Cross-fitted: each sample's confidence comes from a fit without it. The share of mistakes "
        "is bounded as measured in simulations, not proved; see the page on deciding."
    )
    return fitted, decision


def _print_curve(read: Probabilities, confidence: float) -> dict[str, Any]:
    """Print the share that can be accepted at other risks, and return it for JSON."""
    from recal.decisions import risk_curve

    how: dict[str, Any] = {"confidence": confidence, "clusters": read.clusters}
    how["confidences"] = read.confidence
    assert read.labels is not None
    found = risk_curve(read.probs, read.labels, **how)
    rows = [[f"{risk:.2%}", f"{share:.1%}"] for risk, share in zip(found.risks, found.coverage)]
    print_table("Share that can be accepted, guaranteed", ["risk", "share"], rows[::3])
    return {"risks": found.risks, "coverage": found.coverage, "seen": found.seen}


def _print_decision(decision: Decision, samples: Probabilities) -> None:
    """Print one decision, its costs, and its parts by class or group."""
    say(str(decision))
    if decision.costs is not None and samples.probs.ndim > 1:
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
        threshold, interval, needed = "none", "", part.more_labels()
        if part.possible:
            several = len(getattr(part, "thresholds", ())) > 1
            threshold = "" if several else f"{part.threshold:.6g}"
            interval, needed = "{:.1%} to {:.1%}".format(*part.interval), ""
        shares = [f"{part.coverage:.1%}", f"{part.n_errors}/{part.n_accepted}", interval]
        rows.append([str(name), threshold, *shares, f"{part.n_samples:,}", needed])
    columns = ["threshold", "share", "mistakes", "95 % interval", "samples", "more needed"]
    print_table(
        "By predicted class" if by_class else "By group, worst first",
        ["class" if by_class else "group", *columns],
        rows,
    )
