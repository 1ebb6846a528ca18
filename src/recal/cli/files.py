"""The files named on the command line: what the inputs hold, and where outputs may be written.

`recal.cli.app` calls `check_destinations` before every command: no input is overwritten, and an
existing file needs --force.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.errors import FileError, InputError
from recal.files.paths import LINES, TABLES
from recal.workflow.folder import CALIBRATION, PAGE, SUMMARY, calibration_in, is_unfinished

if TYPE_CHECKING:
    from recal.files.tables import Table
    from recal.views import Views

_ORIGINS = {
    "views": "Views are an .npz file with an array `logits`, or a .zarr folder: recal collect "
    "--model MODEL --data DATA --out NAME.npz makes them.",
    "probabilities": "Probabilities are an .npz file with an array `probs`, or a .csv or .parquet "
    "table: recal apply makes them. A table of graded answers needs recal evaluate or recal decide "
    "with --correct COLUMN.",
    "a calibration": "It comes first, and recal fit makes one: recal fit VIEWS --out NAME.recal",
}
# The options that name an output.
OUTPUTS = {"out": "--out", "report": "--report", "save": "--save"}
# The endings that a command's output may have. A folder has none.
_ENDINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("fit", "out"): (".recal", ""),
    ("decide", "out"): (".recal", ""),
    ("report", "out"): (".html",),
    ("evaluate", "report"): (".html",),
    ("export", "out"): (".onnx",),
    ("apply", "out"): (".npz", *TABLES, *LINES),
    ("collect", "out"): (".npz", ".zarr", *TABLES, *LINES),
    ("audit", "out"): (*TABLES, *LINES),
    ("watch", "save"): (".recal", ""),
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
        return "a spreadsheet (save it as .csv)"
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
    return "text" if suffix in (*LINES, ".txt", ".md") else "of an unknown kind"


def _kind_of_archive(path: Path) -> str:
    from recal.files.views import names_in

    names = names_in(path)
    if not names:
        return "a damaged or truncated .npz file"
    if "logits" in names:
        return "views"
    if "probs" in names:
        return "probabilities"
    return f"arrays called {', '.join(names[:8])}"


def check_kind(path: Path, *kinds: str) -> str:
    """Return the kind of a file; refuse any other kind, and say where the right one comes from."""
    kind = file_kind(path)
    if kind in kinds or (kind == "a table" and "probabilities" in kinds):
        return kind
    check_exists(path)
    verb = "is" if kind.startswith(("a ", "empty", "of ", "one ", "text")) else "holds"
    raise InputError(f"{path} {verb} {kind}, not {kinds[0]}. {_ORIGINS[kinds[0]]}")


def check_exists(path: Path) -> None:
    """Refuse a file that does not exist, and suggest a similar name."""
    if path.exists():
        return
    folder = path.parent
    if not folder.is_dir():
        raise FileError(f"There is no file {path}: the folder {folder} is not there.")
    near = get_close_matches(path.name, [file.name for file in folder.iterdir()], n=1, cutoff=0.75)
    hint = (
        f"Did you mean {folder / near[0]}?" if near else f"It was looked for in {folder.resolve()}."
    )
    raise FileError(f"There is no file or folder {path}. {hint}")


def load_saved(path: Path) -> tuple[Path, Any]:
    """Load a calibration, rule or profile, also from a folder of `recal calibrate`;
    return its file and the object.
    """
    file = calibration_in(path)
    check_kind(file, "a calibration")
    from recal.files.saved import load

    return file, load(file)


def is_signal_calibration(content: Any) -> bool:
    """Whether an object is a calibration of graded answers, which reads a table of signals."""
    from recal import SignalCalibration

    return isinstance(content, SignalCalibration)


def is_panel(content: Any) -> bool:
    """Whether an object is a calibration of several systems, or a cascade of them."""
    from recal import PanelCalibration
    from recal.decisions.cascade import CascadeRule

    return isinstance(content, PanelCalibration | CascadeRule)


def check_groups(rule: Any, groups: Any, data: Any) -> None:
    """Refuse inputs without groups if the rule has a threshold for each group."""
    if rule is not None and rule.groups and groups is None:
        raise InputError(
            f"The rule has a threshold for each of {len(rule.groups)} groups, and {data} does not "
            "say which group an input belongs to. Add --group COLUMN, and --rows TABLE if the data "
            "have no columns."
        )


def check_calibration(path: Path, content: Any) -> Any:
    """Return what a file holds if it is a calibration of logits; refuse anything else."""
    is_calibration = hasattr(content, "predict_proba") or hasattr(content, "steps")
    if is_signal_calibration(content) or not is_calibration:
        raise InputError(f"{path} holds no calibration of logits. See: recal plan {path}")
    return content


def check_views(
    calibrator: Any, calibration: Path, views: Views, source: Path, *, force: bool = True
) -> None:
    """Refuse views that lack what the calibration needs, or come from another model, and say how to
    collect them.

    Answers of a language model that was asked otherwise are refused unless `force`, which warns.
    """
    asked = getattr(getattr(calibrator, "preprocessing_", None), "asked", None)
    if asked is not None and views.preprocessing is not None:
        from recal.answers.interview import check_asked

        check_asked(asked, views.preprocessing.asked, force=force)
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
        how = f"recal collect --model MODEL --data INPUTS --pool {'+'.join(needs)} --out NAME.npz"
        if views.preprocessing is not None and views.preprocessing.asked is not None:
            how = f"recal collect with --template {absent[0]}.txt, or --view {absent[0]}=LOG"
        raise InputError(
            f"{calibration} needs logits through {', '.join(absent)}, which {source} does not "
            f"hold. Collect them: {how}"
        )


def table_columns(path: Path, names: Sequence[str]) -> Table:
    """Read a table with these columns; refuse files without columns and unknown names."""
    from recal.files.tables import Table, read_table

    if not names:
        return Table({})
    if path.suffix.lower() not in (*TABLES, *LINES):
        raise InputError(
            f"{path} has no columns; name a table that holds {names[0]!r} with --rows."
        )
    table = read_table(path)
    table.check(names)
    return table


def is_table_of_answers(path: Path) -> bool:
    """Whether a file is a table of answers: .csv, .tsv, .parquet or .jsonl."""
    return file_kind(path) in ("a table", "text")


def check_correct(table: Path, correct: str | None) -> str:
    """Return the column of grades; refuse a missing one, and name the columns that there are."""
    if correct is None:
        from recal.files.tables import read_table

        raise InputError(
            f"Name the column of {table} that says which answers are right: --correct COLUMN. It "
            f"has {', '.join(read_table(table))}."
        )
    return correct


def files_of(command: str) -> list[str]:
    """Return the files that a command writes into the folder of its --out, if it is one."""
    if command == "calibrate":
        return [CALIBRATION, PAGE, SUMMARY]
    if command == "compare":
        return [*(f"comparison.{ending}" for ending in ("md", "tex", "csv", "json")), PAGE]
    if command == "demo":
        return [PAGE, CALIBRATION, "fit.npz", "decide.npz", "new.npz"]
    return []


def profile_beside(exported: Path) -> Path:
    """Return the profile that `export` writes next to the ONNX file."""
    return exported.with_suffix(".profile.recal")


def check_destinations(command: str, values: dict[str, Any]) -> None:
    """Refuse an output that is also an input, has the wrong ending, cannot be written, or exists
    (without --force).

    The options in `OUTPUTS` name outputs; every other argument that exists on disk is an input. An
    existing folder is left to the code that writes into it.
    """
    inputs = [path for name in values if name not in OUTPUTS for path in _paths(values[name])]
    for name, option in OUTPUTS.items():
        if values.get(name) is None:
            continue
        target = Path(values[name])
        endings = _ENDINGS.get((command, name), ())
        if endings and target.suffix.lower() not in endings:
            raise InputError(
                f"{option} of recal {command} takes a name ending in "
                f"{' or '.join(filter(None, endings))}, got {str(target)!r}."
            )
        # The answers of a system may be added to the table of the questions.
        extends = values.get("system") and target == values.get("data")
        if target.exists() and not extends and any(map(target.samefile, inputs)):
            raise InputError(
                f"{option} {target} is also an input, which would be overwritten. Choose another "
                "name."
            )
        names = files_of(command)
        _check_place(target, option, folder=bool(names) or target.suffix == ".zarr")
        if values.get("force") or (command == "calibrate" and is_unfinished(target)):
            continue
        beside = [profile_beside(target)] if command == "export" else []
        for path in (target, *beside, *(target / name for name in names)):
            if path.is_file():
                raise InputError(f"{path} already exists. Use --force to overwrite it.")


def _paths(value: Any) -> list[Path]:
    """Return the paths in a value that exist on disk; the value may be a path, its text, or several
    of them.
    """
    if isinstance(value, list | tuple):
        return [path for item in value for path in _paths(item)]
    if not isinstance(value, str | os.PathLike) or not str(value):
        return []
    # `resnet152=FILE` also names a file.
    candidates = [Path(text) for text in (str(value), str(value).partition("=")[2]) if text]
    try:
        return [path for path in candidates if path.exists()]
    except (OSError, ValueError):  # too long for a path, or not a path at all
        return []


def _check_place(target: Path, option: str, *, folder: bool) -> None:
    """Refuse a place that cannot be written, before the work starts."""
    above = next(parent for parent in Path(os.path.abspath(target)).parents if parent.exists())
    problem = ""
    if folder and target.is_file():
        problem = "is a file, and this command writes a folder"
    elif not folder and target.is_dir():
        problem = "is a folder, and this command writes a file"
    elif not above.is_dir():
        problem = f"cannot be written: {above} is a file, not a folder"
    elif not os.access(above, os.W_OK | os.X_OK):
        problem = f"cannot be written: you may not write to the folder {above}"
    if problem:
        raise InputError(f"{option} {target} {problem}. Choose another name.")
