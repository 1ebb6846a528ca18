"""Answers of one system as a table with signals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal.answers import read_table
from recal.answers.interview import split_answer
from recal.cli.app import run
from recal.files.tables import write_columns
from tests.unit.answers.server import Script, serving

pytest.importorskip("openai")


def free_text(prompt):
    number = int(prompt.split()[1])
    tokens = [("Answer:", 0.9), (f" city {number}", 0.5), ("\nConfidence: 80%", 0.9)]
    return [(token, {token: share}) for token, share in tokens]


def asks(url, folder, template, data, *more, system="small", out="a.jsonl"):
    """Type `recal collect` for one system; return the exit code."""
    (folder / "t.txt").write_text(template)
    words = ["collect", "--model", url, "--model-name", "tiny", "--system", system]
    words += ["--template", str(folder / "t.txt"), "--data", str(data), *more]
    return run([*words, "--out", str(folder / out)])


@pytest.fixture
def question(tmp_path):
    (tmp_path / "q.csv").write_text("q\nnumber 0\n")
    return tmp_path / "q.csv"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_system_is_asked_only_for_the_rows_that_need_it(tmp_path, capsys):
    rows = [{"q": f"number {n}", "next": "ask big" if n % 2 else "accept"} for n in range(6)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = Script(free_text)
    with serving(script) as url:
        given = (url, tmp_path, "{q} and your confidence in percent?", data, "--samples", "2")
        assert asks(*given, system="big") == 0
        assert "3 of 6 rows are asked, 3 times each" in capsys.readouterr().out
        assert len(script.requests) == 9
        assert sorted({request["temperature"] for request in script.requests}) == [0.0, 1.0]
        assert script.requests[0]["max_tokens"] > 1
        assert asks(*given, "--force", system="big") == 0
        assert len(script.requests) == 9  # resumed
        assert asks(*given, system="big", out="a.npz") == 2
    answers = read_lines(tmp_path / "a.jsonl")
    assert answers[0]["big_answer"] is None
    assert answers[1]["q"] == "number 1"
    assert (answers[1]["big_answer"], answers[1]["big_stated"]) == ("city 1", 0.8)
    assert answers[1]["big_agreement"] == 1.0
    assert answers[1]["big_length"] == 3
    assert answers[1]["big_logprob"] == pytest.approx(-0.3012, abs=1e-3)


def test_answers_with_options_are_options(tmp_path):
    (tmp_path / "q.csv").write_text("q\nnumber 0\nnumber 1\n")
    with serving(Script(lambda prompt: [(" B", {" B": 0.7, " A": 0.3})])) as url:
        given = (url, tmp_path, "{q} of {options}?", tmp_path / "q.csv", "--options", "A,B")
        assert asks(*given, out="a.csv") == 0
    header, first, _ = (tmp_path / "a.csv").read_text().splitlines()
    assert header == "q,small_answer,small_logprob,small_length"
    assert first.startswith("number 0,B,-0.35")


def test_a_server_without_log_probabilities_still_gives_answers(tmp_path, question):
    script = Script(lambda prompt: "The city 0\nConfidence: 80%")
    with serving(script) as url:
        given = (url, tmp_path, "{q}, with a confidence?", question)
        assert asks(*given, "--top-logprobs", "0") == 0
    assert not {"logprobs", "top_logprobs"} & set(script.requests[0])
    (answer,) = read_lines(tmp_path / "a.jsonl")
    assert (answer["small_answer"], answer["small_stated"]) == ("The city 0", 0.8)
    assert (answer["small_logprob"], answer["small_length"]) == (None, 5)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_is_extended_in_its_own_columns(tmp_path, suffix):
    first = {"q": "number 0", "next": "ask small", "small_answer": None, "small_length": None}
    other = {"q": "number 1", "next": "accept", "small_answer": "B", "small_length": 3}
    data = tmp_path / f"rows.{suffix}"
    columns = {name: [first[name], other[name]] for name in first}
    write_columns(data, columns)
    more = ("--options", "A,B", "--samples", "1", "--force")
    with serving(Script(lambda prompt: [(" A", {" A": 0.5})])) as url:
        assert asks(url, tmp_path, "{q} of {options}?", data, *more, out=data.name) == 0
    table = read_table(data)
    names = ["answer", "length", "logprob", "agreement"]
    assert set(table) == {"q", "next", *(f"small_{name}" for name in names)}
    assert table["small_answer"].tolist() == ["A", "B"]
    np.testing.assert_allclose(table.numbers("small_length"), [1, 3])
    np.testing.assert_allclose(table.numbers("small_logprob"), [np.log(0.5), np.nan])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", ("Paris", None)),
        ("Answer: Paris\nConfidence: 0.9", ("Paris", 0.9)),
        ("Paris. Confidence = 70 %", ("Paris.", 0.7)),
        ("Paris\nConfidence level: **85**", ("Paris", 0.85)),
        ("Paris\nConfidence: 8/10", ("Paris", 0.8)),
        ("Paris\nConfidence (0-1): 0.7", ("Paris", 0.7)),
        ("Paris\nConfidence: 1", ("Paris", 1.0)),
        ("Paris\nConfidence: 2", ("Paris", 0.02)),
        ("Paris\nConfidence: 850 %", ("Paris", None)),
        ("no number: confidence high", ("no number: confidence high", None)),
    ],
)
def test_a_stated_confidence_is_read_as_a_share(text, expected):
    assert split_answer(text, stated=True) == expected
    assert split_answer(text, stated=False)[1] is None
