"""What one batch can tell is told before the work."""

from __future__ import annotations

import shlex

import numpy as np
import pandas
import pytest

from recal import collect
from recal.cli.app import run
from recal.collecting.blocks import Job
from recal.collecting.local import run_local
from recal.collecting.models import as_model
from recal.collecting.preflight import check_job
from recal.collecting.sources import ArraySource
from recal.errors import InputError
from recal.transforms import pool

MODEL = """
import numpy as np
asked = []
def model(batch):
    with open("asked.txt", "a") as file:
        file.write(f"{len(batch)}\\n")
    values = np.asarray([sum(str(item).encode()) for item in batch], dtype=np.float32)
    return np.stack([values, values % 7, values % 3], axis=1)
def flat(batch):
    return np.zeros((len(batch), 3), np.float32)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "taught.py").write_text(MODEL)
    np.save(
        tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    )
    (tmp_path / "y.txt").write_text("\n".join(["ant", "bee", "cat", "ant"] * 10))
    return tmp_path


def test_wrong_names_of_classes_are_refused_before_the_model_runs(place, capsys):
    command = shlex.split("collect --model taught:model --data x.npy --labels y.txt --out v.zarr")
    assert run([*command, "--classes", "ant,bee,cow"]) == 2, "a label that is none of the names"
    assert "cat" in capsys.readouterr().err
    assert not (place / "asked.txt").exists()
    assert not (place / "v.zarr").exists()
    assert run([*command, "--classes", "ant,bee"]) == 2, "three columns and two names"
    assert run([*command, "--classes", "ant,bee,cat"]) == 0


def test_a_csv_of_texts_is_not_silently_a_table(place, capsys):
    words = ["the match was won late", "the bank lends more money", "a film about two sisters"]
    rows = {
        "text": [f"{word} {number}" for number in range(10) for word in words],
        "topic": ["a", "b", "c"] * 10,
    }
    pandas.DataFrame(rows).to_csv("t.csv", index=False)
    command = ["collect", "--model", "taught:model", "--data", "t.csv", "--out", "v.npz"]
    assert run(command) == 2
    assert "(--text-column text), and label_column=... (--label-column)" in capsys.readouterr().err
    assert not (place / "asked.txt").exists()
    columns = ["--text-column", "text", "--label-column", "topic", "--classes", "a,b,c"]
    assert run([*command, *columns]) == 0


def test_logits_that_are_all_equal_are_reported(place, capsys):
    assert run(["collect", "--model", "taught:flat", "--data", "x.npy", "--out", "v.npz"]) == 2
    assert "the same logits for all 40 inputs" in capsys.readouterr().err


def test_a_model_whose_answers_rarely_differ_is_not_called_constant():
    inputs = np.zeros((400, 1))
    inputs[[3, 130, 301]] = 1.0

    def tree(batch):
        return np.stack([np.full(len(batch), 3.0), 2 * batch[:, 0]], axis=1)

    views = collect(tree, inputs, None, labels=inputs[:, 0].astype(int))
    assert np.ptp(views.logits[:, 1]) == 2.0


def test_a_few_inputs_go_through_one_transformation_of_each_kind():
    asked = []

    def model(batch):
        asked.append(batch.shape)
        return np.asarray(batch, dtype=float).reshape(len(batch), -1)[:, :3] - 1.0

    images = np.random.default_rng(0).normal(size=(20, 6, 6))
    job = Job(as_model(model), pool("zoom:0.5-0.9:9+flip"))
    how = {"classes": None, "batch_size": 8}
    check_job(job, ArraySource(images, np.arange(20) % 3), run_local, **how)
    assert asked == [(8, 6, 6)] * 3
    with pytest.raises(InputError, match="7"):
        check_job(job, ArraySource(images, np.full(20, 7)), run_local, **how)
