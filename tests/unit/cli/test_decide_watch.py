"""`recal decide` and `recal watch`: from files to thresholds, rules, alarms and estimates."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from recal import DecisionRule, TemperatureScaling, decide, load, read_views, save
from recal.cli.app import run
from recal.files.probabilities import write_prob_file
from tests.problems import looks
from tests.unit.cli.commands import typed

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

problem = partial(looks, n_classes=3, strength=4.0, scale=2, transforms={"zoom:0.8": 0.8})


@pytest.fixture
def files(tmp_path):
    fit, test = problem(400, seed=0), problem(2000, seed=1)
    fit.write(tmp_path / "fit.npz")
    test.write(tmp_path / "test.npz")
    problem(500, seed=2, strength=1.5).write(tmp_path / "worse.npz")
    save(TemperatureScaling().fit(fit), tmp_path / "ts.recal")
    return tmp_path


def answer(capsys, *arguments) -> dict:
    assert run([str(argument) for argument in (*arguments, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


def test_decide_says_what_the_function_finds_and_saves_the_rule_with_the_calibration(files, capsys):
    said = answer(
        capsys,
        "decide",
        files / "test.npz",
        "--calibration",
        files / "ts.recal",
        "--out",
        files / "ready",
    )
    ready, test = load(files / "ready"), read_views(files / "test.npz")
    expected = decide(ready.predict_proba(test), test.labels)
    assert (said["threshold"], said["coverage"], said["needed"]) == (
        expected.threshold,
        expected.coverage,
        0,
    )
    assert ready.decision_ == expected.rule
    assert ready.accept(test).sum() == said["n_accepted"] > 0


def test_decide_refuses_the_samples_of_the_fit_from_views_and_from_probabilities(files, capsys):
    assert typed(f"apply {files / 'ts.recal'} {files / 'fit.npz'} --out {files / 'same.npz'}") == 0
    capsys.readouterr()
    for arguments in (["fit.npz", "--calibration", str(files / "ts.recal")], ["same.npz"]):
        assert (
            run(["decide", str(files / arguments[0]), *arguments[1:], "--out", str(files / "rule")])
            != 0
        )
        said = capsys.readouterr().err.replace("\n", " ")
        assert "400 of these 400" in said
        assert "--cross-fit" in said
        assert not (files / "rule").exists()


def test_apply_says_which_answers_a_saved_rule_accepts(files, capsys):
    typed(f"decide {files / 'test.npz'} --calibration {files / 'ts.recal'} --out {files / 'ready'}")
    capsys.readouterr()
    said = answer(
        capsys, "apply", files / "ready", files / "fit.npz", "--out", files / "answers.parquet"
    )
    expected = load(files / "ready").accept(read_views(files / "fit.npz"))
    assert said["accepted"] == expected.sum() > 0
    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        parquet.read_table(files / "answers.parquet")["accepted"].to_pylist() == expected.tolist()
    )


def test_decide_reads_probabilities_and_saves_a_rule_alone(files, capsys):
    test = read_views(files / "test.npz")
    write_prob_file(
        files / "probs.npz", TemperatureScaling().fit(test).predict_proba(test), test.labels
    )
    assert typed(f"decide {files / 'probs.npz'} --risk 0.05 --out {files / 'rule'}") == 0
    out = capsys.readouterr().out
    assert "with at most 5% of them wrong, at 95% confidence" in out
    assert isinstance(load(files / "rule"), DecisionRule)


def test_decide_by_cost_by_class_and_at_other_risks(files, capsys):
    test = read_views(files / "test.npz")
    probs = TemperatureScaling().fit(test).predict_proba(test)
    write_prob_file(files / "good.npz", probs, test.labels)
    cost = answer(capsys, "decide", files / "good.npz", "--cost-error", 50, "--cost-review", 1)
    assert cost["risk"] == 0.02
    assert cost["cost"] < 1
    each = answer(capsys, "decide", files / "good.npz", "--risk", 0.05, "--per-class")
    assert len(each["by_class"]) == 3
    curve = answer(capsys, "decide", files / "good.npz", "--risk", 0.05, "--curve")["curve"]
    assert len(curve["coverage"]) == len(curve["risks"])
    assert run(["decide", str(files / "good.npz"), "--per-class", "--curve"]) == 0
    assert "Share that can be accepted" in capsys.readouterr().out


def test_watch_makes_a_profile_and_compares(files, capsys):
    assert run(["watch", str(files / "test.npz"), "--save", str(files / "profile")]) == 0
    assert "2,000 samples" in capsys.readouterr().out
    same = answer(capsys, "watch", files / "profile", files / "fit.npz")
    worse = answer(capsys, "watch", files / "profile", files / "worse.npz")
    assert (same["alarm"], worse["alarm"]) == (False, True)
    assert (worse["known"], worse["accuracy"], worse["interval"]) == (False, None, [0.0, 1.0])
    assert "3 are needed" in worse["reason"]
    assert run(["watch", str(files / "profile"), str(files / "worse.npz")]) == 0
    out = capsys.readouterr().out
    assert "differ from those of the fit" in out
    assert out.count(" is unknown") == 1, "one estimate of the accuracy, or none"


def test_decide_by_group_and_by_cluster(files, capsys):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.99, 900)
    right = rng.random(900) < np.where(np.arange(900) < 300, 0.8, 0.995)
    table = ["no,yes,label,subject,video"]
    for row in range(900):
        subject = "law" if row < 300 else "physics"
        table.append(
            f"{1 - confidence[row]},{confidence[row]},{'yes' if right[row] else 'no'},{subject},{row // 3}"
        )
    (files / "graded.csv").write_text("\n".join(table))
    found = answer(
        capsys,
        "decide",
        files / "graded.csv",
        "--risk",
        "0.05",
        "--group",
        "subject",
        "--cluster",
        "video",
    )
    assert [row["group"] for row in found["by_group"]] == ["law", "physics"], "worst first"
    assert [row["n_accepted"] > 0 for row in found["by_group"]] == [False, True]
    assert found["n_clusters"] == 300
    assert typed(f"decide {files / 'graded.csv'} --risk 0.05 --group subject --cluster video") == 0
    assert "By group, worst first" in capsys.readouterr().out
    assert run(["decide", str(files / "graded.csv"), "--group", "topic"]) == 2
    assert "has no column 'topic'; it has no, yes, label, subject, video" in capsys.readouterr().err
    assert run(["decide", str(files / "test.npz"), "--group", "subject"]) == 2
    assert "--rows" in capsys.readouterr().err
