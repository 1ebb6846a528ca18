"""`recal watch`: are new inputs still like those of the fit? No labels needed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.options import ModelOptions
from recal.cli.printing import AsJson, is_quiet, print_json, print_table, say, typed, working

if TYPE_CHECKING:
    from recal.views import Views


def watch(
    reference: Annotated[
        Path,
        typer.Argument(
            metavar="PROFILE|CALIBRATION|VIEWS",
            help="What inputs looked like at the fit: a profile, a calibration or views.",
        ),
    ],
    inputs: ModelOptions,
    views: Annotated[Path | None, typer.Argument(help="Views or logits of new inputs. Labels are not read.")] = None,
    alpha: Annotated[float, typer.Option("--alpha", help="The allowed probability of a false alarm.")] = 0.01,
    stream: Annotated[
        bool, typer.Option("--stream", help="Read inputs one by one; the alarm is valid at any time.")
    ] = False,
    save_to: Annotated[
        Path | None, typer.Option("--save", help="Save the profile of the first file's views here.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare new inputs with those of the fit, without labels, and estimate today's accuracy.

    The test compares confidence, class mix and, if there are views, how answers react to them. The probability of a
    false alarm is at most --alpha. Calibrations of [bold]recal fit[/bold] have a profile. If it was fitted on views of
    three or more kinds of damage, accuracy and temperature of the new inputs are estimated from their logits;
    [bold]recal apply --follow[/bold] uses them. The exit code is 0 with or without an alarm.

    Example: [bold]recal watch held-out.npz --save profile.recal[/bold]

    Example: [bold]recal watch profile.recal today.npz[/bold]

    Example: [bold]recal watch calibrated --model net.onnx --data new/[/bold]
    """
    from recal import save
    from recal.cli.files import open_views, profile_in
    from recal.decisions import StreamWatch
    from recal.decisions import watch as compare
    from recal.decisions.rule import check_share
    from recal.errors import InputError

    check_share(alpha, "alpha")
    profile = profile_in(reference, seed)
    if save_to is not None:
        save(profile, save_to)
    if views is None and not inputs.is_complete:
        if save_to is None:
            raise InputError(
                "recal watch takes a profile and new inputs (a file of views, or --model and --data), or --save FILE."
            )
        written = f"A profile of {len(profile.answers):,} samples was written to {save_to}."
        say(f"{written} Next: {typed('recal', 'watch', save_to, 'NEW_VIEWS')}", quiet=as_json)
        if as_json:
            print_json({"profile": save_to, "samples": len(profile.answers)})
        return
    batch = open_views(views) if views is not None else _collect(reference, inputs, as_json)
    source = views if views is not None else inputs.data
    with working("Comparing"):
        try:
            found = compare(profile, batch, alpha=alpha, permutations=max(999, math.ceil(1 / alpha)), random_state=seed)
        except InputError as error:
            raise error.at(f"{source} does not go with {reference}") from None
        followed = None
        if stream:
            held = profile.held_by(batch)
            followed = StreamWatch(profile, alpha, use_views=held, random_state=seed).update(batch)
    if as_json:
        streamed = None if followed is None else {"highest": followed.highest, "alarm_at": followed.alarm_at}
        print_json({"file": source, **found.to_dict(), "stream": streamed})
        return
    rows = [[one.name, f"{one.at_fit:.3f}", f"{one.today:.3f}", f"{one.p_value:.3g}"] for one in found.findings]
    reactions = "; the share of answers that views change; the share of views in which confidence rose"
    print_table(
        found.test_message,
        ["compared", "at the fit", "today", "p"],
        rows,
        note=f"Shown: mean confidence; the share of the class that moved most{reactions if len(rows) > 2 else ''}. "
        "p is corrected for all of them.",
    )
    say(found.accuracy_message)
    say(found.temperature_message)
    if found.class_mix is not None and found.class_mix.changed:
        names = None if batch.classes is None else list(batch.classes)
        say(f"Another class mix alone explains these inputs: {found.class_mix.moves(names)}.")
        say("To use it: recal apply CALIBRATION NEW_VIEWS --class-mix follow --out probs.npz")
    if followed is not None:
        when = "No alarm" if followed.alarm_at is None else f"Alarm at input {followed.alarm_at:,}"
        say(f"As a stream: {when}; the evidence against 'no change' reached {followed.highest:.3g} of {1 / alpha:.3g}.")


def _collect(reference: Path, inputs: ModelOptions, quiet: bool) -> Views:
    """Return the logits of new inputs, prepared as they were for the fit."""
    from recal.cli.files import load_calibration
    from recal.collecting import collect
    from recal.transforms.preprocessing import check_model

    inputs.check_files("watch")
    stored = getattr(load_calibration(reference), "preprocessing_", None)
    model = inputs.open_model(stored)
    check_model(stored, model.fingerprint())
    how: dict[str, Any] = inputs.running(stored, labels=False)
    preprocess = inputs.preprocessing(stored)
    if preprocess is None and stored is not None:
        preprocess = stored.normalize
    source = inputs.open_data(model, stored)
    source.labels = source.classes = None  # labels are not read
    return collect(model, source, None, preprocess=preprocess, progress=not is_quiet() and not quiet, **how)
