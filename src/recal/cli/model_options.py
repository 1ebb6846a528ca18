"""The options that `collect` and `apply` share: which model, which inputs, and what stands between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.recognise import missing

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name in Python, here or installed.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", help="A .safetensors file for the torch network that --model module:function builds."),
]
Trust = Annotated[
    str | None,
    typer.Option(
        "--trust", help="Types of a .skops file that skops does not vouch for, such as trees; separated by commas."
    ),
]
Pixels = Annotated[
    str | None,
    typer.Option("--pixels", help="Images as: rgb, gray, rgba or gray16; an ONNX model's input shape tells by itself."),
]
Gray = Annotated[bool, typer.Option("--gray", help="The same as --pixels gray.")]
Read = Annotated[
    str | None,
    typer.Option("--read", help="A folder's files as: images, texts, sounds or bytes; by their names if not said."),
]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Sounds: cut or filled up to this length.")]
LabelColumn = Annotated[
    str | None, typer.Option("--label-column", help="Tables: the column of labels; 'label' if not said.")
]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="Tables: the one column to read, as texts.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Inputs: .npz, .npy, IDX, a CIFAR archive, a table (.csv, .parquet), texts (.txt), or a folder of images, "
        "sounds or texts by class.",
    ),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", help="Labels where the data bring none: .npy, IDX, or .txt with one per line."),
]
Preprocess = Annotated[
    str | None, typer.Option("--preprocess", help="package.module:name of a function that runs after transformations.")
]
Mean = Annotated[str | None, typer.Option("--mean", help="Normalise: mean per channel, such as 0.485,0.456,0.406.")]
Std = Annotated[str | None, typer.Option("--std", help="Normalise: standard deviation per channel.")]
Divide = Annotated[float | None, typer.Option("--divide", help="Divide pixels by this first, such as 255.")]
Channels = Annotated[
    str | None, typer.Option("--channels", help="Where the model wants the channels of images: first, last or keep.")
]
Resize = Annotated[int | None, typer.Option("--resize", help="Images: the new length of the shorter side.")]
Crop = Annotated[int | None, typer.Option("--crop", help="Images: the side of the square kept from the middle.")]
OnError = Annotated[str | None, typer.Option("--on-error", help="Images that cannot be read: stop or skip.")]
Part = Annotated[str | None, typer.Option("--part", help="CIFAR archives: train or test.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Samples in one forward pass.")]
Outputs = Annotated[str | None, typer.Option("--outputs", help="What the model returns: logits or probabilities.")]
Device = Annotated[str | None, typer.Option("--device", help="Where a torch model runs, such as cuda.")]
Engine = Annotated[str | None, typer.Option("--engine", help="local, or ray for a cluster.")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the defaults of the others live in the function that is called."""
    return {name: value for name, value in options.items() if value is not None}


def check_there(model: str, data: Path) -> None:
    """Refuse files that are not there, before anything is imported that would open them."""
    from recal.errors import FileError

    for path in (Path(model), data):
        named = path is data or path.suffix.lower() in (".onnx", ".pt2", ".skops")
        if named and not path.exists():
            raise FileError(missing(path))


def open_model(
    spec: str, weights: Path | None, trust: str | None, outputs: str | None = None, device: str | None = None
) -> Any:
    """Return the adapter of the model that was typed."""
    from recal.collecting.models.base import as_model, import_model
    from recal.errors import InputError

    model = import_model(spec, weights=weights, trusted=() if trust is None else trust.split(","))
    try:
        opened = as_model(model, **given(outputs=outputs, device=device))
    except InputError as error:
        raise error if spec in str(error) or error.argument == "outputs" else error.at(f"--model {spec}") from None
    if device is not None and not hasattr(opened, "asked"):
        raise InputError(f"--device moves torch models, and {spec} is none: choose the device where it is made.")
    return opened


def open_data(data: Path, **how: Any) -> Any:
    """Return the source of the inputs that were typed."""
    from recal.collecting.inputs.sources import as_source

    return as_source(data, **given(**how))


