"""What a file named on the command line holds: views, probabilities or a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.recognise import check_kind, kind_of, missing

if TYPE_CHECKING:
    from recal.decisions import Profile
    from recal.files.probs import Probabilities
    from recal.views import Views

LabelColumn = Annotated[
    str, typer.Option("--label-column", help="The column of a .csv or .parquet file that holds the labels.")
]
LabelsFile = Annotated[
    Path | None, typer.Option("--labels", help="Labels, if the file has none: .npy, IDX, or .txt with one per line.")
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
    from recal.files.prob_tables import read_prob_table
    from recal.files.probs import probs_of_file

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
    from recal.workflow.folder import file_or_in

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
    plan = getattr(getattr(calibrator, "calibrator_", calibrator), "plan_", None)
    if absent and (plan is None or plan.needs_views(views.logits).any()):  # a gate may spare every one of these
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
    from recal.workflow.folder import calibration_in

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
