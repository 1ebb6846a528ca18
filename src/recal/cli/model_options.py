"""The options that `collect` and `apply` share: which model, which inputs, and what stands between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.recognise import missing

# The groups of options in --help.
_MODEL = "Model"
_INPUTS = "Inputs"
_IMAGES = "Images and preprocessing"
_TABLES = "Tables and sounds"
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="An .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name of an object in Python.",
        rich_help_panel=_MODEL,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        help="A .safetensors file for the torch network that --model module:function builds.",
        rich_help_panel=_MODEL,
    ),
]
Trust = Annotated[
    str | None,
    typer.Option(
        "--trust",
        help="Types in a .skops file that skops does not trust by default, such as trees; separated by commas.",
        rich_help_panel=_MODEL,
    ),
]
Outputs = Annotated[
    str | None,
    typer.Option(
        "--outputs",
        help="What the model returns: logits, probabilities, votes (of trees or neighbours) or probabilities:FLOOR.",
        rich_help_panel=_MODEL,
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="The device of a torch model, such as cuda.", rich_help_panel=_MODEL)
]
Engine = Annotated[
    str | None, typer.Option("--engine", help="Where to run: local, or ray for a cluster.", rich_help_panel=_MODEL)
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="Samples in one forward pass.", rich_help_panel=_MODEL)
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A folder of images, sounds or texts (labelled: one folder per class), a table (.csv, .parquet), .npz, "
        ".npy, IDX, .txt, or a CIFAR archive.",
        rich_help_panel=_INPUTS,
    ),
]
Read = Annotated[
    str | None,
    typer.Option(
        "--read",
        help="Read the files of a folder as images, texts, sounds or bytes. The default follows their names.",
        rich_help_panel=_INPUTS,
    ),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option(
        "--labels", help="Labels, if the data have none: .npy, IDX, or .txt with one per line.", rich_help_panel=_INPUTS
    ),
]
OnError = Annotated[
    str | None,
    typer.Option(
        "--on-error", help="What to do with a file that cannot be read: stop or skip.", rich_help_panel=_INPUTS
    ),
]
Part = Annotated[
    str | None, typer.Option("--part", help="The part of a CIFAR archive: train or test.", rich_help_panel=_INPUTS)
]
Pixels = Annotated[
    str | None,
    typer.Option(
        "--pixels",
        help="Read images as rgb, gray, rgba or gray16. The default follows the model's input shape, where it tells.",
        rich_help_panel=_IMAGES,
    ),
]
Gray = Annotated[bool, typer.Option("--gray", help="The same as --pixels gray.", rich_help_panel=_IMAGES)]
Resize = Annotated[
    int | None,
    typer.Option("--resize", help="Resize the shorter side of images to this length.", rich_help_panel=_IMAGES),
]
Crop = Annotated[
    int | None, typer.Option("--crop", help="Crop a square of this side from the middle.", rich_help_panel=_IMAGES)
]
Mean = Annotated[
    str | None,
    typer.Option("--mean", help="Subtract this mean per channel, such as 0.485,0.456,0.406.", rich_help_panel=_IMAGES),
]
Std = Annotated[
    str | None,
    typer.Option("--std", help="Then divide by this standard deviation per channel.", rich_help_panel=_IMAGES),
]
Divide = Annotated[
    float | None,
    typer.Option(
        "--divide",
        help="Divide pixels by this first. The default is 255 with --mean, --std or --channels, and 1 without.",
        rich_help_panel=_IMAGES,
    ),
]
Channels = Annotated[
    str | None,
    typer.Option(
        "--channels", help="Where the model wants the channels of images: first, last or keep.", rich_help_panel=_IMAGES
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess", help="module:name of a function that runs after the transformations.", rich_help_panel=_IMAGES
    ),
]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Cut or pad sounds to this length.", rich_help_panel=_TABLES)
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        help="The column of labels. The default is 'label', or the only column with the model's classes.",
        rich_help_panel=_TABLES,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option("--text-column", help="The one column to read, as texts.", rich_help_panel=_TABLES)
]


TABLES = (".csv", ".tsv", ".parquet")


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the defaults of the others live in the function that is called."""
    return {name: value for name, value in options.items() if value is not None}


def check_there(model: str, data: Path) -> None:
    """Refuse files that are not there, before anything is imported that would open them."""
    from recal.errors import FileError, InputError
    from recal.files.places import is_remote

    if is_remote(data):
        raise InputError(f"--data cannot be a URL, got {data}. Copy the inputs to a folder or file of this machine.")
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
        raise InputError(
            f"--device applies to torch models only, and {spec} is not one. Set the device where the model is created."
        )
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
    if stored is not None and data.suffix.lower() in TABLES:
        found = _columns(stored, data)
    if stored is not None and data.is_dir():
        names = ("pixels", "resize", "crop") if stored.pixels is not None else ("seconds", "read")
        found = {name: getattr(stored, name) for name in names}
        if stored.pixels is not None:
            _refuse_others({name: value for name, value in typed.items() if name in names}, found, stored)
    return given(**{**found, **typed, **given(**others)})


def _columns(stored: Any, data: Path) -> dict[str, Any]:
    """Return the columns that the calibration's table was read by; new inputs need no labels."""
    from recal.collecting.inputs.tables import table_columns

    if stored.text_column is None and stored.label_column is None:
        return {}
    there = table_columns(data)
    return {
        "text_column": stored.text_column,
        "label_column": stored.label_column if stored.label_column in there else None,
    }


def guessed(
    model: Any, data: Path, classes: Any, label_column: str | None, text_column: str | None, quiet: bool
) -> dict[str, str]:
    """Return the columns of labels and texts where only one reading of a table is possible, and print them."""
    if data.suffix.lower() not in TABLES or text_column is not None:
        return {}
    from recal.cli.printing import say
    from recal.collecting.inputs.tables import guess_columns

    known = getattr(model, "classes", None) if classes is None else classes
    features = [str(name) for name in getattr(model, "columns", ())]
    found = guess_columns(data, known, label_column, features)
    for name, column in found.items():
        what = f"{name.removesuffix('_column').capitalize()}s"
        say(f"{what} are read from the column {column!r} of {data}.", quiet=quiet)
    return found


def number_labels(source: Any, quiet: bool) -> None:
    """Take labels that are names for columns in alphabetical order, as most libraries do, and say so.

    Another order shows in a few hundred predictions (`recal.collecting.preflight`), which are looked at next.
    """
    import numpy as np

    values = source.labels
    if values is None or source.classes is not None or np.asarray(values).dtype.kind not in "UO":
        return
    if not all(isinstance(value, str) for value in values):
        return
    from recal.cli.printing import say

    classes, source.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    source.classes = tuple(classes.tolist())
    shown = ", ".join(source.classes[:8]) + (", ..." if len(classes) > 8 else "")
    say(f"The model's columns are taken in alphabetical order: {shown}.", quiet=quiet)


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
    if (outputs, stored.outputs) == ("probabilities", "votes"):
        return stored.outputs
    _refuse_others({"outputs": outputs}, {"outputs": stored.outputs}, stored)
    return outputs


def compare(stored: Any, found: Any, path: Path) -> None:
    """Warn where the views to judge were collected in another way, or from another model, than those of the fit."""
    if stored is None or found is None:
        return
    from recal.transforms.preprocessing import check_model

    if found.model is not None:
        check_model(stored, found.model)
    if stored.options() == found.options():
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