def reading(
    model: Any,
    data: Path,
    *,
    pixels: str | None,
    gray: bool,
    resize: int | None,
    crop: int | None,
    seconds: float | None,
    stored: Any = None,
    **others: Any,
) -> dict[str, Any]:
    """Return how files are read: as typed, as the calibration's views were, or, for grey, as the model's input asks."""
    from recal.errors import InputError

    if gray and pixels not in (None, "gray"):
        raise InputError(f"--gray and --pixels {pixels} contradict each other.")
    square = None if crop is None else (crop, crop)  # as views tell it
    typed = given(pixels="gray" if gray else pixels, resize=resize, crop=square, seconds=seconds)
    wanted: str | None = getattr(model, "pixels", None)
    found: dict[str, Any] = {"pixels": wanted} if data.is_dir() and wanted != "rgb" and stored is None else {}
    if stored is not None and data.is_dir():
        names = ("pixels", "resize", "crop") if stored.pixels is not None else ("seconds",)
        found = {name: getattr(stored, name) for name in names}
        if stored.pixels is not None:
            _refuse_others({name: value for name, value in typed.items() if name in names}, found, stored)
    return given(**{**found, **typed, **others})


def transforms_for(pool: str, source: Any, model: Any, seed: int | None) -> Any:
    """Return the pool that was typed: none, the usual one or the damage for such inputs, or a spec."""
    from recal.errors import InputError

    if not pool.strip():
        raise InputError("--pool is empty; give none, auto, or transformations such as zoom:0.5-0.9:10.")
    if pool in ("auto", "damage"):
        from recal.collecting.default_pool import usual_pool

        return usual_pool(source, model, seed or 0, pool)
    return None if pool == "none" else pool


def preflight(model: Any, source: Any, transforms: Any, *, engine: Any = None, **how: Any) -> None:
    """Put the first batch through everything before the work; on a cluster the model is not asked here."""
    from recal.collecting.preflight import preflight as check

    names = ("labels", "classes", "preprocess", "outputs", "batch_size", "device", "seed")
    check(model, source, transforms, asked=engine is None, **{name: how[name] for name in names if name in how})


def preprocessing(
    function: str | None,
    mean: str | None,
    std: str | None,
    divide: float | None,
    channels: str | None,
    stored: Any = None,
) -> Any:
    """Return the preprocess that the options describe, or that `stored`, the calibration's, tells; or None."""
    from recal.errors import InputError

    normalise = given(mean=_numbers(mean, "mean"), std=_numbers(std, "std"), divide=divide, channels=channels)
    if function is not None:
        if normalise:
            raise InputError(f"--preprocess does it all; leave out {', '.join('--' + name for name in normalise)}.")
        from recal.collecting.models.base import import_object

        return import_object(function)
    if not normalise:
        return None
    from recal.collecting import Normalize

    if stored is not None and stored.function is None:  # one option may be repeated without the others
        known = {} if stored.normalize is None else vars(stored.normalize)
        _refuse_others(normalise, known, stored)
        return stored.normalize
    return Normalize(**normalise)


def outputs_of(stored: Any, outputs: str | None) -> Any:
    """Return the kind of outputs that was typed, or that the calibration's views were collected with."""
    if stored is None or outputs is None:
        return outputs if stored is None else stored.outputs
    _refuse_others({"outputs": outputs}, {"outputs": stored.outputs}, stored)
    return outputs


def compare(stored: Any, found: Any, path: Path) -> None:
    """Warn where the views to judge were collected in another way than those of the fit."""
    if stored is None or found is None or stored.options() == found.options():
        return
    import warnings

    warnings.warn(
        f"{path} was collected with {str(found) or 'no preprocessing'}, and the views of the fit with "
        f"{str(stored) or 'no preprocessing'}: the calibration was not fitted for this.",
        UserWarning,
        stacklevel=2,
    )


def _refuse_others(typed: dict[str, Any], known: dict[str, Any], stored: Any) -> None:
    """Refuse options that are not those of the collect."""
    from recal.errors import InputError

    for name, value in typed.items():
        if name not in known or known[name] != value:
            parts = value if isinstance(value, tuple) else (value,)
            shown = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
            raise InputError(
                f"--{name} {shown} contradicts the calibration, whose views were collected with "
                f"{str(stored) or 'no preprocessing'}. Leave the option out, or collect and fit again."
            )


def _numbers(text: str | None, name: str) -> tuple[float, ...] | None:
    from recal.errors import InputError

    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} takes numbers separated by commas, got {text!r}.") from None
