"""`save` and `load`: fitted calibrators, classifiers, plans and decision rules in one file of data,
never code.

It is a safetensors file. The metadata hold one JSON text under ``recal``: the version of the
format, the version of recal that wrote it, and the content (`encoding.py`). The arrays are the
tensors of the file. A reader compares every declared size with the size of the file before it uses
any of them. A digest of the content detects damage, but not forgery.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal import __version__
from recal.errors import FileError, InputError, NotFittedError
from recal.files.encoding import (
    DTYPES,
    Decoder,
    Encoder,
    check_params,
    record_named,
    stored_calibrator,
)
from recal.files.paths import local_path, replacing
from recal.transforms.pools import Own, by_name

VERSION, WRITER = 1, f"recal {__version__}"
MAX_HEADER_BYTES, MAX_FILE_BYTES = 16 * 2**20, 4 * 2**30
# The code of a classifier, which `load` takes as arguments, and settings that depend on the
# machine.
_NOT_STORED = ("model", "preprocess", "device", "calibrator", "engine")


def save(obj: Any, path: str | os.PathLike[str]) -> Path:
    """Write a fitted calibrator, a fitted classifier, a plan or a decision rule to one file that
    holds data only.

    The write is atomic: an existing file stays until the new one is complete. The model of a
    classifier is not stored; pass it to `load` again.

    Parameters
    ----------
    obj : fitted calibrator, CalibratedClassifier, Plan, DecisionRule, PredictionSets or Profile
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
    # If the module of the classifier is not loaded, `obj` is no classifier. Importing it would load
    # scikit-learn.
    classifier = getattr(
        sys.modules.get("recal.collecting.classifier"), "CalibratedClassifier", None
    )
    if classifier is not None and isinstance(obj, classifier):
        content = {"$": "classifier", **_encode_classifier(obj, encoder)}
    elif type(obj) in (record_named(name), stored_calibrator(name)):
        content = encoder.encode(obj, name)
    else:
        raise InputError(
            "recal's own fitted calibrators, classifiers, plans and decision rules can be saved, "
            f"got a {name}."
        )
    _write_file(path, {"kind": content.pop("$"), **content}, encoder.arrays)
    return Path(path)


def load(
    path: str | os.PathLike[str], transforms: Own = (), *, model: Any = None, preprocess: Any = None
) -> Any:
    """Read what `save` wrote. Any other file raises a FileError that says what is wrong.

    Parameters
    ----------
    path : the file
    transforms : mapping of name to callable, or sequence of callables that have names
        Your own transformations, whose code files never hold.
    model, preprocess : optional
        For a CalibratedClassifier: its trained model and the function that prepares inputs for it,
        which files never hold either.

    Returns
    -------
    The calibrator, classifier, Plan or DecisionRule, equal to what was saved.
    """
    source, code = local_path(path), {"model": model, "preprocess": preprocess}
    own = by_name(() if transforms is None else transforms)
    remedy = ""
    try:
        header, arrays, as_written = _read_file(source)
        if as_written and (writer := header.get("written_by")) != WRITER:
            remedy = f" It was written by {writer!r:.40}, and this is {WRITER}: fit it again."
        decoder = Decoder(arrays, own)
        kind = header.get("kind")
        own_keys = ("kind", "version", "written_by")
        content = {key: value for key, value in header.items() if key not in own_keys}
        if kind not in ("classifier", "calibrator", "record"):
            raise FileError(f"it holds a {kind!r}; calibrators, classifiers and records are known")
        if kind == "classifier":
            loaded = _restore_classifier(content, decoder, code)
        else:
            loaded = decoder.decode({"$": kind, **content})
        if not as_written:  # checked last, because an error about a value says more
            raise FileError(
                "its content differs from what was saved: it was changed or damaged. Copy it again"
            )
    except OSError as error:
        raise FileError(f"Cannot read {source}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise FileError(f"Cannot read {source}: there is not enough memory.") from error
    # A constructor may raise anything for values that `save` never writes.
    except Exception as error:
        reason = "values are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(
            f"{source} is not a file that recal can use: {reason.rstrip('.')}.{remedy}"
        ) from error
    if unknown := set(own) - set(decoder.transforms):
        used = ", ".join(decoder.transforms) or "none"
        raise InputError(f"{source} uses no transformation {min(unknown)!r}; it uses: {used}.")
    if kind == "classifier" and model is None:
        raise InputError(
            f"{source} holds a classifier without its model; pass it: load(path, model=your_model)."
        )
    if kind != "classifier" and not (model is None and preprocess is None):
        raise InputError(f"{source} holds a {kind}, which has no use for a model or its code.")
    return loaded


