"""The commands as a person or a script uses them: files in, files and one answer out."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest

from recal import Plan, Step, TemperatureScaling, evaluate, load, read_views, save
from recal.cli.app import run
from recal.files.probabilities import read_probs
from recal.schema import kind_of
from tests import problems

SAMPLES = 1200  # so many that no fit warns of too few mistakes


@pytest.fixture(name="views")
def file_of_views(tmp_path):
    return problems.views(SAMPLES).write(tmp_path / "views.npz")


def answer(capsys, *arguments) -> dict:
    """Run with --json: one JSON value, and nothing else at all."""
    assert run([*map(str, arguments), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def refusal(capsys, *arguments) -> str:
    assert run([str(a) for a in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("recal: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err


def test_fit_writes_what_python_would_have_fitted(views, tmp_path, capsys):
    out = tmp_path / "ts.recal"
    told = answer(capsys, "fit", views, "--method", "ts", "--out", out)
    assert told == {"method": "ts", "parameters": {}, "steps": 0, "file": str(out)}
    assert load(out).temperature_ == TemperatureScaling().fit(read_views(views)).temperature_


def test_a_methods_options_reach_it(views, tmp_path, capsys):
    out = tmp_path / "r.recal"
    told = answer(
        capsys, "fit", views, "--method", "recal", "--out", out, "--max-iter", 7, "--tol", "0", "--guard", "ece",
        "--start", "temperature",
        "--sequence", "zoom:0.3,1,zoom:0.7", "--seed", 5,
    )  # fmt: skip
    fitted = load(out)
    expected = {
        "max_iter": 7,
        "tol": 0.0,
        "guard": "ece",
        "start": "temperature",
        "random_state": 5,
    }
    assert expected.items() <= fitted.get_params().items()
    assert told["parameters"]["sequence"] == ["zoom:0.3", 1, "zoom:0.7"]
    assert [str(step.transform) for step in fitted.plan_.steps] == [
        "zoom:0.3",
        "zoom:0.5",
        "zoom:0.7",
    ]


def test_without_a_method_one_is_chosen_and_the_reason_is_told(views, tmp_path, capsys):
    told = answer(capsys, "fit", views, "--out", tmp_path / "auto.recal")
    fitted = load(tmp_path / "auto.recal")
    assert (told["method"], told["choice"], told["reason"]) == (
        "auto",
        fitted.choice_,
        fitted.reason_,
    )
    assert run(["fit", str(views), "--out", str(tmp_path / "again.recal")]) == 0
    assert f"Chosen: {fitted.choice_}, " in " ".join("".join(capsys.readouterr()).split())


def test_answers_can_be_kept_by_name_or_by_option(views, tmp_path, capsys):
    for number, how in enumerate(
        (["--method", "svs (kept)"], ["--method", "svs", "--answers", "kept"])
    ):
        answer(capsys, "fit", views, *how, "--out", tmp_path / str(number))
        assert load(tmp_path / str(number)).answers == "kept"


def test_same_seed_same_file(views, tmp_path, capsys):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        answer(capsys, "fit", views, "--method=recal", "--out", tmp_path / name, "--seed", seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load(tmp_path / "a").plan_ != load(tmp_path / "c").plan_


def test_apply_then_evaluate_tell_what_python_tells(views, tmp_path, capsys):
    fitted = TemperatureScaling().fit(read_views(views))
    save(fitted, tmp_path / "ts.recal")
    told = answer(capsys, "apply", tmp_path / "ts.recal", views, "--out", tmp_path / "probs.npz")
    assert (told["samples"], told["classes"]) == (SAMPLES, 3)
    expected = fitted.predict_proba(read_views(views))
    np.testing.assert_array_equal(read_probs(tmp_path / "probs.npz").probs, expected)
    assert run(["evaluate", str(tmp_path / "probs.npz"), "--bootstrap", "100", "--json"]) == 0
    shown = capsys.readouterr()
    assert "SameRowsWarning: The calibration was fitted on all of these" in shown.err
    found = json.loads(shown.out)
    assert (
        found["metrics"] == evaluate(expected, read_views(views).labels, 100).to_dict()["metrics"]
    )
    assert len(found["metrics"]["ece"]["interval"]) == 2


def test_a_plan_can_be_applied(views, tmp_path, capsys):
    save(Plan((Step("zoom:0.5", (1, 0.9, 0.8, 1.1)),), start=0.5), tmp_path / "plan")
    answer(capsys, "apply", tmp_path / "plan", views, "--out", tmp_path / "p.npz")
    assert read_probs(tmp_path / "p.npz").labels.tolist() == read_views(views).labels.tolist()
    (tmp_path / "m.onnx").write_bytes(b"")
    with_model = [
        "apply",
        tmp_path / "plan",
        "--model",
        tmp_path / "m.onnx",
        "--data",
        tmp_path,
        "--out",
        tmp_path / "q.npz",
    ]
    assert "holds a plan alone" in refusal(capsys, *with_model)


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
