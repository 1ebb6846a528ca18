"""Asking a language model over HTTP, against a server on the loopback interface."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recal.answers.endpoint import AnswerLog, Endpoint, EndpointError
from recal.answers.interview import Interview, Template
from recal.errors import InputError
from tests.unit.answers.server import Script, serving

pytest.importorskip("openai")
OPTIONS = ["A", "B", "C"]
WORDS = {"question": "question", "A": "red", "B": "green", "C": "blue"}
QUESTIONS = {name: np.array([f"{word} {n}" for n in range(6)]) for name, word in WORDS.items()}
LISTED = Template("listed", "{question}\n{options}\nAnswer:")
SHORT = Template("short", "{question} A: {A} B: {B} C: {C}?")


def prefers_green(prompt):
    """The model likes the option whose text is green, and the first letter a little."""
    letter = "B"
    if "\n" in prompt:
        letter = next(line.partition(".")[0] for line in prompt.splitlines() if "green" in line)
    shares = {"A": 0.15, "B": 0.1, "C": 0.1}
    shares[letter] = 0.7
    return [(letter, {letter: 0.7, **shares})]


def interview(url, ledger, *, templates=(LISTED,), labels=None, **settings):
    endpoint = Endpoint(url, "tiny", **{"retries": 4, "concurrency": 3, "timeout": 5.0, **settings})
    return Interview(endpoint, QUESTIONS, OPTIONS, templates, ledger, labels)


def test_templates_become_views(tmp_path):
    script = Script(prefers_green)
    with serving(script) as url:
        given = {"templates": (LISTED, SHORT), "labels": np.array(["B"] * 6)}
        asked = interview(url, tmp_path / "ledger.jsonl", **given)
        asked.run()
        views = asked.views().views
    assert [str(one) for one in views.transforms] == ["short"]
    np.testing.assert_allclose(np.exp(views.logits), np.tile([0.15, 0.7, 0.1], (6, 1)))
    assert views.labels.tolist() == [1] * 6
    assert "A. red 0\nB. green 0\nC. blue 0" in "".join(script.prompts())
    expected = {"model": "tiny", "max_tokens": 1, "top_logprobs": 20, "temperature": 0.0}
    assert expected.items() <= script.requests[0].items()


def test_further_templates_are_asked_only_where_they_are_needed(tmp_path):
    script = Script(prefers_green)
    needed = np.arange(6) < 2
    with serving(script) as url:
        asked = interview(url, tmp_path / "ledger.jsonl", templates=(LISTED, SHORT))
        asked.run(needs_views=lambda logits: needed)
        views = asked.views().views
    assert len(script.requests) == 8
    expected = np.where(needed[:, None], [0.15, 0.7, 0.1], np.exp(views.logits))
    np.testing.assert_allclose(np.exp(views.transformed("short")), expected)


def test_busy_servers_errors_and_timeouts_are_repeated(tmp_path):
    broken = [b'{"id": "x", "choices": [', b"<html>", b"[1, 2]", b'{"choices": []}', b"[" * 100_000]
    script = Script(prefers_green, faults=[429, 500, 503, "slow", 429, *broken])
    with serving(script) as url:
        asked = interview(url, tmp_path / "ledger.jsonl", timeout=0.3)
        asked.run()
    assert asked.cost().n_requests == 0
    assert set(asked.ledger.answers) == set(map(asked.endpoint.key_of, asked.prompts[0]))


def test_a_server_that_stays_down_stops_the_run_and_keeps_what_was_answered(tmp_path):
    script = Script(prefers_green, faults=[*[None] * 4, *[500] * 50])
    with serving(script) as url:
        asked = interview(url, tmp_path / "ledger.jsonl", retries=1, concurrency=1)
        with pytest.raises(EndpointError, match=r"answered 500 .*fault 500"):
            asked.run()
        script.faults.clear()
        again = interview(url, tmp_path / "ledger.jsonl")
        assert (again.cost().n_requests, again.cost().n_kept) == (2, 4)
        again.run()
    assert set(script.prompts().values()) == {1}  # no answer was paid for twice
    assert again.views().views.n_samples == 6


def test_lines_that_are_no_answers_are_asked_again_and_stay_in_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    AnswerLog(path).add("one", [("A", {"A": -0.5})])
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b'\n{"key": "two"}\n{"key": "three", "tok')
    before = path.read_bytes()
    again = AnswerLog(path)
    assert list(again.answers) == ["one"]
    assert path.read_bytes() == before
    again.add("four", [])
    assert list(AnswerLog(path).answers) == ["one", "four"]


def test_an_answer_without_logprobs_is_skipped_on_request_and_asked_again_later(tmp_path):
    broken = True

    def answer(prompt):
        return [] if broken and "question 2" in prompt else prefers_green(prompt)

    script = Script(answer)
    with serving(script) as url:
        with pytest.raises(EndpointError, match=r"no logprobs.*--on-error skip"):
            interview(url, tmp_path / "ledger.jsonl", concurrency=1).run()
        asked = interview(url, tmp_path / "ledger.jsonl", concurrency=1)
        asked.run(on_error="skip")
        found = asked.views()
        assert (found.n_unanswered, found.views.n_samples) == (1, 6)
        broken = False
        again = interview(url, tmp_path / "ledger.jsonl")
        assert again.cost().n_requests == 1
        again.run()
        assert again.views().n_unanswered == 0
    with serving(Script(lambda prompt: [])) as url:
        asked = interview(url, tmp_path / "none.jsonl", concurrency=2)
        with pytest.raises(EndpointError, match="returned no logprobs"):
            asked.run(on_error="skip")


def test_prompts_do_not_follow_a_redirect_to_another_host(tmp_path):
    other = Script(prefers_green)
    with serving(other) as elsewhere:
        script = Script(prefers_green, faults=[f"{elsewhere}/chat/completions"] * 50)
        with serving(script) as url, pytest.raises(EndpointError, match="redirects to http"):
            interview(url, tmp_path / "ledger.jsonl", retries=0).run()
    assert not other.requests


def test_the_key_of_a_request_covers_what_determines_its_answer():
    one = Endpoint("http://127.0.0.1/v1", "small")
    changes = {"model": "large", "url": "http://127.0.0.1/v2", "max_tokens": 2, "top_logprobs": 5}
    others = [replace(one, **{name: value}) for name, value in changes.items()]
    keys = {one.key_of("a"), one.key_of("b"), *(other.key_of("a") for other in others)}
    assert len(keys) == 6
    assert one.key_of("a") == Endpoint("http://127.0.0.1/v1/", "small", timeout=1.0).key_of("a")


def test_refusals_and_truncated_logprobs_are_counted(tmp_path):
    def answer(prompt):
        if "question 0" in prompt:
            return None
        return [("I", {"I": 0.9})] if "question 1" in prompt else [("B", {"B": 0.8})]

    script = Script(answer, faults=[])
    with serving(script) as url:
        asked = interview(url, tmp_path / "ledger.jsonl", concurrency=1)
        asked.run()
        found = asked.views()
    assert (found.n_unanswered, found.n_missing, found.n_cells) == (2, 14, 18)
    assert len(set(found.views.logits[0])) == 1
    np.testing.assert_allclose(np.exp(found.views.logits[2]), [1e-5, 0.8, 1e-5])


def test_a_filtered_prompt_counts_as_a_refusal_and_other_bad_requests_stop_the_run(tmp_path):
    filtered = (400, {"error": {"message": "filtered", "code": "content_filter"}})
    with serving(Script(prefers_green, faults=[filtered])) as url:
        asked = interview(url, tmp_path / "a.jsonl", concurrency=1)
        asked.run()
        assert asked.views().n_unanswered == 1
    for fault, message in [
        ((400, {"error": {"message": "at most 5"}}), "answered 400 .*at most 5"),
        (401, "Set OPENAI_API_KEY"),
        (404, "answered 404 to 'tiny': fault 404"),
        (b"<html>", "no chat completion, 1 times"),
        (b'{"choices": [{"message": "A"}]}', "returned no logprobs"),
    ]:
        script = Script(prefers_green, faults=[fault] * 9)
        with serving(script) as url, pytest.raises(EndpointError, match=message):
            interview(url, tmp_path / "b.jsonl", retries=0).run()
    with pytest.raises(EndpointError, match="cannot be reached"):
        interview("http://127.0.0.1:9/v1", tmp_path / "c.jsonl", retries=0).run()


def test_the_key_is_sent_and_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1234")
    script = Script(prefers_green)
    with serving(script) as url:
        asked = interview(url, tmp_path / "ledger.jsonl")
        asked.run()
        asked.views().views.write(tmp_path / "views.npz")
    assert script.keys == {"Bearer sk-secret-1234"}
    for path in tmp_path.iterdir():
        assert b"sk-secret" not in path.read_bytes()
    assert "sk-secret" not in repr(asked.endpoint)


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a\n", "sk “a”"])
def test_a_key_that_cannot_be_sent_is_refused(tmp_path, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match="OPENAI_API_KEY") as caught:
        interview("http://127.0.0.1:9/v1", tmp_path / "ledger.jsonl").run()
    assert key.strip() not in str(caught.value)


def test_settings_that_a_reasoning_model_does_not_know_are_changed(tmp_path):
    def refuses(name):
        error = {"message": f"no {name}", "param": name, "code": "unsupported_parameter"}
        return 400, {"error": error}

    script = Script(prefers_green, faults=[refuses("max_tokens")])
    with serving(script) as url:
        interview(url, tmp_path / "a.jsonl", concurrency=1, retries=0).run()
        assert len(script.requests) == 6  # later requests know it
        assert all(one["max_completion_tokens"] == 1 for one in script.requests)
        assert not any("max_tokens" in one for one in script.requests)
        script.requests.clear()
        script.faults = [refuses("temperature"), refuses("top_logprobs")]
        with pytest.raises(EndpointError, match="no top_logprobs"):
            interview(url, tmp_path / "b.jsonl", concurrency=1, retries=0).run()
        endpoint = Endpoint(url, "tiny", retries=0, top_logprobs=0, needs_logprobs=False)
        script.faults = [refuses("temperature")]
        endpoint.answer(["hello"], AnswerLog(tmp_path / "c.jsonl"))
    assert "temperature" not in script.requests[-1]


def test_templates_name_columns_and_braces(tmp_path):
    row, odd = {"question": "why?", "kind": "x"}, replace(SHORT, name="a+b")
    text = '{{"q": "{question}"}} {options}'
    assert Template("t", text).fill(row, ["yes", "no"]) == '{"q": "why?"} yes, no'
    # A column of this name comes before the list of options.
    assert Template("t", "{options}").fill({"options": "a or b"}, ["yes", "no"]) == "a or b"
    with pytest.raises(InputError, match="names the column 'text'; the questions have question"):
        Template("t", "{text}").check(["question"])
    with pytest.raises(InputError, match="names no column"):
        Template("t", "hello").check(["question"])
    with pytest.raises(InputError, match=r"'a\+b'"):
        interview("http://127.0.0.1:9/v1", tmp_path / "l.jsonl", templates=(LISTED, odd))
    with pytest.raises(InputError, match="different file names"):
        interview("http://127.0.0.1:9/v1", tmp_path / "l.jsonl", templates=(LISTED, LISTED))
