"""Calibrated probabilities as a file: .npz for recal, .parquet for everyone else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.apply import Applied
from recal.errors import InputError, MissingExtraError
from recal.files.atomic import replacing
from recal.files.probs import write_probs


def check_target(path: Path) -> None:
    """Refuse a name that will not do, before the work begins."""
    if path.suffix not in (".npz", ".parquet"):
        raise InputError(f"Probabilities are written to a name ending in .npz or .parquet, got {path.name!r}.")
    if path.suffix == ".parquet":
        _pyarrow()


def write_applied(applied: Applied, path: Path, accept: NDArray[np.bool_] | None = None) -> Path:
    """Write probabilities to `path`, whole or not at all.

    A parquet table has a row per sample: `prediction`, `confidence`, `accept` where the calibration holds a rule,
    `label` where it is known, and one column per class, named ``p_`` and the class.
    """
    check_target(path)
    if path.suffix == ".npz":
        return write_probs(path, applied.probs, applied.labels, applied.classes)
    arrow, parquet = _pyarrow()
    n_classes = applied.probs.shape[1]
    classes = np.arange(n_classes) if applied.classes is None else applied.classes
    columns: dict[str, Any] = {
        "prediction": classes[applied.probs.argmax(axis=1)],
        "confidence": applied.probs.max(axis=1),
    }
    if accept is not None:
        columns["accept"] = accept
    if applied.labels is not None:
        columns["label"] = classes[applied.labels]
    for place, name in enumerate(classes.tolist()):
        columns[f"p_{name}"] = np.ascontiguousarray(applied.probs[:, place])
    with replacing(path) as file:
        parquet.write_table(arrow.table(columns), file)
    return path


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report", "Writing a .parquet table") from error
    return pyarrow, pyarrow.parquet
