"""The folder that `recal calibrate` writes: its files, and how they are published.

A run works in a hidden folder beside it, which is renamed once when everything is complete. After a
kill or on a full disk, the folder is what it was before, and the same command resumes. The folder
of the run is locked, so that of two simultaneous runs one is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recal.errors import FileError
from recal.files.paths import file_errors, folder_lock, read_json, replace_folder

CALIBRATION, PAGE, SUMMARY = "calibration.recal", "report.html", "summary.json"
# The labelled rows, in the order fit, decide, check: `recal calibrate FOLDER --more` adds to them.
ROWS_OF_VIEWS, ROWS_OF_TABLE = "labelled.npz", "labelled.csv"
PREVIOUS = "previous"  # the results before the last --more
# One store of views for each part of the labelled inputs; an interrupted run resumes from them.
FIT, DECIDE, CHECK = "fit.zarr", "decide.zarr", "check.zarr"
_PILOTS = ("fit.pilot.zarr", "fit.pilot2.zarr")
CROSS_FIT = "cross-fit"  # the folder for these stores if a run fits and decides on the same inputs
RUN = "run.json"  # the key of a finished run, and its transformations
_RESULTS = (CALIBRATION, PAGE, SUMMARY, ROWS_OF_VIEWS, ROWS_OF_TABLE)
_STORES = (FIT, *_PILOTS, DECIDE, CHECK, CROSS_FIT, RUN)


def folder_of_run(out: Path) -> Path:
    """Return the hidden folder in which a run works until it is complete."""
    return Path(os.path.abspath(out)).with_name(f".{out.name}.run")


def is_unfinished(path: Path) -> bool:
    """Whether a run of `recal calibrate` was interrupted before it wrote this folder."""
    return folder_of_run(path).is_dir() and not (path / CALIBRATION).exists()


def calibration_in(path: Path) -> Path:
    """Return the calibration's file: `path` itself, or the one in the folder that `recal calibrate`
    wrote.
    """
    if (path / CALIBRATION).is_file():
        return path / CALIBRATION
    if is_unfinished(path):
        raise FileError(
            f"{path} holds no {CALIBRATION}. Its run was interrupted: run the same recal calibrate "
            "command again to resume it."
        )
    if path.suffix == ".zarr" or not path.is_dir():  # views, or a file
        return path
    raise FileError(
        f"{path} holds no {CALIBRATION}. Make it with: recal calibrate --model MODEL --data "
        "LABELLED --out FOLDER"
    )


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a folder."""
    return read_json(folder / SUMMARY)


@contextmanager
def publishing(out: Path, *, keep_previous: bool = False) -> Iterator[Path]:
    """Give a run a folder to work in, and publish it as `out` if the block ends without an error.

    Stores of an earlier run in `out` are moved to the run. Files that are not results, such as a
    ledger, stay. With `keep_previous` the earlier results are kept in the folder `previous`.
    """
    work = folder_of_run(out)
    with file_errors(out, "write"):
        work.mkdir(parents=True, exist_ok=True)
    refusal = f"Another run is writing {out} now; wait for it, or name another one."
    with folder_lock(work, refusal):
        try:
            with file_errors(out, "write", " It was not changed."):
                for name in _STORES:
                    if (out / name).exists() and not (work / name).exists():
                        os.rename(out / name, work / name)
                yield work
                for path in work.glob(".*.part"):  # of a run that was killed while it wrote
                    path.unlink()
                if out.is_dir():
                    _carry_over(out, work, keep_previous)
                replace_folder(work, out)
        finally:
            if work.is_dir() and not any((work / name).exists() for name in _STORES):
                shutil.rmtree(work, ignore_errors=True)


def _carry_over(out: Path, work: Path, keep_previous: bool) -> None:
    """Copy what is not a result from the old folder to the new one, and keep permissions."""
    for path in out.iterdir():
        new = work / path.name
        if path.name in _RESULTS:
            if new.exists():
                shutil.copymode(path, new)
            if keep_previous:
                (work / PREVIOUS).mkdir(exist_ok=True)
                shutil.copy2(path, work / PREVIOUS / path.name)
        elif path.name != PREVIOUS and not new.exists():
            if path.is_dir() and not path.is_symlink():
                os.rename(path, new)
            else:
                _link(path, new)
    shutil.copymode(out, work)


def _link(path: Path, new: Path) -> None:
    """Give a file a second name: what a service appends to a ledger meanwhile is in both."""
    try:
        os.link(path, new, follow_symlinks=False)
    except OSError:  # a file system without links
        shutil.copy2(path, new, follow_symlinks=False)


def roll_back(folder: Path) -> None:
    """Put the results before the last `--more` back into place, atomically."""
    previous = folder / PREVIOUS
    if not (previous / CALIBRATION).is_file():
        raise FileError(f"{folder} holds no previous version: there is no {previous}.")
    with publishing(folder) as work:
        for path in previous.iterdir():
            with suppress(FileNotFoundError):
                shutil.copy2(path, work / path.name)
