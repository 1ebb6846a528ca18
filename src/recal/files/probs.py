"""Probabilities on disk: one .npz file with `probs` (n, K), optional `labels` (n,), `classes` (K,),
`confidence` (n,), `fitted_rows` (one number).

The confidence is that in each row's answer, as `predict_confidence` gives it; `fitted_rows` says how many of the
rows the calibration was fitted on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.checks import Floats, Labels, check_classes, check_confidences, check_labels, check_probs
from recal.errors import InputError
from recal.files.npz import names_in, read_npz, write_npz
from recal.files.views import read_views
from recal.plan import Plan

_NAMES = ("probs", "labels", "classes", "confidence", "fitted_rows")


@dataclass(frozen=True)
class Probabilities:
    """What a file of probabilities holds; labels are column indices."""

    probs: Floats
    labels: Labels | None
    classes: NDArray[Any] | None
    confidence: NDArray[np.float64] | None = None
    fitted_rows: int = 0  # how many of them the calibration was fitted on

    @property
    def named_labels(self) -> NDArray[Any]:
        """Labels by the names in `classes`, where there are names."""
        assert self.labels is not None
        return self.labels if self.classes is None else self.classes[self.labels]

    def in_order_of(self, other: Probabilities) -> Probabilities:
        """The same probabilities with the columns as in `other`, whose rows must be the same samples."""
        if self.probs.shape != other.probs.shape:
            raise InputError(
                f"Both must hold the same samples and classes, got {self.probs.shape}, {other.probs.shape}."
            )
        if self.classes is not None and other.classes is not None:
            columns = check_labels(other.classes, len(other.classes), len(self.classes), self.classes)
            places = np.argsort(columns)
            moved = None if self.labels is None else places[self.labels]
            found = replace(self, probs=self.probs[:, columns], labels=moved, classes=other.classes)
        else:
            found = self
        if found.labels is not None and other.labels is not None and (found.labels != other.labels).any():
            row = int(np.argmax(found.labels != other.labels))
            raise InputError(
                f"The labels of row {row} differ, so these are not the same samples in the same order. Sort both alike."
            )
        return found


def write_probs(
    path: str | os.PathLike[str],
    probs: ArrayLike,
    labels: Labels | None = None,
    classes: NDArray[Any] | None = None,
    confidence: NDArray[np.float64] | None = None,
    fitted_rows: int = 0,
    **beside: NDArray[Any],
) -> Path:
    """Write probabilities, and whatever arrays belong beside them, whole or not at all."""
    target = Path(path)
    if target.suffix != ".npz":
        raise InputError(f"Probabilities are written to a name ending in .npz, got {target.name!r}.")
    arrays: dict[str, Any] = {"probs": check_probs(probs)}
    if labels is not None:
        arrays["labels"] = labels if classes is None else classes[labels]
    if classes is not None:
        arrays["classes"] = classes
    if confidence is not None:
        arrays["confidence"] = confidence
    if fitted_rows:
        arrays["fitted_rows"] = np.array(fitted_rows)
    write_npz(target, arrays | beside)
    return target


def read_probs(path: str | os.PathLike[str]) -> Probabilities:
    """Read what `write_probs` wrote, or an .npz file made by hand with the same names."""
    source = Path(path)
    arrays = read_npz(source, _NAMES, required="probs")
    try:
        probs = check_probs(arrays["probs"], binary=True)
        classes = check_classes(arrays["classes"], probs.shape[1]) if "classes" in arrays else None
        labels = check_labels(arrays["labels"], len(probs), probs.shape[1], classes) if "labels" in arrays else None
        sure = check_confidences(arrays["confidence"], len(probs)) if "confidence" in arrays else None
    except InputError as error:
        raise error.at(source) from None
    fitted = arrays.get("fitted_rows", np.array(0))
    if fitted.shape != () or fitted.dtype.kind not in "iu":
        raise InputError(f"{source}: fitted_rows must be one whole number, got the shape {fitted.shape}.")
    return Probabilities(probs, labels, classes, sure, int(fitted))


def probs_of_file(path: str | os.PathLike[str]) -> Probabilities:
    """Read probabilities, or views, whose logits then become the model's own probabilities."""
    source = Path(path)
    if source.is_file() and "logits" not in names_in(source):
        return read_probs(source)
    from recal.engine.replay import calibrated_probs  # compiled code, which a file of probabilities does without

    views = read_views(source)
    return Probabilities(calibrated_probs(Plan(), views), views.labels, views.classes)
