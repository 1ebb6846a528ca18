"""The pilot: what it computes, what it chooses, how it is resumed and refused."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from recal import ViewStacking, collect, read_views
from recal.cli.app import run
from recal.collecting import run_pilot
from recal.errors import InputError
from recal.transforms import Flip, Named

POOL = "flip+shift+brightness:0.5"


class LeftHalf:
    """A model that looks at the left half of an image and counts the rows that it is asked for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch):
        self.rows += len(batch)
        score = np.asarray(batch, dtype=np.float64)[:, :, :3].sum((1, 2))
        return np.stack([-score, score], axis=1)

    def __reduce__(self):
        return LeftHalf, ()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    return (rng.normal(0, 1, (1200, 6, 6)) + 0.4 * np.where(y == 1, 1, -1)[:, None, None]).astype(
        np.float32
    ), y


def test_only_what_pays_is_computed_for_the_rest(data):
    images, y = data
    model = LeftHalf()
    views = collect(model, images, POOL, labels=y, pilot=400)
    assert views.transforms == (Flip(),)
    assert model.rows == 400 * 4 + 1200 * 2
    plain = collect(LeftHalf(), images, "flip", labels=y)
    np.testing.assert_array_equal(views.transformed("flip"), plain.transformed("flip"))
    np.testing.assert_array_equal(views.labels, y)


def test_the_pilot_tells_what_it_saw_and_costs(data):
    images, y = data
    pilot = run_pilot(LeftHalf(), images, POOL, 400, labels=y)
    assert (pilot.n_samples, pilot.n_all, len(pilot.candidates), pilot.chosen) == (
        400,
        1200,
        3,
        (Flip(),),
    )
    assert (pilot.passes, pilot.passes_without) == (4000, 4800)
    assert str(pilot).endswith(
        "on 400 samples chose flip. 4,000 forward passes in all instead of 4,800"
    )
    assert {record["view"] for record in pilot.stacking.views_report_} == {
        "flip",
        "shift",
        "brightness:0.5",
    }


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_samples_are_drawn_at_random_and_by_the_seed(data):
    images, y = data
    order = np.argsort(y, kind="stable")  # a folder comes sorted by class
    first, again, other = (
        run_pilot(LeftHalf(), images[order], "flip", 100, labels=y[order], seed=seed).stacking.plan_
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_where_no_view_helps_the_originals_are_collected_alone(data):
    images, y = data
    views = collect(
        lambda batch: LeftHalf()(batch), images, [Named("same", lambda x: x)], labels=y, pilot=300
    )
    assert views.transforms == ()
    assert ViewStacking().fit(views).accepted_ is False


def test_ones_own_transformation_keeps_its_code(data, tmp_path):
    images, y = data

    def mirrored(batch):
        return batch[..., ::-1]

    views = collect(
        LeftHalf(), images, [mirrored, "shift"], labels=y, pilot=400, out=tmp_path / "views.zarr"
    )
    assert [str(transform) for transform in views.transforms] == ["mirrored"]


def test_a_store_keeps_the_pilot_beside_it_and_both_are_resumed(data, tmp_path):
    images, y = data
    out = tmp_path / "views.zarr"

    class Stops(LeftHalf):
        most = 400 * 4 + 700

        def __call__(self, batch):
            if self.rows > self.most:
                raise KeyboardInterrupt
            return super().__call__(batch)

    how = {"labels": y, "pilot": 400, "out": out, "batch_size": 100}
    with pytest.raises(KeyboardInterrupt):
        collect(Stops(), images, POOL, **how)
    assert len(read_views(tmp_path / "views.pilot.zarr").transforms) == 3
    model, Stops.most = Stops(), 10**9
    views = collect(model, images, POOL, **how)
    assert model.rows < 1200 * 2, (
        "neither the pilot nor the finished blocks are computed again, but for one block of each"
    )
    whole = collect(LeftHalf(), images, "flip", labels=y)
    np.testing.assert_array_equal(views.transformed("flip"), whole.transformed("flip"))


def test_what_a_pilot_cannot_do_is_said(data):
    images, y = data
    with pytest.raises(InputError, match="no labels"):
        collect(LeftHalf(), images, POOL, pilot=100)
    with pytest.raises(InputError, match="got 0"):
        collect(LeftHalf(), images, POOL, labels=y, pilot=0)


MODEL = """
import numpy as np

def model(batch):
    score = np.asarray(batch, dtype=np.float64)[:, :, :3].sum((1, 2))
    return np.stack([-score, score], axis=1)
"""


def test_the_command_prints_the_choice_and_the_cost(data, tmp_path, monkeypatch, capsys):
    images, y = data
    (tmp_path / "left_half.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    np.savez(tmp_path / "data.npz", images=images, labels=y)
    command = [
        *shlex.split("collect --model left_half:model --data"),
        str(tmp_path / "data.npz"),
        "--pool",
        POOL,
    ]
    assert run([*command, "--pilot", "400", "--out", str(tmp_path / "views.zarr")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "chose flip. 4,000 forward passes in all instead of 4,800." in said
    assert run([*command, "--pilot", "400", "--out", str(tmp_path / "views.npz"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["transforms"], told["passes"], told["without_pilot"]) == (["flip"], 4000, 4800)
