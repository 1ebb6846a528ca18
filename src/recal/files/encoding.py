"""Values as JSON and arrays, and back: everything that a fitted calibrator may consist of, and nothing that runs.

Plain JSON values stand for themselves. Everything else is an object whose key ``$`` says what it is. The decoder knows
a closed list of these tags and of classes, and imports nothing else because a file names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.limits import allowance
from recal.maps import map_named
from recal.maps.group_offsets import GroupOffsets
from recal.maps.plan import Blend, Plan, Rule, Step
from recal.schema import check, parameter_kinds
from recal.transforms import Named, Transform, as_transform
from recal.transforms.preprocessing import Normalize, Preprocessing

_TAG = "$"
_MAX_DEPTH = 40
# What safetensors can hold and every numpy can read.
_ARRAY_DTYPES = frozenset(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
)
# The dataclasses that a file may hold besides maps. They check their own fields.
_RECORDS = {one.__name__: one for one in (Blend, GroupOffsets, Normalize, Plan, Preprocessing, Rule, Step)}
# The same, of packages that import this one: their modules.
_RECORD_MODULES = {
    "ByClass": "decisions.watching.class_mix",
    "DecisionRule": "decisions.rule",
    "Following": "decisions.watching.following",
    "Iteration": "calibrators.recal",
    "PredictionSets": "decisions.sets",
    "Profile": "decisions.watching.profile",
    "SignalTable": "calibrators.signal_table",
}


def record_named(name: Any) -> type[Any] | None:
    """Return the map or record of this name, without loading the others; None if files cannot hold it."""
    if not isinstance(name, str):
        return None
    if name in _RECORD_MODULES:
        return getattr(import_module(f"recal.{_RECORD_MODULES[name]}"), name)
    return _RECORDS.get(name) or map_named(name)


def calibrator_named(name: Any) -> type[Any] | None:
    """Return the calibrator of this name; None if there is none."""
    return import_module("recal.calibrators").calibrator_named(name) if isinstance(name, str) else None


class Encoder:
    """Turns values into JSON; arrays go to `arrays`, under the names that the JSON refers to."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}

    def encode(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return `value` as JSON. `where` names it in messages."""
        if depth > _MAX_DEPTH:
            raise InputError(f"{where} is nested more than {_MAX_DEPTH} deep and cannot be stored.")
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, np.generic):
            return {_TAG: "scalar", "array": self._keep(np.asarray(value), where)}
        if type(value) is list:
            return [self.encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {_TAG: "tuple", "items": self.encode(list(value), where, depth)}
        if type(value) is dict:
            return self._mapping(value, where, depth)
        name = type(value).__name__
        if record_named(name) is type(value):
            values = {one.name: getattr(value, one.name) for one in fields(value)}
            return {_TAG: "record", "name": name, "fields": self.encode(values, where, depth + 1)}
        if isinstance(value, Transform) and type(value).__str__ is not object.__str__:  # a bare function has no spec
            return {_TAG: "transform", "spec": _spec_of(value)}
        if calibrator_named(name) is type(value):
            parts = {"params": value.get_params(deep=False), "state": value.state()}
            return {_TAG: "calibrator", "class": name, **{key: self.items(parts[key], name, depth) for key in parts}}
        raise InputError(
            f"{where} is a {name}, which a file cannot hold: only numbers, text, lists, tuples, dicts, arrays, plans "
            "and transformations are stored. For a random generator pass an integer seed instead."
        )

    def items(self, values: Mapping[str, Any], owner: str, depth: int = 0) -> dict[str, Any]:
        """Return the parameters or attributes of an object as JSON, by name."""
        return {key: self.encode(value, f"{owner}.{key}", depth + 1) for key, value in values.items()}

    def _mapping(self, value: dict[Any, Any], where: str, depth: int) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
        pairs = [
            [self.encode(key, f"a key of {where}", depth + 1), self.encode(item, f"{where}[{key!r}]", depth + 1)]
            for key, item in value.items()
        ]
        return {_TAG: "dict", "items": pairs}

    def _array(self, array: NDArray[Any], where: str) -> Any:
        if array.dtype.kind not in "UO":
            return {_TAG: "array", "array": self._keep(array, where)}
        shape, values = list(array.shape), array.ravel(order="C").tolist()
        if array.dtype.kind == "U":
            return {_TAG: "text", "width": array.dtype.itemsize // 4, "shape": shape, "values": values}
        if not all(item is None or type(item) in (bool, int, float, str) for item in values):
            raise InputError(f"{where} holds objects that are not text or numbers and cannot be stored.")
        return {_TAG: "objects", "shape": shape, "values": [self.encode(item, where) for item in values]}

    def _keep(self, array: NDArray[Any], where: str) -> str:
        if array.dtype.name not in _ARRAY_DTYPES:
            raise InputError(f"{where} is an array of {array.dtype}, which cannot be stored.")
        name = f"a{len(self.arrays)}"
        # safetensors needs C order and little-endian bytes; a 0-d array must stay 0-d.
        self.arrays[name] = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C", copy=True)
        return name


def _spec_of(transform: Transform) -> str:
    """Return the spec that stands for a transformation in a file; refuse a spec that means another one."""
    spec = str(transform)
    again = as_transform(spec)
    if (not isinstance(again, Named) and again != transform) or spec.startswith("<"):
        raise InputError(
            f"The transformation {transform!r} cannot be stored: its spec {spec!r} does not name it. "
            "Wrap it as Named('a name of its own', function)."
        )
    return spec


@dataclass
class Decoder:
    """Turns JSON back into values, with the arrays of the file and the caller's own transformations by name."""

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
        names, read = _READERS.get(tag, ((), None)) if isinstance(tag, str) else ((), None)
        if read is None:
            raise FileError(f"a value is marked as {tag!r}, which is unknown")
        if set(body) != set(names):
            raise FileError(f"a value marked as {tag!r} must have the fields {', '.join(names)}, got {sorted(body)}")
        return read(self, body, depth + 1)

    def items(self, values: Any, depth: int = 0) -> dict[str, Any]:
        """Return an object's items by name; also an object with the key of a tag is one here."""
        if not isinstance(values, dict):
            raise FileError(f"fields, parameters and attributes must be objects, got {type(values).__name__}")
        return {key: self.decode(item, depth + 1) for key, item in values.items()}

    def array(self, name: Any) -> NDArray[Any]:
        if not isinstance(name, str) or name not in self.arrays:
            raise FileError(f"it refers to an array {name!r} that is not there")
        # Each value may copy its array, so a small file could otherwise take any amount of memory.
        if name in self.used_arrays:
            raise FileError(f"it refers to the array {name!r} twice")
        self.used_arrays.add(name)
        return self.arrays[name]

    def transform(self, spec: Any) -> Transform:
        if not isinstance(spec, str):
            raise FileError(f"a transformation must be a spec, got {spec!r}")
        transform = as_transform(spec)
        if isinstance(transform, Named) and spec in self.own:
            own = self.own[spec]
            transform = own if isinstance(own, Transform) and str(own) == spec else Named(spec, own)
        self.transforms[spec] = transform
        return transform


def check_params(family: Any, params: Mapping[str, Any]) -> None:
    """Refuse parameters that a constructor does not declare, or not with such a value."""
    kinds = parameter_kinds(family)
    for key, value in params.items():
        if key not in kinds:
            raise FileError(f"{family.__name__} has no parameter {key!r}")
        check(value, kinds[key], f"{family.__name__}.{key}")


def _read_calibrator(decoder: Decoder, body: dict[str, Any], depth: int) -> Any:
    name, family = body["class"], calibrator_named(body["class"])
    if family is None:
        raise FileError(f"it holds a calibrator {name!r}, which this recal does not have")
    params, state = decoder.items(body["params"], depth), decoder.items(body["state"], depth)
    check_params(family, params)
    if unknown := set(state) - set(family.fitted_kinds()):
        raise FileError(f"{name} has no fitted attribute {min(unknown)!r}")
    calibrator = family(**params).set_state(state)
    calibrator.check_state()
    return calibrator


def _read_record(decoder: Decoder, body: dict[str, Any], depth: int) -> Any:
    """Return a map or a record; it checks its own fields."""
    name, family = body["name"], record_named(body["name"])
    if family is None:
        raise FileError(f"it holds a {name!r}, which this recal does not have")
    values, names = decoder.items(body["fields"], depth), {one.name for one in fields(family)}
    # A field with a default may be missing, so a later version can add fields.
    needed = {one.name for one in fields(family) if one.default is MISSING and one.default_factory is MISSING}
    if not needed <= set(values) <= names:
        raise FileError(f"a {name} must have the fields {', '.join(sorted(names))}")
    return family(**values)


def _read_text(decoder: Decoder, body: dict[str, Any], depth: int) -> NDArray[Any]:
    width = body["width"]
    if type(width) is not int or not 0 <= width <= 10_000:
        raise FileError(f"the width of text must lie in 0..10000, got {width!r}")
    values = _values(body, str)
    if any(len(value) > width for value in values):
        raise FileError("text is longer than its width")
    # numpy pads every text to the width, and the padding must not exceed what the file may take.
    if (padded := 4 * width * len(values)) > allowance(sum(map(len, values)) + len(values)):
        raise FileError(f"its texts would take {padded:,} bytes, most of them padding")
    return np.array(values, dtype=f"<U{width}").reshape(_shape(body, len(values)))


def _read_objects(decoder: Decoder, body: dict[str, Any], depth: int) -> NDArray[Any]:
    values = [decoder.decode(value, depth) for value in _values(body, object)]
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(_shape(body, len(values)))


def _values(body: dict[str, Any], kind: type) -> list[Any]:
    values = body["values"]
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise FileError(f"`values` must be a list of {kind.__name__}")
    return values


def _shape(body: dict[str, Any], size: int) -> tuple[int, ...]:
    shape = body["shape"]
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise FileError(f"`shape` must be a list of sizes, got {shape!r}")
    if math.prod(shape) != size:
        raise FileError(f"the shape {shape} does not hold {size} values")
    return tuple(shape)


def _read_float(decoder: Decoder, body: dict[str, Any], depth: int) -> float:
    if body["value"] not in ("nan", "inf", "-inf"):
        raise FileError(f"a special float must be nan, inf or -inf, got {body['value']!r}")
    return float(body["value"])


def _read_scalar(decoder: Decoder, body: dict[str, Any], depth: int) -> Any:
    array = decoder.array(body["array"])
    if array.shape != ():
        raise FileError(f"a scalar must have no dimensions, got the shape {array.shape}")
    return array[()]


def _read_items(decoder: Decoder, body: dict[str, Any], depth: int) -> list[Any]:
    if not isinstance(body["items"], list):
        raise FileError("`items` must be a list")
    items: list[Any] = decoder.decode(body["items"], depth)
    return items


def _read_dict(decoder: Decoder, body: dict[str, Any], depth: int) -> dict[Any, Any]:
    pairs = _read_items(decoder, body, depth)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise FileError("the items of a dict must be pairs")
    return dict(pairs)


# The fields of each tagged value, and the function that reads it.
_READERS: dict[str, tuple[tuple[str, ...], Callable[[Decoder, dict[str, Any], int], Any]]] = {
    "array": (("array",), lambda decoder, body, _: decoder.array(body["array"])),
    "scalar": (("array",), _read_scalar),
    "text": (("shape", "values", "width"), _read_text),
    "objects": (("shape", "values"), _read_objects),
    "float": (("value",), _read_float),
    "tuple": (("items",), lambda decoder, body, depth: tuple(_read_items(decoder, body, depth))),
    "dict": (("items",), _read_dict),
    "record": (("fields", "name"), _read_record),
    "transform": (("spec",), lambda decoder, body, _: decoder.transform(body["spec"])),
    "calibrator": (("class", "params", "state"), _read_calibrator),
}
