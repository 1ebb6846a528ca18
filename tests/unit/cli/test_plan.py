"""`recal plan` and `recal transforms`: what a file is, and what can be written in a pool."""

from __future__ import annotations

import json
import math

import pytest

from recal import DecisionRule, Plan, ReCal, Step, TemperatureScaling, Views, decide, save
from recal.cli.app import run
from recal.transforms import TRANSFORMS
from tests import problems
from tests.unit.cli.commands import typed

LOGITS = [[3.0, 0.0], [2.0, 0.5], [0.0, 1.0], [0.5, 0.0]]


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_the_views_that_it_needs_are_named_as_a_pool(tmp_path, capsys):
    views = Views(
        LOGITS, {"zoom:0.5": [[1.0, 0.0], [0.0, 0.4], [0.0, 1.5], [0.1, 0.0]]}, [0, 1, 1, 0]
    )
    path = save(ReCal(max_iter=3, tol=0, random_state=0).fit(views), tmp_path / "it.recal")
    assert run(["plan", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["views"] == ["zoom:0.5"]
    assert facts["cost"].startswith("2 forward passes per answer")
    assert facts["keeps_answers"] is True


def test_steps_are_shown_when_asked_for(tmp_path, capsys):
    path = save(Plan((Step("zoom:0.25", (1.0, 0.9, 0.8, 1.0)),)), tmp_path / "plan.recal")
    assert run(["plan", str(path)]) == 0
    assert "0.9000" not in capsys.readouterr().out
    assert run(["plan", str(path), "--steps"]) == 0
    assert "zoom:0.25" in (shown := capsys.readouterr().out)
    assert "0.9000" in shown


def test_every_kind_is_listed_and_explained(capsys):
    assert run(["transforms", "--json"]) == 0
    assert [found["kind"] for found in json.loads(capsys.readouterr().out)] == [
        found.kind for found in TRANSFORMS
    ]
    for found in TRANSFORMS:
        assert run(["transforms", found.kind]) == 0
        assert f"{found.kind}:" in capsys.readouterr().out


def test_files_that_are_no_calibrations_are_described(tmp_path, capsys):
    from recal.decisions import prediction_sets, profile

    views = problems.views(300, scale=3, noise=0.33)
    y = views.labels
    probs = TemperatureScaling().fit(views).predict_proba(views)
    for saved, words in (
        (decide(probs, y, risk=0.3).rule, "accepts a confidence of at least"),
        (profile(views), "recal watch"),
        (prediction_sets(probs, y), "prediction sets"),
    ):
        path = save(saved, tmp_path / "saved.recal")
        assert run(["plan", str(path)]) == 0
        assert words in capsys.readouterr().out
        new = views.write(tmp_path / "v.npz")
        assert typed(f"apply {path} {new} --out {tmp_path / 'p.npz'}") == 2
        assert "holds no calibration of logits" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("thresholds", "groups", "said"),
    [
        ((0.53, math.inf), ("law", "art"), ["law: a confidence of at least 0.53", "art: nothing"]),
        ((0.5,) * 12, tuple("abcdefghijkl"), ["j: a confidence of at least 0.5", "and 2 more"]),
        ((0.5, math.inf), (), ["class 0: a confidence of at least 0.5", "class 1: nothing"]),
        ((math.inf,), (), ["accepts nothing yet", "at most 5%", "on average"]),
    ],
)
def test_the_thresholds_of_a_rule_are_shown(thresholds, groups, said, alone, tmp_path, capsys):
    guarantee = "average" if "on average" in said else "confidence"
    rule = DecisionRule(thresholds, 0.05, 0.95, groups=groups, guarantee=guarantee)
    saved = rule
    if not alone:
        saved = TemperatureScaling().fit(LOGITS, [0, 1, 1, 0])
        saved.decision_ = rule
    path = save(saved, tmp_path / "saved.recal")
    assert run(["plan", str(path)]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in said)
    assert run(["plan", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["thresholds"] == [None if value == math.inf else value for value in thresholds]
    assert facts["groups"] == list(groups)
