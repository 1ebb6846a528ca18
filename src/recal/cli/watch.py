"""`recal watch`: are new inputs still like those of the fit?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli import options as opt
from recal.cli.files import (
    is_graded,
    is_table_of_answers,
    load_calibration,
    load_saved,
    open_views,
    profile_in,
    row_columns,
)
from recal.cli.inputs import ModelInputs
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.views import Views


def watch(
    reference: Annotated[
        Path,
        Argument(
            help="What inputs looked like at the fit: a profile, a calibration or views.",
            metavar="PROFILE|CALIBRATION|VIEWS",
        ),
    ],
    views: Annotated[
        Path | None,
        Argument(help="Views of new inputs, or a table of new answers. Labels are not read."),
    ] = None,
    alpha: Annotated[float, Option(help="The allowed probability of a false alarm.")] = 0.01,
    stream: Annotated[
        bool, Option("--stream", help="Read inputs one by one; the alarm is valid at any time.")
    ] = False,
    save_to: Annotated[
        Path | None, Option("--save", help="Save the profile of the first file's views here.")
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
    seed: opt.Seed = 0,
    force: opt.Force = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare new inputs with those of the fit, without labels, and estimate today's accuracy.

    The test compares confidence, class mix and, if there are views, how answers react to them. The
    probability of a false alarm is at most --alpha. Calibrations of [bold]recal fit[/bold] have a
    profile. If it was fitted on views of three or more kinds of damage, accuracy and temperature of
    the new inputs are estimated from their logits; [bold]recal apply --follow[/bold] uses them. The
    exit code is 0 with or without an alarm.

    Example: [bold]recal watch held-out.npz --save profile.recal[/bold]

    Example: [bold]recal watch profile.recal today.npz[/bold]

    Example: [bold]recal watch calibrated --model net.onnx --data new/[/bold]
    """
    inputs = ModelInputs.of(locals())
    from recal import save
    from recal.decisions import StreamWatch
    from recal.decisions import watch as compare
    from recal.decisions.rule import check_share

    check_share(alpha, "alpha")
    profile = profile_in(reference, seed)
    if save_to is not None:
        save(profile, save_to)
    if views is None and not inputs.is_complete:
        if save_to is None:
            raise InputError(
                "recal watch takes a profile and new inputs (a file of views, or --model and --data), or --save FILE."
            )
        print_json({"profile": save_to, "samples": len(profile.answers)})
        say(
            f"A profile of {len(profile.answers):,} samples was written to {save_to}. "
            f"Next: {shell_line('watch', save_to, 'NEW_VIEWS')}"
        )
        return
    source = views if views is not None else inputs.data
    batch, more = _new_inputs(reference, views, inputs, profile)
    with working("Comparing"):
        try:
            result = compare(
                profile,
                batch,
                **more,
                alpha=alpha,
                permutations=max(999, math.ceil(1 / alpha)),
                random_state=seed,
            )
        except InputError as error:
            raise error.at(f"{source} does not go with {reference}") from None
        stream_result = None
        if stream:
            watcher = StreamWatch(
                profile, alpha, use_views=profile.held_by(batch), random_state=seed
            )
            stream_result = watcher.update(batch)
    facts = (
        None
        if stream_result is None
        else {"highest": stream_result.highest, "alarm_at": stream_result.alarm_at}
    )
    print_json({"file": source, **result.to_dict(), "stream": facts})
    lines = [
        [one.name, f"{one.at_fit:.3f}", f"{one.today:.3f}", f"{one.p_value:.3g}"]
        for one in result.findings
    ]
    reactions = (
        "; the share of answers that views change; the share of views in which confidence rose"
    )
    print_table(
        result.test_message,
        ["compared", "at the fit", "today", "p"],
        lines,
        note=f"Shown: mean confidence; the share of the class that moved most{reactions if len(lines) > 2 else ''}. "
        "p is corrected for all of them.",
    )
    say(result.accuracy_message)
    say(result.temperature_message)
    if result.class_mix is not None and result.class_mix.changed:
        names = None if getattr(batch, "classes", None) is None else list(batch.classes)
        say(f"Another class mix alone explains these inputs: {result.class_mix.moves(names)}.")
        say("To use it: recal apply CALIBRATION NEW_VIEWS --class-mix follow --out probs.npz")
    if stream_result is not None:
        at = stream_result.alarm_at
        say(
            f"As a stream: {'No alarm' if at is None else f'Alarm at input {at:,}'}; the evidence against 'no change' "
            f"reached {stream_result.highest:.3g} of {1 / alpha:.3g}."
        )


def _new_inputs(
    reference: Path, file: Path | None, inputs: ModelInputs, profile: Profile
) -> tuple[Any, dict[str, Any]]:
    """Return what `watch` compares: views, or the confidences of a table and its signals."""
    if file is None:
        return _collect(reference, inputs), {}
    if not is_table_of_answers(file):
        views = open_views(file)
        return views.assign(**row_columns(inputs.rows or file, None, inputs.cluster)), {}
    _, content = load_saved(reference)
    if not is_graded(content):
        raise InputError(f"{file} is a table, and {reference} is no calibration of tables.")
    from recal.files.tables import read_table
    from recal.workflow.graded import confidence_of

    table = read_table(file)
    names = profile.signal_names
    more: dict[str, Any] = {}
    if names:
        more["signals"] = {name: table.numbers(name) for name in names}
    if inputs.cluster is not None:
        more["clusters"] = row_columns(file, None, inputs.cluster)["clusters"]
    return confidence_of(content, table)[0], more


def _collect(reference: Path, inputs: ModelInputs) -> Views:
    """Return the logits of new inputs, prepared as they were for the fit."""
    from recal.collecting import collect

    inputs.check_files("watch")
    calibrator = load_calibration(reference)
    model, source, how = inputs.open_as_fitted(calibrator)
    if how["preprocess"] is None and hasattr(calibrator, "preprocessing_"):
        how["preprocess"] = calibrator.preprocessing_.normalize
    source.labels = source.classes = None  # labels are not read
    return collect(model, source, None, **how)
