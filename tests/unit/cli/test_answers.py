"""Tables of graded answers, logs and servers of language models, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from recal import load, read_views
from tests.problems import graded_answers
from tests.unit.answers.server import Script, serving
from tests.unit.cli.commands import typed

PAGE = Path(__file__).parents[3] / "docs" / "language-models.md"
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")


def write_table(path, columns):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*columns.values()):
            writer.writerow(
                ["" if isinstance(value, float) and value != value else value for value in row]
            )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with graded answers, new ones, and a calibration of the former."""
    folder = tmp_path_factory.mktemp("answers")
    signals, correct, groups, _ = graded_answers(1200, seed=0, strength=3.0)
    columns = {**signals, "subject": groups, "right": np.where(correct, "yes", "no")}
    write_table(folder / "graded.csv", columns)
    new = {name: values[:200] for name, values in columns.items() if name != "right"}
    write_table(folder / "new.csv", new)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        by = "--correct right --group subject --signals judge,kind,stated --risk 0.25"
        assert typed(f"calibrate graded.csv {by} --out out") == 0
    return folder


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def test_a_table_is_calibrated_and_applied_in_two_commands(here, capsys):
    written = {"calibration.recal", "report.html", "summary.json", "labelled.csv"}
    assert {path.name for path in (here / "out").iterdir()} == written
    summary = json.loads((here / "out" / "summary.json").read_text())
    assert summary["signals"] == ["judge", "kind", "stated", "subject"]
    assert summary["parts"] == {"fit": 600, "decide": 360, "check": 240}
    assert summary["after"]["ece"] < summary["before"]["ece"]
    page = (here / "out" / "report.html").read_text()
    share = 100 * summary["checked"]["accepted"] / 240
    assert f"{share:.1f}\u00a0% of the answers can be automated" in page
    for name in ("accepted.csv", "accepted.parquet", "accepted.ndjson"):
        assert typed(f"apply out new.csv --out {name}") == 0
    rows, given = rows_of(here / "accepted.csv"), rows_of(here / "new.csv")
    kept = [{name: row[name] for name in given[0]} for row in rows]
    assert kept == given, "the table's own columns"
    rule = load("out/calibration.recal").decision_
    thresholds = dict(zip(rule.groups, rule.thresholds))
    accepted = [row["accepted"] == "true" for row in rows]
    assert accepted == [float(row["confidence"]) >= thresholds[row["subject"]] for row in rows]
    assert 0 < sum(accepted) < 200
    table = pyarrow.parquet.read_table("accepted.parquet")
    assert table.column("accepted").to_pylist() == accepted
    assert typed("apply out accepted.ndjson --out again.csv") == 0
    assert [row["accepted"] == "true" for row in rows_of(here / "again.csv")] == accepted


def test_groups_without_evidence_and_unseen_groups_accept_nothing(here, capsys):
    by = "--correct right --group subject --risk 0.02"
    assert typed(f"calibrate graded.csv {by} --out strict") == 0
    assert "law: " in capsys.readouterr().out.partition("No")[2]
    text = (here / "new.csv").read_text().replace("poetry", "botany")
    (here / "unseen.csv").write_text(text)
    assert typed("apply out unseen.csv --out y.csv") == 0
    assert "such as 'botany'. Nothing in them is accepted" in capsys.readouterr().err
    rows = rows_of(here / "y.csv")
    assert {row["accepted"] for row in rows if row["subject"] == "botany"} == {"false"}
    assert "true" in {row["accepted"] for row in rows if row["subject"] == "physics"}


def test_a_refusal_names_cross_fitting_once_it_may_help(here, capsys):
    for option in ("", " --cross-fit"):
        words = f"calibrate graded.csv --correct right --risk 0.1 --out none{option} --force"
        assert typed(words) == 0
        assert ("--cross-fit" in capsys.readouterr().out) == (not option)


def write_log(path, noise, seed, n=500):
    labels = np.random.default_rng(0).integers(0, 4, n)
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for number, label in enumerate(labels.tolist()):
            scores = (2 * np.eye(4)[label] + noise * rng.normal(size=4)) * 3
            answers = [[str(one), "False"] for one in scores]
            line = {"doc_hash": f"h{number}", "target": label, "filtered_resps": answers}
            file.write(json.dumps(line) + "\n")


