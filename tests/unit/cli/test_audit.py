"""`recal audit` from first draw to a new rule, with a kill between the steps."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal import DecisionRule, SignalCalibration, load, save
from recal.cli.app import run
from recal.files.paths import Journal
from recal.files.tables import read_table
from tests.unit.cli.commands import typed


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a calibration, and answers to which it was applied: 4,000 calibrated ones."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.5, 1.0, 600)
    calibrator = SignalCalibration().fit({"stated": stated}, rng.random(600) < stated)
    calibrator.decision_ = DecisionRule((0.9,), risk=0.1, confidence=0.95)
    (tmp_path / "calibrated").mkdir()
    save(calibrator, tmp_path / "calibrated" / "calibration.recal")
    confidence = rng.uniform(0.5, 1.0, 4000)
    right = rng.random(4000) < confidence
    lines = ["id,confidence,accepted,truth"]
    for row, (value, one) in enumerate(zip(confidence, right)):
        lines.append(f"q{row},{value:.6f},{str(value >= 0.9).lower()},{'yes' if one else 'no'}")
    (tmp_path / "answers.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def grade(place, name: str = "to-check.csv", *, right: bool = True, rows: int | None = None):
    """Fill in the column `right` as a person would; all wrong unless `right`."""
    table = read_table(place / name)
    truth = table["truth"] if right else np.full(table.n_rows, "no")
    filled = [word if rows is None or row < rows else "" for row, word in enumerate(truth)]
    lines = ["check,right", *(f"{one},{word}" for one, word in zip(table["check"], filled))]
    (place / "checked.csv").write_text("\n".join(lines) + "\n")


def test_draw_check_and_learn(place, capsys):
    assert typed("audit calibrated answers.csv --checks 200 --out to-check.csv") == 0
    table = read_table(place / "to-check.csv")
    assert table.n_rows == 200
    below = table.numbers("confidence") < 0.9
    assert 0 < below.sum() < 50
    grade(place)
    capsys.readouterr()
    assert run(["audit", "calibrated", "--checked", "checked.csv", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["graded"] == 200 - below.sum()
    assert facts["interval"][0] <= 0.05 <= facts["interval"][1]
    assert not facts["alarm"]
    assert run(["audit", "calibrated", "--checked", "checked.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 0, "grades count once"


def test_a_column_of_the_user_is_not_taken_for_grades(place, capsys):
    rows = (place / "answers.csv").read_text().replace("truth", "right", 1)
    (place / "answers.csv").write_text(rows)
    assert typed("audit calibrated answers.csv --checks 20 --out to-check.csv") == 0
    assert "`recal_right`" in capsys.readouterr().out
    assert run(["audit", "calibrated", "--checked", "to-check.csv"]) == 2, "nothing is filled in"
    header, *lines = (place / "to-check.csv").read_text().splitlines()
    (place / "to-check.csv").write_text("\n".join([header, *(f"{line}yes" for line in lines)]))
    capsys.readouterr()
    assert run(["audit", "calibrated", "--checked", "to-check.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 20


def test_a_confidence_of_the_user_is_not_audited(place):
    header, *lines = (place / "answers.csv").read_text().splitlines()
    header = header.replace("confidence", "recal_confidence")
    rows = [f"{header},confidence", *(f"{line},0" for line in lines)]
    (place / "answers.csv").write_text("\n".join(rows))
    assert typed("audit calibrated answers.csv --checks 20 --out to-check.csv") == 0
    audit = (place / "calibrated" / "audit.jsonl").read_text().splitlines()
    assert all(json.loads(line)["check"][0] > 0 for line in audit)


def test_a_refuted_promise_ends_with_status_1_and_can_be_repaired(place, capsys):
    run(["audit", "calibrated", "answers.csv", "--checks", "100", "--out", "to-check.csv"])
    grade(place, right=False)
    assert run(["audit", "calibrated", "--checked", "checked.csv"]) == 1
    assert "refuted" in capsys.readouterr().out
    assert run(["audit", "calibrated", "--update"]) == 0
    rule = load(place / "calibrated" / "calibration.recal").decision_
    assert rule.thresholds[0] > 0.9
    previous = load(place / "calibrated" / "calibration.previous-1.recal")
    assert previous.decision_.thresholds == (0.9,)
    assert run(["audit", "calibrated"]) == 0, "the new rule starts with a new audit"


def test_a_rule_is_loosened(place, capsys):
    run(["audit", "calibrated", "answers.csv", "--checks", "600", "--out", "to-check.csv"])
    grade(place)
    run(["audit", "calibrated", "--checked", "checked.csv", "--update"])
    assert load(place / "calibrated" / "calibration.recal").decision_.thresholds[0] < 0.9


def test_grades_may_arrive_in_parts_and_a_cut_line_loses_nothing(place, capsys):
    run(["audit", "calibrated", "answers.csv", "--checks", "60", "--out", "to-check.csv"])
    grade(place, rows=20)
    run(["audit", "calibrated", "--checked", "checked.csv"])
    journal = place / "calibrated" / "audit.jsonl"
    with journal.open("ab") as file:
        key = json.loads(journal.read_bytes().splitlines()[0])["rule"].encode()
        file.write(b'{"kind": "draw", "rule": "%b", "id": "x"}\n' % key)  # of somebody else
        file.write(b'{"kind": "grade", "id')  # a kill while a line was written
    grade(place)
    capsys.readouterr()
    assert run(["audit", "calibrated", "--checked", "checked.csv", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["added"] == 40
    assert facts["pending"] == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["answers.csv", "--checks", "5"], "--out"),
        (["--checked", "answers.csv"], "check"),
        (["--checked", "unknown.csv"], "x-1"),
        (["--checked", "odd.csv"], "maybe"),
    ],
)
def test_bad_input_is_refused(place, capsys, words, named):
    (place / "unknown.csv").write_text("check,right\nx-1,yes\n")
    (place / "odd.csv").write_text("check,right\nx-1,maybe\n")
    assert run(["audit", "calibrated", *words]) == 2
    assert named in capsys.readouterr().err


def test_a_journal_is_shared_by_processes(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    journal = Journal(tmp_path / "a.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: journal.append({"n": number, "text": "x" * 5000}), range(200)))
    assert sorted(record["n"] for record in journal.read()) == list(range(200))
