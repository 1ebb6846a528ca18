"""The files named on the command line: what they hold, and how a mix-up is explained."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.errors import FileError, InputError
from recal.workflow.folder import calibration_in

if TYPE_CHECKING:
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
    if path.is_dir():
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
    if path.exists():
        return
    if not folder.is_dir():
        raise FileError(f"There is no file {path}: the folder {folder} is not there.")
    near = get_close_matches(path.name, [file.name for file in folder.iterdir()], n=1, cutoff=0.75)
    hint = f"It was looked for in {folder.resolve()}."
    if near:
        hint = f"Did you mean {folder / near[0]}?"
    raise FileError(f"There is no file or folder {path}. {hint}")


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
