"""The files named on the command line: what they hold, and how a mix-up is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recal.errors import FileError, InputError
from recal.files.paths import exists, is_remote
from recal.workflow.folder import calibration_in

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.files.probabilities import Probabilities
    from recal.views import Views

Kind = Literal["views", "probabilities", "calibration"]

_HEAD_BYTES = 4096
# The type of a file: a kind in `_DESCRIPTIONS`, or a description; by its first bytes, then by its
# name.
_BEGINNINGS = {
    b"\x93NUMPY": "array",
    b"PAR1": "table",
    b"\x80": "a pickle, which may run any code and is never opened",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"RIFF": "a sound",
    b"%PDF": "a document",
    b"\xd0\xcf\x11\xe0": "spreadsheet",
}
_SUFFIXES = {".csv": "table", ".tsv": "table", ".xlsx": "spreadsheet", ".xls": "spreadsheet"}
_SUFFIXES |= {".onnx": "a model", ".pt2": "a model", ".py": "a Python program"}
_DESCRIPTIONS = {
    "calibration": "a calibration",
    "array": "one array alone (.npy)",
    "table": "a table",
    "spreadsheet": "a spreadsheet",
    "folder": "a folder without views",
}
_ORIGINS = {
    "views": "Views are an .npz file with an array `logits`, or a .zarr folder: recal collect makes them.",
    "probabilities": "Probabilities are an .npz file with an array `probs`, or a .csv or .parquet table: recal apply "
    "makes them.",
    "calibration": "recal fit makes one: recal fit VIEWS --out calibration.recal",
}
# What to do about a file, by the expected and the actual kind, or only by the actual kind.
_FIRST = "The calibration comes first where both are given."
_LOGITS = "Logits are needed. {origin} Probabilities are read by recal evaluate, decide and report."
_REMEDIES: dict[Any, str] = {
    ("calibration", "views"): f"{_FIRST} To make one: recal fit {{path}} --out calibration.recal",
    ("calibration", "probabilities"): f"{_FIRST} {{origin}}",
    ("views", "calibration"): _FIRST,
    ("views", "probabilities"): _LOGITS,
    ("views", "table"): _LOGITS,
    ("views", "folder"): "{origin} A folder of inputs is read by recal collect --data.",
    (
        "probabilities",
        "calibration",
    ): "Probabilities come from it by: recal apply {path} VIEWS --out probs.npz",
    "array": "Save it by name: np.savez('views.npz', logits=..., labels=...)",
    "spreadsheet": "{origin} Save the spreadsheet as .csv.",
}


def kind_of(path: Path) -> str:
    """Return the kind of a file or folder, such as views, table, missing, empty or cut, or a
    description.
    """
    if exists(path) and path.is_dir():
        return "views" if path.suffix == ".zarr" or (path / "zarr.json").exists() else "folder"
    if not path.exists():
        return "missing"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "of an unknown kind"  # its reader reports the reason
    if not head:
        return "empty"
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_archive(path)
    if head[8:9] == b"{":
        return "calibration" if b'"recal"' in head else "a file of a network's weights"
    by_start = next((kind for start, kind in _BEGINNINGS.items() if head.startswith(start)), None)
    return (
        by_start
        or _SUFFIXES.get(path.suffix.lower())
        or ("text" if _is_text(head) else "of an unknown kind")
    )


def _kind_of_archive(path: Path) -> str:
    from recal.files.views import names_in

    if path.suffix.lower() in (".csv", ".xls", ".xlsx"):
        return "spreadsheet"  # even if its name says that it is text
    names = names_in(path)
    if not names:
        return "cut"
    if "logits" in names:
        return "views"
    if "probs" in names:
        return "probabilities"
    return _SUFFIXES.get(path.suffix.lower()) or (
        "arrays" if path.suffix == ".npz" else "a zip archive"
    )


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # the end may split a character
    return not any(letter < " " and letter not in "\t\r\n\f" for letter in text)


def check_kind(path: Path, *kinds: Kind) -> str:
    """Return the kind of a file; refuse any other kind, and say what to do."""
    kind = kind_of(path)
    if kind in kinds or (kind == "table" and "probabilities" in kinds):
        return kind
    check_exists(path)
    if kind == "empty":
        raise FileError(
            f"{path} is empty. Write it again: writing it was interrupted or has not started."
        )
    if kind == "cut":
        raise FileError(
            f"{path} is not a complete .npz file: it is damaged or truncated. Copy or write it again."
        )
    raise InputError(_mixed_up(path, kind, kinds[0]))


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
    hint = (
        f"Did you mean {folder / near[0]}?" if near else f"It was looked for in {folder.resolve()}."
    )
    raise FileError(f"There is no file or folder {path}. {hint}")


def _mixed_up(path: Path, kind: str, expected: Kind) -> str:
    """Return the sentence for a file of another kind: what it is, and what to type instead."""
    origin = _ORIGINS[expected]
    if kind == "arrays":
        from recal.files.views import names_in

        array = "probs" if expected == "probabilities" else "logits"
        return (
            f"{path} cannot be used: it holds no array `{array}`; it holds: {', '.join(names_in(path)[:8])}. Give the "
            f"array that name; if these are a model's inputs: recal collect --model MODEL --data {path} --out views.npz"
        )
    remedy = (_REMEDIES.get((expected, kind)) or _REMEDIES.get(kind, "{origin}")).format(
        origin=origin, path=path
    )
    verb = "holds" if kind in ("views", "probabilities") else "is"
    return f"{path} {verb} {_DESCRIPTIONS.get(kind, kind)}, not {_DESCRIPTIONS.get(expected, expected)}. {remedy}"


def read_probs(
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

    is_table = check_kind(path, "probabilities", "views") == "table"
    column = label_column or "label"
    probs = read_prob_table(path, column, leave_out) if is_table else probs_of_file(path)
    if labels is not None:
        try:
            truth = check_labels(
                _read_labels(labels, label_column),
                len(probs.probs),
                probs.probs.shape[1],
                probs.classes,
            )
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
) -> Views:
    """Read views, with the labels and classes that were typed;
    say so if the file is something else.
    """
    from recal import read_views

    check_kind(path, "views")
    truth = None if labels is None else _read_labels(labels, label_column)
    try:
        return read_views(path, labels=truth, classes=classes)
    except InputError as error:
        if labels is not None and error.argument in ("labels", "classes"):
            error.where = ""  # the mistake is in the options, not in the file of views
        raise error.at(path if labels is None or error.argument != "labels" else labels) from None


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
    check_kind(file, "calibration")
    from recal.files.saved import load

    return file, load(file)


def is_calibration(content: Any) -> bool:
    """Whether an object calibrates logits: a calibrator or a plan."""
    return hasattr(content, "predict_proba") or hasattr(content, "steps")


def is_graded(content: Any) -> bool:
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
    if is_graded(content):
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
            f"{calibration} was fitted on {len(classes)} classes, and {source} has {views.n_classes}: these are of two "
            "models. Fit a calibration on views of this model."
        )
    needs = (
        calibrator.needed_transforms()
        if hasattr(calibrator, "needed_transforms")
        else calibrator.transforms
    )
    there = {str(transform) for transform in views.transforms}
    absent = [str(transform) for transform in needs if str(transform) not in there]
    holder = getattr(calibrator, "calibrator_", calibrator)
    fitted_map = getattr(holder, "map_", holder)  # a plan is a map itself
    if (
        absent and fitted_map.needs_views(views.logits).any()
    ):  # with a gate, confident samples need no views
        raise InputError(
            f"{calibration} needs logits through {', '.join(absent)}, which {source} does not hold. Collect them: "
            f"recal collect --model MODEL --data INPUTS --pool {'+'.join(map(str, needs))} --out NAME.npz"
        )


def profile_in(path: Path, seed: int) -> Profile:
    """Return the profile in a file or in a folder of `recal calibrate`, or that of a file of views."""
    from recal.decisions import Profile
    from recal.decisions import profile as take

    if check_kind(calibration_in(path), "calibration", "views") == "views":
        return take(open_views(path), random_state=seed)
    path, content = load_saved(path)
    profile = getattr(content, "profile_", content)
    if not isinstance(profile, Profile):
        raise InputError(
            f"{path} holds no profile; make one from the fit's views: recal watch VIEWS --save profile.recal"
        )
    return profile


def columns_of_rows(
    source: Path, rows: Path | None, group: str | None, cluster: str | None
) -> dict[str, Any]:
    """Return groups and clusters: the columns that were typed, or those of a file of views."""
    found: dict[str, Any] = {"groups": None, "clusters": None}
    if kind_of(source) == "views":
        views = open_views(source)
        found = {"groups": views.groups, "clusters": views.clusters}
    return found | row_columns(rows or source, group, cluster)


def typed_columns(*names: str | None) -> list[str]:
    """Return the columns that were typed."""
    return [name for name in names if name is not None]


def row_columns(path: Path, group: str | None, cluster: str | None) -> dict[str, Any]:
    """Read the columns of groups and clusters that were typed, as arguments of `decide` and
    `Views.assign`.
    """
    names = {
        name: column
        for name, column in (("groups", group), ("clusters", cluster))
        if column is not None
    }
    columns = table_columns(path, list(names.values()))
    if cluster is not None and "" in columns[cluster].tolist():
        row = columns[cluster].tolist().index("") + 1
        raise InputError(
            f"{path}: the column {cluster!r} is empty in row {row}. Rows that belong to no cluster "
            "need a name of their own."
        )
    return {name: columns[column] for name, column in names.items()}


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
    return kind_of(path) in ("table", "text") or path.suffix.lower() in (".jsonl", ".ndjson")
