"""Views and answers in an object store: the bytes of a local run, resumed after any stop, and never
two writers.
"""

from __future__ import annotations

import json
import os
import shlex

import numpy as np
import pytest

from recal import Plan, TemperatureScaling, ViewStacking, collect, load, read_views, save
from recal.cli.app import run
from recal.collecting import apply_distributed
from recal.collecting.models.base import CallableModel
from recal.errors import FileError, InputError, MissingExtraError
from recal.files import paths
from recal.files.ledger import read_ledger
from recal.files.paths import as_path
from tests.unit.collecting.object_store import contents, s3_server


@pytest.fixture(scope="module")
def s3():
    with s3_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


@pytest.fixture(params=["s3", "memory"])
def folder(request):
    if request.param == "s3":
        request.getfixturevalue("s3")
    place = as_path(
        f"{request.param}://bucket/{request.node.name}".replace("[", "-").replace("]", "")
    )
    yield place
    paths.remove_tree(place)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)


def model(batch):
    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
    return values @ np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3) / 50


def job(images, out, **options):
    options = {"labels": np.arange(60) % 3, "batch_size": 8, "progress": False, **options}
    return collect(options.pop("model", model), images, "zoom:0.5-0.9:3", out=out, **options)


def stops_after(n_batches):
    calls = []

    def stopping(batch):
        if len(calls) == 4 * n_batches:
            raise KeyboardInterrupt
        calls.append(len(batch))
        return model(batch)

    return stopping


def test_the_bytes_are_those_of_a_local_run(folder, tmp_path, images):
    job(images, folder / "views.zarr")
    job(images, tmp_path / "views.zarr")
    assert contents(folder / "views.zarr") == contents(tmp_path / "views.zarr")


def test_an_interrupted_collect_is_refused_by_readers_and_resumed(folder, images, monkeypatch):
    target = folder / "views.zarr"
    monkeypatch.setattr(CallableModel, "fingerprint", lambda self: "the same")
    with pytest.raises(KeyboardInterrupt):
        job(images, target, model=stops_after(3))
    with pytest.raises(FileError, match="unfinished"):
        read_views(str(target))
    assert len(list((target / "ledger").iterdir())) == len(read_ledger(target).blocks) == 3
    views = job(images, target)
    np.testing.assert_array_equal(views.logits, model(images))
    assert not (target / "ledger").exists()


def test_another_run_takes_the_store_over_and_the_first_one_stops(folder, images):
    target = folder / "views.zarr"

    def overtaken(batch):
        if not done:
            done.append(True)
            job(images, target, model=model, resume=False)
        return model(batch)

    done: list[bool] = []
    with pytest.raises(FileError, match="Another collect has started to write"):
        job(images, target, model=overtaken)
    assert read_views(target).n_samples == 60


@pytest.mark.parametrize("folder", ["memory"], indirect=True)
def test_other_inputs_and_what_recal_did_not_write_are_refused(folder, images):
    job(images, folder / "views.zarr")
    with pytest.raises(InputError, match="other inputs"):
        job(images[::-1].copy(), folder / "views.zarr")
    (folder / "mine.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="was not written by collect"):
        job(images, folder / "mine.zarr")
    with pytest.raises(FileError, match="recal did not write"):
        read_views(folder / "views.zarr").write(folder / "mine.zarr")
    assert (folder / "mine.zarr" / "notes.txt").read_text() == "mine"


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_answers_are_written_part_by_part_and_kept(folder, images):
    stack = ViewStacking(random_state=0).fit(job(images, None))
    out = str(folder / "answers")
    assert (
        apply_distributed(
            stack, model, images, out, engine="local", batch_size=20, progress=False
        ).written
        == 60
    )
    again = apply_distributed(
        stack, model, images, out, engine="local", batch_size=20, progress=False
    )
    assert (again.written, again.samples, os.fspath(again)) == (0, 60, out)
    assert sorted(place.name for place in as_path(out).iterdir() if place.suffix == ".parquet") == [
        f"part-00000{index}.parquet" for index in range(3)
    ]


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_the_command_line_collects_fits_and_applies_by_url(
    s3, tmp_path, images, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(60) % 3)
    (tmp_path / "some_net.py").write_text(
        "import numpy as np\n"
        "def model(batch):\n"
        "    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)\n"
        "    return values @ np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3) / 50\n"
    )
    url, data = "s3://bucket/line/views.zarr", str(tmp_path / "data.npz")
    given = ["--model", "some_net:model", "--data", data, "--pool", "zoom:0.5-0.9:2"]
    assert run(["collect", *given, "--out", url, "--quiet"]) == 0
    assert run(["fit", url, "--method", "ts", "--out", str(tmp_path / "ts.recal"), "--quiet"]) == 0
    assert load(tmp_path / "ts.recal").beta_ == TemperatureScaling().fit(read_views(url)).beta_
    capsys.readouterr()
    assert run(["apply", "ts.recal", url, "--out", "probs.npz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 60
    assert (
        run(["apply", str(tmp_path / "ts.recal"), url, "--out", "s3://bucket/line/probs.npz"]) == 2
    )
    assert "cannot be a URL" in capsys.readouterr().err
    assert run(["fit", "s3://bucket/line/none.zarr", "--out", str(tmp_path / "no.recal")]) == 2
    assert "There is nothing at s3://bucket/line/none.zarr" in capsys.readouterr().err


def test_what_cannot_be_reached_is_said_with_its_remedy(s3, images, monkeypatch):
    with pytest.raises(FileError, match="bucket does not exist"):
        job(images, "s3://no-such-bucket/views.zarr")
    with pytest.raises(InputError, match=r"Choose a name that ends in \.zarr"):
        job(images, "s3://bucket/views.npz")
    with pytest.raises(InputError, match="URLs begin with"):
        read_views("ftp://host/views.zarr")
    monkeypatch.setitem(paths._PROTOCOLS, "gs", ("no_such_package", "gs"))
    with pytest.raises(MissingExtraError, match=r"pip install .*\[gs\]"):
        read_views("gs://bucket/views.zarr")


@pytest.mark.parametrize("text", ["s3://bucket/a", "s3:/bucket/a"])
def test_a_url_that_has_been_a_path_is_known(text):
    assert str(as_path(text)) == "s3://bucket/a"


def test_a_calibration_is_saved_and_loaded_by_its_url():
    plan = Plan(start=0.5)
    saved = save(plan, "memory://bucket/plan.recal")
    assert str(saved) == "memory://bucket/plan.recal"
    assert load("memory://bucket/plan.recal") == plan


def test_inputs_at_a_url_are_refused(capsys):
    command = "calibrate --model net.onnx --data memory://bucket/inputs.npz --out calibrated"
    assert run(shlex.split(command)) == 2
    assert "--data cannot be a URL" in capsys.readouterr().err
