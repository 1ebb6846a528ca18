"""`recal collect`: a model's logits for inputs, as they are and through a pool of transformations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli import model_options as options
from recal.cli.printing import AsJson, print_json, say, shows_progress, typed


def collect(
    out: Annotated[
        Path,
        typer.Option("--out", help="Where to write: .zarr (resumable; a folder or a URL such as s3://...) or .npz."),
    ],
    model: options.Model = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    data: options.Data = None,
    read: options.Read = None,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            help="Transformations, such as zoom:0.5-0.9:10+brightness:0.1-0.9:10 (recal transforms lists them); "
            "auto: the default ones for such inputs; or none.",
        ),
    ] = "none",
    labels: options.LabelsFile = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="The model's classes in order, separated by commas.")
    ] = None,
    preprocess: options.Preprocess = None,
    mean: options.Mean = None,
    std: options.Std = None,
    divide: options.Divide = None,
    channels: options.Channels = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    pixels: options.Pixels = None,
    gray: options.Gray = False,
    seconds: options.Seconds = None,
    label_column: options.LabelColumn = None,
    text_column: options.TextColumn = None,
    on_error: options.OnError = None,
    part: options.Part = None,
    batch_size: options.BatchSize = None,
    outputs: options.Outputs = None,
    device: options.Device = None,
    engine: options.Engine = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same pool and same pilot.")] = None,
    pilot: Annotated[
        int | None,
        typer.Option("--pilot", help="Try the whole pool on this many labelled samples, then only views that help."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over instead of resuming; overwrites the store.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a model on inputs and on transformed copies of them, and store the logits (views).

    Transformations act on the original inputs; normalisation (--divide, --mean, --std, --channels, or a function of
    your own) comes after them. A .zarr store is written batch by batch: run the same command again to resume after an
    interruption. With --pilot 1000, all views are computed for 1,000 samples only, and those that help for all.

    Example: [bold]recal collect --model net.onnx --data images/ --resize 256 --crop 224 --divide 255 --mean
    0.485,0.456,0.406 --std 0.229,0.224,0.225 --channels first --pool zoom:0.5-0.9:10 --out views.zarr[/bold]
    """
    from recal.errors import InputError

    if model is None or data is None:
        absent = " and ".join(name for name, value in (("--model", model), ("--data", data)) if value is None)
        raise InputError(f"recal collect needs --model and --data; {absent} was not given.")
    if pilot is not None and pool == "none":
        raise InputError("--pilot finds out which transformations help: name them with --pool, such as --pool auto.")
    options.check_there(model, data)
    from recal.collecting import collect as run
    from recal.collecting.local import needs_pilot

    between = options.preprocessing(preprocess, mean, std, divide, channels)
    opened = options.open_model(model, weights, trust, outputs, device)
    images: dict[str, Any] = {"pixels": pixels, "gray": gray, "resize": resize, "crop": crop, "on_error": on_error}
    others: dict[str, Any] = {
        "seconds": seconds,
        "part": part,
        "read": read,
        "label_column": label_column,
        "text_column": text_column,
    }
    names = None if classes is None else classes.split(",")
    if labels is None:
        others |= options.guessed(opened, data, names, label_column, text_column, as_json)
    source = options.open_data(data, **options.reading(opened, data, **images, **others))
    how = options.given(labels=labels, batch_size=batch_size, outputs=outputs, device=device, engine=engine, seed=seed)
    how |= {
        "out": out,
        "resume": not again,
        "progress": shows_progress() and not as_json,
        "preprocess": between,
        "classes": names,
    }
    transforms, found = options.transforms_for(pool, source, opened, seed), None
    try:
        options.preflight(opened, source, transforms, **how)
        if pilot is not None and transforms is not None and needs_pilot(source, pilot):
            from recal.collecting import run_pilot

            found = run_pilot(opened, source, transforms, pilot, **how)
            if not as_json:
                say(f"{found}.")
        views = run(opened, source, transforms if found is None else found.chosen, **how)
    except KeyboardInterrupt as stop:
        resumable = out.suffix == ".zarr"
        kept = f"What is done is kept in {out}: run the same command again to resume."
        stop.add_note(kept if resumable else "No files were written; with --out NAME.zarr a run can be resumed.")
        raise
    except InputError as error:
        if labels is not None and error.argument == "labels":
            error.at(labels)
        raise
    if as_json:
        specs = [str(transform) for transform in views.transforms]
        shape = {"samples": views.n_samples, "classes": views.n_classes, "transforms": specs}
        cost = {} if found is None else {"pilot": pilot, "passes": found.passes, "without_pilot": found.passes_without}
        print_json({**shape, **cost, "labelled": views.labels is not None, "skipped": source.skipped, "file": out})
        return
    if source.skipped:
        say(f"{len(source.skipped)} files could not be read and were skipped, such as {source.skipped[0]}.")
    labelled = () if views.labels is not None else ("--labels", "FILE")
    say(f"{views}. Written to {out}. Next: {typed('recal', 'fit', out, *labelled, '--out', 'calibration.recal')}")
