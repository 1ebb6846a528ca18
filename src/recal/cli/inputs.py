"""What the options of a model, of its inputs and of a language model mean.

A command passes its parameters to `ModelInputs.of`, `Normalization.of` or `Questions.of`. One that
lacks an option, because the calibration knows the answer, leaves it at None.
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
class OptionGroup:
    """Options that belong together."""

    @classmethod
    def names(cls) -> list[str]:
        """The parameters of a command that belong to it."""
        return [field.name for field in fields(cls)]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take these options from the parameters of a command."""
        return cls(**{name: values[name] for name in cls.names() if name in values})


@dataclass(frozen=True, kw_only=True)
class Normalization(OptionGroup):
    """What happens to inputs between the transformations and the model."""

    mean: str | None = None
    std: str | None = None
    divide: float | None = None
    channels: str | None = None
    preprocess: str | None = None

    def preprocessing(self) -> Any:
        """Return the function that the options describe, or None."""
        values: dict[str, Any] = without_none(
            mean=self.mean, std=self.std, divide=self.divide, channels=self.channels
        )
        for name in {"mean", "std"} & set(values):
            try:
                values[name] = tuple(float(part) for part in values[name].split(","))
            except ValueError:
                raise InputError(
                    f"--{name} takes numbers separated by commas, got {values[name]!r}."
                ) from None
        if self.preprocess is not None:
            if values:
                raise InputError(f"--preprocess does it all; leave out --{', --'.join(values)}.")
            from recal.collecting.models import import_object

            return import_object(self.preprocess)
        if not values:
            return None
        from recal.collecting import Normalize

        return Normalize(**values)