def type_section(title, url=""):
    """Type the commands in a section of the page on language models, as they are printed."""
    text = PAGE.read_text(encoding="utf-8").partition(f"# {title}\n")[2].partition("\n#")[0]
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            line = line.removeprefix("recal ").replace("http://localhost:8000/v1", url)
            assert typed(line) == 0, line


def test_commands_for_graded_answers_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("graded.csv", "new.csv", "other.csv")):
        signals, correct, groups, _ = graded_answers(800, seed=seed, strength=3.0)
        columns = {"stated": signals["stated"], "logprob": signals["judge"], "length": groups}
        write_table(tmp_path / name, {**columns, "subject": groups, "right": correct * 1})
    type_section("Graded answers")
    assert rows_of(tmp_path / "accepted.csv")[0]["accepted"] in ("true", "false")
    assert typed("decide other.csv --correct right --calibration calibrated --cross-fit") == 2
    assert "recal calibrate TABLE" in capsys.readouterr().err


def test_commands_for_logs_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for noise, name in ((1.0, "reasoned"), (1.2, "direct"), (1.0, "new"), (1.2, "new-direct")):
        write_log(tmp_path / f"{name}.jsonl", noise, len(name))
    type_section("From logs")
    assert [str(one) for one in read_views("views.npz").transforms] == ["direct"]
    assert "can be automated with at most 5% errors" in capsys.readouterr().out
    answers = rows_of(tmp_path / "answers.csv")
    assert [row["input"] for row in answers] == [f"h{number}" for number in range(500)]
    capsys.readouterr()
    assert typed("plan calibrated") == 0
    assert "Next: recal apply calibrated/calibration.recal NEW_VIEWS" in capsys.readouterr().out
    assert typed("collect --data new.jsonl --out alone.npz") == 0
    assert typed("apply calibrated alone.npz --out a.csv") == 2
    assert "--view direct=LOG" in capsys.readouterr().err


def likes_letter(prompt):
    letter = "ABC"[int(prompt.split()[1]) % 3]
    return [(letter, {letter: 0.6, **{other: 0.15 for other in "ABC" if other != letter}})]


@pytest.fixture
def questions(tmp_path, monkeypatch):
    """Return what asks a server, in a folder with questions and two prompts."""
    pytest.importorskip("openai")
    monkeypatch.chdir(tmp_path)
    columns = {
        "question": [f"number {n}" for n in range(120)],
        "label": ["ABC"[n % 3 if n % 5 else 0] for n in range(120)],
    }
    write_table(tmp_path / "questions.csv", columns)
    (tmp_path / "plain.txt").write_text("{question}\nAnswer {options}:")
    (tmp_path / "polite.txt").write_text("{question} please, one of {options}:")
    return (
        "collect --model-name tiny --options A,B,C --data questions.csv --template plain.txt "
        "--template polite.txt --out v.npz --model "
    )


def test_commands_for_a_server_run_as_printed(questions, tmp_path, capsys):
    (tmp_path / "plain.txt").rename("prompt.txt")
    (tmp_path / "polite.txt").rename("other.txt")
    write_table(tmp_path / "new.csv", {"question": [f"number {n}" for n in range(200, 220)]})
    with serving(Script(likes_letter)) as url:
        type_section("From an endpoint", url)
        assert "240 requests, about" in capsys.readouterr().out
    views = read_views("views.npz")
    assert [str(one) for one in views.transforms] == ["other"]
    assert views.labels is not None
    assert len(rows_of(tmp_path / "answers.csv")) == 20
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 120


def test_a_table_is_extended_by_one_system_after_the_other(questions, tmp_path):
    with serving(Script(likes_letter)) as url:
        for name in ("small", "large"):
            words = (
                f"collect --model {url} --model-name {name} --system {name} --template plain.txt"
            )
            words += " --data questions.csv --out questions.csv"
            assert typed(words) == 2, "only with --force"
            assert typed(f"{words} --force") == 0
    rows = rows_of(tmp_path / "questions.csv")
    assert [row["question"] for row in rows] == [f"number {n}" for n in range(120)]
    for name in ("small", "large"):
        assert [row[f"{name}_answer"] for row in rows] == ["ABC"[n % 3] for n in range(120)]


