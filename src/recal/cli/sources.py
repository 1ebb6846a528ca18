"""What a file named on the command line holds: probabilities or views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from recal.files.probs import Probabilities

LabelColumn = Annotated[
    str, typer.Option("--label-column", help="The column of a .csv or .parquet file that holds the labels.")
]


def holds_views(path: Path) -> bool:
    """Whether a file or folder holds views rather than probabilities."""
    from recal.files.npz import names_in
    from recal.files.prob_tables import SUFFIXES

    return path.suffix not in SUFFIXES and (path.is_dir() or (path.is_file() and "logits" in names_in(path)))


def labelled_probs(path: Path, label_column: str) -> Probabilities:
    """Read probabilities with labels; of views, those that the model claims without calibration."""
    from recal.errors import InputError
    from recal.files.prob_tables import SUFFIXES, read_prob_table
    from recal.files.probs import probs_of_file

    found = read_prob_table(path, label_column) if path.suffix in SUFFIXES else probs_of_file(path)
    if found.labels is None:
        raise InputError(f"{path} holds no labels, and without them nothing can be measured.")
    return found
