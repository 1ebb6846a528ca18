"""The files named on the command line: what they hold, and how a mix-up is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recal.errors import FileError, InputError
from recal.files.urls import exists, is_remote

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.files.probabilities import Probabilities
    from recal.views import Views


Wanted = Literal["views", "probabilities", "calibration"]

_HEAD_BYTES = 4096
# Beginnings that tell what a file is, and how it is called.
_BEGINNINGS = (
    (b"\x93NUMPY", "array"),
    (b"PAR1", "table"),
    (b"\x80", "pickle"),
    (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF8", "image"),
    (b"RIFF", "sound"),
    (b"%PDF", "document"),
    (b"\xd0\xcf\x11\xe0", "spreadsheet"),
)
_SUFFIXES = {
    ".csv": "table",
    ".tsv": "table",
    ".xlsx": "spreadsheet",
    ".xls": "spreadsheet",
    ".onnx": "model",
    ".pt2": "model",
    ".py": "program",
}
_CALLED = {
    "views": "views",
    "probabilities": "probabilities",
    "calibration": "a calibration",
    "weights": "a file of a network's weights",
    "array": "one array alone (.npy)",
    "table": "a table",
    "pickle": "a pickle, which may run any code and is never opened",
    "image": "an image",
    "sound": "a sound",
    "document": "a document",
    "spreadsheet": "a spreadsheet",
    "model": "a model",
    "program": "a Python program",
    "archive": "a zip archive",
    "text": "text",
    "unknown": "of an unknown kind",
    "folder": "a folder without views",
}
_COMES_FROM = {
    "views": "Views are an .npz file with an array `logits`, or a .zarr folder: recal collect makes them.",
    "probabilities": "Probabilities are an .npz file with an array `probs`, or a .csv or .parquet table: recal apply "
    "makes them.",
    "calibration": "recal fit makes one: recal fit VIEWS --out calibration.recal",
}


def kind_of(path: Path) -> str:
    """Return what a file or folder is, one of the keys of `_CALLED`, or missing, empty or cut."""
    if exists(path) and path.is_dir():
        return "views" if path.suffix == ".zarr" or (path / "zarr.json").exists() else "folder"
    if not path.exists():
        return "missing"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "unknown"  # the reader proper says why
    if not head:
        return "empty"
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_archive(path)
    if head[8:9] == b"{":
        return "calibration" if b'"recal"' in head else "weights"
    known = next((kind for start, kind in _BEGINNINGS if head.startswith(start)), None)
    return known or _SUFFIXES.get(path.suffix.lower()) or ("text" if _is_text(head) else "unknown")


def _kind_of_archive(path: Path) -> str:
    from recal.files.npz import names_in

    if path.suffix.lower() in (".csv", ".xls", ".xlsx"):
        return "spreadsheet"  # also where its name pretends to be text
    names = names_in(path)
    if not names:
        return "cut"
    if "logits" in names:
        return "views"
    if "probs" in names:
        return "probabilities"
    return _SUFFIXES.get(path.suffix.lower()) or ("arrays" if path.suffix == ".npz" else "archive")


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a letter cut in two at the end
    return text.isprintable() or not any(letter < " " and letter not in "\t\r\n\f" for letter in text)


def check_kind(path: Path, *wanted: Wanted) -> str:
    """Return what the file is; refuse what is none of what is wanted, with what to do about it."""
    kind = kind_of(path)
    if kind in wanted:
        return kind
    if kind == "table" and "probabilities" in wanted:
        return kind
    if kind == "missing":
        raise FileError(missing(path))
    if kind == "empty":
        raise FileError(f"{path} is empty. Write it again: writing it was interrupted or has not started.")
    if kind == "cut":
        raise FileError(f"{path} is not a complete .npz file: it is damaged or truncated. Copy or write it again.")
    raise InputError(_mixed_up(path, kind, wanted[0]))


def missing(path: Path) -> str:
    """Return the sentence for a file that is not there, with the name that was meant where one is near."""
    folder = path.parent
    if is_remote(path):
        return f"There is nothing at {path}. Check the name, and that your credentials may read it."
    if not folder.is_dir():
        return f"There is no file {path}: the folder {folder} is not there."
    near = get_close_matches(path.name, [found.name for found in folder.iterdir()], n=1, cutoff=0.75)
    meant = f" Did you mean {folder / near[0]}?" if near else f" It was looked for in {folder.resolve()}."
    return f"There is no file or folder {path}.{meant}"


def _mixed_up(path: Path, kind: str, wanted: Wanted) -> str:
    """Return the sentence for a file of another kind: what it is, and what to type instead."""
    remedy = _COMES_FROM[wanted]
    if kind == "arrays":
        from recal.files.npz import names_in

        array = "probs" if wanted == "probabilities" else "logits"
        return (
            f"{path} cannot be used: it holds no array `{array}`; it holds: {', '.join(names_in(path)[:8])}. Give the "
            f"array that name; if these are a model's inputs: recal collect --model MODEL --data {path} --out views.npz"
        )
    if wanted == "calibration" and kind in ("views", "probabilities"):
        remedy = "The calibration comes first where both are given. " + (
            f"To make one: recal fit {path} --out calibration.recal" if kind == "views" else remedy
        )
    elif wanted == "views" and kind == "calibration":
        remedy = "The calibration comes first where both are given."
    elif wanted == "views" and kind in ("probabilities", "table"):
        remedy = f"Logits are needed. {remedy} Probabilities are read by recal evaluate, decide and report."
    elif wanted == "probabilities" and kind == "calibration":
        remedy = f"Probabilities come from it by: recal apply {path} VIEWS --out probs.npz"
    elif kind == "array":
        remedy = "Save it by name: np.savez('views.npz', logits=..., labels=...)"
    elif kind == "folder" and wanted == "views":
        remedy += " A folder of inputs is read by recal collect --data."
    elif kind == "spreadsheet":
        remedy += " Save the spreadsheet as .csv."
    verb = "holds" if kind in ("views", "probabilities") else "is"
    return f"{path} {verb} {_CALLED[kind]}, not {_CALLED[wanted]}. {remedy}"


LabelColumn = Annotated[
    str, typer.Option("--label-column", help="The column of a .csv or .parquet file that holds the labels.")
]
LabelsFile = Annotated[
    Path | None, typer.Option("--labels", help="Labels, if the file has none: .npy, or .txt with one per line.")
]


def labelled_probs(
    path: Path, label_column: str, leave_out: Sequence[str] = (), labels: Path | None = None
) -> Probabilities:
    """Read probabilities with labels; of views, those that the model claims without calibration."""
    from recal.errors import InputError

    found, table = read_probabilities(path, labels, label_column, leave_out), kind_of(path) == "table"
    if found.labels is None:
        column = f", or name the column that holds them with --label-column; it has no {label_column!r}"
        raise InputError(
            f"{path} holds no labels, and without them nothing can be measured: add --labels FILE"
            f"{column if table else ''}."
        )
    return found


def read_probabilities(
    path: Path, labels: Path | None = None, label_column: str = "label", leave_out: Sequence[str] = ()
) -> Probabilities:
    """Read probabilities, and labels where there are any."""
    from recal.checks import check_labels
    from recal.errors import InputError
    from recal.files.probabilities import probs_of_file, read_prob_table

    table = check_kind(path, "probabilities", "views") == "table"
    found = read_prob_table(path, label_column, leave_out) if table else probs_of_file(path)
    if labels is None:
        return found
    try:
        truth = check_labels(_read_labels(labels), len(found.probs), found.probs.shape[1], found.classes)
    except InputError as error:
        raise error.at(labels) from None
    return replace(found, labels=truth)


def open_views(path: Path, labels: Path | None = None, classes: str | None = None) -> Views:
    """Read views, with the labels and classes that were typed; say so where the file is something else."""
    from recal import read_views
    from recal.errors import InputError

    check_kind(path, "views")
    truth = None if labels is None else _read_labels(labels)
    names = None if classes is None else [name.strip() for name in classes.split(",")]
    try:
        return read_views(path, labels=truth, classes=names)
    except InputError as error:
        if labels is not None and error.argument in ("labels", "classes"):
            error.where = ""  # what is wrong was typed, and does not stand in the file of views
        raise error.at(path if labels is None or error.argument != "labels" else labels) from None


def _read_labels(path: Path) -> Any:
    from recal.collecting.inputs.files import read_labels
    from recal.errors import FileError

    if not path.exists():
        raise FileError(missing(path))
    return read_labels(path)


def load_calibration(path: Path) -> Any:
    """Load what `recal fit` wrote; say so where the file is something else."""
    from recal import load
    from recal.errors import InputError
    from recal.workflow.result import file_or_in

    path = file_or_in(path)
    check_kind(path, "calibration")
    found = load(path)
    if not hasattr(found, "predict_proba") and not hasattr(found, "steps"):
        raise InputError(
            f"{path} holds a {type(found).__name__}, not a calibration, which recal fit makes. See: recal plan {path}"
        )
    return found


def check_views_held(calibrator: Any, calibration: Path, views: Views, source: Path) -> None:
    """Refuse views without what the calibration needs, or of another model, and say how to collect it."""
    from recal.errors import InputError

    own = getattr(calibrator, "classes_", None)
    if own is not None and len(own) != views.n_classes:
        raise InputError(
            f"{calibration} was fitted on {len(own)} classes, and {source} has {views.n_classes}: these are of two "
            "models. Fit a calibration on views of this model."
        )
    needed = calibrator.needed_transforms() if hasattr(calibrator, "needed_transforms") else calibrator.transforms
    held = {str(transform) for transform in views.transforms}
    absent = [str(transform) for transform in needed if str(transform) not in held]
    holder = getattr(calibrator, "calibrator_", calibrator)
    fitted = getattr(holder, "map_", holder)  # a plan is a map itself
    if absent and fitted.needs_views(views.logits).any():  # with a gate, confident samples need no views
        raise InputError(
            f"{calibration} needs logits through {', '.join(absent)}, which {source} does not hold. Collect them: "
            f"recal collect --model MODEL --data INPUTS --pool {'+'.join(map(str, needed))} --out NAME.npz"
        )


def profile_in(path: Path, seed: int) -> Profile:
    """The profile in a file or in a folder of `recal calibrate`, or that of a file of views."""
    from recal import load
    from recal.decisions import Profile
    from recal.decisions import profile as take
    from recal.errors import InputError
    from recal.workflow.result import calibration_in

    path = path if path.suffix == ".zarr" else calibration_in(path)
    if check_kind(path, "calibration", "views") == "views":
        return take(open_views(path), random_state=seed)
    found = load(path)
    found = getattr(found, "profile_", found)
    if not isinstance(found, Profile):
        raise InputError(
            f"{path} holds no profile; make one from the fit's views: recal watch VIEWS --save profile.recal"
        )
    return found


def rows_of_views(path: Path) -> dict[str, Any]:
    """Return the groups and clusters of a file of views; nothing for other files."""
    if kind_of(path) != "views":
        return {}
    views = open_views(path)
    return {"groups": views.groups, "clusters": views.clusters}


def row_columns(path: Path, group: str | None, cluster: str | None) -> dict[str, Any]:
    """Read the columns of groups and clusters that were typed, as arguments of `decide` and `Views.assign`."""
    names = {"groups": group, "clusters": cluster}
    typed = {name: column for name, column in names.items() if column is not None}
    columns = table_columns(path, list(typed.values()))
    return {name: columns[column] for name, column in typed.items()}


def table_columns(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read named columns of a table; refuse files without columns and unknown names."""
    from recal.errors import InputError
    from recal.files.tables import SUFFIXES, read_columns

    if not names:
        return {}
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} has no columns; name a .csv or .parquet file that holds {names[0]!r} with --rows.")
    columns = read_columns(path)
    if missing := [name for name in names if name not in columns]:
        raise InputError(f"{path} has no column {missing[0]!r}; it has {', '.join(columns)}.")
    return {name: columns[name] for name in names}
