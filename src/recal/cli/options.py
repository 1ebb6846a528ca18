"""The options that several commands share, each declared once: ``risk: opt.Risk = 0.01``."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from recal.errors import InputError

_model = partial(Option, rich_help_panel="Model")
_input = partial(Option, rich_help_panel="Inputs")
_image = partial(Option, rich_help_panel="Images and preprocessing")

# Several commands.
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]
SeedNumber = Annotated[int, Option(help="Same seed, same result.", min=0)]

# Files.
CalibrationPath = Annotated[
    Path, Argument(help="The folder of recal calibrate, or file of recal fit.")
]
ViewsFile = Annotated[Path, Argument(help="Views: an .npz file or a .zarr folder.")]
ProbsFile = Annotated[
    Path, Argument(help="Probabilities (.npz, .csv, .parquet) or views.", metavar="PROBS|VIEWS")
]

# What is known about the rows of a file.
LabelColumn = Annotated[
    str | None, Option(help="The column of labels in a table.", show_default="label")
]
Labels = Annotated[
    Path | None, Option(help="Labels, if the data have none: .npy, .txt, a table.", path_type=Path)
]
Classes = Annotated[str | None, Option(help="The classes in the model's order: NEGATIVE,POSITIVE.")]
Group = Annotated[str | None, Option(help="The column of groups; each gets its own guarantee.")]
Cluster = Annotated[str | None, Option(help="The column that says which rows belong together.")]
Rows = Annotated[
    Path | None,
    Option(
        help="A table with these columns, one row per sample, if the data have none.",
        path_type=Path,
    ),
]
Correct = Annotated[str | None, Option(help="The column that says which graded answers are right.")]

# Rules and results.
Risk = Annotated[float, Option(help="The largest share of errors among automated answers.")]
Confidence = Annotated[float, Option(help="The probability that the guarantee holds.")]
GuaranteeKind = Annotated[
    str, Option(help="confidence: with the probability of --confidence; average: on average.")
]
CrossFitting = Annotated[bool, Option("--cross-fit", help="Fit and decide on the same rows.")]
BinCount = Annotated[int, Option(help="Number of bins of ECE and other binned errors.")]
MethodNames = Annotated[
    str | None,
    Option(
        help="Short names, joined with commas; `all` for every method.",
        show_default="ts,ets,spline,irm,svs, and of views recal,stack",
    ),
]
Splits = Annotated[int | None, Option(help="Random splits; by default 10 halves of one file.")]

# A model.
ModelSource = Annotated[
    str | None,
    Option(
        help="An .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name of an object in "
        "Python."
    ),
]
Data = Annotated[
    Path | None,
    Option(
        help="A folder of images, sounds or texts (labelled: one folder per class), a table "
        "(.csv, .parquet), .npz, .npy or .txt.",
        path_type=Path,
    ),
]
OutputKind = Annotated[
    str | None,
    _model(help="What the model returns: logits, probabilities or votes.", show_default="logits"),
]
Trust = Annotated[str | None, _model(help="What may be opened although it can run code.")]
Device = Annotated[str | None, _model(help="The device of a torch model, such as cuda.")]
Engine = Annotated[str | None, _model(help="Where to run: local, or ray for a cluster.")]
BatchSize = Annotated[int | None, _model(help="Samples in one forward pass.")]

# How inputs are read and prepared.
Read = Annotated[str | None, _input(help="Read a folder's files as images, texts or sounds.")]
OnError = Annotated[str | None, _input(help="If a file cannot be read: stop or skip.")]
ClusterBy = Annotated[str | None, _input(help="Clusters of files: 'parent', or a pattern.")]
Seconds = Annotated[float | None, _input(help="Cut or pad sounds to this length.")]
TextColumn = Annotated[str | None, _input(help="The one column to read, as texts.")]
Pixels = Annotated[str | None, _image(help="Read images as rgb or gray.")]
Resize = Annotated[int | None, _image(help="Resize the shorter side of images to this length.")]
Crop = Annotated[int | None, _image(help="Crop a square of this side from the middle.")]
Mean = Annotated[str | None, _image(help="Subtract this mean per channel: 0.485,0.456,0.406.")]
Std = Annotated[str | None, _image(help="Then divide by this standard deviation per channel.")]
Divide = Annotated[
    float | None,
    _image(help="Divide pixels by this first.", show_default="255 with --mean, --std, --channels"),
]
Channels = Annotated[str | None, _image(help="Where to put the channels: first, last or keep.")]


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if nothing was typed.

    Examples
    --------
    >>> split_names('yes, no,","')
    ['yes', 'no', ',']
    """
    if text is None:
        return None
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the called function has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}


def refuse(ctx: Any, what: str, names: Iterable[str]) -> None:
    """Refuse these options, if they were typed, because they would have no effect."""
    names = set(names)
    typed = [
        one
        for one in ctx.command.params
        if one.name in names and ctx.params.get(one.name) not in (None, False, (), [], one.default)
    ]
    if typed:
        flags = [one.opts[0] if one.opts[0].startswith("-") else one.name.upper() for one in typed]
        raise InputError(f"{' and '.join(flags)} cannot be used with {what}. Leave it out.")


def refuse_unused(ctx: Any, what: str, used: Iterable[str]) -> None:
    """Refuse all options that were typed, except those in `used` and those of every command."""
    refuse(ctx, what, set(ctx.params) - {*used, "out", "force"})
