"""`save` and `load`: fitted calibrators, classifiers, plans and decision rules in one file of data, never code.

`files.encoding` says what a file may hold, and `files.tensors` how it is laid out.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from recal.errors import FileError, InputError, NotFittedError
from recal.files.encoding import Decoder, Encoder, calibrator_named, check_params, record_named
from recal.files.tensors import read_tensors, write_tensors
from recal.files.urls import as_path
from recal.maps.base import Map
from recal.transforms.pool import Own, by_name

if TYPE_CHECKING:
    # A fitted calibrator, SignalCalibration or CalibratedClassifier; a map such as a Plan; a DecisionRule,
    # PredictionSets or a Profile. The packages that define the others import this one.
    Savable: TypeAlias = Map | Any

_CLASSIFIER = "recal.collecting.classifier"
# The code of a classifier, and what depends on the machine. `load` takes them as arguments.
_NOT_STORED = ("model", "preprocess", "device", "calibrator", "engine")
# Marks a classifier whose inputs were prepared by a function.
_MISSING = object()


def save(obj: Savable, path: str | os.PathLike[str]) -> Path:
    """Write a fitted calibrator, a fitted classifier, a plan or a decision rule to one file that holds data only.

    The file is complete or not there at all; an existing file stays until the new one is complete. The model of a
    classifier is not stored, only its path if it was given as one. Pass the model to `load` again.

    Parameters
    ----------
    obj : a fitted calibrator or CalibratedClassifier, a Plan, a DecisionRule, PredictionSets or a Profile
        What is attached to a calibrator, such as its `decision_`, is saved with it.
    path : where to write; any name will do, ``.recal`` is usual

    Examples
    --------
    >>> import tempfile
    >>> from recal import Plan, Step, load, save
    >>> plan = Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)),), start=0.7)
    >>> path = save(plan, tempfile.mkdtemp() + "/plan.recal")
    >>> load(path) == plan
    True
    """
    encoder, name = Encoder(), type(obj).__name__
    # If the module of the classifier is not loaded, nothing is one. Importing it would load scikit-learn.
    classifier = getattr(sys.modules.get(_CLASSIFIER), "CalibratedClassifier", None)
    if classifier is not None and isinstance(obj, classifier):
        content = {"$": "classifier", **_encode_classifier(obj, encoder)}
    elif type(obj) in (record_named(name), calibrator_named(name)):
        content = encoder.encode(obj, name)
    elif hasattr(obj, "set_state"):
        raise InputError(f"Only recal's own calibrators can be saved, and {name} is not one of them.")
    else:
        raise InputError(f"Fitted calibrators, classifiers, plans and decision rules can be saved, got a {name}.")
    write_tensors(path, {"kind": content.pop("$"), **content}, encoder.arrays)
    return as_path(path)


def load(
    path: str | os.PathLike[str],
    transforms: Own = (),
    *,
    model: Any = None,
    preprocess: Any = None,
) -> Any:
    """Read what `save` wrote. Any other file raises a FileError that says what is wrong.

    Parameters
    ----------
    path : the file
    transforms : mapping of name to callable, or sequence of callables that have names
        Your own transformations, whose code files never hold.
    model, preprocess : optional
        For a CalibratedClassifier: its trained model and the function that prepares inputs for it, which files never
        hold either. A file may remember the model's path, but the model is only opened if you pass it.

    Returns
    -------
    The calibrator, classifier, Plan or DecisionRule, equal to what was saved.
    """
    source, code = as_path(path), {"model": model, "preprocess": preprocess}
    own = by_name(() if transforms is None else transforms)
    try:
        header, arrays, as_written = read_tensors(source)
        decoder = Decoder(arrays, own)
        loaded = _restore(header, decoder)
        if unused := set(arrays) - decoder.used_arrays:
            raise FileError(f"it holds arrays that nothing refers to: {', '.join(sorted(unused)[:3])}")
        if not as_written:  # checked last, because an error about a value says more
            raise FileError("its content differs from what was saved: it was changed or damaged. Copy it again")
    except OSError as error:
        raise FileError(f"Cannot read {source}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise FileError(f"Cannot read {source}: there is not enough memory.") from error
    except Exception as error:  # a constructor may raise anything for values that `save` never writes
        reason = "values are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{source} is not a file that recal can use: {reason.rstrip('.')}.") from error
    if unknown := set(own) - set(decoder.transforms):
        used = ", ".join(decoder.transforms) or "none"
        raise InputError(f"{source} uses no transformation {min(unknown)!r}; it uses: {used}.")
    if header["kind"] == "classifier":
        return _add_code(loaded, code, source)
    if useless := [name for name, value in code.items() if value is not None]:
        raise InputError(f"{source} holds a {header['kind']}, which has no use for `{useless[0]}`.")
    return loaded


def _restore(header: dict[str, Any], decoder: Decoder) -> Any:
    kind = header.get("kind")
    content = {key: value for key, value in header.items() if key not in ("kind", "version", "written_by")}
    if kind == "classifier":
        return _restore_classifier(content, decoder)
    if kind not in ("calibrator", "record"):
        raise FileError(f"it holds a {kind!r}; calibrators, classifiers and records are known")
    return decoder.decode({"$": kind, **content})


def _encode_classifier(classifier: Any, encoder: Encoder) -> dict[str, Any]:
    """Return the fitted calibrator, the pool and the plain settings, and the path of the model if it has one."""
    if not hasattr(classifier, "calibrator_"):
        raise NotFittedError("This CalibratedClassifier is not fitted yet; call fit(inputs, y) first.")
    name, model = "CalibratedClassifier", classifier.model
    settings = {key: value for key, value in classifier.get_params(deep=False).items() if key not in _NOT_STORED}
    return {
        "model": os.fspath(model) if isinstance(model, str | os.PathLike) else None,
        "had_preprocess": classifier.preprocess is not None,
        "settings": encoder.items(settings, name),
        "pool": encoder.encode(list(classifier.pool_), f"{name}.pool_"),
        "calibrator": encoder.encode(classifier.calibrator_, f"{name}.calibrator_"),
    }


def _restore_classifier(header: dict[str, Any], decoder: Decoder) -> Any:
    """Return the classifier; its model is still a path or None."""
    family, model = import_module(_CLASSIFIER).CalibratedClassifier, header.get("model")
    settings = decoder.items(header.get("settings"))
    if set(settings) & set(_NOT_STORED) or not (model is None or isinstance(model, str)):
        raise FileError("a classifier's model and code cannot come from a file")
    check_params(family, settings)
    calibrator, pool = decoder.decode(header.get("calibrator")), decoder.decode(header.get("pool"))
    if calibrator_named(type(calibrator).__name__) is not type(calibrator):
        raise FileError("`calibrator` must be a fitted calibrator")
    if not isinstance(pool, list) or not all(callable(transform) for transform in pool):
        raise FileError("`pool` must be a list of transformations")
    classifier = family(model, calibrator, **settings)
    classifier.calibrator_, classifier.classes_, classifier.pool_ = calibrator, calibrator.classes_, tuple(pool)
    if header.get("had_preprocess") is True:  # a Normalize is data, a function is code
        preprocessing = getattr(calibrator, "preprocessing_", None)
        classifier.preprocess = getattr(preprocessing, "normalize", None) or _MISSING
    return classifier


def _add_code(classifier: Any, code: dict[str, Any], source: Path) -> Any:
    """Add the model and the function that the caller passes. A model that only the file names is never opened."""
    path, classifier.model = classifier.model, None
    for name, value in code.items():
        if value is not None:
            setattr(classifier, name, value)
    if classifier.model is None:
        if path is not None:
            raise InputError(
                f"{source} names the model {path!r}, and recal does not open a model because a file names it. "
                f"If you trust it: load(path, model={path!r})."
            )
        raise InputError(f"{source} holds a classifier without its model; pass it: load(path, model=your_model).")
    if classifier.preprocess is _MISSING:
        raise InputError(
            f"{source} holds a classifier whose inputs were prepared by a function; pass it: "
            "load(path, preprocess=your_function)."
        )
    return classifier
