"""Values as JSON and back, with arrays set aside: all that a fitted calibrator may be made of, and nothing that runs.

Plain JSON values stand for themselves. Everything else is an object with the key ``$`` that says what it is. Decoding
knows a closed list of such tags; it never imports, calls or names anything by what a file says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError, InputError
from recal.files.limits import allowance
from recal.maps import map_named
from recal.maps.base import Map, field_names
from recal.maps.plan import Blend, Plan, Rule, Step
from recal.transforms import Named, Transform, as_transform

_TAG = "$"
_MAX_DEPTH = 40
# What safetensors can hold and every numpy can read.
_ARRAY_DTYPES = frozenset(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
)


class Encoder:
    """Turns values into JSON; arrays go to `arrays`, under the names that the JSON refers to.

    `records` are the dataclasses that may be stored, field by field.
    """

    def __init__(self, records: Sequence[type[Any]] = ()) -> None:
        self.records = tuple(records)
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
        if isinstance(value, Map) and map_named(type(value).__name__) is type(value):
            values = {name: getattr(value, name) for name in field_names(type(value))}
            return {_TAG: "map", "name": type(value).__name__, "fields": self.encode(values, where, depth + 1)}
        if isinstance(value, Plan):
            return {_TAG: "plan", **encode_plan(value)}
        if isinstance(value, Transform) and type(value).__str__ is not object.__str__:  # a mere function has no spec
            return {_TAG: "transform", "spec": spec_of(value)}
        if type(value) in self.records:
            values = {one.name: getattr(value, one.name) for one in fields(value)}
            return {_TAG: "record", "name": type(value).__name__, "fields": self.encode(values, where, depth + 1)}
        raise InputError(
            f"{where} is a {type(value).__name__}, which a file cannot hold: only numbers, text, lists, tuples, dicts, "
            "arrays, plans and transformations are stored. For a random generator pass an integer seed instead."
        )

    def _mapping(self, value: dict[Any, Any], where: str, depth: int) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
        pairs = [
            [self.encode(key, f"a key of {where}", depth + 1), self.encode(item, f"{where}[{key!r}]", depth + 1)]
            for key, item in value.items()
        ]
        return {_TAG: "dict", "items": pairs}

    def _array(self, array: NDArray[Any], where: str) -> Any:
        if array.dtype.kind == "U":
            return {
                _TAG: "text",
                "width": array.dtype.itemsize // 4,
                "shape": list(array.shape),
                "values": _flat(array),
            }
        if array.dtype.kind == "O":
            items = _flat(array)
            if not all(item is None or type(item) in (bool, int, float, str) for item in items):
                raise InputError(f"{where} holds objects that are not text or numbers and cannot be stored.")
            return {_TAG: "objects", "shape": list(array.shape), "values": [self.encode(i, where) for i in items]}
        return {_TAG: "array", "array": self._keep(array, where)}

    def _keep(self, array: NDArray[Any], where: str) -> str:
        if array.dtype.name not in _ARRAY_DTYPES:
            raise InputError(f"{where} is an array of {array.dtype}, which cannot be stored.")
        name = f"a{len(self.arrays)}"
        # safetensors wants rows in order and the least byte first; a 0-d array must stay 0-d.
        self.arrays[name] = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C", copy=True)
        return name


def _flat(array: NDArray[Any]) -> list[Any]:
    return array.ravel(order="C").tolist()


def encode_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON: floats are written so that they read back as the same bits."""
    rule = plan.rule
    encoded: dict[str, Any] = {
        "start": plan.start,
        "finish": plan.finish,
        "rule": {"confidence_at": rule.confidence_at, "ties": rule.ties, "floor": rule.floor},
        "steps": [{"transform": spec_of(step.transform), "betas": list(step.betas)} for step in plan.steps],
    }
    return encoded if plan.blend is None else {**encoded, "blend": _encode_blend(plan.blend)}


def _encode_blend(blend: Blend) -> dict[str, Any]:
    encoded = {field.name: getattr(blend, field.name) for field in fields(blend)}
    return {
        **encoded,
        "weights": [[spec_of(transform), weight] for transform, weight in blend.weights],
        "offsets": list(blend.offsets),
        "gated_offsets": list(blend.gated_offsets),
    }


