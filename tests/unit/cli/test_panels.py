"""Several systems from a table, by two commands: one confidence, and a cascade in two rounds."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from recal.files.tables import read_table
from tests.problems import write_questions
from tests.unit.cli.commands import answer, typed

SYSTEMS = "--system small=small_answer,small_stated --system large=large_answer,large_stated"
GRADED = "calibrate graded.csv --truth key --risk 0.1 --out out"
COSTS = "--cost large=2 --cost small=0.1 --cascade --review-cost 50"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "graded.csv", 1500, 0)
    write_questions(tmp_path / "new.csv", 400, 1)
    return tmp_path


def test_two_commands_automate_answers_of_several_systems(place, capsys):
    assert typed(f"{GRADED} {SYSTEMS} --cost large=2 --cost small=0.1") == 0
    assert "points for 2," in capsys.readouterr().out
    assert (place / "out" / "report.html").exists()
    told = answer(capsys, "apply out new.csv --out answers.csv")
    table = read_table(place / "answers.csv")
    accepted = table["accepted"] == "true"
    assert told["accepted"] == accepted.sum() > 150
    assert (table["answer"][accepted] != table["key"][accepted]).mean() < 0.15
    assert table["id"][0] == "0000"
    assert typed("plan out") == 0
    # The large system never states a confidence: that column has no values.
    checked = answer(capsys, "check out new.csv --label-column key")
    wrong = (table["answer"] != table["key"]) & accepted
    assert (checked["accepted"], checked["errors"]) == (accepted.sum(), wrong.sum())
    assert typed("check out new.csv") == 2
    capsys.readouterr()
    assert typed("check out graded.csv --label-column key") == 0
    assert "fitted on" in capsys.readouterr().err
    given = pandas.read_csv("new.csv", dtype=str)
    given.loc[2, "key"] = ""
    given.to_csv("new.csv", index=False)
    assert typed("check out new.csv --label-column key") == 2
    assert "row 3" in capsys.readouterr().err
    assert typed("calibrate out --more new.csv") == 2
    assert "several systems" in capsys.readouterr().err


def test_a_cascade_asks_cheap_systems_first_and_continues(place, capsys):
    cascade = answer(capsys, f"{GRADED} {SYSTEMS} {COSTS}")["cascade"]
    assert list(cascade["others"]) == ["all systems", "small alone", "large alone"]
    shares = [point["share"] for point in cascade["curve"]]
    assert cascade["curve"][-1]["cost"] > cascade["curve"][0]["cost"]
    assert shares[-1] > shares[0]
    checked = cascade["checked"]
    assert 150 < checked["accepted"] <= 300
    assert 0 < checked["errors"] < 0.2 * checked["accepted"]
    assert "all systems" in (place / "out" / "report.html").read_text()
    write_questions(place / "first.csv", 400, 1, later=False)
    assert typed("apply out first.csv --out answers.csv") == 0
    first = read_table(place / "answers.csv")
    asked = first["next"] == "ask large"
    assert 0 < asked.sum() < 400
    assert set(first["next"]) <= {"accept", "review", "ask large"}
    # Ask the large system for these rows only, add its answers to the table, and go on.
    later = np.where(asked, read_table(place / "new.csv")["large_answer"], "")
    pandas.DataFrame({**first, "large_answer": later}).to_csv("second.csv", index=False)
    told = answer(capsys, "apply out second.csv --out final.csv")
    assert set(told["next"]) <= {"accept", "review"}
    final = read_table(place / "final.csv")
    stopped = first["next"] != "ask large"
    assert (final["next"][stopped] == first["next"][stopped]).all()
    assert (final["next"] == "accept").sum() >= (first["next"] == "accept").sum()
    # The promise of the cascade can be checked and audited, too.
    assert typed("check out second.csv --label-column key") == 0
    assert typed("audit out final.csv --checks 20 --out checks.csv") == 0
    assert set(read_table(place / "checks.csv")["next"]) == {"accept"}
    assert typed("audit out --update") == 2


def test_a_cascade_goes_past_systems_that_refuse(place, capsys):
    rng = np.random.default_rng(2)
    for name in ("graded.csv", "new.csv"):
        table = dict(read_table(place / name))
        for system in ("small_answer", "large_answer"):
            table[system][rng.random(len(table["key"])) < 0.1] = ""
        pandas.DataFrame(table).to_csv(place / name, index=False)
    systems = "--system small=small_answer --system large=large_answer"
    assert typed(f"{GRADED} {systems} {COSTS}") == 0

    def apply():
        assert typed("apply out table.csv --out answers.csv --force") == 0
        (place / "answers.csv").replace(place / "table.csv")
        return pandas.read_csv("table.csv", keep_default_na=False)

    full = pandas.read_csv("new.csv", keep_default_na=False)
    full.assign(large_answer="").to_csv("table.csv", index=False)
    first = apply()
    asked = (first["small_answer"] == "") | (first["next"] == "ask large")
    second = apply()  # nobody asked the large system, but the small one has refused
    assert (second["next"] == np.where(asked, "ask large", first["next"])).all()
    second["large_answer"] = np.where(asked, full["large_answer"], "")
    second.to_csv("table.csv", index=False)
    third = apply()
    assert set(third["next"]) <= {"accept", "review"}
    assert (apply()["next"] == third["next"]).all()
    # A row that was not asked yet looks like a refusal, until its `next` is cleared.
    later = np.arange(400) >= 200
    partly = second.assign(large_answer=np.where(later, "", second["large_answer"]))
    partly.to_csv("table.csv", index=False)
    capsys.readouterr()
    assert "ask large" not in set(apply()["next"])
    assert f"refusals: {(partly['large_answer'] == '').sum()}." in capsys.readouterr().err
    partly.assign(next=np.where(later, "", "ask large")).to_csv("table.csv", index=False)
    waiting = apply()["next"].str.startswith("ask")
    assert (waiting == later).all()


def test_several_answers_of_a_system_stay_apart_in_a_csv_file(place):
    rng = np.random.default_rng(3)
    rows = []
    for key in rng.choice(list("ABCDE"), 600):
        votes = np.where(rng.random(4) < 0.6, key, rng.choice(list("ABCDE"), 4))
        rows.append({"key": key, "a": votes[: rng.integers(1, 5)].tolist(), "b": str(votes[3])})
    pandas.DataFrame(rows).to_json("lists.jsonl", orient="records", lines=True)
    systems = "--truth key --system a=a --system b=b --risk 0.2"
    assert typed(f"calibrate lists.jsonl {systems} --out out") == 0
    assert typed("apply out lists.jsonl --out first.csv") == 0
    assert typed("apply out first.csv --out again.csv") == 0
    first, again = (read_table(place / f"{name}.csv") for name in ("first", "again"))
    assert first["confidence"].tolist() == again["confidence"].tolist()


def test_right_answers_among_the_systems_are_refused_by_name(place, capsys):
    assert typed(f"{GRADED} {SYSTEMS} --system cheat=key") == 2
    assert "cheat" in capsys.readouterr().err
    assert not (place / "out" / "calibration.recal").exists()
