"""What a file named on the command line holds: probabilities or views."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from recal.prob_files import Probabilities

LabelColumn = Annotated[
    str, typer.Option("--label-column", help="The column of a .csv or .parquet file that holds the labels.")
]


def holds_views(path: Path) -> bool:
    """Whether a file or folder holds views rather than probabilities."""
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return "logits.npy" in archive.namelist()
    return path.is_dir()


def labelled_probs(path: Path, label_column: str) -> Probabilities:
    """Read probabilities with labels; of views, those that the model claims without calibration."""
    from recal.comparison.results import softmax
    from recal.errors import InputError
    from recal.prob_files import Probabilities, read_probs
    from recal.prob_tables import SUFFIXES, read_prob_table
    from recal.view_files import read_views

    if path.suffix in SUFFIXES:
        found = read_prob_table(path, label_column)
    elif holds_views(path):
        views = read_views(path)
        found = Probabilities(softmax(views.logits), views.labels, views.classes)
    else:
        found = read_probs(path)
    if found.labels is None:
        raise InputError(f"{path} holds no labels, and without them nothing can be measured.")
    return found
