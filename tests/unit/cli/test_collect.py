"""`recal collect`, `recal apply --model` and `recal doctor` as a user types them."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from recal import load, read_views
from recal.cli.app import run
from recal.files.probabilities import read_probs
from tests.unit.cli.commands import answer, typed

MODEL = """
import numpy as np

def model(batch):
    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
    return np.stack([values.mean(1), values.std(1), values[:, ::2].mean(1)], axis=1) / 20 - 2
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, data of three classes, and a folder of images."""
    (tmp_path / "users_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_model", raising=False)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(60) % 3)
    np.save(tmp_path / "more.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(60)[::-1] % 3)
    for row, image in enumerate(rng.integers(0, 256, (9, 12, 12, 3), dtype=np.uint8)):
        path = tmp_path / "images" / "abc"[row % 3] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def collect(*more, out="views.zarr", data="data.npz"):
    return run(["collect", "--model", "users_model:model", "--data", data, "--out", out, *more])


def test_a_torch_model_runs_on_the_device_asked_for(place, capsys):
    pytest.importorskip("torch")
    (place / "torch_model.py").write_text(
        "import torch\nnet = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    words = "collect --model torch_model:net --data data.npz --divide 255 --device {} --out v.npz"
    assert typed(words.format("cpu")) == 0
    assert typed(words.format("elsewhere") + " --force") == 2
    assert "elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["views.zarr", "views.npz"])
def test_from_a_model_and_data_to_probabilities(place, capsys, out):
    assert collect("--pool", "zoom:0.5-0.9:3", out=out) == 0
    assert "60 samples, 3 classes, 3 transformations, labelled" in capsys.readouterr().out
    assert run(["fit", out, "--out", "c.recal"]) == 0
    assert run(["apply", "c.recal", out, "--out", "by-views.npz"]) == 0
    assert typed("apply c.recal --model users_model:model --data data.npz --out probs.npz") == 0
    direct, by_views = read_probs("probs.npz"), read_probs("by-views.npz")
    np.testing.assert_array_equal(direct.probs, by_views.probs)
    np.testing.assert_array_equal(direct.labels, np.arange(60) % 3)
    assert "Next: recal evaluate probs.npz" in capsys.readouterr().out


def test_apply_writes_a_table(place):
    import pyarrow.parquet

    assert collect("--classes", "x,y,z", data="images") == 2  # the folders are a, b, c
    assert collect("--pool", "zoom:0.7", data="images") == 0
    assert run(["fit", "views.zarr", "--method", "ts", "--out", "c.recal"]) == 0
    assert typed("apply c.recal --model users_model:model --data images --out p.parquet") == 0
    table = pyarrow.parquet.read_table("p.parquet").to_pydict()
    probs = load("c.recal").predict_proba(read_views("views.zarr"))
    assert list(table) == ["input", "answer", "confidence", "label", "p_a", "p_b", "p_c"]
    assert table["label"] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    np.testing.assert_array_equal(table["p_b"], probs[:, 1])
    assert table["answer"] == ["abc"[column] for column in probs.argmax(1)]
    np.testing.assert_array_equal(table["confidence"], probs.max(1))


def test_json_says_what_was_skipped(place, capsys):
    (place / "images" / "a" / "0.png").write_bytes(b"broken")
    line = "collect --model users_model:model --data images --resize 10 --crop 8 --on-error skip"
    said = answer(capsys, f"{line} --out v.npz")
    expected = {"samples": 8, "classes": 3, "transforms": [], "labelled": True}
    assert said == {**expected, "skipped": ["a/0.png"], "file": "v.npz"}


def test_normalisation_runs_after_transformations(place):
    from users_model import model

    images = np.load("more.npy")
    how = ["--divide", "255", "--mean", "0.5", "--std", "0.25", "--channels", "keep"]
    assert collect(*how, out="a.npz") == 0
    expected = model((images / 255 - 0.5) / 0.25)
    np.testing.assert_allclose(read_views("a.npz").logits, expected, atol=1e-5)


def test_the_same_command_resumes_and_another_is_refused(place, capsys):
    assert collect("--pool", "zoom:0.5", "--batch-size", "7") == 0
    assert collect("--pool", "zoom:0.5", "--batch-size", "7") == 0
    assert collect("--pool", "zoom:0.6", "--batch-size", "7") == 2
    assert "other pool" in capsys.readouterr().err
    assert collect("--pool", "zoom:0.6", "--batch-size", "7", "--force") == 0


def test_doctor_tells_what_works(capsys):
    found = answer(capsys, "doctor")
    assert found["packages"]["numpy"] == {"version": np.__version__, "works": True, "problem": None}
    assert found["extras"]["torch"]["works"] == (importlib.util.find_spec("torch") is not None)
    assert {"test", "all"}.isdisjoint(found["extras"])
    assert found["numba_cache"]["writable"] in (True, False)


def test_doctor_names_what_is_missing_or_broken(monkeypatch, capsys):
    from recal.cli import doctor

    monkeypatch.setitem(sys.modules, "PIL", None)
    requirements = ["numpy", "pillow"], {"onnx": ["no-such-package"]}
    monkeypatch.setattr(doctor, "_requirements", lambda: requirements)
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "PIL" in shown
    assert "[onnx]'" in shown
    assert "not installed" in shown
