"""`recal fit`, `recal watch` and `recal apply --follow`: from views of damage to confidences that
follow it.
"""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from recal import DecisionRule, Views, load, save
from recal.cli.app import run
from recal.files.probabilities import read_probs
from tests.unit.cli.commands import typed

KINDS = ("fading", "hiss", "shouting")


def logits(y: np.ndarray, kind: str, strength: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signal, noise = 4.5 * np.eye(4)[y], rng.normal(size=(len(y), 4))
    hiss, loud = (
        (1 + 4 * strength if kind == "hiss" else 1),
        (1 + strength if kind == "shouting" else 1),
    )
    return 2.0 * loud * ((1 if kind == "hiss" else 1 - strength) * signal + hiss * noise)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("follow")
    y, new = np.arange(800) % 4, np.arange(600) % 4
    strengths = (0.3, 0.5, 0.7)
    through = {
        f"{kind}:{s}": logits(y, kind, s, 10 * i + int(10 * s))
        for i, kind in enumerate(KINDS)
        for s in strengths
    }
    Views(logits(y, "none", 0.0, 99), through, y).write(folder / "fit.npz")
    Views(logits(new, "fading", 0.7, 7)).write(folder / "faded.npz")
    Views(logits(new, "none", 0.0, 8)).write(folder / "clean.npz")
    Views(60 * np.random.default_rng(0).normal(size=(600, 4)) ** 3).write(folder / "strange.npz")
    assert typed(f"fit {folder / 'fit.npz'} --method ts --out {folder / 'ts.recal'}") == 0
    calibrator = load(folder / "ts.recal")
    calibrator.decision_ = DecisionRule((0.9,), risk=0.02, confidence=0.95)
    save(calibrator, folder / "ready.recal")
    return folder


def answer(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert run([str(argument) for argument in (*arguments, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


def apply(capsys, files, name: str, *options: str) -> tuple[dict, np.ndarray]:
    out = files / f"{name}-{len(options)}.npz"
    said = answer(
        capsys,
        "apply",
        files / "ready.recal",
        files / f"{name}.npz",
        "--force",
        "--out",
        out,
        *options,
    )
    return said, read_probs(out).probs


def test_what_fit_wrote_follows_damage_and_keeps_answers(files, capsys):
    plain, before = apply(capsys, files, "faded")
    said, after = apply(capsys, files, "faded", "--follow")
    truth = float((before.argmax(1) == np.arange(600) % 4).mean())
    assert said["condition"]["known"]
    assert (after.argmax(1) == before.argmax(1)).all()
    assert abs(after.max(1).mean() - truth) < abs(before.max(1).mean() - truth) / 2
    assert said["accepted"] < 0.7 * plain["accepted"]
    watched = answer(capsys, "watch", files / "ts.recal", files / "faded.npz")
    assert watched["beta"] == pytest.approx(said["condition"]["beta"])
    assert watched["interval"][0] <= truth <= watched["interval"][1]


def test_a_rule_accepts_nothing_of_inputs_unlike_all_of_the_fit(files, capsys):
    said, _ = apply(capsys, files, "strange", "--follow")
    assert (said["condition"]["unlike"], said["accepted"]) == (True, 0)
    told, _ = apply(capsys, files, "strange", "--follow", "--accept-unlike")
    assert told["accepted"] > 0


def test_following_without_a_profile_says_how_to_get_one(files, capsys):
    calibrator = load(files / "ts.recal")
    del calibrator.profile_
    save(calibrator, files / "bare.recal")
    command = shlex.split(
        f"apply {files / 'bare.recal'} {files / 'faded.npz'} --follow --out {files / 'x.npz'}"
    )
    assert run(command) == 2
    assert "Fit it again: recal fit VIEWS" in capsys.readouterr().err.replace("\n", " ")


def test_watch_takes_the_folder_of_calibrate(files, capsys, tmp_path):
    (tmp_path / "calibration.recal").write_bytes((files / "ts.recal").read_bytes())
    inside = answer(capsys, "watch", tmp_path, files / "faded.npz")
    assert (
        inside["beta"] == answer(capsys, "watch", files / "ts.recal", files / "faded.npz")["beta"]
    )
