"""The commands as a person or a script uses them: files in, files and one answer out."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest

from recal import Plan, Step, TemperatureScaling, Views, evaluate, load, read_views, save
from recal.files.probabilities import read_probs
from recal.schema import kind_of
from tests import problems
from tests.unit.cli.commands import answer, typed

SAMPLES = 1200  # so many that no fit warns of too few mistakes


@pytest.fixture(name="views")
def file_of_views(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return read_views(problems.views(SAMPLES).write(tmp_path / "views.npz"))


def test_a_methods_options_reach_it(views, capsys):
    told = answer(
        capsys,
        "fit views.npz --method recal --out r.recal --max-iter 7 --tol 0 --guard ece --seed 5 "
        "--start temperature --sequence zoom:0.3,1,zoom:0.7",
    )
    fitted = load("r.recal")
    expected = {"max_iter": 7, "tol": 0.0, "guard": "ece", "start": "temperature"}
    assert (expected | {"random_state": 5}).items() <= fitted.get_params().items()
    assert told["parameters"]["sequence"] == ["zoom:0.3", 1, "zoom:0.7"]
    steps = ["zoom:0.3", "zoom:0.5", "zoom:0.7"]
    assert [str(step.transform) for step in fitted.plan_.steps] == steps


def test_without_a_method_one_is_chosen_and_the_reason_is_shown(views, capsys):
    told = answer(capsys, "fit views.npz --out auto.recal")
    fitted = load("auto.recal")
    choice = ("auto", fitted.choice_, fitted.reason_)
    assert (told["method"], told["choice"], told["reason"]) == choice


def test_a_mixture_that_is_asked_for_gives_its_reason(views, capsys):
    told = answer(capsys, "fit views.npz --method ensemble --out mixture.recal")
    assert told["reason"] == load("mixture.recal").reason_


@pytest.mark.parametrize("method", ["'svs (kept)'", "svs --answers kept"])
def test_answers_can_be_kept_by_name_or_by_option(views, method, capsys):
    answer(capsys, f"fit views.npz --method {method} --out kept.recal")
    assert load("kept.recal").answers == "kept"


def test_same_seed_same_file(views, tmp_path, capsys):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        answer(capsys, f"fit views.npz --method=recal --out {name} --seed {seed}")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load("a").plan_ != load("c").plan_


def test_apply_then_evaluate_tell_what_python_tells(views, capsys):
    fitted = TemperatureScaling().fit(views)
    save(fitted, "ts.recal")
    told = answer(capsys, "apply ts.recal views.npz --out probs.npz")
    assert (told["samples"], told["classes"]) == (SAMPLES, 3)
    expected = fitted.predict_proba(views)
    np.testing.assert_array_equal(read_probs("probs.npz").probs, expected)
    assert typed("evaluate probs.npz --bootstrap 100 --json") == 0
    shown = capsys.readouterr()
    assert "SameRowsWarning: The calibration was fitted on all of these" in shown.err
    metrics = json.loads(shown.out)["metrics"]
    assert metrics == evaluate(expected, views.labels, 100).to_dict()["metrics"]
    assert len(metrics["ece"]["interval"]) == 2


def test_every_command_warns_of_the_same_share_of_fitted_rows(views, capsys):
    answer(capsys, "fit views.npz --method ts --out ts.recal")
    new, old = problems.views(SAMPLES, seed=1), views[:36]
    logits = np.concatenate([new.logits[36:], old.logits])
    Views(logits, labels=np.concatenate([new.labels[36:], old.labels])).write("new.npz")
    for line in ("apply ts.recal new.npz --out probs.npz", "evaluate probs.npz"):
        assert typed(line) == 0
        assert "SameRowsWarning: The calibration was fitted on about 36" in capsys.readouterr().err
    assert typed("decide probs.npz --risk 0.3") == 2
    assert "fitted on about 36" in capsys.readouterr().err


def test_a_plan_can_be_applied(views, tmp_path, capsys):
    save(Plan((Step("zoom:0.5", (1, 0.9, 0.8, 1.1)),), start=0.5), "plan")
    answer(capsys, "apply plan views.npz --out p.npz")
    assert read_probs("p.npz").labels.tolist() == views.labels.tolist()
    (tmp_path / "m.onnx").write_bytes(b"")
    assert typed("apply plan --model m.onnx --data . --out q.npz") == 2
    assert "holds a plan alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("3", float, 3.0),
        ("1e-6", float, 1e-6),
        ("none", float | None, None),
        ("0.5", float | None, 0.5),
        ("true", bool, True),
        ("abc", str, "abc"),
        ("3", int | str, 3),
        ("a", int | str, "a"),
        ("1,b,0.5", list | None, [1, "b", 0.5]),
        ("b", Literal["a", "b"] | None, "b"),
        ("2.5", Any, 2.5),
    ],
)
def test_values_are_read_by_the_signatures_types(text, hint, value):
    read = kind_of(hint).parse(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"), [("x", int), ("1.5", int), ("yes", bool), ("c", Literal["a", "b"] | None)]
)
def test_text_that_a_signature_does_not_allow_is_refused(text, hint):
    with pytest.raises(ValueError):
        kind_of(hint).parse(text)
