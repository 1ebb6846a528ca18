"""Fitted calibrators, classifiers and plans in one safe file each: data, never code.

The header names the class, its parameters and its fitted state; `files.tensors` says how the file is laid out. A class
is only ever found by its name in `recal.calibrators.CALIBRATORS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from recal.calibrators import calibrator_named
from recal.errors import FileError, InputError
from recal.files.encoding import Decoder, Encoder
from recal.files.tensors import read_tensors, write_tensors
from recal.files.urls import as_path
from recal.maps.plan import Plan
from recal.saving.classifiers import encode_classifier, give_code, restore_classifier
from recal.saving.records import RECORDS
from recal.transforms.pool import Own, by_name

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.calibrators.signals import SignalCalibration
    from recal.collecting.classifier import CalibratedClassifier
    from recal.decisions.rule import DecisionRule
    from recal.decisions.sets import PredictionSets
    from recal.decisions.watching.profile import Profile

    Savable: TypeAlias = (
        Calibrator | SignalCalibration | CalibratedClassifier | Plan | DecisionRule | PredictionSets | Profile
    )


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
    from recal.calibrators.base import Calibrator

    encoder = Encoder(RECORDS)
    if isinstance(obj, Plan):
        content = {"kind": "plan", "plan": encoder.encode(obj, "the plan")}
    elif isinstance(obj, Calibrator) or calibrator_named(type(obj).__name__) is type(obj):
        content = {"kind": "calibrator", **_encode_calibrator(obj, encoder)}
    elif _is_classifier(obj):
        content = {"kind": "classifier", **encode_classifier(obj, encoder, _encode_calibrator)}
    elif type(obj) in RECORDS:
        content = {"kind": "record", "record": encoder.encode(obj, type(obj).__name__)}
    else:
        raise InputError(
            f"Fitted calibrators, classifiers, plans and {', '.join(family.__name__ for family in RECORDS)} "
            f"can be saved, got a {type(obj).__name__}."
        )
    write_tensors(path, content, encoder.arrays)
    return as_path(path)


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
    source, given_code = as_path(path), {"model": model, "preprocess": preprocess}
    given = by_name(() if transforms is None else transforms)
    try:
        header, arrays, as_written = read_tensors(source)
        decoder = Decoder(arrays, given, RECORDS)
        loaded = _restore(header, decoder)
        if unused := set(arrays) - decoder.used_arrays:
            raise FileError(f"it holds arrays that nothing refers to: {', '.join(sorted(unused)[:3])}")
        if not as_written:  # last, since what is wrong with a value says more
            raise FileError("its content differs from what was saved: it was changed or damaged. Copy it again")
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
    classifier = getattr(sys.modules.get("recal.collecting.classifier"), "CalibratedClassifier", None)
    return classifier is not None and isinstance(obj, classifier)


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
        if type(record) not in RECORDS:
            raise FileError("it says it holds a record of a decision and does not")
        return record
    raise FileError(f"it holds a {kind!r}; calibrators, classifiers, plans and records are known")


def _restore_state(key: str, value: Any, decoder: Decoder, inside: tuple[str, ...]) -> Any:
    """Return a piece of fitted state.

    Under `calibrator_` stands a whole calibrator, which may not hold another one.
    """
    if key == "calibrator_":
        if inside or not _is_calibrator(value):
            raise FileError("`calibrator_` must be one calibrator: a class, its params and its state")
        return _restore_calibrator(value, decoder, ("calibrator_",))
    return decoder.decode(value)


def _is_calibrator(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"class", "params", "state"}


def _restore_calibrator(header: dict[str, Any], decoder: Decoder, inside: tuple[str, ...] = ()) -> Calibrator:
    from recal.saving.contents import check_params, check_state

    name, params, state = header.get("class"), header.get("params"), header.get("state")
    family = calibrator_named(name) if isinstance(name, str) else None
    if family is None:
        raise FileError(f"it holds a calibrator {name!r}, which this recal does not have")
    if not isinstance(params, dict) or not isinstance(state, dict):
        raise FileError("`params` and `state` must be objects")
    # Item by item: a dict at this level may not be one of the encoder's tagged values.
    params = {key: decoder.decode(value) for key, value in params.items()}
    state = {key: _restore_state(key, value, decoder, inside) for key, value in state.items()}
    check_params(family, params)
    check_state(family, state)
    calibrator = family(**params).set_state(state)
    calibrator.check_state()
    return calibrator