def spec_of(transform: Transform) -> str:
    """Return the spec that stands for a transformation in a file; refuse one that would come back as another."""
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
    """Turns JSON back into values, with the file's arrays and the callables that the caller gives back by name."""

    arrays: Mapping[str, NDArray[Any]]
    transforms: Mapping[str, Callable[[Any], Any]]
    records: Sequence[type[Any]] = ()
    used_arrays: set[str] = field(default_factory=set)
    named: dict[str, Transform] = field(default_factory=dict)

    def decode(self, value: Any, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise FileError(f"values are nested more than {_MAX_DEPTH} deep")
        if isinstance(value, list):
            return [self.decode(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if _TAG not in value:
            return {key: self.decode(item, depth + 1) for key, item in value.items()}
        tag, body = value[_TAG], {key: item for key, item in value.items() if key != _TAG}
        read = _READERS.get(tag) if isinstance(tag, str) else None
        if read is None:
            raise FileError(f"a value is marked as {tag!r}, which is unknown")
        if not set(read.fields) <= set(body) <= {*read.fields, *read.optional}:
            raise FileError(f"a value marked as {tag!r} must have the fields {read.fields}, got {sorted(body)}")
        return read.function(self, body, depth + 1)

    def array(self, name: Any) -> NDArray[Any]:
        if not isinstance(name, str) or name not in self.arrays:
            raise FileError(f"it refers to an array {name!r} that is not there")
        self.used_arrays.add(name)
        return self.arrays[name]

    def plan(self, body: dict[str, Any]) -> Plan:
        """Return the plan that `encode_plan` wrote; Plan itself refuses what no plan may hold."""
        rule, steps = body["rule"], body["steps"]
        if not isinstance(rule, dict) or set(rule) != {"confidence_at", "ties", "floor"} or not isinstance(steps, list):
            raise FileError("a plan must have a rule of confidence_at, ties and floor, and a list of steps")
        numbers = [body["start"], body["finish"], *([] if rule["floor"] is None else [rule["floor"]])]
        made = []
        for step in steps:
            if not isinstance(step, dict) or set(step) != {"transform", "betas"} or not isinstance(step["betas"], list):
                raise FileError("a plan's step must have a transform and a list of betas")
            numbers += step["betas"]
            made.append(Step(self.transform(step["transform"]), tuple(step["betas"])))
        if not all(type(number) in (int, float) for number in numbers):
            raise FileError("a plan's betas and floor must be numbers")
        blend = None if body.get("blend") is None else self.blend(body["blend"])
        return Plan(tuple(made), start=body["start"], finish=body["finish"], rule=Rule(**rule), blend=blend)

    def blend(self, body: Any) -> Blend:
        """Return the blend of a plan; Blend itself refuses what no blend may hold."""
        if not isinstance(body, dict) or set(body) != {field.name for field in fields(Blend)}:
            raise FileError(f"a plan's blend must have {', '.join(field.name for field in fields(Blend))}")
        lists = [body[name] for name in ("weights", "offsets", "gated_offsets")]
        if not all(isinstance(values, list) for values in lists):
            raise FileError("a blend's weights and offsets must be lists")
        weights, offsets, gated_offsets = lists
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in weights):
            raise FileError("a blend's weights must be pairs of a transformation and a number")
        numbers = [body[name] for name in ("own", "epsilon", "gated_own", "mixture", "gated_mixture")]
        numbers += [*offsets, *gated_offsets]
        numbers += [weight for _, weight in weights] + ([] if body["gate"] is None else [body["gate"]])
        if not all(type(number) in (int, float) for number in numbers):
            raise FileError("a blend's weights, offsets, epsilon and gate must be numbers")
        pairs = tuple((self.transform(spec), weight) for spec, weight in weights)
        return Blend(**{**body, "weights": pairs, "offsets": tuple(offsets), "gated_offsets": tuple(gated_offsets)})

    def transform(self, spec: Any) -> Transform:
        if not isinstance(spec, str):
            raise FileError(f"a transformation must be a spec, got {spec!r}")
        transform = as_transform(spec)
        if isinstance(transform, Named) and spec in self.transforms:
            given = self.transforms[spec]
            transform = given if isinstance(given, Transform) and str(given) == spec else Named(spec, given)
        self.named[spec] = transform
        return transform


def _read_text(decoder: Decoder, body: dict[str, Any], depth: int) -> NDArray[Any]:
    width = body["width"]
    if type(width) is not int or not 0 <= width <= 10_000:
        raise FileError(f"the width of text must lie in 0..10000, got {width!r}")
    values = _values(body, str)
    if any(len(value) > width for value in values):
        raise FileError("text is longer than its width")
    # Numpy gives every text the room of the longest: what one long width would add must not outgrow the file.
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


def _read_record(decoder: Decoder, body: dict[str, Any], depth: int) -> Any:
    """Return one of the records that may be stored; its own checks refuse what it may not hold."""
    family = {record.__name__: record for record in decoder.records}.get(body["name"])
    if family is None:
        raise FileError(f"it holds a {body['name']!r}, which this recal does not have")
    values, names = decoder.decode(body["fields"], depth), {one.name for one in fields(family)}
    # A field with a default may be missing, so that a later version can add fields.
    needed = {one.name for one in fields(family) if one.default is MISSING and one.default_factory is MISSING}
    if not isinstance(values, dict) or not needed <= set(values) <= names:
        raise FileError(f"a {body['name']} must have the fields {', '.join(sorted(names))}")
    return family(**values)


def _read_map(decoder: Decoder, body: dict[str, Any], depth: int) -> Map:
    """Return a map; its declarations refuse what it may not hold."""
    family = map_named(body["name"]) if isinstance(body["name"], str) else None
    if family is None:
        raise FileError(f"it holds a map {body['name']!r}, which this recal does not have")
    values = decoder.decode(body["fields"], depth)
    if not isinstance(values, dict) or set(values) != set(field_names(family)):
        raise FileError(f"a {body['name']} must have the fields {', '.join(field_names(family))}")
    return family(**values)


@dataclass(frozen=True)
class _Reader:
    fields: list[str]
    function: Callable[[Decoder, dict[str, Any], int], Any]
    optional: tuple[str, ...] = ()


_READERS = {
    "array": _Reader(["array"], lambda decoder, body, _: decoder.array(body["array"])),
    "scalar": _Reader(["array"], _read_scalar),
    "text": _Reader(["shape", "values", "width"], _read_text),
    "objects": _Reader(["shape", "values"], _read_objects),
    "float": _Reader(["value"], _read_float),
    "tuple": _Reader(["items"], lambda decoder, body, depth: tuple(_read_items(decoder, body, depth))),
    "dict": _Reader(["items"], _read_dict),
    "map": _Reader(["fields", "name"], _read_map),
    "plan": _Reader(["finish", "rule", "start", "steps"], lambda decoder, body, _: decoder.plan(body), ("blend",)),
    "record": _Reader(["fields", "name"], _read_record),
    "transform": _Reader(["spec"], lambda decoder, body, _: decoder.transform(body["spec"])),
}
