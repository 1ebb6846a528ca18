"""Fitted calibrators, classifiers and plans in one safe file each: a JSON header and arrays, never code.

The file is a plain safetensors file. Its metadata hold one JSON text under ``recal``: the format's version, what the
file holds, the class's name, its parameters and its fitted state; the arrays are the file's tensors. A class is only
ever found by its name in `recal.calibrators.CALIBRATORS`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from recal.calibrators import calibrator_named
from recal.decisions.stored import STORED
from recal.errors import FileError, InputError
from recal.files.atomic import replacing
from recal.files.classifiers import encode_classifier, give_code, restore_classifier
from recal.files.encoding import Decoder, Encoder
from recal.plan import Plan
from recal.transforms.parse import Own, by_name

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.collecting.classifier import CalibratedClassifier
    from recal.decisions.profiles import Profile
    from recal.decisions.rule import DecisionRule
    from recal.decisions.sets import PredictionSets

    Savable: TypeAlias = Calibrator | CalibratedClassifier | Plan | DecisionRule | PredictionSets | Profile

VERSION = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_FILE_BYTES = 4 * 2**30
_KEY = "recal"
_DTYPES = frozenset(["F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"])
# How files begin that people open by mistake, and what to tell them.
_BEGINNINGS = {
    b"PK\x03\x04": "it is a zip or .npz file; views are read with read_views",
    b"\x89PNG": "it is a PNG image",
    b"\xff\xd8\xff": "it is a JPEG image",
    b"\x93NUMPY": "it is a .npy array",
    b"\x1f\x8b": "it is a gzip file",
    b"\x80\x04": "it is a pickle, and recal never opens those",
    b"\x80\x05": "it is a pickle, and recal never opens those",
}


def save(obj: Savable, path: str | os.PathLike[str]) -> Path:
    """Write a fitted calibrator, a fitted classifier, a plan or a rule of decisions to one file that holds data only.

    The file appears whole or not at all: what was there before stays until the new one is complete. A classifier's
    model is not stored, only its path where it was given as one; `load` takes it again.

    Parameters
    ----------
    obj : a fitted calibrator or CalibratedClassifier, a Plan, a DecisionRule, PredictionSets or a Profile
        What is attached to a calibrator, as its `decision_`, is saved with it.
    path : where to write; the name may be anything, ``.recal`` is usual

    Examples
    --------
    >>> import tempfile
    >>> from recal import Plan, Step, load, save
    >>> plan = Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)),), start=0.7)
    >>> path = save(plan, tempfile.mkdtemp() + "/plan.recal")
    >>> load(path) == plan
    True
    """
    from safetensors.numpy import save as to_bytes

    from recal import __version__
    from recal.calibrators.base import Calibrator

    encoder = Encoder()
    if isinstance(obj, Plan):
        content = {"kind": "plan", "plan": encoder.encode(obj, "the plan")}
    elif isinstance(obj, Calibrator):
        content = {"kind": "calibrator", **_encode_calibrator(obj, encoder)}
    elif _is_classifier(obj):
        content = {"kind": "classifier", **encode_classifier(obj, encoder, _encode_calibrator)}
    elif type(obj) in STORED:
        content = {"kind": "record", "record": encoder.encode(obj, type(obj).__name__)}
    else:
        raise InputError(
            f"Fitted calibrators, classifiers, plans and {', '.join(family.__name__ for family in STORED)} "
            f"can be saved, got a {type(obj).__name__}."
        )
    header = json.dumps({"version": VERSION, "written_by": f"recal {__version__}", **content}, allow_nan=False)
    if len(header) > MAX_HEADER_BYTES // 2:
        raise InputError(f"All but the arrays takes {len(header):,} bytes; a file holds {MAX_HEADER_BYTES // 2:,}.")
    with replacing(path) as file:
        file.write(to_bytes(encoder.arrays, metadata={_KEY: header}))
    return Path(path)


def load(
    path: str | os.PathLike[str],
    transforms: Own = (),
    *,
    model: Any = None,
    preprocess: Any = None,
) -> Any:
    """Read what `save` wrote; refuse anything else with a FileError that says what is wrong.

    Parameters
    ----------
    path : the file
    transforms : mapping of name to callable, or sequence of callables that have names
        The code of your own transformations, which files never hold.
    model, preprocess : optional
        For a CalibratedClassifier: its trained model and what prepares inputs for it, which files never hold either.
        A file may remember the model's path, and still the model is opened only where you give it.

    Returns
    -------
    The calibrator, classifier, Plan or DecisionRule, equal to what was saved.
    """
    source, given_code = Path(path), {"model": model, "preprocess": preprocess}
    given = by_name(() if transforms is None else transforms)
    try:
        header, arrays = _read(source)
        decoder = Decoder(arrays, given)
        loaded = _restore(header, decoder)
        if unused := set(arrays) - decoder.used_arrays:
            raise FileError(f"it holds arrays that nothing refers to: {', '.join(sorted(unused)[:3])}")
    except OSError as error:
        raise FileError(f"Cannot read {source}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise FileError(f"Cannot read {source}: there is not enough memory.") from error
    except Exception as error:  # whatever a constructor makes of values that no honest file holds
        reason = "values are nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{source} is not a file that recal can use: {reason.rstrip('.')}.") from error
    if strangers := set(given) - set(decoder.named):
        raise InputError(
            f"{source} uses no transformation {sorted(strangers)[0]!r}; it uses: {', '.join(decoder.named) or 'none'}."
        )
    if header.get("kind") == "classifier":
        return give_code(loaded, given_code, source)
    if useless := [name for name, code in given_code.items() if code is not None]:
        raise InputError(f"{source} holds a {header['kind']}, which has no use for `{useless[0]}`.")
    return loaded


def _is_classifier(obj: Any) -> TypeGuard[CalibratedClassifier]:
    # Its module brings scikit-learn, which others need not wait for; where it is not loaded, nothing is one.
    module = sys.modules.get("recal.collecting.classifier")
    return module is not None and isinstance(obj, module.CalibratedClassifier)


def _encode_calibrator(calibrator: Calibrator, encoder: Encoder) -> dict[str, Any]:
    name = type(calibrator).__name__
    if calibrator_named(name) is not type(calibrator):
        raise InputError(f"Only recal's own calibrators can be saved, and {name} is not one of them.")
    params, state = calibrator.get_params(deep=False), calibrator.state()
    return {
        "class": name,
        "params": {key: encoder.encode(value, f"{name}.{key}") for key, value in params.items()},
        "state": {key: _encode_state(value, f"{name}.{key}", encoder) for key, value in state.items()},
    }


def _encode_state(value: Any, where: str, encoder: Encoder) -> Any:
    from recal.calibrators.base import Calibrator

    if isinstance(value, Calibrator):
        return _encode_calibrator(value, encoder)
    if isinstance(value, dict) and value and all(isinstance(item, Calibrator) for item in value.values()):
        return {name: _encode_calibrator(item, encoder) for name, item in value.items()}
    return encoder.encode(value, where)


def _restore(header: dict[str, Any], decoder: Decoder) -> Any:
    kind = header.get("kind")
    if kind == "plan":
        plan = decoder.decode(header.get("plan"))
        if not isinstance(plan, Plan):
            raise FileError("it says it holds a plan and does not")
        return plan
    if kind == "calibrator":
        return _restore_calibrator(header, decoder)
    if kind == "classifier":
        return restore_classifier(header, decoder, _restore_calibrator)
    if kind == "record":
        record = decoder.decode(header.get("record"))
        if type(record) not in STORED:
            raise FileError("it says it holds a record of a decision and does not")
        return record
    raise FileError(f"it holds a {kind!r}; calibrators, classifiers, plans and records are known")


def _restore_state(key: str, value: Any, decoder: Decoder, inside: tuple[str, ...]) -> Any:
    """Return a piece of fitted state.

    Under `calibrator_` stands a whole calibrator, which may not hold another one there, and under `members_` several
    by name, none of which holds any.
    """
    if key == "calibrator_":
        if inside or not _is_calibrator(value):
            raise FileError("`calibrator_` must be one calibrator: a class, its params and its state")
        return _restore_calibrator(value, decoder, ("calibrator_",))
    if key == "members_":
        if key in inside or not isinstance(value, dict) or not all(_is_calibrator(item) for item in value.values()):
            raise FileError("`members_` must be calibrators by name: each a class, its params and its state")
        return {name: _restore_calibrator(item, decoder, (*inside, key)) for name, item in value.items()}
    return decoder.decode(value)


def _is_calibrator(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"class", "params", "state"}


def _restore_calibrator(header: dict[str, Any], decoder: Decoder, inside: tuple[str, ...] = ()) -> Calibrator:
    from recal.files.contents import check_params, check_state, current_names

    name, params, state = header.get("class"), header.get("params"), header.get("state")
    family = calibrator_named(name) if isinstance(name, str) else None
    if family is None:
        raise FileError(f"it holds a calibrator {name!r}, which this recal does not have")
    if not isinstance(params, dict) or not isinstance(state, dict):
        raise FileError("`params` and `state` must be objects")
    # Item by item: a dict at this level may not be one of the encoder's tagged values.
    params = current_names(family, {key: decoder.decode(value) for key, value in params.items()})
    state = {key: _restore_state(key, value, decoder, inside) for key, value in state.items()}
    check_params(family, params)
    check_state(family, state)
    calibrator = family(**params).set_state(state)
    calibrator.check_state()
    return calibrator


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays, once every declared size agrees with the file's own."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    info = path.stat()
    if stat.S_ISDIR(info.st_mode):
        raise FileError("it is a folder; views in a .zarr folder are read with read_views")
    if not stat.S_ISREG(info.st_mode):
        raise FileError("it is not a regular file")
    if info.st_size > MAX_FILE_BYTES:
        raise FileError(f"it has {info.st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
    with path.open("rb") as file:
        content = file.read(info.st_size)
    header = _outer_header(content)
    inner = _parse(header["__metadata__"][_KEY])
    _check_version(inner)
    try:
        arrays = dict(from_bytes(content))
    except SafetensorError as error:
        raise FileError(f"its arrays are damaged ({error})") from error
    for name, array in arrays.items():
        # A truth value is a byte of 0 or 1; other bytes would behave as both true and false.
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise FileError(f"the array {name!r} holds truth values that are neither true nor false")
    return inner, arrays


def _outer_header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or content[8:9] != b"{":
        # Only now: the length of an honest header may begin with the bytes of a pickle or a gzip file.
        for beginning, what in _BEGINNINGS.items():
            if content.startswith(beginning):
                raise FileError(what)
        raise FileError("it does not begin as one" if content else "it is empty")
    if length > MAX_HEADER_BYTES:
        raise FileError(f"its header declares {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
    if len(content) < 8 + length:
        raise FileError(f"it is cut short: the header needs {8 + length:,} bytes and the file has {len(content):,}")
    header = _parse(content[8 : 8 + length])
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(_KEY), str):
        raise FileError("it is a safetensors file of something else")
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.get("dtype") not in _DTYPES:
            raise FileError(f"the array {name!r} has no dtype that recal reads")
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
            raise FileError(f"the array {name!r} has no place in the file")
        end = max([end, *offsets])
    if len(content) != 8 + length + end:
        what = "cut short" if len(content) < 8 + length + end else "longer than it says"
        raise FileError(f"it is {what}: its header declares {8 + length + end:,} bytes and it has {len(content):,}")
    return header


def _check_version(header: dict[str, Any]) -> None:
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise FileError(f"its version must be a whole number from 1 on, got {version!r}")
    if version > VERSION:
        raise FileError(
            f"it has the format {version} and this recal reads up to {VERSION}; "
            "update with: pip install --upgrade recal-calibration"
        )


def _parse(text: bytes | str) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise FileError("its header is not an object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise FileError("its header names a thing twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise FileError(f"its header holds {name}, which is not JSON")
