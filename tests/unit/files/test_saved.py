"""Saving and loading: what goes in comes out, files appear whole, and rubbish is refused in one
sentence.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
import pytest

from recal import Blend, Plan, Step, load, save
from recal.calibrators import MatrixScaling
from recal.calibrators.base import Calibrator
from recal.errors import FileError, InputError, NotFittedError
from recal.files import encoding, saved
from recal.maps.scaling import Temperature
from recal.transforms import Named
from recal.transforms.image import ZoomOut
from tests.problems import views

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")


class Toy(Calibrator):
    """A calibrator whose state may be anything, to try what files can hold."""

    short_name = "toy"
    keeps_accuracy = True

    thing_: Any

    def __init__(
        self, strength: float = 1.0, mode: Literal["a", "b"] | None = None, items: Any = None
    ):
        self.strength = strength
        self.mode = mode
        self.items = items

    def _fit(self, samples):
        return {"thing_": None, "map_": Temperature(1.0)}


class Stranger(Toy):
    pass


@pytest.fixture(autouse=True)
def _family_with_toy(monkeypatch):
    family = encoding.stored_calibrator
    for module in (encoding, saved):
        monkeypatch.setattr(
            module, "stored_calibrator", lambda name: Toy if name == "Toy" else family(name)
        )


def toy(thing=None, **params) -> Toy:
    made = Toy(**params).fit([[0.0, 1.0], [2.0, 3.0]], [0, 1])
    made.thing_ = thing
    return made


STEPS = Step("zoom:0.37", (1.0, 0.1 + 0.2, 1e-3, 100.0)), Step("mine", (1, 1, 1, 1))
PLAN = Plan(STEPS, start=1 / 3, finish=1.1, confidence_at="own")


@pytest.mark.parametrize(
    "thing",
    [
        [None, True, -7, 10**30],
        [0.1, -0.0, float("nan"), float("inf"), -float("inf")],
        "Zürich \x00 😀",
        [[], (), {}, [1, (2, [3.5, None]), {"a": (1,)}]],
        np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        np.arange(3, dtype=">f8"),
        np.array(1.5),
        [np.array([np.nan, np.inf, -np.inf], dtype=np.float16)],
        np.empty((0, 3), dtype=np.int32),
        np.array([True, False]),
        np.array([["a", "bcd"], ["", "é"]]),
        [PLAN, Named("mine")],
        Blend(2 / 3, (("zoom:0.5", 0.1 + 0.2), (Named("mine"), 1 / 3)), (0.1, -1e-17), 1 / 5001),
    ],
    ids=repr,
)
def test_state_of_every_kind_comes_back_the_same(thing, tmp_path):
    again = load(save(toy(thing), tmp_path / "toy")).thing_
    expected = (
        thing.astype(thing.dtype.newbyteorder("=")) if isinstance(thing, np.ndarray) else thing
    )
    assert (type(again), repr(again)) == (type(expected), repr(expected))


@pytest.mark.parametrize(
    "thing",
    [
        {1, 2},
        {1: "int"},
        {"$": "array", "array": "a0"},
        object(),
        len,
        np.random.default_rng(0),
        b"bytes",
        1j,
        np.array([1j]),
        np.array(["a", 1, None], dtype=object),
    ],
    ids=lambda thing: type(thing).__name__,  # addresses differ between processes
)
def test_what_a_file_cannot_hold_is_refused_by_name(thing, tmp_path):
    with pytest.raises(InputError, match=r"Toy\.thing_"):
        save(toy(thing), tmp_path / "toy")
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_come_back_as_plain_ones(tmp_path):
    thing = [np.float64(0.1), np.int64(3), np.bool_(True)]
    assert repr(load(save(toy(thing), tmp_path / "toy")).thing_) == "[0.1, 3, True]"


def test_only_fitted_calibrators_of_the_family_and_plans_can_be_saved(tmp_path):
    with pytest.raises(NotFittedError, match="Toy"):
        save(Toy(), tmp_path / "x")
    with pytest.raises(InputError, match="got a Stranger"):
        save(Stranger().fit([[0.0, 2.0]], [0]), tmp_path / "x")
    with pytest.raises(InputError, match="got a dict"):
        save({}, tmp_path / "x")


def test_named_transformations_get_their_code_back(tmp_path):
    path = save(PLAN, tmp_path / "plan")
    with pytest.raises(InputError, match="known by name only"):
        load(path).steps[1].transform(3)
    plan = load(path, transforms={"mine": lambda x: x * 2})
    assert plan == PLAN
    assert plan.steps[1].transform(3) == 6
    assert load(path, transforms=[Named("mine", lambda x: x * 3)]).steps[1].transform(3) == 9
    with pytest.raises(InputError, match=r"no transformation 'other'; it uses: zoom:0\.37, mine"):
        load(path, transforms={"other": abs})


def test_a_transformation_whose_spec_names_another_is_refused(tmp_path):
    class Sly(ZoomOut):
        def __str__(self):
            return "zoom:0.9"

    with pytest.raises(InputError, match=r"its spec 'zoom:0\.9' does not name it"):
        save(Plan((Step(Sly(0.5), (1, 1, 1, 2)),)), tmp_path / "plan")


def test_a_file_of_another_version_that_cannot_be_read_says_to_fit_again(tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(saved, "WRITER", "recal 1.0.0")
        path = save(toy(), tmp_path / "toy")
    assert isinstance(load(path), Toy)
    monkeypatch.setattr(encoding, "stored_calibrator", lambda name: None)
    with pytest.raises(FileError, match=r"recal 1\.0\.0.*fit it again"):
        load(path)


def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    with pytest.raises(FileError, match=r"nothing\.recal: No such file"):
        load(tmp_path / "nothing.recal")
    with pytest.raises(FileError, match="it is a folder"):
        load(tmp_path)
    with pytest.raises(FileError, match=r"it is a folder\. No files were written"):
        save(PLAN, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        load(tmp_path / "pipe")


def test_a_file_can_be_read_by_all_whom_the_umask_allows(tmp_path):
    old = os.umask(0o022)
    try:
        path = save(PLAN, tmp_path / "plan")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644


def test_one_changed_bit_of_an_array_is_noticed(tmp_path):
    """A bit of a weight makes other probabilities, and each value may still be a possible one."""
    rng = np.random.default_rng(0)
    path = save(MatrixScaling().fit(views(200, scale=2, noise=0.5)), tmp_path / "c")
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in rng.integers(begin, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(FileError, match=r"differs from what|not a file that"):
            load(path)
    path.write_bytes(whole)
    assert load(path).n_fitted_ == 200


def test_one_changed_digit_of_a_header_is_noticed(tmp_path):
    path = save(Plan(start=0.125), tmp_path / "plan")
    path.write_bytes(path.read_bytes().replace(b"0.125", b"0.135"))
    with pytest.raises(FileError, match="differs from what was saved: it was changed or damaged"):
        load(path)
