"""Tables of graded answers, logs and servers of language models, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest

from recal import load, read_views
from recal.cli.app import run
from tests.problems import graded_answers
from tests.unit.answers.server import Script, serving
from tests.unit.cli.commands import typed

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
    write_table(
        folder / "new.csv",
        {name: values[:200] for name, values in columns.items() if name != "right"},
    )
    words = shlex.split("--correct right --group subject --signals judge,kind,stated --risk 0.25")
    assert run(["calibrate", str(folder / "graded.csv"), *words, "--out", str(folder / "out")]) == 0
    return folder


def test_a_table_is_calibrated_and_applied_in_two_commands(place, capsys):
    assert {path.name for path in (place / "out").iterdir()} == {
        "calibration.recal",
        "report.html",
        "summary.json",
        "labelled.csv",
    }
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert summary["signals"] == ["judge", "kind", "stated", "subject"]
    assert summary["parts"] == {"fit": 600, "decide": 360, "check": 240}
    assert summary["after"]["ece"] < summary["before"]["ece"]
    page = (place / "out" / "report.html").read_text()
    assert (
        f"{100 * summary['checked']['accepted'] / 240:.1f}\u00a0% of the answers can be automated"
        in page
    )
    assert "The threshold was chosen on 360 other inputs." in page
    for name in ("accepted.csv", "accepted.parquet", "accepted.jsonl"):
        assert typed(f"apply {place / 'out'} {place / 'new.csv'} --out {place / name}") == 0
    assert "answers with their confidence written to" in capsys.readouterr().out
    with (place / "accepted.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (place / "new.csv").open() as file:
        given = list(csv.DictReader(file))
    assert [
        {name: row[name] for name in given[0]} for row in rows
    ] == given  # the table's own columns are kept
    calibration = load(place / "out" / "calibration.recal")
    thresholds = dict(zip(calibration.decision_.groups, calibration.decision_.thresholds))
    accepted = [row["accepted"] == "true" for row in rows]
    assert accepted == [float(row["confidence"]) >= thresholds[row["subject"]] for row in rows]
    assert 0 < sum(accepted) < 200
    table = pyarrow.parquet.read_table(place / "accepted.parquet")
    assert table.column("accepted").to_pylist() == accepted
    assert (
        typed(f"apply {place / 'out'} {place / 'accepted.jsonl'} --out {place / 'again.csv'}") == 0
    )
    with (place / "again.csv").open() as file:
        assert [row["accepted"] == "true" for row in csv.DictReader(file)] == accepted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--correct", "rigth"],
            "has no column 'rigth'; it has stated, tokens, judge, kind, subject, right.",
        ),
        (["--correct", "right", "--signals", "judge,stted"], "has no column 'stted'"),
        (
            ["--correct", "right", "--signals", "right"],
            "'right' holds the grades and cannot be a signal",
        ),
        (["--correct", "stated"], "column 'stated': `correct` must be True or False"),
        ([], "--correct COLUMN. It has stated, tokens"),
        (["--correct", "right", "--model", "x.onnx"], "--model cannot be used"),
    ],
)
def test_wrong_columns_are_refused_with_the_ones_there_are(place, capsys, words, message):
    assert run(["calibrate", str(place / "graded.csv"), *words, "--out", str(place / "other")]) == 2
    assert message in capsys.readouterr().err
    assert not (place / "other").exists()


def test_a_leak_and_a_missing_column_are_refused(place, tmp_path, capsys):
    signals, correct, _, _ = graded_answers(300, seed=0)
    write_table(tmp_path / "leak.csv", {**signals, "score": correct.astype(int), "right": correct})
    assert typed(f"calibrate {tmp_path / 'leak.csv'} --correct right --out {tmp_path / 'out'}") == 2
    told = capsys.readouterr().err
    assert "'score'" in told
    assert "leaks" in told
    write_table(tmp_path / "new.csv", {"stated": [0.5]})
    assert typed(f"apply {place / 'out'} {tmp_path / 'new.csv'} --out {tmp_path / 'x.csv'}") == 2
    assert "has no column 'judge'; it has stated" in capsys.readouterr().err


def test_groups_without_evidence_and_unseen_groups_accept_nothing(place, tmp_path, capsys):
    words = shlex.split(f"--correct right --group subject --risk 0.02 --out {tmp_path / 'out'}")
    assert run(["calibrate", str(place / "graded.csv"), *words]) == 0
    assert "law: " in capsys.readouterr().out.partition("No")[2]
    text = (place / "new.csv").read_text().replace("poetry", "botany")
    (tmp_path / "new.csv").write_text(text)
    assert typed(f"apply {place / 'out'} {tmp_path / 'new.csv'} --out {tmp_path / 'x.csv'}") == 0
    assert "such as 'botany'. Nothing in them is accepted" in capsys.readouterr().err
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["accepted"] for row in rows if row["subject"] == "botany"} == {"false"}
    assert "true" in {row["accepted"] for row in rows if row["subject"] == "physics"}


def write_log(path, noise, seed, n=500):
    labels = np.random.default_rng(0).integers(0, 4, n)
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for number, label in enumerate(labels.tolist()):
            scores = (2 * np.eye(4)[label] + noise * rng.normal(size=4)) * 3
            line = {
                "doc_hash": f"h{number}",
                "target": label,
                "filtered_resps": [[str(one), "False"] for one in scores],
            }
            file.write(json.dumps(line) + "\n")


def test_from_a_log_to_automated_answers(tmp_path, capsys):
    write_log(tmp_path / "samples.jsonl", 1.0, 1)
    write_log(tmp_path / "direct.jsonl", 1.2, 2)
    view = f"direct={tmp_path / 'direct.jsonl'}"
    assert (
        run(
            [
                "collect",
                "--data",
                str(tmp_path / "samples.jsonl"),
                "--view",
                view,
                "--out",
                str(tmp_path / "v.npz"),
            ]
        )
        == 0
    )
    assert "Next: recal calibrate" in capsys.readouterr().out
    assert [str(one) for one in read_views(tmp_path / "v.npz").transforms] == ["direct"]
    assert typed(f"calibrate {tmp_path / 'v.npz'} --risk 0.1 --out {tmp_path / 'out'}") == 0
    assert "can be automated with at most 10 % errors" in capsys.readouterr().out
    assert typed(f"apply {tmp_path / 'out'} {tmp_path / 'v.npz'} --out {tmp_path / 'a.csv'}") == 0
    for words, message in [
        (["--view", "direct"], "--view takes NAME=FILE"),
        (["--view", "a=gone.jsonl"], "no file"),
    ]:
        out = ["--out", str(tmp_path / "w.npz")]
        assert run(["collect", "--data", str(tmp_path / "samples.jsonl"), *words, *out]) == 2
        assert message in capsys.readouterr().err


def likes_letter(prompt):
    letter = "ABC"[int(prompt.split()[1]) % 3]
    return [(letter, {letter: 0.6, **{other: 0.15 for other in "ABC" if other != letter}})]


@pytest.fixture
def questions(tmp_path):
    pytest.importorskip("openai")
    numbers = list(range(120))
    columns = {
        "question": [f"number {n}" for n in numbers],
        "label": ["ABC"[n % 3 if n % 5 else 0] for n in numbers],
    }
    write_table(tmp_path / "questions.csv", columns)
    (tmp_path / "plain.txt").write_text("{question}\nAnswer {options}:")
    (tmp_path / "polite.txt").write_text("{question} please, one of {options}:")
    words = shlex.split(f"--model-name tiny --options A,B,C --data {tmp_path / 'questions.csv'}")
    for name in ("plain", "polite"):
        words += ["--template", str(tmp_path / f"{name}.txt")]
    return words


def test_a_server_is_asked_calibrated_and_applied(questions, tmp_path, capsys):
    script = Script(likes_letter)
    with serving(script) as url:
        words = ["--model", url, *questions]
        assert run(["collect", *words, "--out", str(tmp_path / "v.npz")]) == 0
        assert "240 requests, about" in capsys.readouterr().out
        views = read_views(tmp_path / "v.npz")
        assert [str(one) for one in views.transforms] == ["polite"]
        assert views.labels is not None
        assert run(["collect", *words, "--force", "--out", str(tmp_path / "v.npz")]) == 0
        assert "0 requests" in capsys.readouterr().out  # every answer was kept
    views_file = str(tmp_path / "v.npz")
    assert run(["calibrate", views_file, "--risk", "0.4", "--out", str(tmp_path / "out")]) == 0
    assert typed(f"apply {tmp_path / 'out'} {views_file} --out {tmp_path / 'a.csv'}") == 0
    with (tmp_path / "a.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 120
    assert (
        typed(f"collect --model http://127.0.0.1:9/v1 --data x.csv --out {tmp_path / 'w.npz'}") == 2
    )
    assert "also needs --model-name, --template, --options" in capsys.readouterr().err


def test_a_table_is_extended_by_one_system_after_the_other(questions, tmp_path, capsys):
    table = str(tmp_path / "questions.csv")
    with serving(Script(likes_letter)) as url:
        for name in ("small", "large"):
            words = [
                "collect",
                "--model",
                url,
                "--model-name",
                name,
                "--system",
                name,
                "--template",
            ]
            words += [str(tmp_path / "plain.txt"), "--data", table, "--out", table]
            assert run(words) == 2, "only with --force"
            assert run([*words, "--force"]) == 0
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["question"] for row in rows] == [f"number {n}" for n in range(120)]
    for name in ("small", "large"):
        assert [row[f"{name}_answer"] for row in rows] == ["ABC"[n % 3] for n in range(120)]


def test_a_killed_run_resumes_and_pays_for_no_answer_twice(questions, tmp_path, capsys):
    def slowly(prompt):
        time.sleep(0.02)
        return likes_letter(prompt)

    script = Script(slowly)
    with serving(script) as url:
        words = [
            "collect",
            "--model",
            url,
            *questions,
            "--concurrency",
            "2",
            "--out",
            str(tmp_path / "v.npz"),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "recal", *words], env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
        deadline = time.monotonic() + 60
        while len(script.requests) < 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = len((tmp_path / "v.npz.answers.jsonl").read_text().splitlines())
        assert 0 < kept < 240
        assert not (tmp_path / "v.npz").exists()
        assert run(words) == 0
    counts = script.prompts()
    assert len(counts) == 240
    assert (
        sum(count - 1 for count in counts.values()) <= 2
    )  # only requests that were under way at the kill
    assert read_views(tmp_path / "v.npz").n_samples == 120


def test_a_server_that_fails_says_where_the_answers_are_kept(questions, tmp_path, capsys):
    script = Script(likes_letter, faults=[(401, {"error": {"message": "bad key"}})] * 400)
    with serving(script) as url:
        assert run(["collect", "--model", url, *questions, "--out", str(tmp_path / "v.npz")]) == 2
    told = capsys.readouterr().err
    assert "Set OPENAI_API_KEY" in told
    assert "v.npz.answers.jsonl; the same command resumes" in told


def test_a_calibration_is_bound_to_model_templates_and_options(questions, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("{question} now\nAnswer {options}:")
    other = {"tiny": "large", str(tmp_path / "plain.txt"): str(tmp_path / "other.txt")}
    with serving(Script(likes_letter)) as url:
        for number, changed in enumerate([{}, *({old: new} for old, new in other.items())]):
            words = ["--model", url, *(changed.get(word, word) for word in questions)]
            assert run(["collect", *words, "--out", str(tmp_path / f"{number}.npz")]) == 0
    first = tmp_path / "0.npz"
    stored = {name: values for name, *values in read_views(first).preprocessing.asked}
    assert (stored["model"], stored["options"]) == (["tiny"], ["A", "B", "C"])
    assert typed(f"calibrate {first} --risk 0.4 --out {tmp_path / 'out'}") == 0
    for number in (1, 2):
        command = (
            f"apply {tmp_path / 'out'} {tmp_path / f'{number}.npz'} --out {tmp_path / 'a.csv'}"
        )
        capsys.readouterr()
        assert typed(command) == 2
        told = capsys.readouterr().err
        assert "in place of" in told
        assert "--force" in told
    assert typed(f"{command} --force") == 0


def test_ctrl_c_returns_while_the_server_is_silent(questions, tmp_path):
    def never(prompt):
        time.sleep(8.0)
        return likes_letter(prompt)

    script = Script(never)
    with serving(script) as url:
        words = ["collect", "--model", url, *questions, "--out", str(tmp_path / "v.npz")]
        process = subprocess.Popen([sys.executable, "-m", "recal", *words])
        deadline = time.monotonic() + 60
        while not script.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.wait(60)
        assert time.monotonic() - started < 6.0
        assert process.returncode == 130


def test_credentials_in_an_address_are_written_nowhere(questions, tmp_path, capsys):
    with serving(Script(likes_letter)) as url:
        url = url.replace("http://", "http://me:pass%2Fword@")
        assert run(["collect", "--model", url, *questions, "--out", str(tmp_path / "v.npz")]) == 0
    for path in tmp_path.iterdir():
        assert b"pass%2Fword" not in path.read_bytes(), path
    assert "pass%2Fword" not in capsys.readouterr().out
