"""What a user can ask of `calibrate`: methods, changed answers, clusters, groups; and what a second
run costs.
"""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from recal import load
from recal.cli.app import run
from recal.collecting.models.base import CallableModel
from recal.errors import InputError
from recal.workflow.job import calibrate
from recal.workflow.run import Settings


def shifted(n=2000, seed=0):
    """A binary model whose log-odds are 1.5 too high, with many confidences below one half."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return (2 * y - 1) * 1.0 + rng.normal(0, 1, n) + 1.5, y


@pytest.fixture
def table(tmp_path, monkeypatch):
    s, y = shifted()
    rows = [
        f"{value:.5f},{label},v{row // 10},{'ab'[row % 2]}"
        for row, (value, label) in enumerate(zip(s, y))
    ]
    (tmp_path / "data.csv").write_text("\n".join(["x,label,video,customer", *rows]))
    (tmp_path / "odds_model.py").write_text("def net(frame):\n    return frame['x'].to_numpy()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = shlex.split("calibrate --model odds_model:net --data data.csv --risk 0.2 --pool none")


def test_changed_answers_are_offered_and_can_be_taken(table, capsys):
    more = ["--group", "customer"]
    assert run([*COMMAND, *more, "--out", "kept"]) == 0
    kept = capsys.readouterr().out
    assert "Accuracy" in kept
    assert "--answers free" in kept
    assert run([*COMMAND, *more, "--answers", "free", "--out", "free"]) == 0
    assert "--answers free" not in capsys.readouterr().out.replace(" ".join(COMMAND), "")
    scores = [
        json.loads((table / name / "summary.json").read_text())["after"]["error_rate"]
        for name in ("kept", "free")
    ]
    assert scores[1] < scores[0] - 0.05
    assert sorted(load(table / "kept" / "calibration.recal").decision_.groups) == ["a", "b"]


def test_the_method_is_the_one_that_was_typed(table, capsys):
    more = "--cluster video --group customer --method ts --out ts"
    assert run([*COMMAND, *more.split()]) == 0
    assert type(load(table / "ts" / "calibration.recal")).__name__ == "TemperatureScaling"


class Counted(CallableModel):
    known_by_content = True

    def fingerprint(self):
        return "counted"


def test_another_risk_asks_the_model_nothing(tmp_path):
    s, y = shifted(600)
    first = Counted(lambda batch: batch)
    how = {"labels": y, "pool": None, "progress": False}
    assert calibrate(first, s, tmp_path / "out", Settings(risk=0.2), **how).facts["passes"] == 600
    second = Counted(lambda batch: batch)
    assert calibrate(second, s, tmp_path / "out", Settings(risk=0.3), **how).facts["passes"] == 0
    assert second.n_answered == 0


@pytest.mark.parametrize("changed", [{"labels": 1}, {"seed": 1}])
def test_other_labels_or_options_start_over_if_forced(tmp_path, changed):
    s, y = shifted(600)

    def calibrated(labels=0, seed=0, **how):
        model = Counted(lambda batch: batch)
        settings = Settings(risk=0.2, random_state=seed)
        how |= {"labels": y ^ (np.arange(600) % 20 < labels), "pool": None, "progress": False}
        return calibrate(model, s, tmp_path / "out", settings, **how)

    calibrated()
    with pytest.raises(InputError, match="--force"):
        calibrated(**changed)
    assert calibrated(**changed, force=True).facts["passes"] == 600
    assert calibrated(**changed).facts["passes"] == 0