def start(words, **environment):
    command = [sys.executable, "-m", "recal", *shlex.split(words)]
    return subprocess.Popen(command, env=os.environ | environment)


def wait_for(script, count):
    deadline = time.monotonic() + 60
    while len(script.requests) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_killed_run_resumes_and_pays_for_no_answer_twice(questions, tmp_path):
    def slowly(prompt):
        time.sleep(0.02)
        return likes_letter(prompt)

    script = Script(slowly)
    with serving(script) as url:
        words = f"{questions}{url} --concurrency 2"
        process = start(words, PYTHONUNBUFFERED="1")
        wait_for(script, 40)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = len((tmp_path / "v.npz.answers.jsonl").read_text().splitlines())
        assert 0 < kept < 240
        assert not (tmp_path / "v.npz").exists()
        assert typed(words) == 0
    counts = script.prompts()
    assert len(counts) == 240
    asked_again = sum(count - 1 for count in counts.values())
    assert asked_again <= 2, "only requests that were under way at the kill"
    assert read_views("v.npz").n_samples == 120


def test_a_server_that_fails_says_where_answers_are_kept_if_any_came(questions, capsys):
    refusals = [(401, {"error": {"message": "bad key"}})] * 400

    def answers_then_fails(prompt):
        if len(script.requests) == 20:
            script.faults += refusals
        return likes_letter(prompt)

    script = Script(answers_then_fails, faults=refusals)
    with serving(script) as url:
        assert typed(questions + url) == 2
        told = capsys.readouterr().err
        assert "Set OPENAI_API_KEY" in told
        assert "v.npz.answers.jsonl" not in told
        script.faults.clear()
        assert typed(questions + url) == 2
        assert "kept in v.npz.answers.jsonl" in capsys.readouterr().err


def test_a_calibration_is_bound_to_model_templates_and_options(questions, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("{question} now\nAnswer {options}:")
    script = Script(likes_letter)
    with serving(script) as url:
        assert typed(questions + url) == 0
        stored = {name: values for name, *values in read_views("v.npz").preprocessing.asked}
        assert (stored["model"], stored["options"]) == (["tiny"], ["A", "B", "C"])
        assert typed("calibrate v.npz --risk 0.4 --out out") == 0
        for old, new in {"tiny": "large", "plain.txt": "other.txt"}.items():
            words = questions.replace(old, new).replace("v.npz", f"{new}.npz") + url
            n_before = len(script.requests)
            capsys.readouterr()
            assert typed(f"{words} --calibration out") == 2
            assert len(script.requests) == n_before
            assert typed(words) == 0
            assert typed(f"apply out {new}.npz --out {new}.csv") == 2
            told = capsys.readouterr().err
            assert told.count("in place of") == told.count("--force") == 2
            assert typed(f"apply out {new}.npz --out {new}.csv --force") == 0
            typed(f"decide {new}.npz --calibration out --risk 0.4")  # refused as rows of the fit
            assert capsys.readouterr().err.count("in place of") == 2
        # This calibration needs no other template.
        n_before = len(script.requests)
        assert typed(questions.replace("v.npz", "n.npz") + f"{url} --calibration out") == 0
        assert len(script.requests) == n_before + 120


def test_ctrl_c_returns_while_the_server_is_silent(questions):
    def never(prompt):
        time.sleep(8.0)
        return likes_letter(prompt)

    script = Script(never)
    with serving(script) as url:
        process = start(questions + url)
        wait_for(script, 1)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.wait(60)
        assert time.monotonic() - started < 6.0
        assert process.returncode == 130


def test_credentials_in_an_address_are_written_nowhere(questions, tmp_path, capsys):
    with serving(Script(likes_letter)) as url:
        url = url.replace("http://", "http://me:pass%2Fword@")
        assert typed(questions + url) == 0
    for path in tmp_path.iterdir():
        assert b"pass%2Fword" not in path.read_bytes(), path
    assert "pass%2Fword" not in capsys.readouterr().out