@dataclass(frozen=True, kw_only=True)
class ModelInputs(Normalization):
    """Which model, which inputs, and how inputs are prepared."""

    model: str | None = None
    data: Path | None = None
    label_column: str | None = None
    labels: Path | None = None
    classes: str | None = None
    outputs: str | None = None
    weights: Path | None = None
    trust: str | None = None
    device: str | None = None
    engine: str | None = None
    batch_size: int | None = None
    read: str | None = None
    on_error: str | None = None
    cluster_by: str | None = None
    pixels: str | None = None
    gray: bool = False
    resize: int | None = None
    crop: int | None = None
    seconds: float | None = None
    text_column: str | None = None
    cluster: str | None = None
    group: str | None = None
    rows: Path | None = None

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return split_names(self.classes)

    @property
    def is_table(self) -> bool:
        """Whether the data are a table."""
        suffix = "" if self.data is None else self.data.suffix.lower()
        return suffix in (".csv", ".tsv", ".parquet")

    def check_files(self, command: str) -> None:
        """Refuse a missing model or missing data, before importing the code that would open them."""
        absent = [f"--{name}" for name in ("model", "data") if getattr(self, name) is None]
        if self.model is None or self.data is None:
            were = "were" if absent[1:] else "was"
            raise InputError(
                f"recal {command} needs --model and --data; {' and '.join(absent)} {were} not given."
            )
        if is_remote(self.data):
            raise InputError(
                f"--data cannot be a URL, got {self.data}. Copy the inputs to a folder or file of "
                "this machine."
            )
        if Path(self.model).suffix.lower() in (".onnx", ".pt2", ".skops"):
            check_exists(Path(self.model))
        check_exists(self.data)

    def open_model(self, stored: Any = None) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration."""
        from recal.collecting.models import as_model, import_model

        assert self.model is not None
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, weights=self.weights, trusted=trusted, device=self.device)
        how = without_none(outputs=self._outputs(stored), device=self.device)
        try:
            adapter = as_model(model, **how)
        except InputError as error:
            if self.model in str(error) or error.argument == "outputs":
                raise
            raise error.at(f"--model {self.model}") from None
        if self.device is not None and not hasattr(adapter, "requested"):
            raise InputError(
                f"--device applies to torch models only, and {self.model} is not one. Set the "
                "device where the model is created."
            )
        return adapter

    def open_data(self, model: Any, stored: Any = None) -> Any:
        """Return the source of the inputs.

        They are read as typed, as for the fit of a calibration, or as the model needs.
        """
        from recal.collecting.sources import as_source
        from recal.collecting.tables import arrange_columns

        assert self.data is not None
        if self.gray and self.pixels not in (None, "gray"):
            raise InputError(f"--gray and --pixels {self.pixels} contradict each other.")
        typed = without_none(
            pixels="gray" if self.gray else self.pixels,
            resize=self.resize,
            crop=None if self.crop is None else (self.crop, self.crop),
            seconds=self.seconds,
            read=self.read,
            on_error=self.on_error,
            cluster_by=self.cluster_by,
            label_column=self.label_column,
            text_column=self.text_column,
        )
        if self.rows is None:
            typed |= without_none(cluster_column=self.cluster, group_column=self.group)
        reading = self._default_reading(model, stored) | typed
        source = arrange_columns(as_source(self.data, **without_none(**reading)), model, stored)
        if self.rows is not None:
            for name, values in row_columns(self.rows, self.group, self.cluster).items():
                setattr(source, name, values)
        return source

    def open_as_fitted(
        self, calibrator: Any, *, refuse: bool = False
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return the model, the inputs, and how to run them, prepared as they were for the fit.

        If the calibration was fitted for another model, refuse it or print a warning.
        """
        from recal.transforms.preprocessing import check_model

        stored = getattr(calibrator, "preprocessing_", None)
        model = self.open_model(stored)
        check_model(stored, model.fingerprint(), refuse=refuse)
        return model, self.open_data(model, stored), self.running(stored)

    def open_labelled_data(self, model: Any) -> Any:
        """Return the source of inputs to calibrate on.

        If only one guess is possible, columns and the order of classes are guessed and printed.
        """
        from recal.collecting.local import open_source
        from recal.collecting.preflight import name_labels
        from recal.collecting.tables import guess_columns

        assert self.data is not None
        columns: dict[str, Any] = {}
        if self.is_table and self.labels is None and self.text_column is None:
            classes = self.class_names or getattr(model, "classes", None)
            columns = guess_columns(self.data, classes, self.label_column, model.features or ())
        for name, column in columns.items():
            what = f"{name.removesuffix('_column').capitalize()}s"
            say(f"{what} are read from the column {column!r} of {self.data}.")
        source = open_source(replace(self, **columns).open_data(model), self.labels, {}, model)
        named = name_labels(source, model, self.class_names)
        if named is not source and named.classes is not None:
            names = ", ".join(named.classes[:8]) + (", ..." if len(named.classes) > 8 else "")
            say(f"The model's columns are taken in alphabetical order: {names}.")
        return named

    def _default_reading(self, model: Any, stored: Any) -> dict[str, Any]:
        """Return how to read files if nothing is typed: as for the fit, or as the model needs."""
        assert self.data is not None
        if stored is None:
            pixels = getattr(model, "pixels", None)
            return {"pixels": pixels} if self.data.is_dir() and pixels != "rgb" else {}
        if self.data.is_dir():
            of_images = ("pixels", "resize", "crop")
            names = ("seconds", "read") if stored.pixels is None else of_images
            return {name: getattr(stored, name) for name in names}
        if not self.is_table:
            return {}
        from recal.collecting.tables import column_names

        reading = {"text_column": stored.text_column}
        for name in ("label_column", "cluster_column", "group_column"):
            if getattr(stored, name) in column_names(self.data):
                reading[name] = getattr(stored, name)
        return reading

    def _outputs(self, stored: Any) -> Any:
        """Return what the model returns, as typed or as for the fit of a calibration."""
        from recal.transforms.preprocessing import match_outputs

        return self.outputs if stored is None else match_outputs(stored, self.outputs)

    def running(self, stored: Any = None) -> dict[str, Any]:
        """Return the arguments of `recal.collect` that say how to run, if they were typed."""
        return {"progress": SESSION.progress, "preprocess": self.preprocessing()} | without_none(
            batch_size=self.batch_size,
            outputs=self._outputs(stored),
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
class Questions(OptionGroup):
    """Logs of language models, and servers to query."""

    model_name: str | None = None
    template: list[Path] | None = None
    options: str | None = None
    view: list[str] | None = None
    scores: str | None = None
    permute: int = 0
    floor: float | None = None
    max_tokens: int = 1
    top_logprobs: int = 20
    concurrency: int = 8
    timeout: float = 60.0

    @property
    def asking(self) -> dict[str, Any]:
        """How a server is asked, as arguments of `Endpoint`."""
        names = ("max_tokens", "top_logprobs", "concurrency", "timeout")
        return {name: getattr(self, name) for name in names}
