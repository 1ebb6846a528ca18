"""`recal apply`: calibrated probabilities for views, or for a model's answers to new inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.answers import LEDGER, apply_signals, ask_endpoint, is_endpoint, reads_signals
from recal.cli.files import check_kind, check_views_held, kind_of, load_calibration, open_views, row_columns
from recal.cli.options import MORE, LanguageOptions, ModelOptions, compare_preprocessing, without_none
from recal.cli.printing import AsJson, is_quiet, print_json, say, typed, working

if TYPE_CHECKING:
    from recal.collecting.prediction_folder import PredictionFolder
    from recal.collecting.predictions import Predictions


# A few equal rows are met in any two sets of short texts or small images.
_MET_BEFORE = 0.05
# Fewer inputs show nothing, and more say it no better.
_FEWEST_WATCHED, _MOST_WATCHED = 50, 5000
# Whether the model was asked here, or the views were there already.
_TAKES = {False: "took", True: "takes"}


def apply(
    calibration: Annotated[
        Path, typer.Argument(help="The folder that `recal calibrate` wrote, or the file that `recal fit` wrote.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where to write the answers: .csv, .parquet, .npz, or a folder.")],
    inputs: ModelOptions,
    language: LanguageOptions,
    views: Annotated[
        Path | None,
        typer.Argument(
            help="Views of the inputs (.npz, .zarr), or the table of new answers for a table's calibration."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Adjust the temperature to these inputs, without labels.")
    ] = False,
    accept_unlike: Annotated[
        bool,
        typer.Option(
            "--accept-unlike",
            help="With --follow: also accept answers to inputs unlike all of the fit.",
            rich_help_panel=MORE,
        ),
    ] = False,
    class_mix: Annotated[
        str | None,
        typer.Option(
            "--class-mix",
            help="'follow' to estimate the class mix of these inputs, or cat=0.6,dog=0.4.",
            rich_help_panel=MORE,
        ),
    ] = None,
    impossible: Annotated[
        list[str] | None,
        typer.Option(
            "--impossible", help="A class that cannot occur; may be given several times.", rich_help_panel=MORE
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite an existing file, and accept a calibration of another model."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer new inputs with calibrated confidence, and say which answers can be automated.

    Each input gets an answer, its confidence (the chance that the answer is right) and, if the calibration has a
    rule of [bold]recal calibrate[/bold] or [bold]recal decide[/bold], whether it is accepted. Inputs need no labels.

    A .csv table holds just that. A .parquet table also holds the probability of every class, and an .npz file holds
    `probs` (n_samples, n_classes), `answer`, `confidence`, `accepted` and, where known, `labels` and `classes`. A name
    without an ending is a folder of Parquet tables, one per batch, for very many inputs: with --engine ray the workers
    write it, and the same command resumes it.

    Inputs are prepared as they were for the fit ([bold]recal plan[/bold] shows how), and only the transformations that
    the calibration needs are computed.

    With --follow, the temperature is adjusted to these inputs, taken together, without labels. Dark, blurred or noisy
    inputs get lower confidence. Predictions never change. It needs at least 50 inputs, and a calibration that was
    fitted with three or more kinds of damage (--pool damage; recal calibrate does this by default). If the inputs are
    unlike all that the fit has seen, the temperature stays as it is and the rule accepts no answer.

    With --class-mix or --impossible, probabilities are adjusted to another mix of classes than that of the labelled
    samples. [bold]Predictions can change[/bold], even if the calibration normally keeps them. 'follow' estimates the
    mix and uses it only if a changed mix alone explains the inputs.

    Example: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]

    Example: [bold]recal apply calibration.recal new-views.npz --out probs.npz[/bold]

    Example: [bold]recal apply folder new.csv --out accepted.csv[/bold] (a table of answers with their signals)

    Example: [bold]recal apply calibration.recal --model net.onnx --data new/ --out answers --engine ray[/bold]
    """
    from recal.workflow.result import calibration_in

    calibration = calibration_in(calibration)
    check_kind(calibration, "calibration")
    if views is not None and inputs.model is None and reads_signals(calibration):
        apply_signals(calibration, views, out, as_json)
        return
    if views is not None and inputs.model is None and kind_of(views) in ("probabilities", "table"):
        _apply_rule(calibration, views, inputs.labels, out, as_json)
        return
    if is_endpoint(inputs.model):
        views = _ask(inputs, language, calibration, out, as_json)
        inputs = replace(inputs, model=None, data=None)
    elif inputs.is_complete:
        inputs.check_files("apply")
    elif views is not None:
        check_kind(views, "views")
    calibrator = load_calibration(calibration)
    rule = getattr(calibrator, "decision_", None)
    if inputs.class_names is not None:
        _name_classes(calibrator, inputs.class_names, calibration)
    from recal import Plan
    from recal.collecting.predictions import Predictions, passes_of, profile_of
    from recal.errors import InputError
    from recal.files.probabilities import check_prob_name, write_prob_file
    from recal.maps.guard import answer_views

    in_parts = not out.suffix
    together = follow or class_mix is not None or bool(impossible)
    profile = profile_of(calibrator) if together else None
    mix = None if profile is None else asked_mix(profile, calibrator, class_mix, impossible)
    if in_parts and together:
        named = "--follow" if follow else "--class-mix" if class_mix is not None else "--impossible"
        raise InputError(f"{named} judges all inputs together, and {out} would be written in parts; name one file.")
    check_prob_name(out / "part.parquet" if in_parts else out)
    if in_parts and (views is not None or inputs.labels is not None):
        raise InputError(
            f"{out} has no ending, so it would be a folder of tables, which hold no labels and are made from --model "
            "and --data; for one file give a name that ends in .csv, .npz or .parquet."
        )
    skipped: tuple[str, ...] = ()
    names = groups = None
    if views is not None and inputs.model is None and inputs.data is None:
        found = open_views(views, inputs.labels, inputs.classes)
        found = found.assign(**row_columns(inputs.rows or views, inputs.group, None))
        groups = found.groups
        _check_groups(rule, groups, views)
        compare_preprocessing(getattr(calibrator, "preprocessing_", None), found.preprocessing, views)
        check_views_held(calibrator, calibration, found, views)
        with working("Applying"):
            plain = isinstance(calibrator, Plan)
            if plain:
                probs, confidence = answer_views(calibrator, found, kept=calibrator.keeps_answers)
            else:
                probs, confidence = calibrator.predict_both(found)
            passes = None if plain else passes_of(calibrator, found.logits)
            fitted = 0 if plain else calibrator.fitted_rows(found)
            applied = Predictions(probs, found.labels, found.classes, passes, confidence, fitted, logits=found.logits)
            if profile is not None:
                applied = judged(applied, profile, found.logits, follow, mix)
    elif isinstance(calibrator, Plan):
        raise InputError(f"{calibration} holds a plan alone, which is applied to a file of views.")
    elif views is None and inputs.is_complete:
        from recal.collecting.prediction_folder import apply_distributed
        from recal.collecting.predictions import apply as run
        from recal.transforms.preprocessing import check_model

        stored = getattr(calibrator, "preprocessing_", None)
        model = inputs.open_model(stored)
        check_model(stored, model.fingerprint(), refuse=not force)
        source = inputs.open_data(model, stored)
        skipped, names = source.skipped, source.names()
        _check_groups(rule, source.groups, inputs.data)
        how: dict[str, Any] = {"engine": "local", **inputs.running(stored, labels=False)}
        how |= {"preprocess": inputs.preprocessing(stored), "progress": not is_quiet() and not as_json}
        try:
            if in_parts:
                _tell_parts(apply_distributed(calibrator, model, source, out, **how), skipped, as_json)
                return
            groups = source.groups
            how |= {"follow": follow, "class_mix": mix, **without_none(labels=inputs.labels)}
            how["keep_logits"] = not follow and getattr(calibrator, "profile_", None) is not None
            applied = run(calibrator, model, source, **how)
        except KeyboardInterrupt as stop:
            lost = "No files were written. To be able to resume, collect first: recal collect --out NAME.zarr"
            stop.add_note(
                f"Finished parts are kept in {out}: run the same command again to resume." if in_parts else lost
            )
            raise
        except InputError as error:
            if error.argument == "X":  # logits of another number of classes
                error.at(calibration)
            raise
    else:
        words = (views, inputs.model and "--model", inputs.data and "--data")
        given = ", ".join(str(word) for word in words if word is not None)
        raise InputError(f"recal apply takes either a file of views, or --model and --data; got {given or 'neither'}.")
    accept = None if rule is None else _accepted(rule, applied, accept_unlike, groups)
    accepted = None if accept is None else int(accept.sum())
    how_sure: dict[str, Any] = {"confidence": applied.confidences, "accepted": accept, "inputs": names}
    if names is None and out.suffix == ".csv":
        how_sure["inputs"] = [str(row) for row in range(len(applied.probs))]
    how_sure["fitted_rows"] = applied.fitted_rows
    write_prob_file(out, applied.probs, applied.labels, applied.classes, **how_sure)
    n_samples, n_classes = applied.probs.shape
    if as_json:
        counts = {"samples": n_samples, "classes": n_classes, "passes_per_answer": applied.passes_per_answer}
        counts |= {} if accepted is None else {"accepted": accepted}
        counts |= {} if applied.condition is None else {"condition": applied.condition.to_dict()}
        if applied.class_mix is not None:
            counts |= {"class_mix": applied.class_mix.to_dict(), "predictions_changed": applied.predictions_changed}
        print_json({**counts, "skipped": skipped, "file": out})
        return
    if skipped:
        say(f"{len(skipped)} files could not be read and were skipped, such as {skipped[0]}.")
    if applied.fitted_rows > _MET_BEFORE * n_samples:
        say(
            f"The calibration was fitted on about {applied.fitted_rows:,} of these {n_samples:,} samples. Decide and "
            "evaluate on others."
        )
    if applied.condition is not None:
        say(str(applied.condition))
        if applied.condition.unlike and rule is not None and not accept_unlike:
            say("The rule accepts no answer to such inputs. Use --accept-unlike to apply it anyway.")
    if applied.class_mix is not None:
        tell_mix(applied, rule is not None)
    if accepted is not None:
        say(f"{accepted:,} of {n_samples:,} answers ({accepted / n_samples:.1%}) are accepted by the rule.")
    labelled = applied.labels is not None and out.suffix != ".csv"
    following = f" Next: {typed('recal', 'evaluate', out)}" if labelled else ""
    if not following and rule is None:
        command = ("recal", "decide", "LABELLED_VIEWS", "--calibration", calibration, "--risk", 0.01)
        following = f" Next: {typed(*command, '--out', 'ready.recal')}"
    each = applied.passes_per_answer
    cost = "" if each is None or each == 1 else f" An answer {_TAKES[inputs.model is None]} {each:.2f} forward passes."
    say(f"{n_samples:,} answers written to {out}.{cost}{following}")
    if not together:
        say_alarm(calibrator, applied.logits)


