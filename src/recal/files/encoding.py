"""Values as JSON and arrays, and back: everything that a fitted calibrator may consist of, and
nothing that runs.

Plain JSON values are written as they are. Everything else is an object whose key ``$`` says what it
is. The decoder knows a closed list of these tags and of classes. It never imports anything else
that a file names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.paths import allowance
from recal.schema import check, parameter_kinds
from recal.transforms import Named, Transform, as_transform

_TAG = "$"
# The fields of each value with a tag.
_FIELDS = {
    "array": ("array",),
    "text": ("shape", "values", "width"),
    "float": ("value",),
    "tuple": ("items",),
    "record": ("fields", "name"),
    "transform": ("spec",),
    "calibrator": ("class", "params", "state"),
}
_MAX_DEPTH = 40
# The dtypes that a file may hold.
DTYPES = {"bool", "float16", "float32", "float64"}
DTYPES |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
# The maps and other dataclasses that a file may hold, by module. They check their own fields.
_RECORDS = {
    "maps.scaling": "Temperature TemperatureMixture Affine StructuredAffine Linear "
    "StructuredLinear LatentFunction GapNetwork",
    "maps.curves": "Lines SharedLine Steps Bins InformativeBins Brackets TopLine "
    "LogisticCurves BetaCurves",
    "maps.blend": "Blend ViewMean Mixture",
    "maps.signals": "SignalEncoding SignalMap PanelStage PanelMap",
    "maps.steps": "Plan Step",
    "transforms.preprocessing": "Normalize Preprocessing",
    "calibrators.group_offsets": "GroupOffsets",
    "calibrators.panel_answers": "PanelTable",
    "calibrators.recal": "Iteration",
    "calibrators.signal_table": "SignalTable",
    "decisions.cascade": "CascadeRule",
    "decisions.following": "Following",
    "decisions.profiles": "Profile",
    "decisions.rule": "DecisionRule",
    "decisions.sets": "PredictionSets",
}
_HOMES = {name: home for home, names in _RECORDS.items() for name in names.split()}


def record_named(name: Any) -> type[Any] | None:
    """Return the map or record of this name without loading the others, or None if files cannot
    hold it.
    """
    if not isinstance(name, str) or name not in _HOMES:
        return None
    return getattr(import_module(f"recal.{_HOMES[name]}"), name)


def stored_calibrator(name: Any) -> type[Any] | None:
    """Return the calibrator of this name, or None."""
    calibrators = import_module("recal.calibrators")
    is_stored = isinstance(name, str) and name in calibrators.__all__ and name != "Calibrator"
    return getattr(calibrators, name) if is_stored else None


class Encoder:
    """Turns values into JSON; arrays go to `arrays`, under the names that the JSON refers to."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def encode(self, value: Any, where: str) -> Any:
        """Return `value` as JSON. `where` names it in messages."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            width, texts = value.dtype.itemsize // 4, value.ravel(order="C").tolist()
            return {_TAG: "text", "width": width, "shape": list(value.shape), "values": texts}
        if isinstance(value, np.ndarray):
            return {_TAG: "array", "array": self._keep(value, where)}
        if type(value) is list:
            return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if type(value) is tuple:
            return {_TAG: "tuple", "items": self.encode(list(value), where)}
        if type(value) is dict and _TAG not in value and all(type(key) is str for key in value):
            return self.items(value, where)
        name = type(value).__name__
        if record_named(name) is type(value):
            values = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            return {_TAG: "record", "name": name, "fields": self.encode(values, where)}
        # A bare function has no spec.
        if isinstance(value, Transform) and type(value).__str__ is not object.__str__:
            return {_TAG: "transform", "spec": _spec_of(value)}
        if stored_calibrator(name) is type(value):
            params = self.items(value.get_params(), name)
            state = self.items(value.state(), name)
            return {_TAG: "calibrator", "class": name, "params": params, "state": state}
        raise InputError(
            f"{where} is a {name}, which a file cannot hold: only numbers, text, lists, tuples, "
            "dicts, arrays, plans and transformations are stored. For a random generator pass an "
            "integer seed, for a Decision its rule."
        )

    def items(self, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
        """Return the parameters or attributes of an object as JSON, by name."""
        return {key: self.encode(value, f"{owner}.{key}") for key, value in values.items()}

    def _keep(self, array: NDArray[Any], where: str) -> str:
        if array.dtype.name not in DTYPES:
            raise InputError(f"{where} is an array of {array.dtype}, which cannot be stored.")
        name = f"a{len(self.arrays)}"
        # safetensors needs C order and little-endian bytes; a 0-d array must stay 0-d.
        self.arrays[name] = np.array(
            array, dtype=array.dtype.newbyteorder("<"), order="C", copy=True
        )
        return name


def _spec_of(transform: Transform) -> str:
    """Return the spec of a transformation for a file; refuse one that means another."""
    spec = str(transform)
    again = as_transform(spec)
    if (not isinstance(again, Named) and again != transform) or spec.startswith("<"):
        raise InputError(
            f"The transformation {transform!r} cannot be stored: its spec {spec!r} does not name "
            "it. Wrap it as Named('a name of its own', function)."
        )
    return spec


@dataclass
class Decoder:
    """Turns JSON back into values, with the arrays of the file and the caller's own transformations
    by name.
    """

    arrays: Mapping[str, NDArray[Any]]
    own: Mapping[str, Callable[[Any], Any]]
    used_arrays: set[str] = field(default_factory=set)
    transforms: dict[str, Transform] = field(default_factory=dict)

    def decode(self, value: Any, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise FileError(f"values are nested more than {_MAX_DEPTH} deep")
        if isinstance(value, list):
            return [self.decode(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if _TAG not in value:
            return self.items(value, depth)
        tag, body = value[_TAG], {key: item for key, item in value.items() if key != _TAG}
        names = _FIELDS.get(tag) if isinstance(tag, str) else None
        if names is None:
            raise FileError(f"a value is marked as {tag!r}, which is unknown")
        if set(body) != set(names):
            raise FileError(
                f"a value marked as {tag!r} must have the fields {', '.join(names)}, got "
                f"{sorted(body)}"
            )
        return self._read(tag, body, depth + 1)

    def _read(self, tag: str, body: dict[str, Any], depth: int) -> Any:
        if tag == "array":
            return self.array(body["array"])
        if tag == "tuple":
            if not isinstance(body["items"], list):
                raise FileError("`items` must be a list")
            return tuple(self.decode(body["items"], depth))
        if tag == "float":
            if body["value"] not in ("nan", "inf", "-inf"):
                raise FileError(f"a special float must be nan, inf or -inf, got {body['value']!r}")
            return float(body["value"])
        if tag == "text":
            return _read_text(**body)
        if tag == "transform":
            return self._transform(body["spec"])
        return self._record(depth, **body) if tag == "record" else self._calibrator(depth, **body)

    def items(self, values: Any, depth: int = 0) -> dict[str, Any]:
        """Return an object's items by name; here, an object with the key of a tag is a plain
        object, too.
        """
        if not isinstance(values, dict):
            raise FileError(
                f"fields, parameters and attributes must be objects, got {type(values).__name__}"
            )
        return {key: self.decode(item, depth + 1) for key, item in values.items()}

    def array(self, name: Any) -> NDArray[Any]:
        if not isinstance(name, str) or name not in self.arrays:
            raise FileError(f"it refers to an array {name!r} that is not there")
        # Each value may copy its array, so without this check a small file could use any amount of
        # memory.
        if name in self.used_arrays:
            raise FileError(f"it refers to the array {name!r} twice")
        self.used_arrays.add(name)
        return self.arrays[name]

    def _transform(self, spec: Any) -> Transform:
        if not isinstance(spec, str):
            raise FileError(f"a transformation must be a spec, got {spec!r}")
        transform = as_transform(spec)
        if isinstance(transform, Named) and spec in self.own:
            own = self.own[spec]
            transform = own if isinstance(own, Transform) and str(own) == spec else Named(spec, own)
        self.transforms[spec] = transform
        return transform

    def _record(self, depth: int, name: Any, fields: Any) -> Any:
        """Return a map or a record; it checks its own fields."""
        family = record_named(name)
        if family is None:
            raise FileError(f"it holds a {name!r}, which this recal does not have")
        values, declared = self.items(fields, depth), dataclasses.fields(family)
        names = {one.name for one in declared}
        # A field with a default may be missing, so a later version can add fields.
        required = {
            one.name
            for one in declared
            if one.default is MISSING and one.default_factory is MISSING
        }
        if not required <= set(values) <= names:
            unknown = ", ".join(sorted(set(values) - names)) or "fewer"
            raise FileError(
                f"a {name} must have the fields {', '.join(sorted(names))}, got {unknown}"
            )
        return family(**values)

    def _calibrator(self, depth: int, **body: Any) -> Any:
        name, family = body["class"], stored_calibrator(body["class"])
        if family is None:
            raise FileError(f"it holds a calibrator {name!r}, which this recal does not have")
        params, state = self.items(body["params"], depth), self.items(body["state"], depth)
        check_params(family, params)
        if unknown := set(state) - set(family.fitted_kinds()):
            raise FileError(f"{name} has no fitted attribute {min(unknown)!r}")
        calibrator = family(**params).set_state(state)
        calibrator.check_state()
        return calibrator


def check_params(family: Any, params: Mapping[str, Any]) -> None:
    """Refuse parameters, or values of parameters, that a constructor does not declare."""
    kinds = parameter_kinds(family)
    for key, value in params.items():
        if key not in kinds:
            raise FileError(f"{family.__name__} has no parameter {key!r}")
        check(value, kinds[key], f"{family.__name__}.{key}")


def _read_text(shape: Any, values: Any, width: Any) -> NDArray[Any]:
    if type(width) is not int or not 0 <= width <= 10_000:
        raise FileError(f"the width of text must lie in 0..10000, got {width!r}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FileError("`values` must be a list of str")
    if any(len(value) > width for value in values):
        raise FileError("text is longer than its width")
    # numpy pads every text to the same width, and the padding must not exceed the file's memory
    # limit.
    size = len(values)
    if (padded := 4 * width * size) > allowance(sum(map(len, values)) + size):
        raise FileError(f"its texts would take {padded:,} bytes, most of them padding")
    return np.array(values, dtype=f"<U{width}").reshape(shape)
