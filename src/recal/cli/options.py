"""Blocks of options that several commands share, each declared once.

A command takes a block as one parameter whose annotation is the block's class: ``inputs: ModelOptions``. `expanded`
replaces that parameter by the block's fields before the parser sees the command.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from recal.cli.files import missing, row_columns

ALL_OPTIONS = "--help-all"
MORE = "More options"
# The groups of options in --help-all. An option without a group is shown by --help.
_MODEL = "Model"
_INPUTS = "Inputs"
_IMAGES = "Images and preprocessing"
_TABLES = "Tables and sounds"
_LANGUAGE = "Language models"
# Options that every command has; a long list of options does not need them at the top.
_GENERAL = ("as_json", "force", "quiet")
TABLES = (".csv", ".tsv", ".parquet")


Outputs = Annotated[
    str | None,
    typer.Option(
        "--outputs",
        help="What the model returns: logits, probabilities, votes (of trees or neighbours) or probabilities:FLOOR.",
        show_default="logits",
    ),
]


Trust = Annotated[
    str | None,
    typer.Option(
        "--trust",
        help="What may be opened though it can run code: pt2 for a .pt2 file, or the types of a .skops file that "
        "skops does not trust by default; separated by commas.",
        rich_help_panel=_MODEL,
    ),
]


@dataclass(frozen=True)
class PreprocessOptions:
    """What happens to inputs between the transformations and the model."""

    mean: Annotated[
        str | None,
        typer.Option(
            "--mean", help="Subtract this mean per channel, such as 0.485,0.456,0.406.", rich_help_panel=_IMAGES
        ),
    ] = None
    std: Annotated[
        str | None,
        typer.Option("--std", help="Then divide by this standard deviation per channel.", rich_help_panel=_IMAGES),
    ] = None
    divide: Annotated[
        float | None,
        typer.Option(
            "--divide",
            help="Divide pixels by this first. The default is 255 with --mean, --std or --channels, and 1 without.",
            rich_help_panel=_IMAGES,
        ),
    ] = None
    channels: Annotated[
        str | None,
        typer.Option(
            "--channels",
            help="Where the model wants the channels of images: first, last or keep.",
            rich_help_panel=_IMAGES,
        ),
    ] = None
    preprocess: Annotated[
        str | None,
        typer.Option(
            "--preprocess",
            help="module:name of a function that runs after the transformations.",
            rich_help_panel=_IMAGES,
        ),
    ] = None

    def preprocessing(self, stored: Any = None) -> Any:
        """Return the preprocess that the options describe, or the one of a calibration; None where there is none."""
        from recal.errors import InputError

        normalise = without_none(
            mean=_numbers(self.mean, "mean"),
            std=_numbers(self.std, "std"),
            divide=self.divide,
            channels=self.channels,
        )
        if self.preprocess is not None:
            if normalise:
                raise InputError(f"--preprocess does it all; leave out {', '.join('--' + name for name in normalise)}.")
            from recal.collecting.models.base import import_object

            return import_object(self.preprocess)
        if not normalise:
            return None
        from recal.collecting import Normalize

        if stored is not None and stored.function is None:  # one option may be repeated without the others
            _refuse_others(normalise, {} if stored.normalize is None else vars(stored.normalize), stored)
            return stored.normalize
        return Normalize(**normalise)


@dataclass(frozen=True)
class ModelOptions(PreprocessOptions):
    """Which model, which inputs, and how inputs are prepared: shared by calibrate, collect, apply and watch."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="An .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name of an object in Python.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="A folder of images, sounds or texts (labelled: one folder per class), a table (.csv, .parquet), "
            ".npz, .npy or .txt.",
        ),
    ] = None
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column",
            help="The column of labels in a table. By default 'label', or the only column with the model's classes.",
        ),
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help="The model's classes in order, separated by commas. A model with one output: NEGATIVE,POSITIVE.",
        ),
    ] = None
    outputs: Outputs = None
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            help="A .safetensors file for the torch network that --model module:function builds.",
            rich_help_panel=_MODEL,
        ),
    ] = None
    trust: Trust = None
    device: Annotated[
        str | None, typer.Option("--device", help="The device of a torch model, such as cuda.", rich_help_panel=_MODEL)
    ] = None
    engine: Annotated[
        str | None, typer.Option("--engine", help="Where to run: local, or ray for a cluster.", rich_help_panel=_MODEL)
    ] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Samples in one forward pass.", rich_help_panel=_MODEL)
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels", help="Labels, if the data have none: .npy or .txt with one per line.", rich_help_panel=_INPUTS
        ),
    ] = None
    read: Annotated[
        str | None,
        typer.Option(
            "--read",
            help="Read the files of a folder as images, texts, sounds or bytes. The default follows their names.",
            rich_help_panel=_INPUTS,
        ),
    ] = None
    on_error: Annotated[
        str | None,
        typer.Option(
            "--on-error", help="What to do with a file that cannot be read: stop or skip.", rich_help_panel=_INPUTS
        ),
    ] = None
    pixels: Annotated[
        str | None,
        typer.Option(
            "--pixels",
            help="Read images as rgb, gray, rgba or gray16. The default follows the model's input shape, if it tells.",
            rich_help_panel=_IMAGES,
        ),
    ] = None
    gray: Annotated[bool, typer.Option("--gray", help="The same as --pixels gray.", rich_help_panel=_IMAGES)] = False
    resize: Annotated[
        int | None,
        typer.Option("--resize", help="Resize the shorter side of images to this length.", rich_help_panel=_IMAGES),
    ] = None
    crop: Annotated[
        int | None, typer.Option("--crop", help="Crop a square of this side from the middle.", rich_help_panel=_IMAGES)
    ] = None
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Cut or pad sounds to this length.", rich_help_panel=_TABLES)
    ] = None
    text_column: Annotated[
        str | None, typer.Option("--text-column", help="The one column to read, as texts.", rich_help_panel=_TABLES)
    ] = None

    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="The column that says which rows belong together, such as a patient or a video.",
            rich_help_panel=_TABLES,
        ),
    ] = None
    cluster_by: Annotated[
        str | None,
        typer.Option(
            "--cluster-by",
            help="For a folder: which files belong together; 'parent' for those in one folder, or a regular expression "
            "that finds the cluster in each name.",
            rich_help_panel=_INPUTS,
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="The column of groups. Each group gets its own offset, threshold and guarantee.",
            rich_help_panel=_TABLES,
        ),
    ] = None
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows",
            help="A table with the columns of --group and --cluster, one row per input, if the data have no columns.",
            rich_help_panel=_TABLES,
        ),
    ] = None

    @property
    def is_complete(self) -> bool:
        """Whether there are a model and data."""
        return self.model is not None and self.data is not None

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return None if self.classes is None else [name.strip() for name in self.classes.split(",")]

    def check_files(self, command: str) -> tuple[str, Path]:
        """Return the model and the data; refuse what is missing, before anything is imported that would open it."""
        from recal.errors import FileError, InputError
        from recal.files.urls import is_remote

        if self.model is None or self.data is None:
            absent = " and ".join(name for name in ("model", "data") if getattr(self, name) is None)
            raise InputError(
                f"recal {command} needs --model and --data; --{absent.replace('and ', 'and --')} was not given."
            )
        if is_remote(self.data):
            raise InputError(
                f"--data cannot be a URL, got {self.data}. Copy the inputs to a folder or file of this machine."
            )
        for path in (Path(self.model), self.data):
            is_file = path is self.data or path.suffix.lower() in (".onnx", ".pt2", ".skops")
            if is_file and not path.exists():
                raise FileError(missing(path))
        return self.model, self.data

    def open_model(self, stored: Any = None) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration."""
        from recal.collecting.models.base import as_model, import_model
        from recal.errors import InputError

        assert self.model is not None
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, weights=self.weights, trusted=trusted, device=self.device)
        try:
            adapter = as_model(model, **without_none(outputs=outputs_for(self.outputs, stored), device=self.device))
        except InputError as error:
            if self.model in str(error) or error.argument == "outputs":
                raise
            raise error.at(f"--model {self.model}") from None
        if self.device is not None and not hasattr(adapter, "asked"):
            raise InputError(
                f"--device applies to torch models only, and {self.model} is not one. Set the device where the model "
                "is created."
            )
        return adapter

    def open_data(self, model: Any, stored: Any = None, *, quiet: bool = False, guess: bool = False) -> Any:
        """Return the source of the inputs: read as typed, as for the fit of a calibration, or as the model needs.

        With `guess`, columns of labels and texts are found where only one reading of a table is possible.
        """
        from recal.collecting.inputs.sources import as_source
        from recal.errors import InputError

        assert self.data is not None
        if self.gray and self.pixels not in (None, "gray"):
            raise InputError(f"--gray and --pixels {self.pixels} contradict each other.")
        square = None if self.crop is None else (self.crop, self.crop)  # as views keep it
        typed = without_none(
            pixels="gray" if self.gray else self.pixels, resize=self.resize, crop=square, seconds=self.seconds
        )
        others = without_none(
            read=self.read, on_error=self.on_error, label_column=self.label_column, text_column=self.text_column
        )
        others |= without_none(cluster_by=self.cluster_by)
        if self.rows is None:
            others |= without_none(cluster_column=self.cluster, group_column=self.group)
        if guess and self.labels is None:
            others |= self._guess_columns(model, quiet)
        source = as_source(self.data, **without_none(**{**self._reading(model, stored, typed), **typed, **others}))
        if self.rows is not None:
            for name, values in row_columns(self.rows, self.group, self.cluster).items():
                setattr(source, name, values)
        return source

    def _reading(self, model: Any, stored: Any, typed: dict[str, Any]) -> dict[str, Any]:
        """Return how files are read when nothing is typed: as for the fit, or grey as the model's input asks."""
        assert self.data is not None
        pixels: str | None = getattr(model, "pixels", None)
        if stored is None:
            return {"pixels": pixels} if self.data.is_dir() and pixels != "rgb" else {}
        if self.data.is_dir():
            names = ("pixels", "resize", "crop") if stored.pixels is not None else ("seconds", "read")
            kept = {name: getattr(stored, name) for name in names}
            if stored.pixels is not None:
                _refuse_others({name: value for name, value in typed.items() if name in names}, kept, stored)
            return kept
        if self.data.suffix.lower() not in TABLES:
            return {}
        from recal.collecting.inputs.tables import table_columns

        columns = table_columns(self.data)
        optional = {name: getattr(stored, name) for name in ("label_column", "cluster_column", "group_column")}
        optional = {name: column for name, column in optional.items() if column in columns}
        return {"text_column": stored.text_column, **optional}

    def _guess_columns(self, model: Any, quiet: bool) -> dict[str, str]:
        """Return the columns of labels and texts where only one reading of a table is possible, and print them."""
        assert self.data is not None
        if self.data.suffix.lower() not in TABLES or self.text_column is not None:
            return {}
        from recal.cli.printing import say
        from recal.collecting.inputs.tables import guess_columns

        classes = getattr(model, "classes", None) if self.class_names is None else self.class_names
        features = [str(name) for name in getattr(model, "columns", ())]
        columns = guess_columns(self.data, classes, self.label_column, features)
        for name, column in columns.items():
            what = f"{name.removesuffix('_column').capitalize()}s"
            say(f"{what} are read from the column {column!r} of {self.data}.", quiet=quiet)
        return columns

    def running(self, stored: Any = None, *, labels: bool = True) -> dict[str, Any]:
        """Return the arguments of `recal.collect` that were typed and say how to run."""
        return without_none(
            labels=self.labels if labels else None,
            batch_size=self.batch_size,
            outputs=outputs_for(self.outputs, stored),
            device=self.device,
            engine=self.engine,
        )

    def repeated(self) -> list[str]:
        """Return the words that another command needs again to open the same model."""
        names = ("model", "weights", "trust", "preprocess", "device", "engine", "cluster", "group")
        given = without_none(**{name: getattr(self, name) for name in names})
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True)
class LanguageOptions:
    """Logs of language models, and servers that are asked: shared by collect, calibrate and apply."""

    model_name: Annotated[
        str | None,
        typer.Option(
            "--model-name", help="The model's name on the server of --model http://...", rich_help_panel=_LANGUAGE
        ),
    ] = None
    template: Annotated[
        list[Path] | None,
        typer.Option(
            "--template",
            help="A prompt with {column} where a column of the data goes, and {options}. Repeat it for more views.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = None
    options: Annotated[
        str | None,
        typer.Option("--options", help="The answers, such as A,B,C,D.", rich_help_panel=_LANGUAGE),
    ] = None
    view: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            help="NAME=FILE: a log of another prompt for the same questions. May be repeated.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = None
    permute: Annotated[
        int,
        typer.Option(
            "--permute", help="Ask again with the options in this many other orders.", rich_help_panel=_LANGUAGE
        ),
    ] = 0
    floor: Annotated[
        float | None,
        typer.Option(
            "--floor",
            help="The probability of options that were not returned.",
            show_default="half of the smallest returned one, at most 1e-5",
            rich_help_panel=_LANGUAGE,
        ),
    ] = None
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Tokens of an answer; more than 1 to reason.", rich_help_panel=_LANGUAGE)
    ] = 1
    top_logprobs: Annotated[
        int,
        typer.Option("--top-logprobs", help="How many likely tokens to ask for.", rich_help_panel=_LANGUAGE),
    ] = 20
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Requests at the same time.", rich_help_panel=_LANGUAGE)
    ] = 8
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds until a request is repeated.", rich_help_panel=_LANGUAGE)
    ] = 60.0

    @property
    def option_names(self) -> list[str] | None:
        """The options that were typed, in order."""
        return None if self.options is None else [name.strip() for name in self.options.split(",")]

    def logs(self) -> dict[str, Path]:
        """Return the files of --view by the names of the views."""
        from recal.errors import InputError

        named = {}
        for text in self.view or ():
            name, equals, path = text.partition("=")
            if not (name and equals and path):
                raise InputError(f"--view takes NAME=FILE, such as --view direct=direct.jsonl, got {text!r}.")
            named[name] = Path(path)
        return named


