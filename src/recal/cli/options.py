"""The options that several commands share, each declared once.

Options of one value are types: ``risk: opt.Risk = 0.01``. Those about a model, its data and the
rows are the fields of `Inputs`: a command lists the ones that it takes in `INPUTS`, and finds the
values in `ctx.obj`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli.files import check_correct, check_exists, check_kind, check_views, table_columns
from recal.cli.printing import SESSION, say
from recal.errors import InputError
from recal.files.paths import TABLES

if TYPE_CHECKING:
    from recal.files.probabilities import Probabilities
    from recal.views import Views

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

# Rules and results.
Correct = Annotated[str | None, Option(help="The column that says which graded answers are right.")]
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

_rows = partial(Option, rich_help_panel="Labels, groups and clusters")
_model = partial(Option, rich_help_panel="Model")
_input = partial(Option, rich_help_panel="Inputs")
_image = partial(Option, rich_help_panel="Images and preprocessing")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A model, its data, what is known about the rows, and how all of them are read."""

    model: Annotated[
        str | None,
        _model(
            help="An .onnx, .pt2 or .skops file, a Hugging Face folder, or module:name of an "
            "object in Python."
        ),
    ] = None
    data: Annotated[
        Path | None,
        _model(
            help="A folder of images, sounds or texts (labelled: one folder per class), a table "
            "(.csv, .parquet), .npz, .npy or .txt.",
            path_type=Path,
        ),
    ] = None
    outputs: Annotated[
        str | None,
        _model(
            help="What the model returns: logits, probabilities or votes.", show_default="logits"
        ),
    ] = None
    trust: Annotated[str | None, _model(help="What may be opened although it can run code.")] = None
    device: Annotated[str | None, _model(help="The device of a torch model, such as cuda.")] = None
    engine: Annotated[str | None, _model(help="Where to run: local, or ray for a cluster.")] = None
    batch_size: Annotated[int | None, _model(help="Samples in one forward pass.")] = None
    labels: Annotated[
        Path | None,
        _rows(help="Labels, if the data have none: .npy, .txt, a table.", path_type=Path),
    ] = None
    label_column: Annotated[
        str | None, _rows(help="The column of labels in a table.", show_default="label")
    ] = None
    classes: Annotated[
        str | None, _rows(help="The classes in the model's order: NEGATIVE,POSITIVE.")
    ] = None
    cluster: Annotated[
        str | None, _rows(help="The column that says which rows belong together.")
    ] = None
    group: Annotated[
        str | None, _rows(help="The column of groups; each gets its own guarantee.")
    ] = None
    rows: Annotated[
        Path | None,
        _rows(
            help="A table with these columns, one row per sample, if the data have none.",
            path_type=Path,
        ),
    ] = None
    read: Annotated[str | None, _input(help="Read files as images, texts or sounds.")] = None
    on_error: Annotated[
        str | None, _input(help="If a file cannot be read: stop or skip.", show_default="stop")
    ] = None
    cluster_by: Annotated[str | None, _input(help="Clusters of files: 'parent', or a pattern.")] = (
        None
    )
    seconds: Annotated[float | None, _input(help="Cut or pad sounds to this length.")] = None
    text_column: Annotated[str | None, _input(help="The one column to read, as texts.")] = None
    pixels: Annotated[str | None, _image(help="Read images as rgb or gray.")] = None
    resize: Annotated[int | None, _image(help="Resize the shorter side to this length.")] = None
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

    def words(self, *names: str) -> list[object]:
        """Return these options as they were typed, for a command that comes next."""
        typed = without_none(**{name: getattr(self, name) for name in names})
        return [word for name, value in typed.items() for word in (_flag(name), value)]

    def new_words(self) -> list[object]:
        """Return the words that tell `recal apply` the groups of new inputs."""
        rows = () if self.group is None or self.rows is None else ("--rows", "NEW_ROWS.csv")
        return [*rows, *self.words("group")]

    # ---- rows

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return split_names(self.classes)

    def columns(self, path: Path) -> dict[str, Any]:
        """Read the groups and clusters that were typed, from --rows or from this table."""
        columns = table_columns(
            self.rows or path, [name for name in (self.group, self.cluster) if name]
        )
        found: dict[str, Any] = {}
        if self.group is not None:
            found["groups"] = columns[self.group]
        if self.cluster is not None:
            found["clusters"] = columns.clusters(self.cluster)
        return found

    def views(self, path: Path, *, need_labels: bool = False) -> Views:
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
        if need_labels and views.labels is None:
            raise InputError(f"{path} holds no labels, which are needed: add --labels FILE.")
        return views.assign(**self.columns(path))

    def probs(
        self, path: Path, leave_out: tuple[str, ...] = (), *, need_labels: bool = True
    ) -> Probabilities:
        """Read probabilities, labels, groups and clusters, as far as there are any; for views, the
        probabilities of the uncalibrated model.

        The columns `leave_out` of a table are no classes.
        """
        from recal.files.probabilities import read_prob_table, read_probs

        kind = check_kind(path, "probabilities", "views")
        if kind == "views":
            return self._uncalibrated(path, need_labels=need_labels)
        columns = self.columns(path)
        if kind == "a table":
            aside = [name for name in (self.group, self.cluster, *leave_out) if name is not None]
            found = read_prob_table(path, self.label_column or "label", aside)
        else:
            found = read_probs(path)
        found = self._labelled(found)
        if found.labels is None and need_labels:
            column = ""
            if kind == "a table":
                column = " or --label-column COLUMN; for graded answers --correct COLUMN"
            raise InputError(
                f"{path} holds no labels, which are needed: add --labels FILE{column}."
            )
        return replace(found, **columns)

    def _uncalibrated(self, path: Path, *, need_labels: bool) -> Probabilities:
        """Return the probabilities of a model from its views."""
        from recal import Plan
        from recal.files.probabilities import Probabilities
        from recal.maps.steps import calibrated_probs

        views = self.views(path, need_labels=need_labels)
        probs = calibrated_probs(Plan(), views)
        return Probabilities(
            probs, views.labels, views.classes, groups=views.groups, clusters=views.clusters
        )

    def _labelled(self, found: Probabilities) -> Probabilities:
        """Return probabilities with the labels and classes that were typed."""
        from recal.checks import check_classes, check_labels

        n_samples, n_classes = found.probs.shape
        if self.class_names is not None:
            found = replace(found, classes=check_classes(self.class_names, n_classes))
        if self.labels is None:
            return found
        try:
            given = self._read_labels(self.labels)
            truth = check_labels(given, n_samples, n_classes, found.classes)
        except InputError as error:
            raise error.at(self.labels) from None
        return replace(found, labels=truth)

    def calibrated(self, path: Path, file: Path, calibrator: Any) -> Probabilities:
        """Return the calibrated probabilities of labelled views; `file` holds the calibrator."""
        from recal.files.probabilities import Probabilities

        views = self.views(path, need_labels=True)
        check_views(calibrator, file, views, path)
        probs, confidences = calibrator.predict_both(views)
        fitted, by = calibrator.fitted_rows(views), (views.groups, views.clusters)
        return Probabilities(probs, views.labels, views.classes, confidences, fitted, *by)

    def graded(self, path: Path, correct: str | None, calibrator: Any = None) -> Probabilities:
        """Return graded answers with their confidence, from a calibrator or from its column."""
        from recal.workflow.scoring import grade_answers

        check_exists(path)
        correct = check_correct(path, correct)
        found = grade_answers(path, correct, calibrator, cluster=self.cluster)
        return replace(found, **self.columns(path))

    def _read_labels(self, path: Path) -> Any:
        """Read one label per row: from .npy or text, or from a column of a table."""
        from recal.collecting.files import read_labels

        check_exists(path)
        if path.suffix == ".parquet" or self.label_column is not None:
            column = self.label_column or "label"
            return table_columns(path, [column])[column].astype(str)
        return read_labels(path)

    # ---- a model and its data

    @property
    def is_table(self) -> bool:
        """Whether the data are a table."""
        return self.data is not None and self.data.suffix.lower() in TABLES

    def check_files(self) -> None:
        """Refuse a missing model or missing data, before importing the code that opens them."""
        if self.model is None or self.data is None:
            given = " ".join(map(str, self.words("model", "data")))
            raise InputError(f"This needs --model and --data, got {given or 'neither'}.")
        if Path(self.model).suffix.lower() in (".onnx", ".pt2", ".skops"):
            check_exists(Path(self.model))
        check_exists(self.data)

    def preprocessing(self) -> Any:
        """Return the normalisation that the options describe, or None."""
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
        from recal.collecting import Normalize

        return Normalize(**values) if values else None

    def open_model(self, stored: Any = None, *, refuse: bool = False) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration.

        If that was fitted for another model, refuse it or print a warning.
        """
        from recal.collecting.models import as_model, import_model
        from recal.transforms.preprocessing import check_model, match_outputs

        assert self.model is not None
        outputs: Any = self.outputs  # checked where it is used
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, trusted=trusted, device=self.device)
        try:
            adapter = as_model(model, outputs=match_outputs(stored, outputs), device=self.device)
        except InputError as error:
            if self.model in str(error) or error.argument == "outputs":
                raise
            raise error.at(f"--model {self.model}") from None
        if self.device is not None and not hasattr(adapter, "requested"):
            raise InputError(f"--device applies to torch models only, and {self.model} is not one.")
        if stored is not None:
            check_model(stored, adapter.fingerprint(), refuse=refuse)
        return adapter

    def open_data(self, model: Any, stored: Any = None) -> Any:
        """Return the source of the inputs.

        They are read as typed, as for the fit of a calibration, or as the model needs.
        """
        from recal.collecting.sources import as_source
        from recal.collecting.tables import arrange_columns

        assert self.data is not None
        names = ("pixels", "resize", "crop", "seconds", "read", "on_error", "cluster_by")
        typed = {name: getattr(self, name) for name in (*names, "label_column", "text_column")}
        if self.rows is None:
            typed |= {"cluster_column": self.cluster, "group_column": self.group}
        reading = self._default_reading(model, stored) | without_none(**typed)
        source = arrange_columns(as_source(self.data, **without_none(**reading)), model, stored)
        if self.rows is not None:
            for name, values in self.columns(self.rows).items():
                setattr(source, name, values)
        return source

    def open_as_fitted(
        self, calibrator: Any, *, refuse: bool = False
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return the model, the inputs, and how to run them, prepared as they were for the fit."""
        stored = getattr(calibrator, "preprocessing_", None)
        model = self.open_model(stored, refuse=refuse)
        return model, self.open_data(model, stored), self.running(stored)

    def open_labelled_data(self, model: Any) -> Any:
        """Return the source of inputs to calibrate on; an assumed order of classes is printed."""
        from recal.collecting.local import open_source
        from recal.collecting.preflight import name_labels

        data = self.open_data(model)
        try:
            source = open_source(data, self.labels, {}, model)
        except InputError as error:
            raise error if self.labels is None else error.at(self.labels) from None
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

    def running(self, stored: Any = None) -> dict[str, Any]:
        """Return the arguments of `recal.collect` that say how to run, if they were typed."""
        from recal.transforms.preprocessing import match_outputs

        outputs: Any = self.outputs
        typed = without_none(
            batch_size=self.batch_size,
            outputs=outputs if stored is None else match_outputs(stored, outputs),
            device=self.device,
            engine=self.engine,
        )
        return {"progress": SESSION.progress, "preprocess": self.preprocessing(), **typed}


# The fields of `Inputs` that commands take together.
ALL = tuple(field.name for field in fields(Inputs))
MODEL = ALL[: ALL.index("labels")]
ROWS = ALL[ALL.index("labels") : ALL.index("read")]


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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse(ctx: Any, what: str, names: Iterable[str]) -> None:
    """Refuse these options, if they were typed, because they would have no effect."""
    names = set(names)
    typed = [
        one.opts[0] if one.opts[0].startswith("-") else one.name.upper()
        for one in ctx.command.params
        if one.name in names and ctx.get_parameter_source(one.name).name != "DEFAULT"
    ]
    if typed:
        raise InputError(f"{' and '.join(typed)} cannot be used with {what}. Leave it out.")


def refuse_unused(ctx: Any, what: str, used: Iterable[str]) -> None:
    """Refuse all options that were typed, except those in `used` and those of every command."""
    names = {one.name for one in ctx.command.params}
    refuse(ctx, what, names - {*used, "out", "force", "json", "quiet"})
