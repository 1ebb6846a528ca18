"""How a command declares its options, and the blocks of options that several commands share.

A command is a function with one parameter per option: ``bins: int = option("Number of bins.",
15)``. The flag follows from the parameter's name. A block is a dataclass of options; a parameter
annotated with the block's class adds all of them: ``inputs: ModelOptions``.
`recal.cli.app.command_function` turns both into the form for the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from recal.cli.files import check_exists, row_columns
from recal.cli.printing import SESSION, say
from recal.errors import InputError
from recal.files.paths import is_remote

MORE = "More options"
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def option(
    help: str, default: Any = None, *, panel: str | None = None, flag: str = "", **settings: Any
) -> Any:
    """Declare an option; the default `...` makes it required."""
    return typer.Option(
        default, *([flag] if flag else []), help=help, rich_help_panel=panel, **settings
    )


def argument(help: str, default: Any = None, *, metavar: str | None = None) -> Any:
    """Declare an argument; the default `...` makes it required."""
    return typer.Argument(default, help=help, metavar=metavar)


# The groups of options in --help-all. An option without a group is shown by --help.
more_option = partial(option, panel=MORE)
_model = partial(option, panel="Model")
_input = partial(option, panel="Inputs")
_image = partial(option, panel="Images and preprocessing")
_table = partial(option, panel="Tables and sounds")
_language = partial(option, panel="Language models")

BINS = option("Number of bins of ECE and other binned errors.", 15)
LABELS = option("Labels, if the file has none: .npy, or .txt with one per line.")
LABEL_COLUMN = option("The column of a .csv or .parquet file that holds the labels.", "label")
METHODS = option(
    "Short names, joined with commas; `all` for every method.",
    show_default="ts,ets,spline,irm,svs, and of views recal,stack",
)
OUTPUTS = option(
    "What the model returns: logits, probabilities, votes (of trees or neighbours) or probabilities:FLOOR.",
    show_default="logits",
)
RISK = option("The largest share of errors among automated answers.", 0.01)
SPLITS = option("Random splits. By default 10 halves of one file, or the two files as they are.")
TRUST = _model(
    "What may be opened though it can run code: pt2 for a .pt2 file, or the types of a .skops file that skops does not "
    "trust by default; separated by commas."
)


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if nothing was typed."""
    return None if text is None else [name.strip() for name in text.split(",")]


