"""The files named on the command line: what they hold, and how a mix-up is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.errors import FileError, InputError
from recal.files.paths import exists, is_remote
from recal.workflow.folder import calibration_in

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.files.probabilities import Probabilities
    from recal.views import Views

_ORIGINS = {
    "views": "Views are an .npz file with an array `logits`, or a .zarr folder: recal collect makes "
    "them.",
    "probabilities": "Probabilities are an .npz file with an array `probs`, or a .csv or .parquet "
    "table: recal apply makes them.",
    "a calibration": "recal fit makes one: recal fit VIEWS --out calibration.recal",
}


def file_kind(path: Path) -> str:
    """Return what a file or folder is: views, probabilities, missing, empty, or a description."""
    if exists(path) and path.is_dir():
        is_store = path.suffix == ".zarr" or (path / "zarr.json").exists()
        return "views" if is_store else "a folder without views"
    if not path.exists():
        return "missing"
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return "of an unknown kind"  # its reader reports the reason
    suffix = path.suffix.lower()
    if not head:
        return "empty"
    if suffix in (".xls", ".xlsx") or (suffix == ".csv" and head.startswith(b"PK\x03\x04")):
        return "a spreadsheet"
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_archive(path)
    if head[8:9] == b"{":
        return "a calibration" if b'"recal"' in head else "a file of a network's weights"
    if head.startswith(b"\x93NUMPY"):
        return "one array alone (.npy)"
    if head.startswith(b"\x80"):
        return "a pickle, which may run any code and is never opened"
    if head.startswith(b"PAR1") or suffix in (".csv", ".tsv"):
        return "a table"
    if suffix in (".onnx", ".pt2"):
        return "a model"
    return "text" if _is_text(head) else "of an unknown kind"


def _kind_of_archive(path: Path) -> str:
    from recal.files.views import names_in

    names = names_in(path)
    if not names:
        return "cut"
    if "logits" in names:
        return "views"
    if "probs" in names:
        return "probabilities"
    return "arrays" if path.suffix == ".npz" else "a model or zip archive"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # the end may split a character
    return not any(letter < " " and letter not in "\t\r\n\f" for letter in text)


def check_kind(path: Path, *kinds: str) -> str:
    """Return the kind of a file; refuse any other kind, and say what to do."""
    kind = file_kind(path)
    if kind in kinds or (kind == "a table" and "probabilities" in kinds):
        return kind
    check_exists(path)
    if kind == "empty":
        raise FileError(f"{path} is empty. Write it again: writing it was interrupted.")
    if kind == "cut":
        raise FileError(
            f"{path} is not a complete .npz file: it is damaged or truncated. Copy or write it "
            "again."
        )
    if kind == "arrays":
        from recal.files.views import names_in

        array = "probs" if kinds[0] == "probabilities" else "logits"
        raise InputError(
            f"{path} cannot be used: it holds no array `{array}`; it holds: "
            f"{', '.join(names_in(path)[:8])}. Give the array that name; if these are a model's "
            f"inputs: recal collect --model MODEL --data {path} --out views.npz"
        )
    verb = "holds" if kind in ("views", "probabilities") else "is"
    raise InputError(f"{path} {verb} {kind}, not {kinds[0]}. {_remedy(path, kind, kinds[0])}")


def _remedy(path: Path, kind: str, expected: str) -> str:
    """Return what to type if a file is of another kind than expected."""
    origin, first = _ORIGINS[expected], "The calibration comes first where both are given."
    if expected == "a calibration":
        if kind == "views":
            return f"{first} To make one: recal fit {path} --out calibration.recal"
        return f"{first} {origin}" if kind == "probabilities" else origin
    if kind == "a calibration":
        if expected == "probabilities":
            return f"Probabilities come from it by: recal apply {path} VIEWS --out probs.npz"
        return first
    if kind in ("probabilities", "a table"):
        reads = "Probabilities are read by recal evaluate, decide and report."
        if kind == "a table":
            command = f"recal collect --model MODEL --data {path} --out views.npz"
            return f"Logits are needed. {reads} If the table holds a model's inputs: {command}"
        return f"Logits are needed. {origin} {reads}"
    if kind == "a folder without views":
        return f"{origin} A folder of inputs is read by recal collect --data."
    if kind == "one array alone (.npy)":
        return "Save it by name: np.savez('views.npz', logits=..., labels=...)"
    if kind == "a spreadsheet":
        return f"{origin} Save the spreadsheet as .csv."
    return origin


def check_exists(path: Path) -> None:
    """Refuse a file that does not exist, and suggest a similar name."""
    folder = path.parent
    if exists(path):
        return
    if is_remote(path):
        raise FileError(
            f"There is nothing at {path}. Check the name, and that your credentials may read it."
        )
    if not folder.is_dir():
        raise FileError(f"There is no file {path}: the folder {folder} is not there.")
    near = get_close_matches(path.name, [file.name for file in folder.iterdir()], n=1, cutoff=0.75)
    hint = f"It was looked for in {folder.resolve()}."
    if near:
        hint = f"Did you mean {folder / near[0]}?"
    raise FileError(f"There is no file or folder {path}. {hint}")


def read_labelled_probs(
    path: Path,
    labels: Path | None,
    label_column: str | None = None,
    leave_out: Sequence[str] = (),
    *,
    need_labels: bool = True,
) -> Probabilities:
    """Read probabilities, and labels if there are any;
    for views, the probabilities of the uncalibrated model.
    """
    from recal.checks import check_labels
    from recal.files.probabilities import probs_of_file, read_prob_table

    is_table = check_kind(path, "probabilities", "views") == "a table"
    column = label_column or "label"
    probs = read_prob_table(path, column, leave_out) if is_table else probs_of_file(path)
    if labels is not None:
        given = _read_labels(labels, label_column)
        try:
            n_samples, n_classes = probs.probs.shape
            truth = check_labels(given, n_samples, n_classes, probs.classes)
        except InputError as error:
            raise error.at(labels) from None
        return replace(probs, labels=truth)
    if probs.labels is None and need_labels:
        where = ""
        if is_table:
            where = f", or name their column with --label-column; it has no {column!r}"
        raise InputError(
            f"{path} holds no labels, and without them nothing can be measured: add --labels FILE"
            f"{where}."
        )
    return probs


def open_views(
    path: Path,
    labels: Path | None = None,
    classes: list[str] | None = None,
    label_column: str | None = None,
    *,
    rows: Path | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> Views:
    """Read views with what was typed about them; refuse a file that is something else."""
    from recal import read_views

    check_kind(path, "views")
    truth = None if labels is None else _read_labels(labels, label_column)
    try:
        views = read_views(path, labels=truth, classes=classes)
    except InputError as error:
        if labels is not None and error.argument in ("labels", "classes"):
            error.where = ""  # the mistake is in the options, not in the file of views
        raise error.at(path if labels is None or error.argument != "labels" else labels) from None
    return views.assign(**row_columns(rows or path, group, cluster))


def _read_labels(path: Path, column: str | None = None) -> Any:
    """Read one label per row: from .npy or text, or from a column of a table."""
    from recal.collecting.files import read_labels

    check_exists(path)
    if path.suffix == ".parquet" or column is not None:
        return table_columns(path, [column or "label"])[column or "label"].astype(str)
    return read_labels(path)


def load_saved(path: Path) -> tuple[Path, Any]:
    """Load a calibration, rule or profile, also from a folder of `recal calibrate`;
    return its file and the object.
    """
    file = calibration_in(path)
    check_kind(file, "a calibration")
    from recal.files.saved import load

    return file, load(file)


def is_calibration(content: Any) -> bool:
    """Whether an object calibrates logits: a calibrator or a plan."""
    return hasattr(content, "predict_proba") or hasattr(content, "steps")


def is_signal_calibration(content: Any) -> bool:
    """Whether an object is a calibration of graded answers, which reads a table of signals."""
    from recal import SignalCalibration

    return isinstance(content, SignalCalibration)


def is_panel(content: Any) -> bool:
    """Whether an object is a calibration of several systems, or a cascade of them."""
    from recal import PanelCalibration
    from recal.decisions.cascade import CascadeRule

    return isinstance(content, PanelCalibration | CascadeRule)


def check_calibration(path: Path, content: Any) -> Any:
    """Return what a file holds if it is a calibration of logits; refuse anything else."""
    if is_signal_calibration(content):
        raise InputError(
            f"{path} is a calibration of graded answers, which reads a table of them (.csv, "
            ".parquet, .jsonl)."
        )
    if not is_calibration(content):
        raise InputError(
            f"{path} holds no calibration, which recal fit makes. See: recal plan {path}"
        )
    return content


def check_views(calibrator: Any, calibration: Path, views: Views, source: Path) -> None:
    """Refuse views that lack what the calibration needs, or come from another model, and say how to
    collect them.
    """
    classes = getattr(calibrator, "classes_", None)
    if classes is not None and len(classes) != views.n_classes:
        raise InputError(
            f"{calibration} was fitted on {len(classes)} classes, and {source} has "
            f"{views.n_classes}: these are of two models. Fit a calibration on views of this model."
        )
    holder = getattr(calibrator, "calibrator_", calibrator)
    fitted_map = getattr(holder, "map_", holder)  # a plan is a map itself
    needs = [str(transform) for transform in fitted_map.transforms]
    if hasattr(calibrator, "needed_transforms"):
        needs = [str(transform) for transform in calibrator.needed_transforms()]
    absent = [name for name in needs if name not in map(str, views.transforms)]
    # With a gate, confident samples need no views.
    if absent and fitted_map.needs_views(views.logits).any():
        raise InputError(
            f"{calibration} needs logits through {', '.join(absent)}, which {source} does not "
            "hold. Collect them: recal collect --model MODEL --data INPUTS --pool "
            f"{'+'.join(needs)} --out NAME.npz"
        )


def profile_in(path: Path, seed: int) -> Profile:
    """Return the profile in a file or in a folder of `recal calibrate`, or that of a file of views."""
    from recal.decisions import Profile
    from recal.decisions import profile as take

    if check_kind(calibration_in(path), "a calibration", "views") == "views":
        return take(open_views(path), random_state=seed)
    path, content = load_saved(path)
    profile = getattr(content, "profile_", content)
    if not isinstance(profile, Profile):
        raise InputError(
            f"{path} holds no profile; make one from the fit's views: recal watch VIEWS --save "
            "profile.recal"
        )
    return profile


def columns_of_rows(
    source: Path, rows: Path | None, group: str | None, cluster: str | None
) -> dict[str, Any]:
    """Return groups and clusters: the columns that were typed, or those of a file of views."""
    if file_kind(source) == "views":
        views = open_views(source, rows=rows, group=group, cluster=cluster)
        return {"groups": views.groups, "clusters": views.clusters}
    columns = row_columns(rows or source, group, cluster)
    return {"groups": columns.get("groups"), "clusters": columns.get("clusters")}


def typed_columns(*names: str | None) -> list[str]:
    """Return the columns that were typed."""
    return [name for name in names if name is not None]


def row_columns(path: Path, group: str | None, cluster: str | None) -> dict[str, Any]:
    """Read the columns of groups and clusters that were typed, as arguments of `decide` and
    `Views.assign`.
    """
    columns = table_columns(path, typed_columns(group, cluster))
    found = {} if group is None else {"groups": columns[group]}
    if cluster is not None:
        from recal.files.tables import Table

        found["clusters"] = Table(columns, path).clusters(cluster)
    return found


def table_columns(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read named columns of a table; refuse files without columns and unknown names."""
    from recal.files.tables import SUFFIXES, read_table

    if not names:
        return {}
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path} has no columns; name a table, such as a .csv file, that holds {names[0]!r} with --rows."
        )
    columns = read_table(path)
    return {name: columns[name] for name in names}


def is_table_of_answers(path: Path) -> bool:
    """Whether a file is a table of answers: .csv, .tsv, .parquet or .jsonl."""
    return file_kind(path) in ("a table", "text") or path.suffix.lower() in (".jsonl", ".ndjson")


def check_correct(table: Path, correct: str | None) -> str:
    """Return the column of grades; refuse a missing one, and name the columns that there are."""
    if correct is None:
        from recal.files.tables import read_table

        raise InputError(
            f"Name the column of {table} that says which answers are right: --correct COLUMN. It "
            f"has {', '.join(read_table(table))}."
        )
    return correct
