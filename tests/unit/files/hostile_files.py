"""Files that try to break the loader, built from one valid file.

Each case is a name, its bytes, and the words with which it must be refused.
"""

from __future__ import annotations

import copy
import json
import struct
from typing import Any

ZOOM = {"$": "transform", "spec": "zoom:0.5"}
NAMES = {"$": "array", "array": "a0"}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"$": "record", "name": name, "fields": fields}


PLAN = record(
    "Plan",
    start=0.5,
    finish=1.0,
    confidence_at="original",
    steps=[record("Step", transform=ZOOM, betas=[1.0, 0.9, 0.8, 1.1])],
)
TEMPERATURE = {
    "version": 1,
    "written_by": "recal 0.1.0",
    "kind": "calibrator",
    "class": "TemperatureScaling",
    "params": {},
    "state": {"map_": record("Temperature", beta=0.5), "converged_": True, "classes_": NAMES},
}
RECAL = {
    **TEMPERATURE,
    "class": "ReCal",
    "params": {"max_iter": 10, "guard": None},
    "state": {"map_": PLAN, "history_": [], "n_iter_": 0, "classes_": NAMES},
}
BLEND = record(
    "Blend",
    own=0.6,
    weights=[[ZOOM, 0.4]],
    offsets=[0.1, -0.1],
    epsilon=0.001,
    gate=0.99,
    gated_own=1.0,
    gated_offsets=[],
    mixture=0.0,
    gated_mixture=0.0,
    answers="kept",
    matrices=[],
    start=0.5,
)
BLENDED = {**TEMPERATURE, "class": "ViewStacking", "state": {"map_": BLEND, "classes_": NAMES}}
CLASSES = struct.pack("<2q", 0, 1)
ARRAYS = {"a0": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}


def pack(
    header: Any, arrays: Any = None, data: bytes = CLASSES, text: bytes | None = None
) -> bytes:
    """Return a safetensors file, as valid as its parts."""
    arrays = ARRAYS if arrays is None else arrays
    inner = header if isinstance(header, str) else json.dumps(header)
    outer = (
        json.dumps({"__metadata__": {"recal": inner}, **arrays}).encode() if text is None else text
    )
    outer += b" " * (-len(outer) % 8)
    return struct.pack("<Q", len(outer)) + outer + data


def changed(base: dict[str, Any], *path: str | int, to: Any) -> bytes:
    """Return the file with one value of its header changed."""
    header = copy.deepcopy(base)
    place: Any = header
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return pack(header)


def _state(name: str, value: Any) -> bytes:
    return changed(TEMPERATURE, "state", name, to=value)


def _tagged(tag: str, **fields: Any) -> bytes:
    return _state("row_hashes_", {"$": tag, **fields})


def _array(data: bytes = CLASSES, **entry: Any) -> bytes:
    return pack(TEMPERATURE, {"a0": {**ARRAYS["a0"], **entry}}, data)


_MAP = TEMPERATURE["state"]["map_"]


def _map(name: str, value: Any) -> bytes:
    return changed(TEMPERATURE, "state", "map_", name, to=value)


def _blend(name: str, value: Any) -> bytes:
    return changed(BLENDED, "state", "map_", "fields", name, to=value)


def _plan(*path: str | int, to: Any) -> bytes:
    return changed(RECAL, "state", "map_", "fields", *path, to=to)


def _step(name: str, *path: str | int, to: Any) -> bytes:
    return _plan("steps", 0, "fields", name, *path, to=to)


VALID = pack(TEMPERATURE)
_TEXT = json.dumps(TEMPERATURE)
_deep = "[" * 5_000 + "]" * 5_000
_nested: Any = 1
for _ in range(60):
    _nested = [_nested]