def outputs_for(outputs: str | None, stored: Any = None) -> Any:
    """Return the kind of outputs that was typed, or that the views of a calibration were collected with."""
    if stored is None or outputs is None:
        return outputs if stored is None else stored.outputs
    if (outputs, stored.outputs) == ("probabilities", "votes"):
        return stored.outputs
    _refuse_others({"outputs": outputs}, {"outputs": stored.outputs}, stored)
    return outputs


def _blocks(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of a command that are blocks of options, with the class of each."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose blocks of options are replaced by their fields."""
    blocks = _blocks(function)
    if not blocks:
        return function
    hints = get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, block in blocks.items():
            values[name] = block(**{one.name: values.pop(one.name) for one in fields(block)})
        function(**values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        block = blocks.get(parameter.name)
        if block is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
            continue
        inner = get_type_hints(block, include_extras=True)
        parameters += [
            inspect.Parameter(one.name, parameter.KEYWORD_ONLY, default=one.default, annotation=inner[one.name])
            for one in fields(block)
        ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def has_many(function: Callable[..., None]) -> bool:
    """Whether a command has a block of options, so that --help shows only the first ones."""
    return "batch_size" in inspect.signature(function).parameters


def arranged(function: Callable[..., None], *, show_all: bool) -> Callable[..., None]:
    """Return a command whose --help shows the options without a group, and --help-all shows all of them."""
    if not has_many(function):
        return function
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        kind, *marks = parameter.annotation.__metadata__ and (
            parameter.annotation.__origin__,
            *parameter.annotation.__metadata__,
        )
        option = copy.copy(marks[0])
        if parameter.name in _GENERAL:
            option.rich_help_panel = MORE
        if option.rich_help_panel is not None and not show_all:
            option.hidden = True
        parameters.append(parameter.replace(annotation=Annotated[kind, option]))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    hidden = 0 if show_all else sum(p.annotation.__metadata__[0].hidden for p in parameters)
    if hidden:
        command.__doc__ = f"{function.__doc__}\n\n    {hidden} more options: add {ALL_OPTIONS}"
    return command


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the defaults of the others live in the function that is called."""
    return {name: value for name, value in options.items() if value is not None}


def name_labels(source: Any, model: Any, classes: Any, quiet: bool) -> Any:
    """Return the source with named labels as columns in alphabetical order, if nothing else tells it; and say so."""
    from recal.cli.printing import say
    from recal.collecting.preflight import name_labels as named_by

    named = named_by(source, model, classes)
    if named is not source and named.classes is not None:
        names = ", ".join(named.classes[:8]) + (", ..." if len(named.classes) > 8 else "")
        say(f"The model's columns are taken in alphabetical order: {names}.", quiet=quiet)
    return named


def transforms_for(pool: str, source: Any, model: Any, seed: int | None) -> Any:
    """Return the pool that was typed: none, the default one or the damage for such inputs, or a spec."""
    from recal.errors import InputError

    if not pool.strip():
        raise InputError("--pool is empty; give none, auto, or transformations such as zoom:0.5-0.9:10.")
    if pool in ("auto", "damage"):
        from recal.collecting.default_pool import usual_pool

        return usual_pool(source, model, seed or 0, pool)
    return None if pool == "none" else pool


def preflight(model: Any, source: Any, transforms: Any, *, engine: Any = None, **how: Any) -> None:
    """Put the first batch through everything before the work; on a cluster the model is not run here."""
    from recal.collecting.preflight import preflight as check

    names = ("labels", "classes", "preprocess", "outputs", "batch_size", "device", "seed")
    check(model, source, transforms, asked=engine is None, **{name: how[name] for name in names if name in how})


def compare_preprocessing(stored: Any, other: Any, path: Path) -> None:
    """Warn if views were collected in another way, or from another model, than those of the fit."""
    if stored is None or other is None:
        return
    from recal.transforms.preprocessing import check_model

    if other.model is not None:
        check_model(stored, other.model)
    if stored.options() == other.options():
        return
    import warnings

    warnings.warn(
        f"{path} was collected with {str(other) or 'no preprocessing'}, and the views of the fit with "
        f"{str(stored) or 'no preprocessing'}: the calibration was not fitted for this.",
        UserWarning,
        stacklevel=2,
    )


def _refuse_others(typed: dict[str, Any], kept: dict[str, Any], stored: Any) -> None:
    """Refuse options that differ from those of the collect."""
    from recal.errors import InputError

    for name, value in typed.items():
        if name not in kept or kept[name] != value:
            parts = value if isinstance(value, tuple) else (value,)
            text = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
            raise InputError(
                f"--{name} {text} contradicts the calibration, whose views were collected with "
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
