"""`recal apply`: calibrated probabilities for views, or for a model's answers to new inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.cli.collect import LEDGER, ask_endpoint, is_endpoint
from recal.cli.files import (
    check_calibration,
    check_exists,
    check_kind,
    check_views,
    kind_of,
    load_saved,
    open_views,
    read_probs,
    row_columns,
)
from recal.cli.options import (
    AdaptOptions,
    LanguageOptions,
    ModelOptions,
    argument,
    option,
    without_none,
)
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
    from recal.collecting.predictions import Predictions


# Any two sets of short texts or small images share a few equal rows, up to this share.
_MET_BEFORE = 0.05
# With fewer inputs the test shows nothing; more inputs do not improve it.
_FEWEST_WATCHED, _MOST_WATCHED = 50, 5000


@dataclass(frozen=True)
class _Answers:
    """Predictions for new inputs, and the groups and names of the inputs."""

    predictions: Predictions
    groups: Any = None
    names: Sequence[str] | None = None
    skipped: tuple[str, ...] = ()


def apply(
    *,
    calibration: Path = argument(
        "The folder that `recal calibrate` wrote, or the file that `recal fit` wrote.", ...
    ),
    out: Path = option("Where to write the answers: .csv, .parquet, .npz, or a folder.", ...),
    inputs: ModelOptions,
    language: LanguageOptions,
    views: Path | None = argument(
        "Views of the inputs (.npz, .zarr), or the table of new answers for a table's calibration."
    ),
    adapt: AdaptOptions,
    force: bool = option(
        "Overwrite an existing file, and accept a calibration of another model.", False
    ),
) -> None:
    """Answer new inputs with calibrated confidence, and say which answers can be automated.

    Each input gets an answer, its confidence (the chance that the answer is right) and, if the
    calibration has a rule of [bold]recal calibrate[/bold] or [bold]recal decide[/bold], whether it
    is accepted. Inputs need no labels.

    A .csv table holds just that. A .parquet table also holds the probability of every class, and an
    .npz file holds `probs` (n_samples, n_classes), `answer`, `confidence`, `accepted` and, where
    known, `labels` and `classes`. A name without an ending is a folder of Parquet tables, one per
    batch, for very many inputs: with --engine ray the workers write it, and the same command
    resumes it.

    Inputs are prepared as they were for the fit ([bold]recal plan[/bold] shows how), and only the
    transformations that the calibration needs are computed.

    With --follow, the temperature is adjusted to these inputs, taken together, without labels.
    Dark, blurred or noisy inputs get lower confidence. Predictions never change. It needs at least
    50 inputs, and a calibration that was fitted with three or more kinds of damage (--pool damage;
    recal calibrate does this by default). If the inputs are unlike all that the fit has seen, the
    temperature stays as it is and the rule accepts no answer.

    With --class-mix or --impossible, probabilities are adjusted to another mix of classes than that
    of the labelled samples. [bold]Predictions can change[/bold], even if the calibration normally
    keeps them. 'follow' estimates the mix and uses it only if a changed mix alone explains the
    inputs.

    Example: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Example: [bold]recal apply calibration.recal new-views.npz --out probs.npz[/bold]

    Example: [bold]recal apply folder new.csv --out accepted.csv[/bold] (a table of answers with
    their signals)

    Example: [bold]recal apply calibration.recal --model net.onnx --data new/ --out answers --engine
    ray[/bold]
    """
    calibration, content = load_saved(calibration)
    if views is not None and inputs.model is None:
        if type(content).__name__ == "SignalCalibration":
            _apply_signals(content, views, out)
            return
        if kind_of(views) in ("probabilities", "table"):
            _apply_rule(calibration, content, views, inputs, out)
            return
    calibrator = check_calibration(calibration, content)
    if is_endpoint(inputs.model):
        needed = {str(transform) for transform in calibrator.needed_transforms()}
        joined = ask_endpoint(inputs, language, Path(f"{out}{LEDGER}"), needed)
        views = joined.views.write(Path(f"{out}.views.npz"))
        inputs = replace(inputs, model=None, data=None)
    elif inputs.is_complete:
        inputs.check_files("apply")
    elif views is not None:
        check_kind(views, "views")
    if inputs.class_names is not None:
        _name_classes(calibrator, inputs.class_names, calibration)
    from recal.collecting.predictions import profile_of
    from recal.files.probabilities import check_prob_name
    from recal.maps.plan import Plan

    if adapt.flag:
        profile_of(calibrator)  # refuses a calibration without one
    mix = adapt.mix(calibrator)
    if adapt.flag and not out.suffix:
        raise InputError(
            f"{adapt.flag} judges all inputs together, and {out} would be written in parts; name one file."
        )
    check_prob_name(out if out.suffix else out / "part.parquet")
    if not out.suffix and (views is not None or inputs.labels is not None):
        raise InputError(
            f"{out} has no ending, so it would be a folder of tables, which hold no labels and are made from "
            "--model and --data; for one file give a name that ends in .csv, .npz or .parquet."
        )
    answers: _Answers | None
    if views is not None and inputs.model is None and inputs.data is None:
        answers = _answer_views(calibrator, calibration, views, inputs, adapt.follow, mix)
    elif isinstance(calibrator, Plan):
        raise InputError(f"{calibration} holds a plan alone, which is applied to a file of views.")
    elif views is None and inputs.is_complete:
        try:
            answers = _answer_inputs(calibrator, inputs, out, adapt.follow, mix, force)
        except InputError as error:
            if error.argument == "X":  # logits of another number of classes
                error.at(calibration)
            raise
        if answers is None:
            return
    else:
        words = (views, inputs.model and "--model", inputs.data and "--data")
        text = ", ".join(str(word) for word in words if word is not None)
        raise InputError(
            f"recal apply takes either a file of views, or --model and --data; got {text or 'neither'}."
        )
    _write_answers(
        answers, calibrator, calibration, out, adapt, "takes" if inputs.model is None else "took"
    )


def _answer_views(
    calibrator: Any, calibration: Path, file: Path, inputs: ModelOptions, follow: bool, mix: Any
) -> _Answers:
    """Calibrate the views in a file."""
    from recal.collecting.predictions import Predictions, passes_of, profile_of
    from recal.decisions import class_mix
    from recal.maps.guard import answer_views
    from recal.maps.plan import Plan

    views = open_views(file, inputs.labels, inputs.class_names)
    views = views.assign(**row_columns(inputs.rows or file, inputs.group, None))
    _check_groups(getattr(calibrator, "decision_", None), views.groups, file)
    _compare_preprocessing(getattr(calibrator, "preprocessing_", None), views.preprocessing, file)
    check_views(calibrator, calibration, views, file)
    with working("Applying"):
        passes, n_fitted = None, 0
        if isinstance(calibrator, Plan):
            probs, confidences = answer_views(calibrator, views, kept=calibrator.keeps_answers)
        else:
            probs, confidences = calibrator.predict_both(views)
            passes, n_fitted = passes_of(calibrator, views.logits), calibrator.fitted_rows(views)
        predictions = Predictions(
            probs, views.labels, views.classes, passes, confidences, n_fitted, logits=views.logits
        )
        if follow or mix is not None:
            profile = profile_of(calibrator)
            condition = profile.condition(views.logits) if follow else None
            estimated = mix == "follow"
            mix = class_mix(profile, views.logits) if estimated else mix
            predictions = predictions.judged(profile, condition, mix, estimated=estimated)
    return _Answers(predictions, views.groups)


def _answer_inputs(
    calibrator: Any, inputs: ModelOptions, out: Path, follow: bool, mix: Any, force: bool
) -> _Answers | None:
    """Run the model on new inputs and calibrate its answers;

    None if they were written as a folder of tables.
    """
    from recal.collecting.prediction_folder import apply_distributed
    from recal.collecting.predictions import apply as run

    model, source, how = inputs.open_as_fitted(calibrator, refuse=not force)
    _check_groups(getattr(calibrator, "decision_", None), source.groups, inputs.data)
    how.setdefault("engine", "local")
    note = f"Finished parts are kept in {out}: run the same command again to resume."
    if out.suffix:
        note = "No files were written. To be able to resume, collect first: recal collect --out NAME.zarr"
    with on_interrupt(note):
        if out.suffix:
            how |= {"follow": follow, "class_mix": mix, **without_none(labels=inputs.labels)}
            how["keep_logits"] = not follow and getattr(calibrator, "profile_", None) is not None
            return _Answers(
                run(calibrator, model, source, **how), source.groups, source.names(), source.skipped
            )
        parts = apply_distributed(calibrator, model, source, out, **how)
    counts = {
        "samples": parts.samples,
        "written": parts.written,
        "passes_per_answer": parts.passes_per_answer,
    }
    print_json({**counts, "skipped": source.skipped, "file": parts.folder})
    say_skipped(source.skipped)
    n_before = parts.samples - parts.written
    before = f", {n_before:,} of which were there already" if n_before else ""
    say(
        f"Tables with {parts.samples:,} samples are in {parts.folder}{before}.{_cost(parts.passes_per_answer, 'took')}"
    )
    return None


def _write_answers(
    answers: _Answers,
    calibrator: Any,
    calibration: Path,
    out: Path,
    adapt: AdaptOptions,
    takes: str,
) -> None:
    """Apply the rule, write the file and print what is in it."""
    from recal.decisions import accept_followed
    from recal.files.probabilities import write_prob_file

    one, rule, accept = answers.predictions, getattr(calibrator, "decision_", None), None
    n_samples, n_classes = one.probs.shape
    if rule is not None:
        how: dict[str, Any] = {"confidences": one.confidences, "groups": answers.groups}
        if one.condition is None:
            accept = rule.accept(one.probs, **how)
        else:
            accept = accept_followed(
                rule, one.probs, one.condition, **how, accept_unlike=adapt.accept_unlike
            )
    write_prob_file(
        out,
        one.probs,
        one.labels,
        one.classes,
        confidence=one.confidences,
        accepted=accept,
        inputs=answers.names,
        fitted_rows=one.fitted_rows,
    )
    facts = {"samples": n_samples, "classes": n_classes, "passes_per_answer": one.passes_per_answer}
    facts |= {} if accept is None else {"accepted": int(accept.sum())}
    facts |= {} if one.condition is None else {"condition": one.condition.to_dict()}
    if one.class_mix is not None:
        facts |= {
            "class_mix": one.class_mix.to_dict(),
            "predictions_changed": one.predictions_changed,
        }
    print_json({**facts, "skipped": answers.skipped, "file": out})
    say_skipped(answers.skipped)
    if one.fitted_rows > _MET_BEFORE * n_samples:
        say(
            f"The calibration was fitted on about {one.fitted_rows:,} of these {n_samples:,} samples. Decide and "
            "evaluate on others."
        )
    if one.condition is not None:
        say(str(one.condition))
        if one.condition.unlike and rule is not None and not adapt.accept_unlike:
            say(
                "The rule accepts no answer to such inputs. Use --accept-unlike to apply it anyway."
            )
    if one.class_mix is not None:
        text = one.class_mix.describe(None if one.classes is None else list(one.classes))
        if one.class_mix.changed:
            text += f" It changes {one.predictions_changed:,} of {n_samples:,} predictions."
            text += (
                "\nThe rule was made for the class mix of its own samples, and so is its guarantee."
                if rule
                else ""
            )
        say(text)
    if accept is not None:
        say(_share(int(accept.sum()), n_samples))
    next_line = ""
    if one.labels is not None and out.suffix != ".csv":
        next_line = f" Next: {shell_line('evaluate', out)}"
    elif rule is None:
        words = (
            "LABELLED_VIEWS",
            "--calibration",
            calibration,
            "--risk",
            0.01,
            "--out",
            "ready.recal",
        )
        next_line = f" Next: {shell_line('decide', *words)}"
    say(f"{n_samples:,} answers written to {out}.{_cost(one.passes_per_answer, takes)}{next_line}")
    if not adapt.flag:
        _print_alarm(calibrator, one.logits)


def _cost(passes_per_answer: float | None, takes: str) -> str:
    if passes_per_answer is None or passes_per_answer == 1:
        return ""
    return f" An answer {takes} {passes_per_answer:.2f} forward passes."


def _share(n_accepted: int, n_answers: int) -> str:
    return f"{n_accepted:,} of {n_answers:,} answers ({n_accepted / n_answers:.1%}) are accepted by the rule."


def _print_alarm(calibrator: Any, logits: Any) -> None:
    """Print one line if the inputs differ from those of the fit."""
    from recal.decisions import Profile, watch

    profile = getattr(calibrator, "profile_", None)
    if (
        SESSION.as_json
        or not isinstance(profile, Profile)
        or logits is None
        or len(logits) < _FEWEST_WATCHED
    ):
        return
    rows = slice(None, None, -(-len(logits) // _MOST_WATCHED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inputs of the fit were reported above
        result = watch(profile, logits[rows])
    if result.alarm:
        say(
            f"Warning: these inputs differ from those of the fit (p = {result.p_value:.2g}), so the calibration and "
            f"the rule may not hold. {result.accuracy_message} recal watch says more; --follow adjusts the confidence."
        )


def _check_groups(rule: Any, groups: Any, data: Any) -> None:
    """Refuse inputs without groups before the work, if the rule has a threshold for each group."""
    if rule is not None and rule.groups and groups is None:
        raise InputError(
            f"The rule has a threshold for each of {len(rule.groups)} groups, and {data} does not say which group an "
            "input belongs to. Add --group COLUMN, and --rows TABLE if the data have no columns."
        )


def _compare_preprocessing(stored: Any, other: Any, path: Path) -> None:
    """Warn if views were collected in another way, or from another model, than those of the fit."""
    if stored is None or other is None:
        return
    from recal.transforms.preprocessing import check_model

    if other.model is not None:
        check_model(stored, other.model)
    if stored.options() != other.options():
        warnings.warn(
            f"{path} was collected with {str(other) or 'no preprocessing'}, and the views of the fit with "
            f"{str(stored) or 'no preprocessing'}: the calibration was not fitted for this.",
            UserWarning,
            stacklevel=2,
        )


def _name_classes(calibrator: Any, names: list[str], calibration: Path) -> None:
    """Name the classes as typed, if the calibration knows only their numbers."""
    import numpy as np

    from recal.collecting.predictions import class_names

    if hasattr(calibrator, "classes_"):
        if len(names) != len(calibrator.classes_):
            raise InputError(
                f"--classes names {len(names)} classes, and {calibration} has {len(calibrator.classes_)}."
            )
        own = class_names(calibrator)
        if own is not None and [str(name) for name in own] != names:
            raise InputError(
                f"--classes contradicts {calibration}, whose classes are {', '.join(map(str, own[:8]))}."
            )
    calibrator.classes_ = np.array(names)


def _apply_rule(rule_file: Path, record: Any, file: Path, inputs: ModelOptions, out: Path) -> None:
    """Write which rows of a file of probabilities a rule accepts."""
    import numpy as np

    from recal.files.probabilities import write_prob_file

    rule = getattr(record, "decision_", record)
    if not hasattr(rule, "thresholds"):
        raise InputError(
            f"{file} holds probabilities, and {rule_file} a calibration, which is applied to views or to a "
            "model's inputs. Give the views, or --model and --data."
        )
    not_classes = [name for name in (inputs.group, inputs.cluster) if name is not None]
    read = read_probs(file, inputs.labels, leave_out=not_classes, need_labels=False)
    groups = row_columns(inputs.rows or file, inputs.group, None).get("groups")
    _check_groups(rule, groups, file)
    probs, accept = (
        np.asarray(read.probs, np.float64),
        rule.accept(read.probs, read.confidence, groups),
    )
    write_prob_file(
        out, probs, read.labels, read.classes, confidence=read.confidence, accepted=accept
    )
    print_json({"samples": len(accept), "accepted": int(accept.sum()), "file": out})
    say(f"{_share(int(accept.sum()), len(accept))} Written to {out}.")


def _apply_signals(calibration: Any, table: Path, out: Path) -> None:
    """Add confidence and acceptance to a table of new answers."""
    from recal.workflow.graded import apply_table

    check_exists(table)
    n_answers, n_accepted = apply_table(calibration, table, out)
    print_json({"answers": n_answers, "accepted": n_accepted, "file": out})
    if n_accepted is not None:
        say(_share(n_accepted, n_answers))
    say(f"{n_answers:,} answers with their confidence written to {out}.")
