"""A wrong order of classes is found in a few hundred predictions."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from PIL import Image

from recal import CalibratedClassifier, TemperatureScaling, collect
from recal.collecting.blocks import Job
from recal.collecting.local import run_local
from recal.collecting.models import as_model
from recal.collecting.preflight import check_agreement as check
from recal.collecting.sources import ArraySource
from recal.errors import InputError
from recal.workflow.job import calibrate
from recal.workflow.run import Settings
from tests.unit.cli.commands import typed


def pictures(n=600, classes=("apple", "bee", "cat")):
    """Pictures that are bright in the third of their class, and the folders' names as classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    images = rng.integers(0, 80, (n, 6, 6)).astype(np.uint8)
    for row, label in enumerate(y):
        images[row, :, 2 * label : 2 * label + 2] += 90
    source = ArraySource(images, y)
    source.classes = classes
    return source


def job(model):
    return Job(as_model(model))


def check_agreement(job, source, classes=None):
    check(job, source, run_local, classes=classes, batch_size=256)


def thirds(batch):
    return np.asarray(batch, dtype=float).reshape(len(batch), 6, 3, 2).mean((1, 3))


def test_the_order_in_which_the_predictions_match_is_named():
    shuffled = job(lambda batch: thirds(batch)[:, [2, 0, 1]])
    with pytest.raises(InputError, match=r"100% match.*classes=\['cat', 'apple', 'bee'\]"):
        check_agreement(shuffled, pictures())


def test_an_order_that_the_caller_or_the_model_gives_is_not_doubted():
    shuffled = job(lambda batch: thirds(batch)[:, [2, 0, 1]])
    check_agreement(shuffled, pictures(), classes=["apple", "bee", "cat"])
    shuffled.model.classes = np.array(["apple", "bee", "cat"])
    check_agreement(shuffled, pictures())


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_a_model_whose_order_is_right_passes(wrong):
    rng = np.random.default_rng(1)

    def noise(batch):
        return (rng.random(len(batch)) < wrong)[:, None] * rng.normal(0, 300, (1, 3))

    check_agreement(job(lambda batch: thirds(batch) + noise(batch)), pictures())


def test_constant_predictions_suggest_no_order_of_classes():
    source = pictures()
    source.labels = np.where(np.arange(source.n_samples) % 10 < 7, 0, 2)
    constant = job(lambda batch: thirds(batch) + np.array([0.0, 1e4, 0.0]))
    check_agreement(constant, source)


def test_a_model_that_guesses_passes():
    rng = np.random.default_rng(1)
    check_agreement(job(lambda batch: rng.normal(size=(len(batch), 3))), pictures())


def test_folders_and_numbers_are_doubted_on_every_way_to_collect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    for label, name in enumerate(["cat", "dog"]):
        (tmp_path / "data" / name).mkdir(parents=True)
        for row in range(250):
            pixels = rng.integers(0, 80, (4, 4, 3), dtype=np.uint8) + 120 * np.uint8(label)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{row}.png")
    (tmp_path / "swapping.py").write_text(
        "import numpy as np\n"
        "def swapped(batch):\n"
        "    bright = np.asarray(batch, dtype=float).mean((1, 2, 3)) - 100\n"
        "    return np.stack([bright, -bright], axis=1) / 10\n"
    )
    assert typed("collect --model swapping:swapped --data data --out v.npz") == 2
    assert "look swapped" in capsys.readouterr().err
    swapped = import_module("swapping").swapped
    with pytest.raises(InputError, match="look swapped"):
        collect(swapped, tmp_path / "data", None)
    images, y = np.zeros((500, 4, 4, 3)), np.arange(500) % 2
    images[y == 1] = 200.0
    with pytest.raises(InputError, match="look swapped"):
        collect(swapped, images, None, labels=y)
    assert collect(swapped, images, None, labels=y, classes=[0, 1]).n_samples == 500


def test_named_labels_mean_the_same_in_python_and_in_commands(tmp_path):
    rng = np.random.default_rng(0)
    height = rng.normal(size=(400, 1))
    trees = np.where(height[:, 0] + rng.normal(size=400) > 0, "oak", "pine")

    def logits(batch):
        return 4 * np.concatenate([batch, -batch], axis=1)

    def swapped(batch):
        return logits(batch)[:, ::-1]

    views = collect(logits, height, None, labels=trees, progress=False)
    assert views.classes.tolist() == ["oak", "pine"]
    np.testing.assert_array_equal(views.labels, trees == "pine")
    settings, how = Settings(risk=0.3), {"pool": None, "labels": trees, "progress": False}
    result = calibrate(logits, height, tmp_path / "out", settings, **how)
    assert result.calibrator.classes_.tolist() == ["oak", "pine"]
    for wrong in (
        lambda: collect(swapped, height, None, labels=trees, progress=False),
        lambda: calibrate(swapped, height, tmp_path / "other", settings, **how),
        lambda: CalibratedClassifier(swapped, pool="none").fit(height, trees),
    ):
        with pytest.raises(InputError, match=r"look swapped.*classes=\['pine', 'oak'\]"):
            wrong()
    with pytest.raises(InputError, match=r"pass classes=\['oak', 'pine'\]"):
        TemperatureScaling().fit(logits(height), trees)
    with pytest.raises(InputError, match="labels have 2 classes and the model has 3"):
        collect(lambda batch: batch * [1, 2, 3], height, None, labels=trees, progress=False)
