"""What the options about rows and inputs mean: how files are read, and a model's data opened."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from recal.cli.files import check_correct, check_exists, check_kind, check_views, table_columns
from recal.cli.options import split_names, without_none
from recal.cli.printing import SESSION, say
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.files.probabilities import Probabilities
    from recal.views import Views


def group_words(group: str | None = "COLUMN", *, in_rows: bool = True) -> list[str]:
    """Return the words that tell `recal apply` the groups of new inputs.

    They are a column of a table of rows (`in_rows`) or of the data.
    """
    if group is None:
        return []
    return [*(("--rows", "NEW_ROWS.csv") if in_rows else ()), "--group", group]


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """What was typed about the rows of a file, and files read with it."""

    labels: Path | None = None
    label_column: str | None = None
    classes: str | None = None
    group: str | None = None
    cluster: str | None = None
    rows: Path | None = None

    @classmethod
    def of(cls, ctx: Any) -> Self:
        """Return the options of a running command that are fields of this class.

        An option that the command does not take stays None.
        """
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in ctx.params.items() if name in names})

    @property
    def class_names(self) -> list[str] | None:
        """The classes that were typed, in order."""
        return split_names(self.classes)

    def columns(self, path: Path) -> dict[str, Any]:
        """Read the groups and clusters that were typed, from --rows or from this table."""
        from recal.files.tables import Table

        path = self.rows or path
        columns = table_columns(path, [name for name in (self.group, self.cluster) if name])
        found = {} if self.group is None else {"groups": columns[self.group]}
        if self.cluster is not None:
            found["clusters"] = Table(columns, path).clusters(self.cluster)
        return found

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
        self, path: Path, leave_out: tuple[str, ...] = (), *, need_labels: bool = True
    ) -> Probabilities:
        """Read probabilities, labels, groups and clusters, as far as there are any; for views, the
        probabilities of the uncalibrated model.

        The columns `leave_out` of a table are no classes.
        """
        from recal.checks import check_labels
        from recal.files.probabilities import probs_of_file, read_prob_table

        kind = check_kind(path, "probabilities", "views")
        columns = {} if kind == "views" else self.columns(path)
        if kind == "a table":
            aside = [name for name in (self.group, self.cluster, *leave_out) if name is not None]
            found = read_prob_table(path, self.label_column or "label", aside)
        else:
            found = probs_of_file(path)
        if self.labels is not None:
            given = self._read_labels(self.labels)
            try:
                n_samples, n_classes = found.probs.shape
                truth = check_labels(given, n_samples, n_classes, found.classes)
            except InputError as error:
                raise error.at(self.labels) from None
            found = replace(found, labels=truth)
        if found.labels is None and need_labels:
            column = " or --label-column COLUMN" if kind == "a table" else ""
            raise InputError(
                f"{path} holds no labels, which are needed: add --labels FILE{column}."
            )
        if kind == "views":
            views = self.views(path)
            return replace(found, groups=views.groups, clusters=views.clusters)
        return replace(found, **columns)

    def calibrated(self, path: Path, file: Path, calibrator: Any) -> Probabilities:
        """Return the calibrated probabilities of labelled views; `file` holds the calibrator."""
        from recal.files.probabilities import Probabilities

        views = self.views(path)
        if views.labels is None:
            raise InputError(f"{path} holds no labels, which are needed: add --labels FILE.")
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

        check_exists(path)
        return graded_answers(path, check_correct(path, correct), calibrator, cluster=self.cluster)

    def _read_labels(self, path: Path) -> Any:
        """Read one label per row: from .npy or text, or from a column of a table."""
        from recal.collecting.files import read_labels

        check_exists(path)
        if path.suffix == ".parquet" or self.label_column is not None:
            column = self.label_column or "label"
            return table_columns(path, [column])[column].astype(str)
        return read_labels(path)


@dataclass(frozen=True, kw_only=True)
class Inputs(RowFacts):
    """A model, its data and how they are read and prepared."""

    model: str | None = None
    data: Path | None = None
    outputs: Any = None  # checked where it is used
    trust: str | None = None
    device: str | None = None
    engine: str | None = None
    batch_size: int | None = None
    read: str | None = None
    on_error: str | None = None
    cluster_by: str | None = None
    seconds: float | None = None
    text_column: str | None = None
    pixels: str | None = None
    resize: int | None = None
    crop: int | None = None
    mean: str | None = None
    std: str | None = None
    divide: float | None = None
    channels: str | None = None

    @property
    def is_table(self) -> bool:
        """Whether the data are a table."""
        return self.data is not None and self.data.suffix.lower() in (".csv", ".tsv", ".parquet")

    def check_files(self) -> None:
        """Refuse a missing model or missing data, before importing the code that would open them."""
        if self.model is None or self.data is None:
            typed = without_none(model=self.model, data=self.data)
            given = " ".join(f"--{name} {value}" for name, value in typed.items())
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

    def open_model(self, stored: Any = None) -> Any:
        """Return the adapter of the model. `stored` is the preprocessing of a calibration."""
        from recal.collecting.models import as_model, import_model
        from recal.transforms.preprocessing import match_outputs

        assert self.model is not None
        trusted = () if self.trust is None else self.trust.split(",")
        model = import_model(self.model, trusted=trusted, device=self.device)
        try:
            adapter = as_model(
                model, outputs=match_outputs(stored, self.outputs), device=self.device
            )
        except InputError as error:
            if self.model in str(error) or error.argument == "outputs":
                raise
            raise error.at(f"--model {self.model}") from None
        if self.device is not None and not hasattr(adapter, "requested"):
            raise InputError(f"--device applies to torch models only, and {self.model} is not one.")
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

        outputs = self.outputs if stored is None else match_outputs(stored, self.outputs)
        typed = without_none(
            batch_size=self.batch_size, outputs=outputs, device=self.device, engine=self.engine
        )
        return {"progress": SESSION.progress, "preprocess": self.preprocessing(), **typed}
