"""The rules for outputs, shared by all commands: no input is overwritten, and an existing file
needs --force.

`recal.cli.app` calls `check_destinations` before every command. The options in `OUTPUTS` name the
outputs of the command; every other argument that exists on disk is an input. An existing folder is
left to the code that writes into it: a store is resumed, and a folder with other contents is
refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recal.errors import InputError
from recal.workflow.folder import CALIBRATION, PAGE, SUMMARY, is_unfinished

# The options that name an output, and the endings that each may have. A folder has none.
OUTPUTS = {"out": "--out", "report": "--report", "chart": "--chart", "save_to": "--save"}
ENDINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("fit", "out"): (".recal", ""),
    ("decide", "out"): (".recal", ""),
    ("report", "out"): (".html",),
    ("evaluate", "report"): (".html",),
    ("groups", "chart"): (".png", ".svg", ".pdf"),
    ("export", "out"): (".onnx",),
    ("apply", "out"): (".npz", ".parquet", ".csv", ".tsv", ".jsonl", ".ndjson"),
    ("collect", "out"): (".npz", ".zarr", ".jsonl", ".csv", ".tsv", ".parquet"),
    ("audit", "out"): (".csv", ".tsv", ".parquet", ".jsonl"),
    ("watch", "save_to"): (".recal", ""),
}


def files_of(command: str) -> list[str]:
    """Return the files that a command writes into the folder of its --out, if it is one."""
    if command == "calibrate":
        return [CALIBRATION, PAGE, SUMMARY]
    if command == "compare":
        return [*(f"comparison.{ending}" for ending in ("md", "csv", "json")), PAGE]
    if command == "demo":
        return ["summary.png", PAGE, CALIBRATION, "fit.npz", "decide.npz", "new.npz"]
    return []


def check_destinations(command: str, values: dict[str, Any], *, force: bool) -> None:
    """Refuse an output that is also an input, has the wrong ending, cannot be written, or exists
    (without --force).
    """
    inputs = [path for name in values if name not in OUTPUTS for path in _paths(values[name])]
    for name, option in OUTPUTS.items():
        target = values.get(name)
        if target is None:
            continue
        endings = ENDINGS.get((command, name), ())
        if endings and target.suffix.lower() not in endings:
            raise InputError(
                f"{option} of recal {command} takes a name ending in "
                f"{' or '.join(filter(None, endings))}, got {str(target)!r}."
            )
        # The answers of a system may be added to the table of the questions.
        extends = values.get("system") and target == values.get("data")
        for source in () if extends else inputs:
            _check_apart(target, source, option)
        names = files_of(command)
        _check_place(target, option, folder=bool(names) or target.suffix == ".zarr")
        if force or values.get("again") or (command == "calibrate" and is_unfinished(target)):
            continue
        beside = [profile_beside(target)] if command == "export" else []
        for path in (target, *beside, *(target / name for name in names)):
            if path.is_file():
                raise InputError(f"{path} already exists. Use --force to overwrite it.")


def profile_beside(exported: Path) -> Path:
    """Return the profile that `export` writes next to the ONNX file."""
    return exported.with_suffix(".profile.recal")


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


def _check_apart(target: Path, source: Path, option: str) -> None:
    """Refuse an output that is an input (also through a link), lies inside an input store, or
    contains an input.
    """
    here, there = Path(os.path.realpath(target)), Path(os.path.realpath(source))
    same = here == there or (target.exists() and os.path.samefile(target, source))
    inside = there in here.parents and there.is_dir() and (there / "zarr.json").exists()
    around = here in there.parents and here.suffix == ".zarr"
    if same or inside or around:
        how = "is" if same else "lies inside" if inside else "holds"
        raise InputError(
            f"{option} {target} {how} the input {source}, which would be overwritten. Choose another name."
        )


def _check_place(target: Path, option: str, *, folder: bool) -> None:
    """Refuse a place that cannot be written, before the work starts."""
    if folder and target.is_file():
        raise InputError(
            f"{option} {target} is a file, and this command writes a folder. Choose another name."
        )
    if not folder and target.is_dir():
        raise InputError(
            f"{option} {target} is a folder. Name a file, such as {target / 'name'}{target.suffix}."
        )
    above = next(parent for parent in Path(os.path.abspath(target)).parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"{option} {target} cannot be written: {above} is a file, not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(
            f"{option} {target} cannot be written: you may not write to the folder {above}."
        )
