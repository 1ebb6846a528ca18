"""What a file holds of a CalibratedClassifier: everything but its model and its code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.errors import FileError, InputError, NotFittedError
from recal.files.encoding import Decoder, Encoder
from recal.saving.contents import check_types

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.collecting.classifier import CalibratedClassifier

# Code and machinery: given again by whoever loads.
_GIVEN_AGAIN = ("model", "preprocess", "device", "calibrator", "engine")


def encode_classifier(
    classifier: CalibratedClassifier,
    encoder: Encoder,
    encode_calibrator: Callable[[Calibrator, Encoder], dict[str, Any]],
) -> dict[str, Any]:
    """Return the fitted calibrator, the pool and the plain settings; of the model its path, if it was given as one."""
    if not hasattr(classifier, "calibrator_"):
        raise NotFittedError("This CalibratedClassifier is not fitted yet; call fit(inputs, y) first.")
    model = os.fspath(classifier.model) if isinstance(classifier.model, str | os.PathLike) else None
    settings = {key: value for key, value in classifier.get_params(deep=False).items() if key not in _GIVEN_AGAIN}
    return {
        "model": None if model is None else str(model),
        "had_preprocess": classifier.preprocess is not None,
        "settings": {key: encoder.encode(value, f"CalibratedClassifier.{key}") for key, value in settings.items()},
        "pool": encoder.encode(list(classifier.pool_), "CalibratedClassifier.pool_"),
        "calibrator": encode_calibrator(classifier.calibrator_, encoder),
    }


def restore_classifier(
    header: dict[str, Any],
    decoder: Decoder,
    restore_calibrator: Callable[[dict[str, Any], Decoder], Calibrator],
) -> CalibratedClassifier:
    """Return the classifier, its model as yet a path or None."""
    from recal.collecting.classifier import CalibratedClassifier

    settings, inner, model = header.get("settings"), header.get("calibrator"), header.get("model")
    if not isinstance(settings, dict) or not isinstance(inner, dict):
        raise FileError("`settings` and `calibrator` must be objects")
    if set(settings) & set(_GIVEN_AGAIN) or not (model is None or isinstance(model, str)):
        raise FileError("a classifier's model and code cannot come from a file")
    settings = {key: decoder.decode(value) for key, value in settings.items()}
    check_types(CalibratedClassifier, settings)
    calibrator, pool = restore_calibrator(inner, decoder), decoder.decode(header.get("pool"))
    if not isinstance(pool, list) or not all(callable(transform) for transform in pool):
        raise FileError("`pool` must be a list of transformations")
    classifier = CalibratedClassifier(model, calibrator, **settings)
    classifier.calibrator_, classifier.classes_, classifier.pool_ = calibrator, calibrator.classes_, tuple(pool)
    if header.get("had_preprocess") is True:  # a normalisation is data; a function is code
        known = getattr(calibrator, "preprocessing_", None)
        classifier.preprocess = _NEEDED if known is None or known.normalize is None else known.normalize
    return classifier


_NEEDED = object()


def give_code(classifier: CalibratedClassifier, code: dict[str, Any], source: Path) -> CalibratedClassifier:
    """Put in what the caller gives; say what is missing. A model that a file merely names is never opened."""
    named, classifier.model = classifier.model, None
    for name in ("model", "preprocess"):
        if code[name] is not None:
            setattr(classifier, name, code[name])
    if classifier.model is None:
        if named is not None:
            raise InputError(
                f"{source} names the model {named!r}, and recal does not open a model because a file names it. "
                f"If you trust it: load(path, model={named!r})."
            )
        raise InputError(f"{source} holds a classifier without its model; give it: load(path, model=your_model).")
    if classifier.preprocess is _NEEDED:
        raise InputError(
            f"{source} holds a classifier whose inputs were prepared by a function; give it: "
            "load(path, preprocess=your_function)."
        )
    return classifier
