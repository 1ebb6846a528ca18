"""`recal watch`: are new inputs still like those of the fit?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from recal.cli import files
from recal.cli import options as opt
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError
from recal.workflow.folder import calibration_in

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.views import Views

INPUTS = ("model", "data", "trust", "device", "batch_size", "cluster", "rows")


def watch(
    ctx: Context,
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
    save: Annotated[Path | None, Option(help="Save the profile here.")] = None,
    seed: opt.SeedNumber = 0,
    force: opt.Force = False,
) -> None:
    """Compare new inputs with those of the fit, without labels, and estimate today's accuracy.

    The test compares confidence, class mix and the signals of graded answers. The probability of a
    false alarm is at most --alpha. Calibrations of [bold]recal fit[/bold] have a profile. If it was
    fitted on views of three or more kinds of damage, accuracy and temperature of the new inputs are
    estimated from their logits; [bold]recal apply --follow[/bold] uses them. The exit code is 0
    with or without an alarm.

    Example: [bold]recal watch held-out.npz --save profile.recal[/bold]

    Example: [bold]recal watch profile.recal today.npz[/bold]

    Example: [bold]recal watch calibrated --model net.onnx --data new/[/bold]
    """
    inputs: opt.Inputs = ctx.obj
    has_model = inputs.model is not None or inputs.data is not None
    if (views is not None) + has_model > 1 or not (views or has_model or save):
        raise InputError(
            "recal watch takes a profile and new inputs (either a file of views, or --model and "
            "--data), or --save FILE."
        )
    import recal
    from recal.decisions.rule import check_share

    check_share(alpha, "alpha")
    profile = _profile_in(reference, seed)
    if save is not None:
        recal.save(profile, save)
    if views is None and not has_model:
        print_json({"profile": save, "samples": len(profile.numbers)})
        line = shell_line("watch", save, "NEW_VIEWS")
        say(f"A profile of {len(profile.numbers):,} samples was written to {save}. Next: {line}")
        return
    more: dict[str, Any] = {}
    if views is None:
        batch: Any = _collect(reference, inputs)
    elif files.is_table_of_answers(views):
        batch, more = _read_table(reference, views, inputs, profile)
    elif profile.graded:
        raise InputError(f"{reference} was fitted on a table of answers, and {views} is no table.")
    else:
        batch = inputs.views(views)
    more |= {"alpha": alpha, "permutations": max(999, math.ceil(1 / alpha))}
    with working("Comparing"):
        try:
            result = recal.watch(profile, batch, **more, random_state=seed)
        except InputError as error:
            raise error.at(f"{views or inputs.data} does not go with {reference}") from None
    print_json({"file": views or inputs.data, **result.to_dict()})
    lines = [
        [one.name, f"{one.at_fit:.3f}", f"{one.today:.3f}", f"{one.p_value:.3g}"]
        for one in result.findings
    ]
    shown = "mean confidence; the share of the class that moved most"
    if profile.graded:
        shown = "means, without missing values"
    print_table(
        result.test_message,
        ["compared", "at the fit", "today", "p"],
        lines,
        note=f"Shown: {shown}. p is corrected for all of them.",
    )
    say(result.accuracy_message)
    if not profile.graded:
        say(result.temperature_message)


def _profile_in(path: Path, seed: int) -> Profile:
    """Return the profile in a file, in a folder of `recal calibrate`, or of a file of views."""
    from recal.decisions import Profile
    from recal.decisions import profile as take

    if files.check_kind(calibration_in(path), "a calibration", "views") == "views":
        return take(opt.Inputs().views(path), random_state=seed)
    path, content = files.load_saved(path)
    profile = getattr(content, "profile_", content)
    if not isinstance(profile, Profile):
        raise InputError(
            f"{path} holds no profile; make one from the fit's views: recal watch VIEWS --save "
            "profile.recal"
        )
    return profile


def _read_table(
    reference: Path, file: Path, inputs: opt.Inputs, profile: Profile
) -> tuple[Any, dict[str, Any]]:
    """Return the confidences of a table of answers, and its signals and clusters."""
    from recal.files.tables import read_table
    from recal.workflow.scoring import read_signals

    _, content = files.load_saved(reference)
    if not files.is_signal_calibration(content):
        raise InputError(f"{file} is a table, and {reference} is no calibration of tables.")
    table, more = read_table(file), inputs.columns(file)
    if profile.signal_names:
        more["signals"] = {name: table.numbers(name) for name in profile.signal_names}
    return content.predict_confidence(*read_signals(content, table)), more


def _collect(reference: Path, inputs: opt.Inputs) -> Views:
    """Return the logits of new inputs, prepared as they were for the fit."""
    from recal.collecting import collect

    inputs.check_files()
    calibrator = files.check_calibration(*files.load_saved(reference))
    model, source, how = inputs.open_as_fitted(calibrator)
    if hasattr(calibrator, "preprocessing_"):
        how["preprocess"] = calibrator.preprocessing_.normalize
    source.labels = source.classes = None  # labels are not read
    return collect(model, source, None, preflight=False, **how)
