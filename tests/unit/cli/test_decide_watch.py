"""`recal decide` and `recal watch`: from files to thresholds, rules, alarms and estimates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from recal import DecisionRule, TemperatureScaling, decide, load, read_views, save
from recal.files.probabilities import write_prob_file
from recal.files.tables import read_table
from tests.problems import looks
from tests.unit.cli.commands import answer, typed

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

problem = partial(looks, n_classes=3, strength=4.0, scale=2, transforms={"zoom:0.8": 0.8})


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit, test = problem(400, seed=0), problem(2000, seed=1)
    fit.write("fit.npz")
    test.write("test.npz")
    problem(500, seed=2, strength=1.5).write("worse.npz")
    save(TemperatureScaling().fit(fit), "ts.recal")
    good = TemperatureScaling().fit(test).predict_proba(test)
    write_prob_file(tmp_path / "good.npz", good, test.labels)
    return tmp_path


def test_decide_says_what_the_function_finds_and_saves_the_rule_with_the_calibration(files, capsys):
    said = answer(capsys, "decide test.npz --calibration ts.recal --out ready")
    ready, test = load("ready"), read_views("test.npz")
    expected = decide(ready.predict_proba(test), test.labels)
    found = (expected.threshold, expected.coverage, 0)
    assert (said["threshold"], said["coverage"], said["needed"]) == found
    assert ready.decision_ == expected.rule
    assert ready.accept(test).sum() == said["n_accepted"] > 0


def test_decide_refuses_the_samples_of_the_fit_from_views_and_from_probabilities(files, capsys):
    assert typed("apply ts.recal fit.npz --out same.npz") == 0
    capsys.readouterr()
    for source in ("fit.npz --calibration ts.recal", "same.npz"):
        assert typed(f"decide {source} --out rule") == 2
        said = capsys.readouterr().err
        assert "400 of these 400" in said
        assert "--cross-fit" in said
        assert not (files / "rule").exists()


def test_apply_says_which_answers_a_saved_rule_accepts(files, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    typed("decide test.npz --calibration ts.recal --out ready")
    said = answer(capsys, "apply ready fit.npz --out answers.parquet")
    expected = load("ready").accept(read_views("fit.npz"))
    assert said["accepted"] == expected.sum() > 0
    assert parquet.read_table("answers.parquet")["accepted"].to_pylist() == expected.tolist()


def test_decide_reads_probabilities_and_saves_a_rule_alone(files, capsys):
    assert typed("decide good.npz --risk 0.05 --out rule") == 0
    assert "with at most 5% of them wrong, at 95% confidence" in capsys.readouterr().out
    rule = load("rule")
    assert isinstance(rule, DecisionRule)
    assert answer(capsys, "apply rule good.npz --out answers.csv")["accepted"] > 0
    with np.load("good.npz") as file:
        expected = rule.accept(file["probs"])
    assert ((read_table("answers.csv")["accepted"] == "true") == expected).all()


def test_decide_by_cost_by_class_and_at_other_risks(files, capsys):
    cost = answer(capsys, "decide good.npz --cost-error 50 --cost-review 1")
    assert cost["risk"] == 0.02
    assert cost["cost"] < 1
    each = answer(capsys, "decide good.npz --risk 0.05 --per-class")
    assert len(each["by_class"]) == 3
    curve = answer(capsys, "decide good.npz --risk 0.05 --curve")["curve"]
    assert len(curve["coverage"]) == len(curve["risks"])
    assert typed("decide good.npz --per-class --curve") == 0
    assert "Share that can be accepted" in capsys.readouterr().out


def test_watch_makes_a_profile_and_compares(files, capsys):
    assert typed("watch test.npz --save profile") == 0
    assert "2,000 samples" in capsys.readouterr().out
    same = answer(capsys, "watch profile fit.npz")
    worse = answer(capsys, "watch profile worse.npz")
    assert (same["alarm"], worse["alarm"]) == (False, True)
    assert (worse["known"], worse["accuracy"], worse["interval"]) == (False, None, [0.0, 1.0])
    assert "3 are needed" in worse["reason"]
    assert typed("watch profile worse.npz") == 0
    out = capsys.readouterr().out
    assert "differ from those of the fit" in out
    assert out.count(" is unknown") == 1, "one estimate of the accuracy, or none"


def test_decide_by_group_and_by_cluster(files, capsys):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.99, 900)
    right = rng.random(900) < np.where(np.arange(900) < 300, 0.8, 0.995)
    table = ["no,yes,label,subject,video"]
    for row, p in enumerate(confidence):
        label, subject = "yes" if right[row] else "no", "law" if row < 300 else "physics"
        table.append(f"{1 - p},{p},{label},{subject},{row // 3}")
    (files / "graded.csv").write_text("\n".join(table))
    line = "decide graded.csv --risk 0.05 --group subject --cluster video"
    found = answer(capsys, line)
    assert [row["group"] for row in found["by_group"]] == ["law", "physics"], "worst first"
    assert [row["n_accepted"] > 0 for row in found["by_group"]] == [False, True]
    assert found["n_clusters"] == 300
    assert typed(line) == 0
    assert "By group, worst first" in capsys.readouterr().out
