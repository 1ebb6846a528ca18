"""What a file named on the command line holds: views, probabilities or a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recal.files.probs import Probabilities
    from recal.views import Views

LabelColumn = Annotated[
    str, typer.Option("--label-column", help="The column of a .csv or .parquet file that holds the labels.")
]


def holds_views(path: Path) -> bool:
    """Whether a file or folder holds views rather than probabilities."""
    from recal.files.npz import names_in
    from recal.files.prob_tables import SUFFIXES

    return path.suffix not in SUFFIXES and (path.is_dir() or (path.is_file() and "logits" in names_in(path)))


def labelled_probs(path: Path, label_column: str, leave_out: Sequence[str] = ()) -> Probabilities:
    """Read probabilities with labels; of views, those that the model claims without calibration."""
    from recal.errors import InputError
    from recal.files.prob_tables import SUFFIXES, read_prob_table
    from recal.files.probs import probs_of_file

    table = path.suffix in SUFFIXES
    found = read_prob_table(path, label_column, leave_out) if table else probs_of_file(path)
    if found.labels is None:
        raise InputError(f"{path} holds no labels, and without them nothing can be measured.")
    return found


def open_views(path: Path, labels: Path | None = None, classes: str | None = None) -> Views:
    """Read views, with the labels and classes that were typed; say so where the file is something else."""
    from recal import Views, read_views
    from recal.collecting.inputs.files import read_labels
    from recal.errors import InputError

    held = holding(path)
    if held == "a calibration":
        raise InputError(f"{path} is a calibration, not views. The calibration comes first where both are given.")
    if held == "probabilities":
        raise InputError(
            f"{path} holds probabilities, and logits are needed: recal evaluate and recal decide take probabilities."
        )
    views = read_views(path)
    if labels is None and classes is None:
        return views
    names = views.classes if classes is None else classes.split(",")
    truth = views.labels if labels is None else read_labels(labels)
    seen: dict[Any, Any] = {t: views.transformed(t) for t in views.transforms}
    return Views(views.logits, seen, truth, classes=names, preprocessing=views.preprocessing)


def load_calibration(path: Path) -> Any:
    """Load what `recal fit` wrote; say so where the file is something else."""
    from recal import load
    from recal.errors import InputError

    held = holding(path)
    if held in ("views", "probabilities"):
        raise InputError(f"{path} holds {held}, not a calibration. The calibration comes first: recal fit makes one.")
    return load(path)


def holding(path: Path) -> str | None:
    """Return what a file holds by a look at its beginning or its names, or None where that does not tell."""
    from recal.errors import RecalError
    from recal.files.npz import names_in

    if path.is_dir():
        return "views" if path.suffix == ".zarr" else None
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if start[:4] == b"PK\x03\x04":
            names = names_in(path)
            return "views" if "logits" in names else "probabilities" if "probs" in names else None
    except (OSError, RecalError):
        return None
    return "a calibration" if start[8:9] == b"{" else None