def _ask(inputs: ModelOptions, language: LanguageOptions, calibration: Path, out: Path, as_json: bool) -> Path:
    """Ask a server for the views that the calibration needs, and return the file of these views."""
    needed = {str(transform) for transform in load_calibration(calibration).needed_transforms()}
    joined = ask_endpoint(inputs, language, Path(f"{out}{LEDGER}"), as_json, needed)
    say(str(joined), quiet=as_json or not str(joined))
    return joined.views.write(Path(f"{out}.views.npz"))


def say_alarm(calibrator: Any, logits: Any) -> None:
    """Print one line if the inputs differ from those of the fit."""
    import warnings

    from recal.decisions import Profile, watch

    profile = getattr(calibrator, "profile_", None)
    if not isinstance(profile, Profile) or logits is None or len(logits) < _FEWEST_WATCHED:
        return
    rows = slice(None, None, -(-len(logits) // _MOST_WATCHED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about inputs of the fit, which were reported above
        result = watch(profile, logits[rows])
    if result.alarm:
        say(
            f"Warning: these inputs differ from those of the fit (p = {result.p_value:.2g}), so the calibration and "
            f"the rule may not hold. {result.accuracy_message} recal watch says more; --follow adjusts the confidence."
        )


def _check_groups(rule: Any, groups: Any, data: Any) -> None:
    """Refuse inputs without groups before the work, if the rule has a threshold for each group."""
    from recal.errors import InputError

    if rule is not None and rule.groups and groups is None:
        raise InputError(
            f"The rule has a threshold for each of {len(rule.groups)} groups, and {data} does not say which group an "
            "input belongs to. Add --group COLUMN, and --rows TABLE if the data have no columns."
        )


def _accepted(rule: Any, applied: Predictions, accept_unlike: bool, groups: Any) -> Any:
    from recal.decisions import accept_followed

    if applied.condition is None:
        return rule.accept(applied.probs, applied.confidences, groups)
    followed = (applied.probs, applied.condition, applied.confidences, groups)
    return accept_followed(rule, *followed, accept_unlike=accept_unlike)


def _name_classes(calibrator: Any, names: list[str], calibration: Path) -> None:
    """Call the classes as typed, where the calibration knows them by their numbers only."""
    import numpy as np

    from recal.collecting.predictions import class_names
    from recal.errors import InputError

    known = class_names(calibrator) if hasattr(calibrator, "classes_") else None
    if hasattr(calibrator, "classes_") and len(names) != len(calibrator.classes_):
        raise InputError(f"--classes names {len(names)} classes, and {calibration} has {len(calibrator.classes_)}.")
    if known is not None and [str(name) for name in known] != names:
        raise InputError(f"--classes contradicts {calibration}, whose classes are {', '.join(map(str, known[:8]))}.")
    calibrator.classes_ = np.array(names)


def _apply_rule(rule_file: Path, probabilities: Path, labels: Path | None, out: Path, as_json: bool) -> None:
    """Say which rows of a file of probabilities a rule accepts."""
    import numpy as np

    from recal import load
    from recal.cli.files import read_probabilities
    from recal.errors import InputError
    from recal.files.probabilities import write_prob_file

    held = load(rule_file)
    rule = getattr(held, "decision_", held)
    if not hasattr(rule, "thresholds"):
        raise InputError(
            f"{probabilities} holds probabilities, and {rule_file} a calibration, which is applied to views or to a "
            "model's inputs. Give the views, or --model and --data."
        )
    found = read_probabilities(probabilities, labels)
    accept = rule.accept(found.probs, found.confidence)
    rows = [str(row) for row in range(len(accept))] if out.suffix == ".csv" else None
    how: dict[str, Any] = {"confidence": found.confidence, "accepted": accept, "inputs": rows}
    write_prob_file(out, np.asarray(found.probs, np.float64), found.labels, found.classes, **how)
    if as_json:
        print_json({"samples": len(accept), "accepted": int(accept.sum()), "file": out})
        return
    share = f"{accept.sum():,} of {len(accept):,} answers ({accept.mean():.1%})"
    say(f"{share} are accepted by the rule. Written to {out}.")


def _tell_parts(parts: PredictionFolder, skipped: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        counts = {"samples": parts.samples, "written": parts.written, "passes_per_answer": parts.passes_per_answer}
        print_json({**counts, "skipped": skipped, "file": parts.folder})
        return
    if skipped:
        say(f"{len(skipped)} files could not be read and were skipped, such as {skipped[0]}.")
    kept, each = parts.samples - parts.written, parts.passes_per_answer
    there = f", {kept:,} of which were there already" if kept else ""
    cost = "" if each is None or each == 1 else f" An answer took {each:.2f} forward passes."
    say(f"Tables with {parts.samples:,} samples are in {parts.folder}{there}.{cost}")


def asked_mix(profile: Any, calibrator: Any, typed: str | None, impossible: list[str] | None) -> Any:
    """The class mix that was typed, or "follow" where it is to be estimated."""
    from recal.decisions import class_mix
    from recal.errors import InputError

    if typed == "follow":
        if impossible:
            raise InputError("--class-mix follow and --impossible cannot be combined: give one of them.")
        return typed
    if typed is None and not impossible:
        return None
    shares = None
    if typed is not None:
        pairs = [part.rpartition("=") for part in typed.split(",")]
        try:
            shares = {name.strip(): float(share) for name, _, share in pairs}
        except ValueError:
            raise InputError(f"--class-mix takes 'follow' or shares such as cat=0.6,dog=0.4, got {typed!r}.") from None
    names = getattr(calibrator, "classes_", None)
    return class_mix(
        profile, shares=shares, impossible=impossible or (), classes=None if names is None else list(names)
    )


def judged(applied: Predictions, profile: Any, logits: Any, follow: bool, mix: Any) -> Predictions:
    from recal.decisions import class_mix

    condition = profile.condition(logits) if follow else None
    found = class_mix(profile, logits) if mix == "follow" else mix
    return applied.judged(profile, condition, found, estimated=mix == "follow")


def tell_mix(applied: Predictions, has_rule: bool) -> None:
    assert applied.class_mix is not None
    said = applied.class_mix.describe(None if applied.classes is None else list(applied.classes))
    if not applied.class_mix.changed:
        say(said)
        return
    say(f"{said} It changes {applied.predictions_changed:,} of {len(applied.probs):,} predictions.")
    if has_rule:
        say("The rule was made for the class mix of its own samples, and so is its guarantee.")
