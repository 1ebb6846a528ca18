"""What a user can ask of `calibrate`: methods, changed answers, clusters, groups; and what a second
run costs.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from recal import AutoCalibration, CalibratedClassifier, TemperatureScaling, Views, collect, load
from recal.cli.app import run
from recal.collecting import as_source, run_pilot
from recal.collecting.models.base import CallableModel
from recal.errors import DependentRowsWarning, FewSamplesWarning, InputError
from recal.workflow.job import calibrate, calibrate_views, split
from recal.workflow.result import Settings


def shifted(n=2000, seed=0):
    """A binary model whose log-odds are 1.5 too high: many answers below a confidence of one half."""
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


COMMAND = [
    "calibrate",
    "--model",
    "odds_model:net",
    "--data",
    "data.csv",
    "--risk",
    "0.2",
    "--pool",
    "none",
]


def test_changed_answers_are_offered_and_can_be_taken(table, capsys):
    more = ["--cluster", "video", "--group", "customer"]
    assert run([*COMMAND, *more, "--out", "kept"]) == 0
    kept = capsys.readouterr().out
    assert "Accuracy" in kept
    assert "--answers free" in kept
    assert "raise the accuracy from" in kept
    assert run([*COMMAND, *more, "--answers", "free", "--out", "free"]) == 0
    assert "--answers free" not in capsys.readouterr().out.replace(" ".join(COMMAND), "")
    scores = [
        json.loads((table / name / "summary.json").read_text())["after"]["error_rate"]
        for name in ("kept", "free")
    ]
    assert scores[1] < scores[0] - 0.05
    assert sorted(load(table / "kept" / "calibration.recal").decision_.groups) == ["a", "b"]


def test_the_method_is_the_one_that_was_typed(table, capsys):
    assert (
        run(
            [*COMMAND, "--cluster", "video", "--group", "customer", "--method", "ts", "--out", "ts"]
        )
        == 0
    )
    assert type(load(table / "ts" / "calibration.recal")).__name__ == "TemperatureScaling"
    assert run([*COMMAND, "--method", "ts", "--answers", "free", "--out", "no"]) == 2
    assert "never changes answers" in capsys.readouterr().err


class Counted(CallableModel):
    known_by_content = True

    def fingerprint(self):
        return "counted"


def test_another_risk_asks_the_model_nothing(tmp_path):
    s, y = shifted(600)
    first = Counted(lambda batch: batch)
    how = {"labels": y, "pool": None, "progress": False}
    assert calibrate(first, s, tmp_path / "out", Settings(risk=0.2), **how).n_passes == 600
    second = Counted(lambda batch: batch)
    assert calibrate(second, s, tmp_path / "out", Settings(risk=0.3), **how).n_passes == 0
    assert second.n_answered == 0


def test_another_risk_runs_nothing_from_the_command_line(table, monkeypatch, capsys):
    monkeypatch.setattr(CallableModel, "known_by_content", True)
    more = ["--cluster", "video", "--group", "customer", "--out", "out"]
    assert run([*COMMAND, *more]) == 0
    monkeypatch.setattr(CallableModel, "answer", lambda model, batch: pytest.fail("the model ran"))
    assert run([word if word != "0.2" else "0.3" for word in COMMAND] + [*more, "--force"]) == 0
    assert "This run made 0 in all" in capsys.readouterr().out


def test_a_pilot_stops_when_no_view_comes_near_paying():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 3000)
    images = rng.normal(0, 1, (3000, 4, 4)) + 0.5 * np.where(y == 1, 1, -1)[:, None, None]

    def useless(batch):  # a flip and a shift change nothing that it sees
        score = batch.sum((1, 2))
        return np.stack([-score, score], axis=1)

    model = CallableModel(useless)
    pilot = run_pilot(model, images, "flip+shift:1", 2000, labels=y, progress=False)
    assert pilot.n_samples == 400
    assert pilot.chosen == ()
    assert "stopped early: 2,000 were planned" in str(pilot)

    def left(batch):
        score = batch[:, :, :2].sum((1, 2))
        return np.stack([-score, score], axis=1)

    full = run_pilot(CallableModel(left), images, "flip", 1000, labels=y, progress=False)
    assert full.n_samples == full.views.n_samples == 1000
    assert [str(view) for view in full.chosen] == ["flip"]


def test_clusters_are_never_divided():
    clusters = np.repeat(np.arange(100), 20).astype(str)
    parts = split(2000, 0, clusters)
    sets = [set(clusters[rows]) for rows in parts]
    assert not sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2]
    assert [round(len(rows) / 2000, 1) for rows in parts] == [0.5, 0.3, 0.2]
    with pytest.raises(InputError, match="2 clusters, too few"):
        split(200, 0, np.repeat(["a", "b"], 100))


def test_near_copies_without_clusters_are_warned_of(tmp_path):
    s, y = shifted(200)
    rng = np.random.default_rng(1)
    copies = np.repeat(np.c_[np.zeros(200), s, rng.normal(size=200)], 10, axis=0) + rng.normal(
        0, 1e-4, (2000, 3)
    )
    how = {"labels": np.repeat(y, 10), "pool": None, "progress": False}
    with pytest.warns(DependentRowsWarning, match=r"near-copies.*--cluster COLUMN"):
        calibrate(lambda batch: batch, copies, tmp_path / "out", Settings(risk=0.3), **how)


def test_python_and_commands_read_tables_and_pools_alike(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.linspace(-2, 2, 40), "colour": ["red", "blue"] * 20})
    (tmp_path / "t.csv").write_text(frame.to_csv(index=False))
    for source in (as_source(frame), as_source(tmp_path / "t.csv")):
        assert str(source.read(range(5))["colour"].dtype) == "category"
    y = (frame["x"] > 0).to_numpy().astype(int)

    def net(batch):
        return np.stack([-batch["x"], batch["x"]], axis=1)

    assert collect(net, frame, "none", labels=y).transforms == ()
    with pytest.warns(FewSamplesWarning):
        fitted = CalibratedClassifier(net, pool="none").fit(frame, y)
    assert fitted.predict_proba(frame).shape == (40, 2)


def test_the_default_says_when_changed_answers_are_better():
    s, y = shifted()
    reason = AutoCalibration().fit(s, y).reason_
    assert 'use answers="free" (--answers free)' in reason
    low, high = (float(share) for share in re.findall(r"from ([\d.]+)% to ([\d.]+)%", reason)[0])
    assert high > low + 5
    assert "--answers free" not in AutoCalibration(answers="free").fit(s, y).reason_
    rng = np.random.default_rng(0)
    for _ in range(10):  # nothing to gain: the sentence would be wrong
        y = rng.integers(0, 10, 400)
        logits = 2 * np.eye(10)[y] + rng.normal(0, 1.2, (400, 10))
        assert "--answers free" not in AutoCalibration().fit(logits, y).reason_


def test_fit_prints_that_changed_answers_are_better(tmp_path, capsys):
    s, y = shifted()
    Views(s, labels=y).write(tmp_path / "v.npz")
    assert run(["fit", str(tmp_path / "v.npz"), "--out", str(tmp_path / "c.recal")]) == 0
    assert "--answers free" in capsys.readouterr().out


@pytest.mark.parametrize("cross_fit", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_clusters_and_groups_of_views_reach_the_decision(tmp_path, cross_fit):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    logits = 4 * (np.eye(3)[y] + rng.normal(0, 0.5, (900, 3)))
    clusters, groups = np.arange(900) // 3, rng.choice(["a", "b"], 900)
    views = Views(logits, labels=y, clusters=clusters, groups=groups)
    settings = Settings(risk=0.2, calibrator=TemperatureScaling(), cross_fit=cross_fit)
    result = calibrate_views(views, tmp_path, settings)
    assert result.decision.n_clusters == (240 if cross_fit else 90)
    assert {part.name for part in result.decision.parts} == {"a", "b"}
