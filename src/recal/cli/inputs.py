"""What the options of a model, of its inputs and of a language model mean.

A command passes its parameters to `ModelInputs.of`, `Normalization.of` or `Questions.of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from recal.cli.files import check_exists, row_columns
from recal.cli.options import split_names
from recal.cli.printing import SESSION, say
from recal.errors import InputError
from recal.files.paths import is_remote

_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the called function has the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}


def group_words(group: str | None = "COLUMN", *, in_rows: bool = True) -> list[str]:
    """Return the words that tell `recal apply` the groups of new inputs.

    They are a column of a table of rows (`in_rows`) or of the data.
    """
    if group is None:
        return []
    return [*(("--rows", "NEW_ROWS.csv") if in_rows else ()), "--group", group]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Options that belong together."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take these options from the parameters of a command."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def flags(self, *used: str) -> dict[str, Any]:
        """Return the values by flag, except those in `used`."""
        values = {name: value for name, value in vars(self).items() if name not in used}
        return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Normalization(Block):
    """What happens to inputs between the transformations and the model."""

    mean: str | None
    std: str | None
    divide: float | None
    channels: str | None
    preprocess: str | None

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


@dataclass(frozen=True, kw_only=True)
class ModelInputs(Normalization):
    """Which model, which inputs, and how inputs are prepared."""

    model: str | None
    data: Path | None
    label_column: str | None
    labels: Path | None
    classes: str | None
    outputs: str | None
    weights: Path | None
    trust: str | None
    device: str | None
    engine: str | None
    batch_size: int | None
    read: str | None
    on_error: str | None
    cluster_by: str | None
    pixels: str | None
    gray: bool
    resize: int | None
    crop: int | None
    seconds: float | None
    text_column: str | None
    cluster: str | None
    group: str | None
    rows: Path | None

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
        """Return the source of the inputs:
        read as typed, as for the fit of a calibration, or as the model needs.
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
        """Return how to read files if nothing is typed:
        as for the fit, or in the pixel mode of the model's input.
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


@dataclass(frozen=True, kw_only=True)
class Questions(Block):
    """Logs of language models, and servers to query."""

    model_name: str | None
    template: list[Path] | None
    options: str | None
    view: list[str] | None
    scores: str | None
    permute: int
    floor: float | None
    max_tokens: int
    top_logprobs: int
    concurrency: int
    timeout: float


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
