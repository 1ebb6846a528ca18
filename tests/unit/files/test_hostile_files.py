"""Files that try to break the loader: each is refused with one FileError, and damage never does
anything else.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recal import Plan, TemperatureScaling, load, save
from recal.errors import FileError

_spec = importlib.util.spec_from_file_location(
    "hostile_files", Path(__file__).with_name("hostile_files.py")
)
hostile = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hostile)


def test_the_valid_files_that_the_hostile_ones_are_made_from_load(tmp_path):
    (tmp_path / "ts").write_bytes(hostile.VALID)
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
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
