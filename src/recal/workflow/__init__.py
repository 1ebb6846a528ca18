"""`recal calibrate`: from labelled inputs or graded answers to automated answers.

This file names what it writes.
"""

from __future__ import annotations

from pathlib import Path

from recal.errors import FileError

CALIBRATION, PAGE, SUMMARY = "calibration.recal", "report.html", "summary.json"
# One store of views for each part of the labelled inputs; an interrupted run resumes from them.
FIT, DECIDE, JUDGE = "fit.zarr", "decide.zarr", "judge.zarr"
CROSS_FIT = "cross-fit"  # the folder for these stores if a run fits and decides on the same inputs


def is_unfinished(path: Path) -> bool:
    """Whether a run of `recal calibrate` was interrupted in this folder; it writes the calibration
    last.
    """
    stores = (path / FIT).exists() or (path / CROSS_FIT).exists()
    return stores and not (path / CALIBRATION).exists()


def calibration_in(path: Path) -> Path:
    """Return the calibration's file: `path` itself, or the one in the folder that `recal calibrate`
    wrote.
    """
    if (path / CALIBRATION).is_file():
        return path / CALIBRATION
    if path.suffix == ".zarr" or not path.is_dir():  # views, or a file
        return path
    remedy = "Make it with: recal calibrate --model MODEL --data LABELLED --out FOLDER"
    if is_unfinished(path):
        remedy = "Its run was interrupted: run the same recal calibrate command again to resume it."
    raise FileError(f"{path} holds no {CALIBRATION}. {remedy}")
