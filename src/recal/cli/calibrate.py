"""`recal calibrate`: from a model and labelled inputs to automated answers, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli import model_options as options
from recal.cli.printing import AsJson, command_line, command_words, print_json, say, shows_progress, typed


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="The folder to write: calibration, rule and report.")],
    model: options.Model = None,
    weights: options.Weights = None,
    trust: options.Trust = None,
    data: options.Data = None,
    read: options.Read = None,
    risk: Annotated[float, typer.Option("--risk", help="The largest share of errors among automated answers.")] = 0.01,
    confidence: Annotated[float, typer.Option("--confidence", help="The probability that the guarantee holds.")] = 0.95,
    pool: Annotated[
        str,
        typer.Option("--pool", help="Transformations to try; auto: the default ones for such inputs; none: no views."),
    ] = "auto",
    pilot: Annotated[
        int, typer.Option("--pilot", help="Try all transformations on this many inputs, then only those that help.")
    ] = 1000,
    cross_fit: Annotated[
        bool,
        typer.Option(
            "--cross-fit", help="Use 80 % to fit and to decide: automates more. Guarantee measured, not proven."
        ),
    ] = False,
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
    again: Annotated[
        bool, typer.Option("--again", help="Start over instead of resuming; overwrites what the folder holds.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same split and same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate a model on labelled inputs, and decide which answers can be automated.

    Use inputs that the model was not trained on; a few thousand are enough. They are split at random: half to fit the
    calibration, 30 % to choose the threshold, 20 % to check both. With --cross-fit, 80 % are used for both,
    which automates more where labels are few.

    The folder then holds calibration.recal (calibration and rule), report.html and summary.json. If the run is
    interrupted, the same command resumes it.

    Example: [bold]recal calibrate --model net.onnx --data labelled/ --risk 0.01 --out calibrated[/bold]

    Then: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]
    """
    from recal.errors import InputError

    if model is None or data is None:
        absent = " and ".join(name for name, value in (("--model", model), ("--data", data)) if value is None)
        raise InputError(f"recal calibrate needs --model and --data; {absent} was not given.")
    options.check_there(model, data)
    from recal.workflow.job import calibrate as run
    from recal.workflow.job import check_labelled

    between = options.preprocessing(preprocess, mean, std, divide, channels)
    opened = options.open_model(model, weights, trust, outputs, device)
    images: dict[str, Any] = {"pixels": pixels, "gray": gray, "resize": resize, "crop": crop, "on_error": on_error}
    files: dict[str, Any] = {"seconds": seconds, "part": part, "read": read}
    names = None if classes is None else classes.split(",")
    files |= {"label_column": label_column, "text_column": text_column}
    if labels is None:
        files |= options.guessed(opened, data, names, label_column, text_column, as_json)
    source = options.open_data(data, **options.reading(opened, data, **images, **files))
    how = options.given(labels=labels, batch_size=batch_size, outputs=outputs, device=device, engine=engine)
    transforms = options.transforms_for(pool, source, opened, seed)
    if labels is None:
        check_labelled(source, data)
        if names is None and opened.classes is None:
            options.number_labels(source, as_json)
    options.preflight(opened, source, transforms, preprocess=between, classes=names, **how)
    try:
        found = run(
            opened,
            source,
            out,
            risk=risk,
            confidence=confidence,
            pool=None if pool == "none" else pool,
            pilot=pilot,
            classes=names,
            preprocess=between,
            cross_fit=cross_fit,
            random_state=seed,
            progress=shows_progress() and not as_json,
            command=command_line(),
            resume=not again,
            say=lambda line: say(line, quiet=as_json),
            **how,
        )
    except KeyboardInterrupt as stop:
        stop.add_note(f"What is done is kept in {out}: run the same command again to resume.")
        raise
    if as_json:
        print_json({**found.to_dict(), "skipped": source.skipped, "folder": out})
        return
    if source.skipped:
        say(f"{len(source.skipped)} files could not be read and were skipped, such as {source.skipped[0]}.")
    say("")
    for line in found.lines():
        say(line)
    next_line = _lower_demand(found.decision.suggested_risk) if not found.decision.possible else None
    if next_line is None:
        others = {"weights": weights, "trust": trust, "preprocess": preprocess, "device": device, "engine": engine}
        asked = {"model": model, **options.given(**others), "data": "NEW", "out": "answers.csv"}
        words = [word for name, value in asked.items() for word in (f"--{name}", value)]
        next_line = typed("recal", "apply", out, *words)
    say(f"Report: {out / 'report.html'}. Next: {next_line}")


def _lower_demand(risk: float | None) -> str | None:
    """The same command with a risk that the labelled inputs can show; what was collected is used again."""
    if risk is None:
        return None
    words = command_words()
    place = next((i for i, word in enumerate(words) if word == "--risk" or word.startswith("--risk=")), None)
    kept = words if place is None else words[:place] + words[place + (1 if "=" in words[place] else 2) :]
    return typed("recal", *kept, "--risk", f"{risk:g}")
