"""`recal fit`, `recal watch` and `recal apply --follow`: from views of damage to confidences that
follow it.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal import DecisionRule, Views, load, save
from recal.files.probabilities import read_probs
from tests.unit.cli.commands import answer, typed
from tests.unit.decisions.test_following import damaged, labels
from tests.unit.decisions.test_following import views as damaged_views


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("follow")
    damaged_views(800, 0).write(folder / "fit.npz")
    Views(damaged(labels(600, 7), "fading", 0.7, 7)).write(folder / "faded.npz")
    Views(60 * np.random.default_rng(0).normal(size=(600, 6)) ** 3).write(folder / "strange.npz")
    assert typed(f"fit {folder / 'fit.npz'} --method ts --out {folder / 'ts.recal'}") == 0
    calibrator = load(folder / "ts.recal")
    calibrator.decision_ = DecisionRule((0.9,), risk=0.02, confidence=0.95)
    save(calibrator, folder / "ready.recal")
    return folder


@pytest.fixture(autouse=True)
def here(files, monkeypatch):
    monkeypatch.chdir(files)


def apply(capsys, name: str, options: str = "") -> tuple[dict, np.ndarray]:
    said = answer(capsys, f"apply ready.recal {name}.npz --force --out probs.npz {options}")
    return said, read_probs("probs.npz").probs


def test_what_fit_wrote_follows_damage_and_keeps_answers(capsys):
    plain, before = apply(capsys, "faded")
    said, after = apply(capsys, "faded", "--follow")
    truth = float((before.argmax(1) == labels(600, 7)).mean())
    assert said["condition"]["known"]
    assert (after.argmax(1) == before.argmax(1)).all()
    assert abs(after.max(1).mean() - truth) < abs(before.max(1).mean() - truth) / 2
    assert said["accepted"] < 0.7 * plain["accepted"]
    watched = answer(capsys, "watch ts.recal faded.npz")
    assert watched["beta"] == pytest.approx(said["condition"]["beta"])
    assert watched["interval"][0] <= truth <= watched["interval"][1]


def test_a_rule_accepts_nothing_of_inputs_unlike_all_of_the_fit(capsys):
    said, _ = apply(capsys, "strange", "--follow")
    assert (said["condition"]["unlike"], said["accepted"]) == (True, 0)
    told, _ = apply(capsys, "strange", "--follow --accept-unlike")
    assert told["accepted"] > 0


def test_following_without_a_profile_says_how_to_get_one(capsys):
    calibrator = load("ts.recal")
    del calibrator.profile_
    save(calibrator, "bare.recal")
    assert typed("apply bare.recal faded.npz --follow --out x.npz") == 2
    assert "recal fit VIEWS" in capsys.readouterr().err


def test_watch_takes_the_folder_of_calibrate(files, capsys, tmp_path):
    (tmp_path / "calibration.recal").write_bytes((files / "ts.recal").read_bytes())
    inside = answer(capsys, f"watch {tmp_path} faded.npz")
    assert inside["beta"] == answer(capsys, "watch ts.recal faded.npz")["beta"]
