"""compare, report, evaluate and groups from the command line: what they print, write and refuse."""

import json
import shlex

import numpy as np
import pytest

from recal import evaluate, read_views
from recal.cli.app import run
from recal.files.probabilities import write_prob_file
from recal.reporting import group_study
from tests.problems import views
from tests.unit.cli.commands import typed


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Views to fit and test on, and probabilities in three kinds of files."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("fit.npz", 0), ("test.npz", 1)):
        made = views(
            200, seed=seed, scale=6, keep=0.6, blur=1.5, transforms=("zoom:0.4", "zoom:0.6")
        )
        made.write(tmp_path / name)
    rng = np.random.default_rng(2)
    probs = rng.dirichlet([0.4] * 3, 150)
    y = (probs.cumsum(1) > rng.random((150, 1))).argmax(1)
    write_prob_file(tmp_path / "probs.npz", probs, y)
    lines = ["cat,dog,owl,truth"] + [
        ",".join([*map(repr, map(float, row)), ("cat", "dog", "owl")[label]])
        for row, label in zip(probs, y)
    ]
    (tmp_path / "probs.csv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("source", ["probs.npz", "probs.csv"])
def test_evaluate_reads_probabilities_from_anywhere(files, capsys, source):
    assert run(["evaluate", source, "--label-column", "truth", "--bootstrap", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with np.load("probs.npz") as stored:
        expected = evaluate(stored["probs"], stored["labels"])
    assert found["metrics"]["ece"]["value"] == pytest.approx(expected["ece"])
    assert 0 < found["calibration_test"]["p_value"] <= 1


def test_evaluate_of_views_is_of_the_uncalibrated_model(files, capsys):
    assert run(["evaluate", "test.npz", "--bootstrap", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    views = read_views("test.npz")
    probs = np.exp(views.logits) / np.exp(views.logits).sum(1, keepdims=True)
    assert found["metrics"]["nll"]["value"] == pytest.approx(evaluate(probs, views.labels)["nll"])


def test_report_by_a_column(files, capsys):
    size = len(read_views("test.npz"))
    lines = "".join(f"{'left' if row % 2 else 'right'}\n" for row in range(size))
    (files / "rows.csv").write_text("camera\n" + lines)
    asked = ["report", "fit.npz", "test.npz", "--methods", "ts", "--force", "--slice", "camera"]
    assert run([*asked, "--rows", "rows.csv"]) == 0
    page = (files / "report.html").read_text()
    assert "By camera, worst first" in page


def test_a_column_of_the_table_itself_is_no_class(files, capsys):
    table = (files / "probs.csv").read_text().splitlines()
    rows = [f"{line},{'night' if number % 2 else 'day'}" for number, line in enumerate(table[1:])]
    (files / "more.csv").write_text("\n".join([f"{table[0]},time", *rows]) + "\n")
    assert run(["report", "more.csv", "--label-column", "truth", "--slice", "time"]) == 0
    assert "By time, worst first" in (files / "report.html").read_text()
    asked = shlex.split("report more.csv --label-column truth --group time --risk 0.5 --force")
    assert run(asked) == 0
    assert "Errors among accepted answers by time" in (files / "report.html").read_text()


def test_report_of_probabilities_before_and_after(files, capsys):
    assert typed("report probs.npz --before probs.csv --label-column truth --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["methods"]) == ["before", "after"]
    assert len(found["verdict"]) > 2
    assert found["recommended"]["method"] in ("before", "after")
    assert (files / "report.html").exists()


def test_other_rows_before_are_refused(files, capsys):
    head, *lines = (files / "probs.csv").read_text().splitlines()
    (files / "turned.csv").write_text("\n".join([head, *lines[::-1]]))
    assert run(["report", "probs.csv", "--before", "turned.csv", "--label-column", "truth"]) == 2
    assert "not the same samples and classes" in capsys.readouterr().err


@pytest.mark.parametrize("reading", ["original", "own"])
def test_groups_are_those_of_the_study(files, capsys, reading):
    assert run(["groups", "test.npz", "--confidence-at", reading, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    study = group_study(read_views("test.npz"), confidence_at=reading)
    assert [list(row.values()) for row in found["groups"].values()] == study.sizes.tolist()
    assert [row["kept_fell"] for row in found["ece"].values()] == pytest.approx(
        study.errors[:, 3].tolist()
    )
    assert found["confidence_at"] == reading
