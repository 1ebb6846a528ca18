"""What happens after `recal calibrate`: another model, shifted inputs, watching with a model, and
the doctor.
"""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from recal.cli.app import run
from recal.cli.serve import make_service
from recal.files.tables import read_table

pytest.importorskip("pandas")  # models read their tables with it

MODELS = """
def net(frame):
    return frame[["a", "b"]].to_numpy() * 2.0

def other(frame):
    return frame[["b", "a"]].to_numpy() * 3.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("after")
    rng = np.random.default_rng(0)

    def write(name, n, shift=0.0, labelled=False):
        y = rng.integers(0, 2, n)
        values = np.eye(2)[y] * 1.5 + rng.normal(0, 1, (n, 2)) + [shift, 0]
        rows = [
            f"{a:.5f},{b:.5f}" + (f",{label}" if labelled else "")
            for (a, b), label in zip(values, y)
        ]
        (place / name).write_text("\n".join(["a,b,label" if labelled else "a,b", *rows]))

    write("labelled.csv", 1500, labelled=True)
    write("new.csv", 400)
    write("shifted.csv", 400, 4.0)
    (place / "after_models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        command = "calibrate --model after_models:net --data labelled.csv --risk 0.1 --pool none"
        assert run([*command.split(), "--out", "out"]) == 0
    return place


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)


def test_a_calibration_of_another_model_needs_force(capsys):
    command = shlex.split("apply out --model after_models:other --data new.csv --out other.csv")
    assert run(command) == 2
    shown = capsys.readouterr().err
    assert "fitted for another model" in shown
    assert "--force" in shown
    assert run([*command, "--force"]) == 0


def test_a_service_runs_the_model_of_the_fit(capsys):
    pytest.importorskip("fastapi")
    assert run(shlex.split("serve out --model after_models:other --port 0")) == 2
    shown = capsys.readouterr().err
    assert "fitted for another model" in shown
    assert "--force" in shown
    settings = {"folder": "out", "force": False, "check_rate": 1.0}
    service = make_service({**settings, "inputs": {"model": "after_models:net"}})
    rows = [{"input": {"b": b, "a": a}} for a, b in ((4, 0), (0.0, 4))]
    found = service.answer(rows)
    assert [(one["answer"], one["accepted"]) for one in found] == [(0, True), (1, True)]


def test_apply_ends_with_a_line_where_inputs_have_shifted(capsys):
    command = ["apply", "out", "--model", "after_models:net", "--data"]
    assert run([*command, "new.csv", "--out", "new-answers.csv"]) == 0
    shown = capsys.readouterr().out
    assert "differ from those of the fit" not in shown
    table = read_table("new-answers.csv")
    assert list(table) == ["input", "answer", "confidence", "accepted"]
    accepted, confidence = table["accepted"] == "true", table.numbers("confidence")
    assert f"{accepted.sum()} of 400 answers" in shown
    assert confidence[accepted].min() >= confidence[~accepted].max()
    assert run([*command, "shifted.csv", "--out", "shifted-answers.csv"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "these inputs differ from those of the fit" in last


def test_watch_takes_a_model_and_data(capsys):
    command = ["watch", "out", "--model", "after_models:net", "--data"]
    assert run([*command, "new.csv"]) == 0
    assert "do not differ detectably" in capsys.readouterr().out
    assert run([*command, "shifted.csv"]) == 0
    shown = capsys.readouterr().out
    assert "differ from those of the fit" in shown
    assert shown.lower().count("accuracy") == 1, (
        "one estimate, or one sentence that says it is unknown"
    )
