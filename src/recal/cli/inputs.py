"""The options of a model, of its inputs and of a language model, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recal.cli.files import (
    check_correct,
    check_exists,
    check_kind,
    check_views,
    file_kind,
    table_columns,
)
from recal.cli.options import GroupColumn, ModelSource, OptionGroup, OutputKind, Trust, split_names
from recal.cli.printing import SESSION, say
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.files.probabilities import Probabilities
    from recal.views import Views


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


_model = partial(Option, rich_help_panel="Model")
_input = partial(Option, rich_help_panel="Inputs")
_image = partial(Option, rich_help_panel="Images and preprocessing")
_language = partial(Option, rich_help_panel="Language models")


@dataclass(frozen=True, kw_only=True)
class Inputs(OptionGroup):
    """Labelled or new samples: a model, its data and how they are prepared, or a file with columns
    beside it.

    A command that lacks an option, because the calibration knows the answer, leaves it at None.
    """

    model: ModelSource = None
    data: Annotated[
        Path | None,
        Option(
            help="A folder of images, sounds or texts (labelled: one folder per class), a table "
            "(.csv, .parquet), .npz, .npy or .txt."
        ),
    ] = None
    label_column: Annotated[
        str | None, Option(help="The column of labels in a table.", show_default="label")
    ] = None
    labels: Annotated[
        Path | None, Option(help="Labels, if the data have none: .npy, .txt, a table.")
    ] = None
    classes: Annotated[
        str | None, Option(help="The classes in the model's order: NEGATIVE,POSITIVE.")
    ] = None
    outputs: OutputKind = None
    cluster: Annotated[
        str | None, Option(help="The column that says which rows belong together.")
    ] = None
    group: GroupColumn = None
    rows: Annotated[
        Path | None,
        Option(help="A table with these columns, one row per sample, if the data have none."),
    ] = None
    trust: Trust = None
    device: Annotated[str | None, _model(help="The device of a torch model, such as cuda.")] = None
    engine: Annotated[str | None, _model(help="Where to run: local, or ray for a cluster.")] = None
    batch_size: Annotated[int | None, _model(help="Samples in one forward pass.")] = None
    read: Annotated[
        str | None, _input(help="Read a folder's files as images, texts or sounds.")
    ] = None
    on_error: Annotated[str | None, _input(help="If a file cannot be read: stop or skip.")] = None
    cluster_by: Annotated[str | None, _input(help="Clusters of files: 'parent', or a pattern.")] = (
        None
    )
    pixels: Annotated[str | None, _image(help="Read images as rgb or gray.")] = None
    resize: Annotated[
        int | None, _image(help="Resize the shorter side of images to this length.")
    ] = None
    crop: Annotated[int | None, _image(help="Crop a square of this side from the middle.")] = None
    mean: Annotated[
        str | None, _image(help="Subtract this mean per channel: 0.485,0.456,0.406.")
    ] = None
    std: Annotated[
        str | None, _image(help="Then divide by this standard deviation per channel.")
    ] = None
    divide: Annotated[
        float | None,
        _image(
            help="Divide pixels by this first.", show_default="255 with --mean, --std, --channels"
        ),
    ] = None
    channels: Annotated[
        str | None, _image(help="Where to put the channels: first, last or keep.")
    ] = None
    preprocess: Annotated[
        str | None, _image(help="module:name of a function to run before the model.")
    ] = None
    seconds: Annotated[float | None, _input(help="Cut or pad sounds to this length.")] = None
    text_column: Annotated[str | None, _input(help="The one column to read, as texts.")] = None

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

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return split_names(self.classes)

    @property
    def column_names(self) -> list[str]:
        """The columns of groups and clusters that were typed."""
        return [name for name in (self.group, self.cluster) if name is not None]

    def columns(self, path: Path) -> dict[str, Any]:
        """Read the groups and clusters that were typed, from --rows or from this table."""
        path = self.rows or path
        columns = table_columns(path, self.column_names)
        found = {} if self.group is None else {"groups": columns[self.group]}
        if self.cluster is not None:
            from recal.files.tables import Table

            found["clusters"] = Table(columns, path).clusters(self.cluster)
        return found

    def groups_and_clusters(self, path: Path) -> dict[str, Any]:
        """Return both as typed, or as a file of views has them; None if there are none."""
        if file_kind(path) == "views":
            views = self.views(path)
            return {"groups": views.groups, "clusters": views.clusters}
        return {"groups": None, "clusters": None, **self.columns(path)}

    def views(self, path: Path) -> Views:
        """Read views with what was typed about them; refuse a file that is something else."""
        from recal import read_views

        check_kind(path, "views")
        labels = None if self.labels is None else self._read_labels(self.labels)
        try:
            views = read_views(path, labels=labels, classes=self.class_names)
        except InputError as error:
            if labels is not None and error.argument in ("labels", "classes"):
                error.where = ""  # the mistake is in the options, not in the file of views
            of_labels = labels is not None and error.argument == "labels"
            raise error.at(self.labels if of_labels else path) from None
        return views.assign(**self.columns(path))

    def probs(
        self, path: Path, leave_out: Sequence[str] = (), *, need_labels: bool = True
    ) -> Probabilities:
        """Read probabilities, and labels if there are any;
        for views, the probabilities of the uncalibrated model.
        """
        from recal.checks import check_labels
        from recal.files.probabilities import probs_of_file, read_prob_table

        is_table = check_kind(path, "probabilities", "views") == "a table"
        column = self.label_column or "label"
        if is_table:
            probs = read_prob_table(path, column, [*self.column_names, *leave_out])
        else:
            probs = probs_of_file(path)
        if self.labels is not None:
            given = self._read_labels(self.labels)
            try:
                n_samples, n_classes = probs.probs.shape
                truth = check_labels(given, n_samples, n_classes, probs.classes)
            except InputError as error:
                raise error.at(self.labels) from None
            return replace(probs, labels=truth)
        if probs.labels is None and need_labels:
            where = ""
            if is_table:
                where = f", or name their column with --label-column; it has no {column!r}"
            raise InputError(
                f"{path} holds no labels, and without them nothing can be measured: add --labels "
                f"FILE{where}."
            )
        return probs

    def calibrated(self, path: Path, file: Path, calibrator: Any) -> Probabilities:
        """Return the calibrated probabilities of labelled views; `file` holds the calibrator."""
        from recal.files.probabilities import Probabilities

        views = self.views(path)
        if views.labels is None:
            raise InputError(
                f"{path} holds no labels, and without them nothing can be guaranteed: add --labels "
                "FILE."
            )
        check_views(calibrator, file, views, path)
        probs, confidences = calibrator.predict_both(views)
        return Probabilities(
            probs,
            views.labels,
            views.classes,
            confidences,
            calibrator.fitted_rows(views),
            views.groups,
            views.clusters,
        )

    def graded(self, path: Path, correct: str | None, calibrator: Any = None) -> Probabilities:
        """Return graded answers with their confidence, from a calibrator or from its column."""
        from recal.workflow.graded import graded_answers

        return graded_answers(path, check_correct(path, correct), calibrator, cluster=self.cluster)

    def _read_labels(self, path: Path) -> Any:
        """Read one label per row: from .npy or text, or from a column of a table."""
        from recal.collecting.files import read_labels

        check_exists(path)
        if path.suffix == ".parquet" or self.label_column is not None:
            column = self.label_column or "label"
            return table_columns(path, [column])[column].astype(str)
        return read_labels(path)

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
        if Path(self.model).suffix.lower() in (".onnx", ".pt2", ".skops"):
            check_exists(Path(self.model))
        check_exists(self.data)

    def open_model(self, stored: Any = None) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration."""
        from recal.collecting.models import as_model, import_model

        assert self.model is not None
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, trusted=trusted, device=self.device)
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
        typed = without_none(
            pixels=self.pixels,
            resize=self.resize,
            crop=self.crop,
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
            for name, values in self.columns(self.rows).items():
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
        """Return the source of inputs to calibrate on; an assumed order of classes is printed."""
        from recal.collecting.local import open_source
        from recal.collecting.preflight import name_labels

        source = open_source(self.open_data(model), self.labels, {}, model)
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
            names = ("seconds",) if stored.pixels is None else ("pixels", "resize", "crop")
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

        outputs: Any = self.outputs
        return outputs if stored is None else match_outputs(stored, outputs)

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
        names = ("model", "trust", "preprocess", "device", "engine")
        values = without_none(**{name: getattr(self, name) for name in names})
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        return words + group_words(self.group, in_rows=self.rows is not None)


@dataclass(frozen=True, kw_only=True)
class Questions(OptionGroup):
    """Logs of language models, and servers to query."""

    model_name: Annotated[str | None, _language(help="The model's name on the server.")] = None
    template: Annotated[
        list[Path] | None,
        _language(help="A prompt with {column} and {options}; repeat it for views."),
    ] = None
    options: Annotated[str | None, _language("--options", help="The answers, such as A,B,C,D.")] = (
        None
    )
    view: Annotated[list[str] | None, _language(help="NAME=FILE: a log of another prompt.")] = None
    max_tokens: Annotated[int, _language(help="Tokens of an answer; more than 1 to reason.")] = 1
    top_logprobs: Annotated[int, _language(help="How many likely tokens to ask for.")] = 20
    concurrency: Annotated[int, _language(help="Requests at the same time.")] = 8
    timeout: Annotated[float, _language(help="Seconds until a request is repeated.")] = 60.0

    @property
    def asking(self) -> dict[str, Any]:
        """How a server is asked, as arguments of `Endpoint`."""
        names = ("max_tokens", "top_logprobs", "concurrency", "timeout")
        return {name: getattr(self, name) for name in names}
