"""`recal calibrate` and `recal apply` alone: from labelled inputs to answers for inputs without
labels.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image

from recal.cli.app import run
from tests.unit.cli.commands import typed

MODEL = """
import numpy as np

def model(batch):
    score = (np.asarray(batch, dtype=float)[:, :, :4].mean((1, 2, 3)) - 128) * 1.2
    return np.stack([-score, score], axis=1)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of labelled pictures, one of new ones, and a model that is far too sure."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "brightness_model.py").write_text(MODEL)
    rng = np.random.default_rng(0)

    def draw(where, label, number):
        where.mkdir(parents=True, exist_ok=True)
        pixels = np.clip(
            128 + (8 if label else -8) + 40 * rng.normal(size=(8, 8, 3)), 0, 255
        ).astype(np.uint8)
        Image.fromarray(pixels).save(where / f"{number:03d}.png")

    for number in range(400):
        draw(folder / "labelled" / ("dark", "light")[number % 2], number % 2, number)
    for number in range(30):
        draw(folder / "new", number % 2, number)
    return folder


@pytest.fixture(scope="module")
def calibrated(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        command = "calibrate --model brightness_model:model --data labelled --risk 0.2 --pool flip --out out"
        assert run(command.split()) == 0
    return place


def answers(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_new_inputs_are_answered_by_the_folder_alone(calibrated, monkeypatch, capsys):
    monkeypatch.chdir(calibrated)
    monkeypatch.syspath_prepend(calibrated)
    assert typed("apply out --model brightness_model:model --data new --out answers.csv") == 0
    rows = answers(calibrated / "answers.csv")
    assert list(rows[0]) == ["input", "answer", "confidence", "accepted"]
    assert [row["input"] for row in rows] == [f"{number:03d}.png" for number in range(30)]
    assert {row["answer"] for row in rows} <= {"dark", "light"}
    assert {row["accepted"] for row in rows} <= {"true", "false"}
    sure = np.array([float(row["confidence"]) for row in rows])
    taken = np.array([row["accepted"] == "true" for row in rows])
    assert taken.any()
    assert sure[taken].min() >= sure[~taken].max(initial=0.0)
    assert f"{taken.sum()} of 30 answers" in capsys.readouterr().out


def test_a_rule_alone_says_which_rows_of_a_file_of_probabilities_it_accepts(
    calibrated, monkeypatch, tmp_path
):
    from recal.files.probabilities import write_prob_file

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    sure = rng.uniform(0.5, 1, 2000)
    write_prob_file(
        tmp_path / "old.npz", np.stack([sure, 1 - sure], 1), (rng.random(2000) > sure).astype(int)
    )
    write_prob_file(tmp_path / "new.npz", np.array([[0.99, 0.01], [0.55, 0.45]]))
    assert run(["decide", "old.npz", "--risk", "0.1", "--out", "rule.recal"]) == 0
    assert run(["apply", "rule.recal", "new.npz", "--out", "answers.csv"]) == 0
    assert [row["accepted"] for row in answers(tmp_path / "answers.csv")] == ["true", "false"]


def test_a_class_that_looks_like_a_formula_is_kept_from_running(tmp_path):
    from recal.files.probabilities import write_prob_file

    probs = np.array([[0.9, 0.1], [0.2, 0.8]])
    write_prob_file(
        tmp_path / "a.csv", probs, classes=np.array(["=cmd()", "-1"]), inputs=["x", "@y"]
    )
    assert [(row["input"], row["answer"]) for row in answers(tmp_path / "a.csv")] == [
        ("x", "'=cmd()"),
        ("'@y", "-1"),
    ]
