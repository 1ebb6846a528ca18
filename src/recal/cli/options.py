"""The options that several commands share, each declared once.

A command takes one as ``risk: opt.Risk = 0.01``. Options in a panel are shown by --help-all only.
A command that has the options of a model passes its parameters to `ModelInputs.of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option
from typer.core import TyperCommand

from recal.cli.printing import SESSION
from recal.errors import InputError

more = partial(Option, rich_help_panel="More options")
_model = partial(Option, rich_help_panel="Model")
_input = partial(Option, rich_help_panel="Inputs")
_image = partial(Option, rich_help_panel="Images and preprocessing")
_language = partial(Option, rich_help_panel="Language models")

# Several commands.
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]
SeedNumber = Annotated[int, Option(help="Same seed, same result.", min=0)]

# Files.
CalibrationPath = Annotated[
    Path, Argument(help="The folder of recal calibrate, or file of recal fit.")
]
ViewsFile = Annotated[Path, Argument(help="Views: an .npz file, a .zarr folder or its URL.")]
ProbsFile = Annotated[
    Path, Argument(help="Probabilities (.npz, .csv, .parquet) or views.", metavar="PROBS|VIEWS")
]
LabelsFile = Annotated[
    Path | None, Option(help="Labels, if the data have none: .npy, .txt, a table.")
]
LabelColumn = Annotated[
    str | None, Option(help="The column of labels in a table.", show_default="label")
]
ClassNames = Annotated[
    str | None, Option(help="The classes in the model's order: NEGATIVE,POSITIVE.")
]
GroupColumn = Annotated[
    str | None, Option(help="The column of groups; each gets its own guarantee.")
]
ClusterColumn = Annotated[
    str | None, Option(help="The column that says which rows belong together.")
]
RowsTable = Annotated[
    Path | None,
    Option(help="A table with these columns, one row per sample, if the data have none."),
]

# Rules and results.
Risk = Annotated[float, Option(help="The largest share of errors among automated answers.")]
Confidence = Annotated[float, Option(help="The probability that the guarantee holds.")]
GuaranteeKind = Annotated[
    str, Option(help="confidence: with the probability of --confidence; average: on average.")
]
Correct = Annotated[str | None, Option(help="The column that says which graded answers are right.")]
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
Again = Annotated[bool, more("--again", help="Start over instead of resuming.")]

# The model, its inputs, and how they are prepared (`inputs.ModelInputs`).
ModelSource = Annotated[
    str | None,
    Option(
        help="An .onnx, .pt2 or .skops file, a Hugging Face folder, module:name of an object in "
        "Python, or the address of a server (http://...)."
    ),
]
Data = Annotated[
    Path | None,
    Option(
        help="A folder of images, sounds or texts (labelled: one folder per class), a table "
        "(.csv, .parquet), .npz, .npy or .txt."
    ),
]
OutputKind = Annotated[
    str | None,
    Option(
        help="What the model returns: logits, probabilities, votes or probabilities:FLOOR.",
        show_default="logits",
    ),
]
WeightsFile = Annotated[Path | None, _model(help="A .safetensors file for the --model.")]
Trust = Annotated[str | None, _model(help="What may be opened although it can run code.")]
Device = Annotated[str | None, _model(help="The device of a torch model, such as cuda.")]
EngineName = Annotated[str | None, _model(help="Where to run: local, or ray for a cluster.")]
BatchSize = Annotated[int | None, _model(help="Samples in one forward pass.")]
Read = Annotated[str | None, _input(help="Read a folder's files as images, texts, sounds, bytes.")]
ErrorPolicy = Annotated[str | None, _input(help="If a file cannot be read: stop or skip.")]
ClusterBy = Annotated[str | None, _input(help="Clusters of files: 'parent', or a pattern.")]
PixelMode = Annotated[str | None, _image(help="Read images as rgb, gray, rgba or gray16.")]
Gray = Annotated[bool, _image("--gray", help="The same as --pixels gray.")]
Resize = Annotated[int | None, _image(help="Resize the shorter side of images to this length.")]
CropSide = Annotated[int | None, _image(help="Crop a square of this side from the middle.")]
Mean = Annotated[str | None, _image(help="Subtract this mean per channel: 0.485,0.456,0.406.")]
Std = Annotated[str | None, _image(help="Then divide by this standard deviation per channel.")]
Divide = Annotated[
    float | None,
    _image(help="Divide pixels by this first.", show_default="255 with --mean, --std, --channels"),
]
ChannelOrder = Annotated[str | None, _image(help="Where to put the channels: first, last or keep.")]
PreprocessName = Annotated[
    str | None, _image(help="module:name of a function to run before the model.")
]
Seconds = Annotated[float | None, _input(help="Cut or pad sounds to this length.")]
TextColumn = Annotated[str | None, _input(help="The one column to read, as texts.")]

# Logs of language models, and servers to query (`inputs.Questions`).
ModelName = Annotated[str | None, _language(help="The model's name on the server.")]
TemplateFiles = Annotated[
    list[Path] | None, _language(help="A prompt with {column} and {options}; repeat it for views.")
]
Choices = Annotated[str | None, _language("--options", help="The answers, such as A,B,C,D.")]
View = Annotated[list[str] | None, _language(help="NAME=FILE: a log of another prompt.")]
Scores = Annotated[
    str | None, _language(help="For lm-evaluation-harness: acc, or acc_norm.", show_default="acc")
]
Permutations = Annotated[
    int, _language(help="Ask again with the options in this many other orders.")
]
Floor = Annotated[
    float | None,
    _language(
        help="The probability of options that were not returned.",
        show_default="half of the smallest returned one, at most 1e-5",
    ),
]
MaxTokens = Annotated[int, _language(help="Tokens of an answer; more than 1 to reason.")]
TopLogprobs = Annotated[int, _language(help="How many likely tokens to ask for.")]
Concurrency = Annotated[int, _language(help="Requests at the same time.")]
Timeout = Annotated[float, _language(help="Seconds until a request is repeated.")]


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if nothing was typed.

    Examples
    --------
    >>> split_names('yes, no,","')
    ['yes', 'no', ',']
    """
    if text is None:
        return None
    import csv

    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]


def shared(
    json: Annotated[bool, Option("--json", help="Print one JSON value and nothing else.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """The options of every command, which `Command` reads."""


class Command(TyperCommand):
    """A command that takes the options of `shared`, and knows which options were typed."""

    def invoke(self, ctx: Any) -> Any:
        SESSION.as_json, SESSION.quiet = ctx.params.pop("json"), ctx.params.pop("quiet")
        SESSION.typed = {}
        for one in self.params:
            source = ctx.get_parameter_source(one.name)
            if source is not None and source.name == "COMMANDLINE":
                SESSION.typed[str(one.name)] = shown_name(one)
        return super().invoke(ctx)


def shown_name(parameter: Any) -> str:
    """Return an option or argument as the help writes it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper()
    return str(parameter.opts[0])


def refuse(what: str, names: Iterable[str]) -> None:
    """Refuse these options, if they were typed, because they would have no effect."""
    names = set(names)
    if flags := [flag for name, flag in SESSION.typed.items() if name in names]:
        pronoun = "them" if flags[1:] else "it"
        raise InputError(f"{' and '.join(flags)} cannot be used with {what}. Leave {pronoun} out.")


def refuse_unused(what: str, used: Iterable[str]) -> None:
    """Refuse all options that were typed, except those in `used` and those of every command."""
    refuse(what, set(SESSION.typed) - {*used, "out", "force", "json", "quiet"})