def typed_value(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option from the words that were typed, or None."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def group_words(group: str | None = "COLUMN", *, in_rows: bool = True) -> list[str]:
    """Return the words that tell `recal apply` the groups of new inputs: a column of a table of
    rows or of the data.
    """
    return (
        []
        if group is None
        else [*(("--rows", "NEW_ROWS.csv") if in_rows else ()), "--group", group]
    )


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the called function has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class PreprocessOptions:
    """What happens to inputs between the transformations and the model."""

    mean: str | None = _image("Subtract this mean per channel, such as 0.485,0.456,0.406.")
    std: str | None = _image("Then divide by this standard deviation per channel.")
    divide: float | None = _image(
        "Divide pixels by this first. The default is 255 with --mean, --std or --channels, and 1 without."
    )
    channels: str | None = _image(
        "Where the model wants the channels of images: first, last or keep."
    )
    preprocess: str | None = _image(
        "module:name of a function that runs after the transformations."
    )

    def preprocessing(self, stored: Any = None) -> Any:
        """Return the preprocess that the options describe, or that of a calibration, or None."""
        values: dict[str, Any] = without_none(
            mean=self.mean, std=self.std, divide=self.divide, channels=self.channels
        )
        for name in [name for name in ("mean", "std") if name in values]:
            try:
                values[name] = tuple(float(part) for part in values[name].split(","))
            except ValueError:
                raise InputError(
                    f"--{name} takes numbers separated by commas, got {values[name]!r}."
                ) from None
        if self.preprocess is not None:
            if values:
                raise InputError(
                    f"--preprocess does it all; leave out {', '.join('--' + name for name in values)}."
                )
            from recal.collecting.models.base import import_object

            return import_object(self.preprocess)
        if not values:
            return None
        from recal.collecting import Normalize

        if (
            stored is not None and stored.function is None
        ):  # one option may be repeated without the others
            _refuse_others(
                values, {} if stored.normalize is None else vars(stored.normalize), stored
            )
            return stored.normalize
        return Normalize(**values)


@dataclass(frozen=True)
class ModelOptions(PreprocessOptions):
    """Which model, which inputs, and how inputs are prepared: shared by calibrate, collect, apply
    and watch.
    """

    model: str | None = option(
        "An .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name of an object in Python."
    )
    data: Path | None = option(
        "A folder of images, sounds or texts (labelled: one folder per class), a table (.csv, .parquet), .npz, .npy "
        "or .txt."
    )
    label_column: str | None = option(
        "The column of labels in a table. By default 'label', or the only column with the model's classes."
    )
    classes: str | None = option(
        "The model's classes in order, separated by commas. A model with one output: NEGATIVE,POSITIVE."
    )
    outputs: str | None = OUTPUTS
    weights: Path | None = _model(
        "A .safetensors file for the torch network that --model module:function builds."
    )
    trust: str | None = TRUST
    device: str | None = _model("The device of a torch model, such as cuda.")
    engine: str | None = _model("Where to run: local, or ray for a cluster.")
    batch_size: int | None = _model("Samples in one forward pass.")
    labels: Path | None = _input("Labels, if the data have none: .npy or .txt with one per line.")
    read: str | None = _input(
        "Read the files of a folder as images, texts, sounds or bytes. The default follows their names."
    )
    on_error: str | None = _input("What to do with a file that cannot be read: stop or skip.")
    pixels: str | None = _image(
        "Read images as rgb, gray, rgba or gray16. The default follows the model's input shape, if it tells."
    )
    gray: bool = _image("The same as --pixels gray.", False)
    resize: int | None = _image("Resize the shorter side of images to this length.")
    crop: int | None = _image("Crop a square of this side from the middle.")
    seconds: float | None = _table("Cut or pad sounds to this length.")
    text_column: str | None = _table("The one column to read, as texts.")
    cluster: str | None = _table(
        "The column that says which rows belong together, such as a patient or a video."
    )
    cluster_by: str | None = _input(
        "For a folder: which files belong together; 'parent' for those in one folder, or a regular expression that "
        "finds the cluster in each name."
    )
    group: str | None = _table(
        "The column of groups. Each group gets its own offset, threshold and guarantee."
    )
    rows: Path | None = _table(
        "A table with the columns of --group and --cluster, one row per input, if the data have no columns."
    )

    @property
    def is_complete(self) -> bool:
        """Whether there are a model and data."""
        return self.model is not None and self.data is not None

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return split_names(self.classes)

    def check_files(self, command: str) -> None:
        """Refuse a missing model or missing data, before importing the code that would open them."""
        if self.model is None or self.data is None:
            absent = " and ".join(
                f"--{name}" for name in ("model", "data") if getattr(self, name) is None
            )
            was = "were" if self.model is None and self.data is None else "was"
            raise InputError(f"recal {command} needs --model and --data; {absent} {was} not given.")
        if is_remote(self.data):
            raise InputError(
                f"--data cannot be a URL, got {self.data}. Copy the inputs to a folder or file of this machine."
            )
        if Path(self.model).suffix.lower() in (".onnx", ".pt2", ".skops"):
            check_exists(Path(self.model))
        check_exists(self.data)

    def open_model(self, stored: Any = None) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration."""
        from recal.collecting.models.base import as_model, import_model

        assert self.model is not None
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, weights=self.weights, trusted=trusted, device=self.device)
        try:
            adapter = as_model(
                model, **without_none(outputs=outputs_for(self.outputs, stored), device=self.device)
            )
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

    def open_data(self, model: Any, stored: Any = None) -> Any:
        """Return the source of the inputs: read as typed, as for the fit of a calibration, or as
        the model needs.
        """
        from recal.collecting.sources import as_source
        from recal.collecting.tables import arrange_columns

        assert self.data is not None
        if self.gray and self.pixels not in (None, "gray"):
            raise InputError(f"--gray and --pixels {self.pixels} contradict each other.")
        reading = without_none(
            pixels="gray" if self.gray else self.pixels,
            resize=self.resize,
            crop=None if self.crop is None else (self.crop, self.crop),  # as stored with views
            seconds=self.seconds,
        )
        columns = {"label_column": self.label_column, "text_column": self.text_column}
        if self.rows is None:
            columns |= {"cluster_column": self.cluster, "group_column": self.group}
        reading = {
            **self._default_reading(model, stored, reading),
            **reading,
            **without_none(
                read=self.read, on_error=self.on_error, cluster_by=self.cluster_by, **columns
            ),
        }
        source = as_source(self.data, **without_none(**reading))
        source = arrange_columns(source, model, stored)
        if self.rows is not None:
            for name, values in row_columns(self.rows, self.group, self.cluster).items():
                setattr(source, name, values)
        return source

    def open_as_fitted(
        self, calibrator: Any, *, refuse: bool = False
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return the model, the inputs, and how to run them, prepared as they were for the fit of a
        calibration.

        If the calibration was fitted for another model, refuse it or print a warning.
        """
        from recal.transforms.preprocessing import check_model

        stored = getattr(calibrator, "preprocessing_", None)
        model = self.open_model(stored)
        check_model(stored, model.fingerprint(), refuse=refuse)
        how = {"preprocess": self.preprocessing(stored), **self.running(stored, labels=False)}
        return model, self.open_data(model, stored), how

    def open_labelled_data(self, model: Any) -> Any:
        """Return the source of inputs to calibrate on, and guess omitted options if only one guess
        is possible.

        The guesses are the columns of labels and texts, and the order of classes; each guess is
        printed.
        """
        from recal.collecting.preflight import name_labels
        from recal.collecting.tables import guess_columns

        assert self.data is not None
        columns: dict[str, Any] = {}
        is_table = self.data.suffix.lower() in _TABLE_SUFFIXES
        if is_table and self.labels is None and self.text_column is None:
            classes = (
                getattr(model, "classes", None) if self.class_names is None else self.class_names
            )
            columns = guess_columns(self.data, classes, self.label_column, model.features or ())
        for name, column in columns.items():
            what = f"{name.removesuffix('_column').capitalize()}s"
            say(f"{what} are read from the column {column!r} of {self.data}.")
        source = replace(self, **columns).open_data(model)
        named = name_labels(source, model, self.class_names)
        if named is not source and named.classes is not None:
            names = ", ".join(named.classes[:8]) + (", ..." if len(named.classes) > 8 else "")
            say(f"The model's columns are taken in alphabetical order: {names}.")
        return named

    def _default_reading(self, model: Any, stored: Any, reading: dict[str, Any]) -> dict[str, Any]:
        """Return how to read files if nothing is typed: as for the fit, or in the pixel mode of the
        model's input.
        """
        assert self.data is not None
        pixels: str | None = getattr(model, "pixels", None)
        if stored is None:
            return {"pixels": pixels} if self.data.is_dir() and pixels != "rgb" else {}
        if self.data.is_dir():
            names = (
                ("pixels", "resize", "crop") if stored.pixels is not None else ("seconds", "read")
            )
            settings = {name: getattr(stored, name) for name in names}
            if stored.pixels is not None:
                _refuse_others(
                    {name: value for name, value in reading.items() if name in names},
                    settings,
                    stored,
                )
            return settings
        if self.data.suffix.lower() not in _TABLE_SUFFIXES:
            return {}
        from recal.collecting.tables import table_columns

        columns = table_columns(self.data)
        optional = {
            name: getattr(stored, name)
            for name in ("label_column", "cluster_column", "group_column")
        }
        optional = {name: column for name, column in optional.items() if column in columns}
        return {"text_column": stored.text_column, **optional}

    def running(self, stored: Any = None, *, labels: bool = True) -> dict[str, Any]:
        """Return the arguments of `recal.collect` that say how to run, if they were typed."""
        return {"progress": SESSION.progress} | without_none(
            labels=self.labels if labels else None,
            batch_size=self.batch_size,
            outputs=outputs_for(self.outputs, stored),
            device=self.device,
            engine=self.engine,
        )

    def words(self) -> list[str]:
        """Return the words that another command needs again to open the same model."""
        names = ("model", "weights", "trust", "preprocess", "device", "engine")
        values = without_none(**{name: getattr(self, name) for name in names})
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        return words + group_words(self.group, in_rows=self.rows is not None)


@dataclass(frozen=True)
class AdaptOptions:
    """How answers are adapted to these inputs, taken together."""

    follow: bool = option("Adjust the temperature to these inputs, without labels.", False)
    accept_unlike: bool = more_option(
        "With --follow: also accept answers to inputs unlike all of the fit.", False
    )
    class_mix: str | None = more_option(
        "'follow' to estimate the class mix of these inputs, or cat=0.6,dog=0.4."
    )
    impossible: list[str] | None = more_option(
        "A class that cannot occur; may be given several times."
    )

    @property
    def flag(self) -> str | None:
        """The first option that was typed, if any."""
        flags = {
            "--follow": self.follow,
            "--class-mix": self.class_mix is not None,
            "--impossible": self.impossible,
        }
        return next((flag for flag, typed in flags.items() if typed), None)

    def mix(self, calibrator: Any) -> Any:
        """Return the class mix that was typed, "follow" if it is to be estimated, or None."""
        from recal.collecting.predictions import profile_of
        from recal.decisions import class_mix

        if self.class_mix == "follow":
            if self.impossible:
                raise InputError(
                    "--class-mix follow and --impossible cannot be combined: give one of them."
                )
            return "follow"
        if self.class_mix is None and not self.impossible:
            return None
        shares = None
        if self.class_mix is not None:
            pairs = [part.rpartition("=") for part in self.class_mix.split(",")]
            try:
                shares = {name.strip(): float(share) for name, _, share in pairs}
            except ValueError:
                raise InputError(
                    f"--class-mix takes 'follow' or shares such as cat=0.6,dog=0.4, got {self.class_mix!r}."
                ) from None
        classes = getattr(calibrator, "classes_", None)
        return class_mix(
            profile_of(calibrator), shares=shares, impossible=self.impossible or (), classes=classes
        )


@dataclass(frozen=True)
class LanguageOptions:
    """Logs of language models, and servers to query: shared by collect, calibrate and apply."""

    model_name: str | None = _language("The model's name on the server of --model http://...")
    template: list[Path] | None = _language(
        "A prompt with {column} where a column of the data goes, and {options}. Repeat it for more views."
    )
    options: str | None = _language("The answers, such as A,B,C,D.")
    view: list[str] | None = _language(
        "NAME=FILE: a log of another prompt for the same questions. May be repeated."
    )
    permute: int = _language("Ask again with the options in this many other orders.", 0)
    floor: float | None = _language(
        "The probability of options that were not returned.",
        show_default="half of the smallest returned one, at most 1e-5",
    )
    max_tokens: int = _language("Tokens of an answer; more than 1 to reason.", 1)
    top_logprobs: int = _language("How many likely tokens to ask for.", 20)
    concurrency: int = _language("Requests at the same time.", 8)
    timeout: float = _language("Seconds until a request is repeated.", 60.0)


def outputs_for(outputs: str | None, stored: Any = None) -> Any:
    """Return the kind of outputs that was typed, or that the views of a calibration were collected
    with.
    """
    if stored is None:
        return outputs
    from recal.transforms.preprocessing import match_outputs

    return match_outputs(stored, outputs)


def _refuse_others(options: dict[str, Any], settings: dict[str, Any], stored: Any) -> None:
    """Refuse options that differ from the settings of a calibration's views."""
    for name, value in options.items():
        if name not in settings or settings[name] != value:
            parts = value if isinstance(value, tuple) else (value,)
            text = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
            raise InputError(
                f"--{name} {text} contradicts the calibration, whose views were collected with "
                f"{str(stored) or 'no preprocessing'}. Leave the option out, or collect and fit again."
            )