CASES: dict[str, tuple[bytes, str]] = {
    # not a file of ours at all
    "empty": (b"", "not a safetensors file"),
    "text": (b"temperature = 2.0\n", "not a safetensors file"),
    "npz": (b"PK\x03\x04" + bytes(64), "not a safetensors file"),
    "pickle": (b"\x80\x04\x95\x10" + bytes(7) + b"\x8c\x02os\x94.", "not a safetensors file"),
    "other-safetensors": (pack("", text=json.dumps(ARRAYS).encode()), "something else"),
    # sizes that lie
    "cut-in-header": (VALID[:100], "damaged"),
    "cut-in-arrays": (VALID[:-1], "damaged"),
    "too-long": (VALID + bytes(1), "damaged"),
    "huge-header": (struct.pack("<Q", 2**40) + VALID[8:], "header too large"),
    "huge-offsets": (_array(data_offsets=[0, 2**62], shape=[2**59]), "damaged"),
    "overflowing-shape": (_array(shape=[2**63, 2**63]), "damaged"),
    "negative-shape": (_array(shape=[-2]), "damaged"),
    "shape-and-offsets-differ": (_array(shape=[3]), "damaged"),
    "overlapping-arrays": (pack(TEMPERATURE, {"a0": ARRAYS["a0"], "a1": ARRAYS["a0"]}), "damaged"),
    # dtypes
    "unknown-dtype": (_array(dtype="PICKLE"), "damaged"),
    "bfloat16": (_array(dtype="BF16", shape=[8]), "bfloat16"),
    "bool-of-seven": (_array(b"\x07" * 16, dtype="BOOL", shape=[16]), "neither true nor false"),
    # headers that are no headers
    "header-not-json": (pack("", text=b'{"__metadata__": '), "damaged"),
    "header-not-utf8": (pack("", text=b'{"\xff\xfe": 1}'), "not a file that recal can use"),
    "inner-not-json": (pack("{"), "not a file that recal can use"),
    "inner-nan": (pack(_TEXT.replace("0.5", "NaN", 1)), "got nan"),
    "said-twice": (pack(_TEXT[:-1] + ', "version": 1}'), "same key twice"),
    # Newer versions of Python read these headers.
    "deep-header": (pack("", text=f'{{"__metadata__": {_deep}}}'.encode()), "damaged"),
    "deep-inner": (pack(f'{{"kind": "record", "fields": {_deep}}}'), "too deep|format None"),
    "deep-value": (_state("converged_", _nested), "more than 40 deep"),
    "endless-number": (pack(_TEXT.replace("0.5", "9" * 5_000, 1)), "recal can use"),
    # versions and kinds
    "future": (changed(TEMPERATURE, "version", to=2), "format 2, and this recal reads format 1"),
    "version-text": (changed(TEMPERATURE, "version", to="1"), "format '1'"),
    "unknown-kind": (changed(TEMPERATURE, "kind", to="model"), "holds a 'model'"),
    "record-without-fields": (changed(TEMPERATURE, "kind", to="record"), "must have the fields"),
    # classes, parameters, attributes
    "unknown-class": (changed(TEMPERATURE, "class", to="os.system"), "a calibrator 'os.system'"),
    "unknown-parameter": (changed(RECAL, "params", "code", to="x"), "no parameter 'code'"),
    "parameter-of-wrong-type": (changed(RECAL, "params", "max_iter", to="many"), "got 'many'"),
    "parameters-are-a-list": (changed(RECAL, "params", to=[1]), "must be objects"),
    "state-is-null": (changed(RECAL, "state", to=None), "must be objects"),
    "attribute-method": (_state("predict_proba", 1), "no fitted attribute 'predict_proba'"),
    "attribute-dunder": (_state("__class__", 1), "no fitted attribute '__class__'"),
    "no-classes": (_state("classes_", None), "`classes_` must be an ndarray"),
    "one-class": (_array(shape=[1], data_offsets=[0, 8])[:-8], "at least two classes"),
    "same-class-twice": (pack(TEMPERATURE, data=bytes(16)), "distinct classes"),
    "plan-is-a-number": (changed(RECAL, "state", "map_", to=3), "must be a Plan"),
    "history-of-nonsense": (changed(RECAL, "state", "history_", to=[{"a": 1}]), "recal can use"),
    # tagged values
    "unknown-tag": (_tagged("call", function="os.system"), "marked as 'call'"),
    "tag-with-extras": (_tagged("float", value="nan", x=1), "must have the fields"),
    "float-of-words": (_tagged("float", value="1e999"), "nan, inf or -inf"),
    "tuple-of-a-number": (_tagged("tuple", items=3), "must be a list"),
    "array-not-there": (_tagged("array", array="a9"), "array 'a9'"),
    "array-referred-to-twice": (_tagged("array", array="a0"), "the array 'a0' twice"),
    "text-too-wide": (_tagged("text", shape=[1], values=["a"], width=10**9), "width of text"),
    "text-of-numbers": (_tagged("text", shape=[1], values=[1], width=1), "list of str"),
    "shape-of-nothing": (_tagged("text", shape=[10**12, 0], values=[], width=1), "shape"),
    # plans
    "negative-beta": (_step("betas", 1, to=-0.9), "positive finite betas"),
    "huge-beta": (_plan("start", to=10**400), "recal can use"),
    "unknown-confidence-at": (_plan("confidence_at", to="mine"), "got 'mine'"),
    "plan-of-an-earlier-version": (_plan("rule", to={"ties": "float32"}), "got rule"),
    "step-is-a-dict": (_plan("steps", 0, to={"transform": ZOOM, "betas": [1] * 4}), "a Step"),
    "transform-out-of-range": (_step("transform", "spec", to="zoom:7"), "zoom"),
    "transform-is-code": (_step("transform", "spec", to={"call": "x"}), "must be a spec"),
    # maps
    "map-of-no-such-name": (_map("name", "os.system"), "os.system"),
    "map-of-another-method": (_state("map_", {**_MAP, "name": "Affine"}), "fields|Affine"),
    "map-with-extras": (_map("fields", {"beta": 0.5, "code": "x"}), "fields"),
    "map-negative-beta": (_map("fields", {"beta": -1.0}), "beta"),
    # blends
    "blend-with-extras": (_blend("code", "x"), "a Blend must have the fields"),
    "blend-negative-weight": (_blend("weights", [[ZOOM, -0.1]]), "got -0.1"),
    "blend-transform-is-code": (_blend("weights", [[{**ZOOM, "spec": {}}, 0.1]]), "be a spec"),
}