def _encode_classifier(classifier: Any, encoder: Encoder) -> dict[str, Any]:
    """Return the fitted calibrator, the pool, and the settings that are neither code nor of one
    machine.
    """
    if not hasattr(classifier, "calibrator_"):
        raise NotFittedError(
            "This CalibratedClassifier is not fitted yet; call fit(inputs, y) first."
        )
    name, params = "CalibratedClassifier", classifier.get_params(deep=False)
    settings = {key: value for key, value in params.items() if key not in _NOT_STORED}
    return {
        "settings": encoder.items(settings, name),
        "pool": encoder.encode(list(classifier.pool_), f"{name}.pool_"),
        "calibrator": encoder.encode(classifier.calibrator_, f"{name}.calibrator_"),
    }


def _restore_classifier(header: dict[str, Any], decoder: Decoder, code: dict[str, Any]) -> Any:
    """Return the classifier with the model and the function that the caller passed."""
    family = import_module("recal.collecting.classifier").CalibratedClassifier
    settings = decoder.items(header.get("settings"))
    if set(settings) & set(_NOT_STORED):
        raise FileError("a classifier's model and code cannot come from a file")
    check_params(family, settings)
    calibrator, pool = decoder.decode(header.get("calibrator")), decoder.decode(header.get("pool"))
    if stored_calibrator(type(calibrator).__name__) is not type(calibrator):
        raise FileError("`calibrator` must be a fitted calibrator")
    if not isinstance(pool, list) or not all(callable(transform) for transform in pool):
        raise FileError("`pool` must be a list of transformations")
    classifier = family(**code, calibrator=calibrator, **settings)
    classifier.calibrator_, classifier.classes_ = calibrator, calibrator.classes_
    classifier.pool_ = tuple(pool)
    if classifier.preprocess is None:  # a Normalize is data; a function is asked for when used
        preprocessing = getattr(calibrator, "preprocessing_", None)
        classifier.preprocess = getattr(preprocessing, "normalize", None)
    return classifier


# --- the file


def _write_file(
    path: str | os.PathLike[str], content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a header and the arrays that it refers to, atomically."""
    from safetensors.numpy import save as to_bytes

    header = json.dumps({"version": VERSION, "written_by": WRITER, **content}, allow_nan=False)
    most = MAX_HEADER_BYTES // 2
    if len(header) > most:
        raise InputError(
            f"Without its arrays it takes {len(header):,} bytes; at most {most:,} fit."
        )
    # The digest is the last entry of the header, because separate metadata entries have no fixed
    # order.
    sealed = header.removesuffix("}") + _seal(_content_digest(header, arrays))
    with replacing(path) as file:
        file.write(to_bytes(dict(arrays), metadata={"recal": sealed}))


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]], bool]:
    """Return the header, the arrays, and whether both are as `save` wrote them."""
    from safetensors import SafetensorError, safe_open

    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise FileError("it is a folder or not a regular file")
    if info.st_size > MAX_FILE_BYTES:
        raise FileError(f"it has {info.st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
    try:
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get("recal")
            if text is None:
                raise FileError("it is a safetensors file of something else")
            header = _parse(text)
            names = file.keys()
            arrays: dict[str, NDArray[Any]] = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise FileError(f"it is damaged, or not a safetensors file ({error})") from error
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise FileError(f"the array {name!r} has no dtype that recal reads")
        # A boolean is a byte of 0 or 1. Any other byte would count as true in some places and as
        # false in others.
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise FileError(
                f"the array {name!r} holds truth values that are neither true nor false"
            )
    digest = header.pop("digest", None)  # a file that `save` did not write may have none
    plain = text.removesuffix(_seal(digest)) + "}"
    return header, arrays, digest is None or digest == _content_digest(plain, arrays)


def _seal(digest: Any) -> str:
    return f', "digest": "{digest}"}}'


def _content_digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of the header and the arrays; without it, one changed bit of a weight would
    go unnoticed.
    """
    state = hashlib.blake2b(header.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_HEADER_BYTES:
        raise FileError(
            f"its header has {len(text):,} characters; at most {MAX_HEADER_BYTES:,} are read"
        )
    header = json.loads(text, object_pairs_hook=_distinct)
    if not isinstance(header, dict):
        raise FileError("its header is not an object")
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        raise FileError(f"it has the format {version!r}, and this recal reads format {VERSION}")
    return header


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise FileError("its header has the same key twice")
    return entries
