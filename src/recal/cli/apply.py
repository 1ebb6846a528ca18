"""`recal apply`: calibrated probabilities for views, or for a model's answers to new inputs."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.answering import (
    Adaptation,
    Answers,
    answer_inputs,
    answer_views_of,
    check_groups,
    cost,
)
from recal.cli.collect import LEDGER, ask_endpoint, is_endpoint
from recal.cli.files import (
    check_calibration,
    check_exists,
    check_kind,
    is_graded,
    is_panel,
    kind_of,
    load_saved,
    read_probs,
    refuse_unused,
    row_columns,
)
from recal.cli.inputs import ModelInputs, Questions
from recal.cli.printing import SESSION, print_json, say, say_skipped, shell_line
from recal.errors import InputError

if TYPE_CHECKING:
    pass


# Any two sets of short texts or small images share a few equal rows, up to this share.
_MET_BEFORE = 0.05
# With fewer inputs the test shows nothing; more inputs do not improve it.
_FEWEST_WATCHED, _MOST_WATCHED = 50, 5000


def apply(
    calibration: opt.Calibration,
    out: Annotated[
        Path, Option(help="Where to write the answers: .csv, .parquet, .npz, or a folder.")
    ],
    views: Annotated[
        Path | None,
        Argument(
            help="Views of the inputs (.npz, .zarr), or the table of new answers for a table's "
            "calibration."
        ),
    ] = None,
    model: opt.Model = None,
    data: opt.Data = None,
    label_column: opt.LabelColumn = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    outputs: opt.Outputs = None,
    cluster: opt.Cluster = None,
    group: opt.Group = None,
    rows: opt.Rows = None,
    weights: opt.Weights = None,
    trust: opt.Trust = None,
    device: opt.Device = None,
    engine: opt.Engine = None,
    batch_size: opt.BatchSize = None,
    read: opt.Read = None,
    on_error: opt.OnError = None,
    cluster_by: opt.ClusterBy = None,
    pixels: opt.Pixels = None,
    gray: opt.Gray = False,
    resize: opt.Resize = None,
    crop: opt.Crop = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    divide: opt.Divide = None,
    channels: opt.Channels = None,
    preprocess: opt.Preprocess = None,
    seconds: opt.Seconds = None,
    text_column: opt.TextColumn = None,
    follow: Annotated[
        bool, Option("--follow", help="Adjust the temperature to these inputs, without labels.")
    ] = False,
    accept_unlike: Annotated[
        bool,
        Option(
            "--accept-unlike",
            help="With --follow: also accept answers to inputs unlike all of the fit.",
            rich_help_panel=opt.MORE,
        ),
    ] = False,
    class_mix: Annotated[
        str | None,
        Option(
            help="'follow' to estimate the class mix of these inputs, or cat=0.6,dog=0.4.",
            rich_help_panel=opt.MORE,
        ),
    ] = None,
    impossible: Annotated[
        list[str] | None,
        Option(
            help="A class that cannot occur; may be given several times.", rich_help_panel=opt.MORE
        ),
    ] = None,
    model_name: opt.ModelName = None,
    template: opt.Template = None,
    options: opt.Choices = None,
    view: opt.View = None,
    permute: opt.Permute = 0,
    floor: opt.Floor = None,
    max_tokens: opt.MaxTokens = 1,
    top_logprobs: opt.TopLogprobs = 20,
    concurrency: opt.Concurrency = 8,
    timeout: opt.Timeout = 60.0,
    force: Annotated[
        bool,
        Option(
            "--force", help="Overwrite an existing file, and accept a calibration of another model."
        ),
    ] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
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
    values = locals()
    inputs, language, adapt = (
        ModelInputs.of(values),
        Questions.of({**values, "scores": None}),
        Adaptation.of(values),
    )
    calibration, content = load_saved(calibration)
    if is_panel(content):
        _apply_panel(content, calibration.parent, views, out, inputs, adapt)
        return
    if is_graded(content):
        _apply_signals(content, views, out, inputs, adapt)
        return
    of_file = views is not None and inputs.model is None
    if views is not None and of_file and kind_of(views) in ("probabilities", "table"):
        _apply_rule(calibration, content, views, inputs, out)
        return
    calibrator = check_calibration(calibration, content)
    if is_endpoint(inputs.model):
        views = Path(f"{out}.views.npz")
        if views.exists() and not force:
            raise InputError(f"{views} already exists. Use --force to overwrite it.")
        ledger = Path(f"{out}{LEDGER}")
        ask_endpoint(inputs, language, ledger, calibrator, force=force).views.write(views)
        inputs = replace(inputs, model=None, data=None)
    elif inputs.is_complete:
        inputs.check_files("apply")
    elif views is not None:
        check_kind(views, "views")
    if inputs.class_names is not None:
        _name_classes(calibrator, inputs.class_names, calibration)
    from recal.collecting.predictions import profile_of
    from recal.files.probabilities import check_prob_name
    from recal.maps.base import Map

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
    answers: Answers | None
    if views is not None and inputs.model is None and inputs.data is None:
        answers = answer_views_of(
            calibrator, calibration, views, inputs, adapt.follow, mix, force=force
        )
    elif isinstance(calibrator, Map):
        raise InputError(f"{calibration} holds a plan alone, which is applied to a file of views.")
    elif views is None and inputs.is_complete:
        try:
            answers = answer_inputs(calibrator, inputs, out, adapt.follow, mix, force)
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


def _write_answers(
    answers: Answers, calibrator: Any, calibration: Path, out: Path, adapt: Adaptation, takes: str
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
    say(f"{n_samples:,} answers written to {out}.{cost(one.passes_per_answer, takes)}{next_line}")
    if not adapt.flag:
        _print_alarm(calibrator, one.logits)


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
        or profile.clusters is not None  # the test needs the clusters of these inputs
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


def _apply_rule(rule_file: Path, record: Any, file: Path, inputs: ModelInputs, out: Path) -> None:
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
    check_groups(rule, groups, file)
    probs, accept = (
        np.asarray(read.probs, np.float64),
        rule.accept(read.probs, read.confidence, groups),
    )
    write_prob_file(
        out, probs, read.labels, read.classes, confidence=read.confidence, accepted=accept
    )
    print_json({"samples": len(accept), "accepted": int(accept.sum()), "file": out})
    say(f"{_share(int(accept.sum()), len(accept))} Written to {out}.")


def _apply_panel(
    calibration: Any,
    folder: Path,
    table: Path | None,
    out: Path,
    inputs: ModelInputs,
    adapt: Adaptation,
) -> None:
    """Add answer, confidence and the next step to a table with the answers of several systems."""
    from recal.workflow.panels import apply_panel

    refuse_unused(inputs.flags() | adapt.flags(), "a calibration of several systems")
    if table is None:
        raise InputError("Name the table of new answers: recal apply FOLDER NEW.csv --out OUT.csv")
    check_exists(table)
    steps = apply_panel(calibration, folder, table, out)
    total = sum(steps.values())
    print_json({"answers": total, "accepted": steps.get("accept", 0), "next": steps, "file": out})
    say(_share(steps.get("accept", 0), total))
    for step, count in steps.items():
        if step.startswith("ask "):
            say(f"{count:,} questions: {step}, add its answers to the table, and apply again.")
    if "review" in steps:
        say(f"{steps['review']:,} questions: a person decides.")
    say(f"{total:,} answers written to {out}.")


def _apply_signals(
    calibration: Any, table: Path | None, out: Path, inputs: ModelInputs, adapt: Adaptation
) -> None:
    """Add confidence and acceptance to a table of new answers."""
    from recal.workflow.graded import apply_table

    refuse_unused(inputs.flags() | adapt.flags(), "a calibration of graded answers")
    if table is None:
        raise InputError("Name the table of new answers: recal apply FOLDER NEW.csv --out OUT.csv")
    check_exists(table)
    n_answers, n_accepted = apply_table(calibration, table, out)
    print_json({"answers": n_answers, "accepted": n_accepted, "file": out})
    if n_accepted is not None:
        say(_share(n_accepted, n_answers))
    say(f"{n_answers:,} answers with their confidence written to {out}.")
