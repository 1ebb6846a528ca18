"""`recal apply`: calibrated probabilities for views, or for a model's answers to new inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.printing import (
    SESSION,
    on_interrupt,
    print_json,
    say,
    say_skipped,
    shell_line,
    working,
)
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.collecting.local import Predictions
    from recal.views import Views

INPUTS = (*opt.MODEL, *opt.ROWS, "on_error")


def apply(
    ctx: Context,
    calibration: opt.CalibrationPath,
    out: Annotated[Path, Option(help="The answers: .csv, .parquet or .npz.")],
    views: Annotated[
        Path | None, Argument(help="Views, probabilities for a rule, or a table of new answers.")
    ] = None,
    follow: Annotated[
        bool, Option("--follow", help="Adjust the temperature to these inputs, without labels.")
    ] = False,
    accept_unlike: Annotated[
        bool, Option("--accept-unlike", help="With --follow: accept inputs unlike all of the fit.")
    ] = False,
    force: Annotated[
        bool, Option("--force", help="Overwrite a file; accept a calibration of another model.")
    ] = False,
) -> None:
    """Answer new inputs with calibrated confidence, and say which answers can be automated.

    Each input gets an answer, its confidence (the chance that the answer is right) and, if the
    calibration has a rule of [bold]recal calibrate[/bold] or [bold]recal decide[/bold], whether it
    is accepted. Inputs need no labels. They are prepared as they were for the fit ([bold]recal
    plan[/bold] shows how), and only the transformations that the calibration needs are computed.

    A .csv table holds just that. A .parquet table also holds the probability of every class, and an
    .npz file holds `probs` (n_samples, n_classes), `answer`, `confidence`, `accepted` and, where
    known, `labels` and `classes`. For very many inputs, run [bold]recal collect[/bold] into a .zarr
    store first, which can be resumed, and apply the calibration to the store.

    With --follow, the temperature is adjusted to these inputs, taken together, without labels.
    Dark, blurred or noisy inputs get lower confidence. Predictions never change. It needs at least
    50 inputs, and a calibration that was fitted with three or more kinds of damage (--pool damage;
    recal calibrate does this by default). If the inputs are unlike all that the fit has seen, the
    temperature stays as it is and the rule accepts no answer.

    Example: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Example: [bold]recal apply calibration.recal new-views.npz --out probs.npz[/bold]

    Example: [bold]recal apply folder new.csv --out accepted.csv[/bold] (a table of answers with
    their signals)
    """
    file, content = files.load_saved(calibration)
    if files.is_panel(content) or files.is_signal_calibration(content):
        opt.refuse_unused(ctx, "a calibration of tables", ("calibration", "views"))
        _apply_table(content, file.parent, views, out)
        return
    inputs: opt.Inputs = ctx.obj
    if (views is None) is (inputs.model is None):
        raise InputError("recal apply takes either a file of views, or --model and --data.")
    if views is not None and files.file_kind(views) in ("probabilities", "a table"):
        used = ("calibration", "views", *opt.ROWS)
        opt.refuse_unused(ctx, f"the probabilities {views}", used)
        _apply_rule(file, content, views, inputs, out)
        return
    calibrator = files.check_calibration(file, content)
    from recal.collecting.local import profile_of
    from recal.files.probabilities import check_prob_name

    if follow:
        profile_of(calibrator)  # refuse a calibration without one before the work
    check_prob_name(out)
    rule = getattr(calibrator, "decision_", None)
    facts: dict[str, Any] = {}
    if views is not None:
        opt.refuse(ctx, f"the views {views}", (*opt.MODEL, "on_error"))
        read = inputs.views(views)
        found = _answer_views(calibrator, file, read, views, force=force)
        facts = {"groups": read.groups, "names": read.known_ids}
        if follow:
            found = found.followed(calibrator)
    else:
        inputs.check_files()
        opt.refuse(ctx, "--model, whose classes are those of the calibration", ("classes",))
        if not hasattr(calibrator, "predict_both"):
            raise InputError(f"{file} holds a plan alone, which is applied to a file of views.")
        from recal.collecting.local import apply as run

        resume = "To be able to resume, collect first: recal collect --out NAME.zarr"
        try:
            network, source, how = inputs.open_as_fitted(calibrator, refuse=not force)
            files.check_groups(rule, source.groups, inputs.data)
            how |= {"follow": follow, **opt.without_none(labels=inputs.labels)}
            with on_interrupt(f"No files were written. {resume}"):
                found = run(calibrator, network, source, **how)
        except InputError as error:
            if error.argument == "X":  # logits of another number of classes
                error.at(file)
            raise
        facts = {"groups": source.groups, "names": source.names(), "skipped": source.skipped}
    _write(found, rule, out, accept_unlike=accept_unlike, **facts)
    told = [f"{len(found.probs):,} answers written to {out}."]
    if found.passes_per_answer not in (None, 1):
        told.append(f"An answer takes {found.passes_per_answer:.2f} forward passes.")
    if found.labels is not None and out.suffix != ".csv":
        told.append(f"Next: {shell_line('evaluate', out)}")
    elif rule is None:
        words = ("LABELLED_VIEWS", "--calibration", calibration, "--risk", 0.01)
        told.append(f"Next: {shell_line('decide', *words, '--out', 'ready.recal')}")
    say(" ".join(told))
    if not follow:
        _print_alarm(calibrator, found.logits)


def _answer_views(
    calibrator: Any, calibration: Path, views: Views, file: Path, *, force: bool
) -> Predictions:
    """Calibrate the views that a file holds."""
    from recal.collecting.local import Predictions
    from recal.maps.base import Map
    from recal.maps.guard import answer_views

    files.check_groups(getattr(calibrator, "decision_", None), views.groups, file)
    stored = getattr(calibrator, "preprocessing_", None)
    files.check_views(calibrator, calibration, views, file, force=force)
    _compare_preprocessing(stored, views.preprocessing, file)
    with working("Applying"):
        passes, n_fitted = None, 0
        if isinstance(calibrator, Map):
            probs, confidences = answer_views(calibrator, views, kept=calibrator.keeps_answers)
        else:
            probs, confidences = calibrator.predict_both(views)
            passes, n_fitted = calibrator.map_.passes(views.logits), calibrator.fitted_rows(views)
    labels, classes, logits = views.labels, views.classes, views.logits
    return Predictions(probs, labels, classes, passes, confidences, n_fitted, logits=logits)


def _compare_preprocessing(stored: Any, other: Any, path: Path) -> None:
    """Warn if views were collected in another way, or from another model, than those of the fit."""
    if stored is None or other is None:
        return
    from recal.transforms.preprocessing import check_model

    if other.model is not None:
        check_model(stored, other.model)
    if stored.options() != other.options():
        warnings.warn(
            f"{path} was collected with {str(other) or 'no preprocessing'}, and the views of the "
            f"fit with {str(stored) or 'no preprocessing'}: the calibration was not fitted for "
            "this.",
            UserWarning,
            stacklevel=2,
        )


def _write(
    one: Predictions,
    rule: Any,
    out: Path,
    *,
    groups: Any,
    names: Any = None,
    skipped: Sequence[str] = (),
    accept_unlike: bool,
) -> None:
    """Apply the rule, write the file and print what is in it."""
    from recal.copies import warn_of_fitted
    from recal.decisions import accept_followed
    from recal.files.probabilities import write_prob_file

    accept = None
    n_samples, n_classes = one.probs.shape
    if rule is not None:
        how: dict[str, Any] = {"confidences": one.confidences, "groups": groups}
        if one.condition is None:
            accept = rule.accept(one.probs, **how)
        else:
            how["accept_unlike"] = accept_unlike
            accept = accept_followed(rule, one.probs, one.condition, **how)
    columns: dict[str, Any] = {"confidence": one.confidences, "accepted": accept}
    columns |= {"groups": groups, "inputs": names, "fitted_rows": one.fitted_rows}
    write_prob_file(out, one.probs, one.labels, one.classes, **columns)
    facts = {"samples": n_samples, "classes": n_classes, "passes_per_answer": one.passes_per_answer}
    if accept is not None:
        facts["accepted"] = int(accept.sum())
    if one.condition is not None:
        facts["condition"] = one.condition.to_dict()
    print_json({**facts, "skipped": skipped, "file": out})
    say_skipped(skipped)
    better = "decisions and metrics on them look better than on new inputs"
    warn_of_fitted(one.fitted_rows, n_samples, better, "Decide and evaluate on other samples.")
    if one.condition is not None:
        say(str(one.condition))
        if one.condition.unlike and rule is not None and not accept_unlike:
            say(
                "The rule accepts no answer to such inputs. Use --accept-unlike to apply it anyway."
            )
    if accept is not None:
        say(_share(int(accept.sum()), n_samples))


def _share(n_accepted: int, n_answers: int) -> str:
    share = f"{n_accepted:,} of {n_answers:,} answers ({n_accepted / n_answers:.1%})"
    return f"{share} are accepted by the rule."


def _print_alarm(calibrator: Any, logits: Any) -> None:
    """Print one line if the inputs differ from those of the fit."""
    from recal.decisions import Profile, watch

    profile = getattr(calibrator, "profile_", None)
    if SESSION.as_json or not isinstance(profile, Profile) or profile.clusters is not None:
        return  # with clusters, the test needs those of these inputs
    if logits is None or len(logits) < 50:  # with fewer inputs the test shows nothing
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inputs of the fit were reported above
        result = watch(profile, logits[:: -(-len(logits) // 5000)])
    if result.alarm:
        adjusted = "; --follow adjusts the confidence" if result.known else ""
        say(
            "Warning: these inputs differ from those of the fit "
            f"(p = {result.p_value:.2g}), so the calibration and the rule may not hold. "
            f"{result.accuracy_message} recal watch says more{adjusted}."
        )


def _apply_rule(rule_file: Path, record: Any, file: Path, inputs: opt.Inputs, out: Path) -> None:
    """Write which rows of a file of probabilities a rule accepts."""
    import numpy as np

    from recal.files.probabilities import write_prob_file

    rule = getattr(record, "decision_", record)
    if not hasattr(rule, "thresholds"):
        raise InputError(
            f"{file} holds probabilities, and {rule_file} a calibration, which is applied to views "
            "or to a model's inputs."
        )
    read = inputs.probs(file, need_labels=False)
    files.check_groups(rule, read.groups, file)
    accept = rule.accept(read.probs, read.confidence, read.groups)
    how = {"confidence": read.confidence, "accepted": accept}
    write_prob_file(out, np.asarray(read.probs, np.float64), read.labels, read.classes, **how)
    print_json({"samples": len(accept), "accepted": int(accept.sum()), "file": out})
    say(f"{_share(int(accept.sum()), len(accept))} Written to {out}.")


def _apply_table(content: Any, folder: Path, table: Path | None, out: Path) -> None:
    """Add confidence and acceptance, and for a panel answer and next step, to a table."""
    from recal.workflow.scoring import apply_to_table

    if table is None:
        raise InputError("Name the table of new answers: recal apply FOLDER NEW.csv --out OUT.csv")
    files.check_exists(table)
    facts = apply_to_table(content, folder, table, out)
    total = facts["answers"]
    print_json({**facts, "file": out})
    if facts["accepted"] is not None:
        say(_share(facts["accepted"], total))
    for step, count in facts.get("next", {}).items():
        if step.startswith("ask "):
            say(f"{count:,} questions: {step}, add its answers to the table, and apply again.")
    say(f"{total:,} answers with their confidence written to {out}.")
