"""`recal calibrate`: from a model and labelled inputs to automated answers, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli import model_options as options
from recal.cli.printing import AsJson, command_line, print_json, say, shows_progress


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
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same split and same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate a model on labelled inputs, and decide which answers can be automated.

    The labelled inputs are split at random: half to fit the calibration, three tenths to choose the threshold, two
    tenths to judge both. The folder then holds calibration.recal (calibration and rule), report.html and summary.json.
    If the run is interrupted, the same command resumes it. Use inputs that the model was not trained on; a few thousand
    are enough.

    Example: [bold]recal calibrate --model net.onnx --data labelled/ --risk 0.01 --out calibrated[/bold]

    Then: [bold]recal apply calibrated --model net.onnx --data new/ --out answers.csv[/bold]
    """
    from recal.errors import InputError

    if model is None or data is None:
        absent = " and ".join(name for name, value in (("--model", model), ("--data", data)) if value is None)
        raise InputError(f"recal calibrate needs --model and --data; {absent} was not given.")
    options.check_there(model, data)
    from recal.workflow.job import calibrate as run

    between = options.preprocessing(preprocess, mean, std, divide, channels)
    opened = options.open_model(model, weights, trust, outputs, device)
    images: dict[str, Any] = {"pixels": pixels, "gray": gray, "resize": resize, "crop": crop, "on_error": on_error}
    others: dict[str, Any] = {"seconds": seconds, "part": part, "read": read}
    others |= {"label_column": label_column, "text_column": text_column}
    source = options.open_data(data, **options.reading(opened, data, **images, **others))
    how = options.given(labels=labels, batch_size=batch_size, outputs=outputs, device=device, engine=engine)
    transforms = options.transforms_for(pool, source, opened, seed)
    names = None if classes is None else classes.split(",")
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
            random_state=seed,
            progress=shows_progress() and not as_json,
            command=command_line(),
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
    say(f"Report: {out / 'report.html'}. Next: recal apply {out} --model {model} --data NEW --out answers.csv")
