"""`recal serve`: rows in, decisions out, grades back; limits, a token, and a kill."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest

from recal import (
    DecisionRule,
    PanelCalibration,
    SignalCalibration,
    TemperatureScaling,
    collect,
    plan_cascade,
    profile,
    save,
)
from recal.cli.serve import listen
from recal.collecting import apply
from recal.collecting.models import as_model
from recal.errors import InputError, UnseenValuesWarning
from tests.problems import asked, rows_of, views

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
from recal.serving import Scorer, Service, make_app  # noqa: E402 - needs fastapi


@pytest.fixture
def signals(tmp_path):
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.5, 1.0, 500)
    calibrator = SignalCalibration().fit({"stated": stated}, rng.random(500) < stated)
    calibrator.decision_ = DecisionRule((0.8,), risk=0.1, confidence=0.95)
    return calibrator


def client(tmp_path, calibrator, check_rate: float = 1.0, **limits):
    service = Service(tmp_path, Scorer(calibrator), check_rate)
    transport = httpx.ASGITransport(make_app(service, **limits), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://service")


async def ask(http, path: str, content):
    answer = await http.post(path, json=content)
    return answer.status_code, answer.json()


def told(test):
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(**given):
        asyncio.run(test(**given))

    return run


@told
async def test_rows_of_signals_are_scored_and_grades_feed_the_audit(tmp_path, signals):
    http = client(tmp_path, signals)
    status, one = await ask(http, "/answers", {"signals": {"stated": 0.95}})
    assert status == 200
    assert one["confidence"] == signals.predict_confidence({"stated": [0.95]})[0]
    assert one["accepted"]
    assert one["check"]
    status, many = await ask(
        http, "/answers", [{"signals": {"stated": value}} for value in (0.5, 0.99)]
    )
    assert [row["accepted"] for row in many] == [False, True]
    status, found = await ask(http, "/grades", {"id": one["id"], "right": True})
    assert (found["added"], found["graded"]) == (1, 1)
    status, found = await ask(http, "/grades", [{"id": "other", "right": False}])
    assert (found["added"], found["unused"]) == (0, 1)
    metrics = (await http.get("/metrics")).text
    assert "recal_answers_total 3" in metrics
    assert "recal_promise_refuted 0" in metrics
    assert "recal_latency_seconds_count 2" in metrics
    assert (await http.get("/healthz")).json()["status"] == "ok"
    page = (await http.get("/")).text
    assert "2 (66.7%) were accepted" in page
    assert page.count("<svg") == 2
    unprintable = b'{"signals": {"stated": 0.5}, "id": "\\ud800"}'
    assert (await http.post("/answers", content=unprintable)).status_code == 422


@told
async def test_wrong_grades_refute_the_promise(tmp_path, signals):
    http = client(tmp_path, signals)
    _, rows = await ask(http, "/answers", [{"signals": {"stated": 0.95}}] * 60)
    _, found = await ask(http, "/grades", [{"id": row["id"], "right": False} for row in rows])
    assert found["alarm"]
    assert "Stop automating" in (await http.get("/")).text
    # Another process that serves the same folder knows it, too.
    status = (await client(tmp_path, signals).get("/status")).json()
    assert status["alarm"]


@told
async def test_logits_and_panels_are_scored(tmp_path):
    calibrator = TemperatureScaling().fit(views(300, noise=0.5, classes=["a", "b", "c"]))
    truth, answers, _ = asked(300, {"large": 0.8, "small": 0.8})
    panel = PanelCalibration().fit(answers, truth)
    _, one = await ask(client(tmp_path, calibrator), "/answers", {"logits": [9.0, 0.0, 0.0]})
    assert one["answer"] == "a"
    assert "accepted" not in one
    assert "no rule" in (await client(tmp_path, calibrator).get("/")).text
    _, one = await ask(
        client(tmp_path, panel), "/answers", {"answers": {"large": "A", "small": "A"}}
    )
    assert one["answer"] == "A"
    assert one["confidence"] > 0.8


@told
@pytest.mark.parametrize(
    ("content", "status", "named"),
    [
        ({"signal": {}}, 422, "signals"),
        ({"signals": {"stated": 0.5}, "odd": 1}, 422, "odd"),
        ({"signals": {"other": 0.5}}, 422, "stated"),
        ([], 422, "rows"),
        ([{"signals": {"stated": 0.5}}] * 4, 422, "3"),
        ({"signals": 5}, 422, "signals"),
        ({"signals": {"stated": [0.5]}}, 422, "stated"),
        ([{"signals": {"stated": 0.5}}, {"signals": {}}], 422, "Row 1"),
        ({"signals": {"stated": 10**400}}, 422, "rows"),
        ({"signals": {"stated": 0.5}, "group": "a"}, 422, "group"),
        ({"signals": {"stated": "x" * 3000}}, 413, "2,000"),
    ],
)
async def test_bad_rows_get_one_sentence(tmp_path, signals, content, status, named):
    http = client(tmp_path, signals, max_rows=3, max_bytes=2000)
    found, answer = await ask(http, "/answers", content)
    assert found == status
    assert named in answer["error"]
    assert "Traceback" not in answer["error"]


@told
async def test_errors_of_models_are_told_in_one_line(tmp_path, signals, monkeypatch):
    raised = ValueError("no number here\nSee the manual")
    monkeypatch.setattr(Service, "answer", Mock(side_effect=raised))
    found, answer = await ask(client(tmp_path, signals), "/answers", {})
    assert (found, answer["error"]) == (422, "the rows cannot be read: no number here")


@told
async def test_a_token_is_needed_where_one_is_set(tmp_path, signals):
    http = client(tmp_path, signals, token="secret")
    assert (await http.get("/metrics")).status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert (await http.get("/metrics", headers=wrong)).status_code == 401
    assert (await http.get("/healthz")).status_code == 200
    headers = {"Authorization": "Bearer secret"}
    assert (await http.get("/metrics", headers=headers)).status_code == 200
    # A browser asks for a password, and sends it.
    asked = await http.get("/", headers={"Authorization": "Basic broken"})
    assert "Basic" in asked.headers["WWW-Authenticate"]
    assert (await http.get("/", auth=("", "wrong"))).status_code == 401
    assert (await http.get("/", auth=("", "secret"))).status_code == 200


@told
@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null", "http://[", None])
async def test_pages_of_other_sites_cannot_grade(tmp_path, signals, origin):
    http = client(tmp_path, signals)
    own = str(http.base_url).rstrip("/")
    row = {"id": "a", "right": True}
    answer = await http.post("/grades", json=row, headers={"Origin": origin or own})
    assert answer.status_code == (200 if origin is None else 403)


@told
@pytest.mark.parametrize("graded", [True, False])
async def test_rows_unlike_those_of_the_fit_are_reported(tmp_path, signals, graded):
    held_out = views(500, noise=0.5)
    calibrator = TemperatureScaling().fit(held_out)
    calibrator.profile_ = profile(held_out)
    rows = [{"logits": row.tolist()} for row in held_out.logits[:200] / 9]
    if graded:
        stated = np.random.default_rng(1).uniform(0.5, 1.0, 500)
        kept = signals.predict_confidence({"stated": stated})
        calibrator, signals.profile_ = signals, profile(kept, signals={"stated": stated})
        rows = [{"signals": {"stated": value}} for value in [None, "", *stated[:150] / 2]]
    http = client(tmp_path, calibrator)
    assert "drift" not in (await http.get("/metrics")).text
    assert (await ask(http, "/answers", rows))[0] == 200
    metrics = (await http.get("/metrics")).text
    assert f"recal_drift_rows {len(rows)}\n" in metrics
    assert "recal_drift_p_value 0.005\n" in metrics
    assert "differ from those of the fit" in (await http.get("/")).text


def means(batch):
    pixels = np.asarray(batch, float).reshape(len(batch), -1)
    return np.stack([pixels.mean(axis=1) / 30, pixels[:, 0] / 30], axis=1)


def by_columns(frame):
    numbers = frame[["b", "a"]].fillna(0.0).to_numpy()
    return np.column_stack([numbers.sum(axis=1), 2.0 * (frame["word"] == "x")])


def lengths(texts):
    return np.array([[len(text), 4.0] for text in texts])


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 2, 2), dtype=np.uint8)
TABLE = {"a": np.arange(60) / 30, "b": np.arange(60) % 7, "word": ["x", "01", "y"] * 20}
BLANK = {"a": None, "b": 3, "word": "01"}


@pytest.mark.parametrize(
    ("model", "inputs", "rows", "wrong"),
    [
        (
            means,
            PIXELS,
            PIXELS[:3].tolist(),
            [[[0.5, 1.0], [0, 1]], [[0, 256], [0, 1]], [[-1, 0], [0, 1]], [[0, 1]], [0, [1]], "a"],
        ),
        (means, PIXELS / 255, (PIXELS[:3] // 9).tolist(), [[0], "a", {"a": 1}]),
        (by_columns, TABLE, [{"a": 1.5, "b": 2, "word": "x"}, BLANK], [{"a": 1}, "a", [1, 2, 3]]),
        (by_columns, TABLE, [BLANK], [{**BLANK, "label": 1}]),
        (lengths, ["one", "three"] * 30, ["four", "eleven"], [{"text": "a"}, ["a"], None]),
    ],
)
@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_inputs_are_prepared_as_at_the_fit(model, inputs, rows, wrong):
    if isinstance(inputs, dict):
        pandas = pytest.importorskip("pandas")
        inputs, new = pandas.DataFrame(inputs), pandas.DataFrame(rows).astype({"a": float})
    else:
        new = np.array(rows, dtype=inputs.dtype) if hasattr(inputs, "dtype") else rows
    held_out = collect(model, inputs, None, labels=np.arange(60) % 2, preflight=False)
    calibrator = TemperatureScaling().fit(held_out)
    expected = apply(calibrator, model, new, progress=False)
    scorer = Scorer(calibrator, as_model(model))
    found = scorer([{"input": row} for row in rows])
    np.testing.assert_array_equal(found.confidence, expected.confidences)
    np.testing.assert_array_equal(found.answers, expected.probs.argmax(axis=1))
    for one in wrong:
        with pytest.raises(InputError):
            scorer([{"input": one}])


@told
async def test_rows_need_the_groups_of_the_fit_and_unlike_values_are_named(tmp_path):
    rng = np.random.default_rng(0)
    stated, kind = rng.uniform(0.5, 1.0, 500), rng.choice(["law", "art"], 500)
    calibrator = SignalCalibration().fit({"stated": stated}, rng.random(500) < stated, kind)
    http = client(tmp_path, calibrator)
    row = {"signals": {"stated": 0.9}, "group": "law"}
    _, found = await ask(http, "/answers", row)
    assert found["confidence"] == calibrator.predict_confidence({"stated": 0.9}, "law")[0]
    odd = [{**row, "signals": {"stated": 90}}, {"signals": {"stated": None}, "group": "new"}]
    with pytest.warns(UnseenValuesWarning):
        _, found = await ask(http, "/answers", [row, *odd])
    assert [one.get("unlike_fit") for one in found] == [None, ["stated"], ["group"]]
    status, found = await ask(http, "/answers", [row, {"signals": {"stated": 0.9}}])
    assert status == 422
    assert "Row 1" in found["error"]
    assert "group" in found["error"]


@told
async def test_a_cascade_says_what_to_do_next(tmp_path):
    options = np.arange(8).astype(str)
    truth, answers, _ = asked(2000, {"small": 0.7, "large": 0.95}, options=options)
    fit, rest = slice(0, 1000), slice(1000, None)
    panel = PanelCalibration().fit(rows_of(answers, fit), truth[fit])
    costs = {"costs": {"small": 1, "large": 5}, "review_cost": 100}
    rule = plan_cascade(panel, rows_of(answers, rest), truth[rest], **costs, risk=0.05)
    http = client(tmp_path, rule)
    _, one = await ask(http, "/answers", {"answers": {"small": "3"}})
    assert (one["next"], one["accepted"]) == ("large", False)
    _, one = await ask(http, "/answers", {"answers": {"small": "3", "large": "3"}, "id": "q1"})
    assert (one["next"], one["answer"], one["id"]) == ("accept", "3", "q1")
    _, found = await ask(http, "/grades", {"id": "q1", "right": False})
    assert (found["graded"], found["error"]) == (1, 1.0)


@told
async def test_processes_share_counts_and_ids(tmp_path, signals):
    one, other = client(tmp_path, signals), client(tmp_path, signals)
    row = {"signals": {"stated": 0.95}, "id": "q1"}
    record = {"kind": "served", "rule": (await one.get("/healthz")).json()["rule"], "failed": 1}
    # Somebody else wrote a record without a time.
    (tmp_path / "audit.jsonl").write_text(json.dumps(record) + "\n")
    for http in (one, other):
        _, found = await ask(http, "/answers", row)
        assert (await http.get("/metrics")).status_code == 200
    assert found["check"]
    assert found["id"] != "q1", "two answers never share a grade"
    assert "recal_answers_total 2" in (await other.get("/metrics")).text
    assert (await one.get("/status")).json()["counts"]["accepted"] == 2
    assert (await one.get("/")).status_code == 200


@told
async def test_an_unexpected_error_is_logged_and_not_shown(tmp_path, signals, caplog, monkeypatch):
    def broken(*_):
        raise ArithmeticError("secret")

    monkeypatch.setattr(SignalCalibration, "predict_confidence", broken)
    http = client(tmp_path, signals)
    status, found = await ask(http, "/answers", {"signals": {"stated": 0.9}})
    assert status == 500
    assert "secret" not in str(found)
    assert "secret" in caplog.text


def test_answers_are_sent_at_once_and_a_used_port_is_refused():
    with listen("127.0.0.1", 0) as waiting:
        address = waiting.getsockname()
        with socket.create_connection(address), waiting.accept()[0] as connection:
            # Otherwise an answer waits up to 40 ms, which only several workers showed.
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(InputError, match=str(address[1])):
            listen(*address)


def test_the_command_serves_two_processes_and_loses_nothing_when_killed(tmp_path, signals):
    (tmp_path / "calibrated").mkdir()
    save(signals, tmp_path / "calibrated" / "calibration.recal")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", str(tmp_path / "calibrated"), "--port", str(port), "--check-rate", "1"]
    graded = 0
    for workers in ("2", "1"):
        server = subprocess.Popen(
            [sys.executable, "-m", "recal", *words, "--workers", workers],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                try:
                    if httpx.get(f"{url}/healthz").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            assert httpx.get(f"{url}/status").json()["graded"] == graded
            for _ in range(10):
                row = httpx.post(f"{url}/answers", json={"signals": {"stated": 0.97}}).json()
                found = httpx.post(f"{url}/grades", json={"id": row["id"], "right": True}).json()
                graded += found["added"]
            assert found["graded"] == graded
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert graded == 20
