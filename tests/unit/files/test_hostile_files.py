"""Files that try to break the loader: each is refused with one FileError, and damage never does
anything else.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recal import Blend, Plan, Step, TemperatureScaling, load, save
from recal.errors import FileError, InputError, RecalError

_spec = importlib.util.spec_from_file_location(
    "hostile_files", Path(__file__).with_name("hostile_files.py")
)
hostile = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hostile)


def test_the_honest_files_that_the_hostile_ones_are_made_from_load(tmp_path):
    (tmp_path / "ts").write_bytes(hostile.HONEST)
    assert load(tmp_path / "ts").temperature_ == 2.0
    assert load(tmp_path / "ts").fitted_rows([[2.0, 0.0]]) == 0, "it keeps no hashes of rows"
    (tmp_path / "recal").write_bytes(hostile.pack(hostile.RECAL))
    assert len(load(tmp_path / "recal").plan_.steps) == 1
    (tmp_path / "blended").write_bytes(hostile.pack(hostile.BLENDED))
    assert load(tmp_path / "blended").plan_.gate == 0.99


def test_the_folder_holds_the_cases_as_they_are_built():
    names = sorted(path.stem for path in hostile.FOLDER.iterdir())
    assert names == sorted(hostile.CASES), "run tests/unit/files/hostile_files.py"
    for name, (build, _) in hostile.CASES.items():
        assert (hostile.FOLDER / f"{name}.recal").read_bytes() == build(), name


@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_file_is_refused_in_one_sentence(name):
    path = hostile.FOLDER / f"{name}.recal"
    with pytest.raises(FileError) as refused:
        load(path)
    message = str(refused.value)
    assert path.name in message
    assert re.search(hostile.CASES[name][1], message), message
    assert "\n" not in message
    assert len(message) < 600


def test_too_large_a_file_is_refused_unread(tmp_path, monkeypatch):
    path = save(Plan(), tmp_path / "plan")
    monkeypatch.setattr("recal.files.saved.MAX_FILE_BYTES", 100)
    with pytest.raises(FileError, match="at most 100 are read"):
        load(path)


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("honest")
    logits = np.random.default_rng(0).normal(size=(30, 3))
    plan = Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.1)), Step("mine", (1, 1, 1, 2))), start=0.3)
    fitted = TemperatureScaling().fit(logits, ["a"] * 10 + ["b"] * 20, classes=["a", "b", "c"])
    matrices = np.full((2, 3, 3), 0.25).tolist()
    blend = Blend(
        0.5, (("mine", 0.5),), (0.1, 0.2, 0.3), 1e-3, 0.9, 1.0, (0.0, 0.1, 0.2), matrices=matrices
    )
    blend = replace(blend, start=0.5)
    return {
        "plan": save(plan, folder / "plan"),
        "calibrator": save(fitted, folder / "calibrator"),
        "blend": save(blend, folder / "blend"),
    }


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from(["plan", "calibrator", "blend"]), data=st.data())
def test_a_damaged_file_is_refused_or_gives_a_valid_object(honest, kind, data):
    raw = bytearray(honest[kind].read_bytes())
    if data.draw(st.booleans(), label="cut"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), label="length")]
        expect_failure = True
    else:
        expect_failure = False
        for _ in range(data.draw(st.integers(1, 4), label="flips")):
            raw[data.draw(st.integers(0, len(raw) - 1), label="at")] ^= 1 << data.draw(
                st.integers(0, 7), label="bit"
            )
    damaged = honest[kind].with_name("damaged")
    damaged.write_bytes(raw)
    try:
        loaded = load(damaged)
    except RecalError:
        return
    assert not expect_failure, "a file that was cut short was accepted"
    if isinstance(loaded, Plan | Blend):
        assert loaded.start > 0
    else:
        assert len(loaded.classes_) == 3
        assert loaded.plan_.start > 0


FIELDS = ["items", "array", "values", "shape", "width"]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$", "value", "name", "fields", *FIELDS]), inner)
        | st.builds(
            lambda tag, body: {**body, "$": tag},
            st.sampled_from(["array", "text", "tuple", "dict", "record", "calibrator"]),
            st.dictionaries(st.sampled_from(FIELDS), inner),
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.sampled_from(
        ["version", "kind", "class", "params", "state", "beta_", "map_", "classes_"]
    ),
    value=_json,
)
@example(key="beta_", value={"$": "tuple", "items": 3})
def test_any_json_in_any_place_is_refused_or_gives_a_valid_object(tmp_path, key, value):
    place = ("state", key) if key.endswith("_") else (key,)
    path = tmp_path / "odd"
    path.write_bytes(hostile.changed(hostile.TEMPERATURE, *place, to=value))
    try:
        loaded = load(path)
    except FileError:
        return
    assert isinstance(loaded, TemperatureScaling)
    assert len(loaded.classes_) >= 2


def test_a_transform_given_for_another_file_is_an_input_error(honest):
    with pytest.raises(InputError, match="no transformation 'theirs'"):
        load(honest["plan"], transforms={"theirs": abs})
