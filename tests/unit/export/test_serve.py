"""The example endpoint: one exported file behind HTTP, asked in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from recal import Blend, DecisionRule, TemperatureScaling, Views
from recal.decisions import profile
from recal.export import export_onnx
from recal.transforms.preprocessing import Preprocessing

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
EXAMPLE = Path(__file__).parents[3] / "examples" / "serve.py"
PLAN = Blend(1.0, (), (), 1e-4, start=0.4)


@pytest.fixture(scope="module")
def serve() -> Any:
    spec = importlib.util.spec_from_file_location("serve_example", EXAMPLE)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their own module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("endpoint")
    weights = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32) * 4
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8),
        folder / "net.onnx",
    )
    return export_onnx(folder / "net.onnx", path=folder / "calibrated.onnx", plan=PLAN, accept=0.7)


@pytest.fixture
def service(serve: Any, file: Path) -> Any:
    logits = np.random.default_rng(1).normal(size=(200, 3))
    return serve.Service(file, max_batch=8, queue_size=16, profile=profile(logits))


@pytest.fixture
def client(serve: Any, service: Any) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    with TestClient(serve.make_app(service)) as opened:
        yield opened


def inputs(n: int = 1) -> np.ndarray:
    return np.random.default_rng(2).random((n, 6), dtype=np.float32)


def metrics(client: Any) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}


def test_answers_are_those_of_the_file_and_metrics_count_them(client: Any, service: Any) -> None:
    assert client.get("/health").json()["status"] == "ok"
    rows = inputs(12)
    names = ["prediction", "confidence", "accept", "passes"]
    expected = [values.tolist() for values in service.session.run(names, {service.input: rows})]
    answers = [client.post("/predict", content=row.tobytes()).json() for row in rows]
    assert [[answer[name] for answer in answers] for name in names] == expected
    assert {True, False} == set(expected[2]), "or accepting was never told from abstaining"
    as_text = client.post("/predict", json={"input": rows[0].tolist()}).json()
    assert as_text == answers[0]
    told = metrics(client)
    assert told["recal_answers_total"] == 13
    assert told["recal_accepted_share"] == pytest.approx(
        (sum(expected[2]) + as_text["accept"]) / 13, abs=1e-4
    )
    assert told["recal_passes_per_answer"] == 1
    assert told["recal_drift_evidence"] != 1.0, "or the watch saw nothing"


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        ({"content": b"123"}, 400, "got 3 bytes"),
        ({"json": {"input": [1, 2]}}, 400, r"got \(2,\)"),
        ({"json": {"inputs": []}}, 400, "is needed"),
        ({"json": {"input": ["a"] * 6}}, 400, "is needed"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "is needed"),
        ({"content": bytes(100_000)}, 413, "at most"),
        ({"content": np.full(6, np.nan, np.float32).tobytes()}, 422, "beyond what"),
    ],
)
def test_what_is_no_input_is_refused_with_the_reason(
    client: Any, sent: dict[str, Any], code: int, words: str
) -> None:
    answer = client.post("/predict", **sent)
    assert answer.status_code == code
    assert re.search(words, answer.json()["detail"])
    assert client.post("/predict", content=inputs()[0].tobytes()).status_code == 200


def test_a_model_that_fails_is_told_and_the_service_goes_on(
    client: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = inputs()[0].tobytes()
    with monkeypatch.context() as broken:
        broken.setattr(service, "run", lambda arrays: 1 / 0)
        answer = client.post("/predict", content=body)
    assert answer.status_code == 500
    assert "division by zero" in answer.json()["detail"]
    assert client.post("/predict", content=body).status_code == 200


def test_requests_that_wait_are_answered_together_and_a_full_queue_says_so(
    serve: Any, service: Any
) -> None:
    """Without a client: what waits before the worker begins is one batch, and the seventeenth is
    refused.
    """
    sizes: list[int] = []
    run = service.run

    def counted(arrays: np.ndarray) -> Any:
        sizes.append(len(arrays))
        return run(arrays)

    service.run = counted

    async def crowd() -> list[Any]:
        waiting = [asyncio.create_task(service.answer(row)) for row in inputs(20)]
        await asyncio.sleep(0)
        worker = asyncio.create_task(service.work())
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        worker.cancel()
        return answers

    answers = asyncio.run(crowd())
    assert sizes == [8, 8]
    refused = [answer for answer in answers if isinstance(answer, serve.HTTPException)]
    assert [(error.status_code, error.headers) for error in refused] == [
        (503, {"Retry-After": "1"})
    ] * 4
    assert service.seen.refused == 4


def net_logits(rows: np.ndarray) -> np.ndarray:
    weights = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32) * 4
    return rows @ weights


def stream(n: int, seed: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng([seed, 3]).normal(size=(n, 6))).astype(np.float32)


def test_the_fits_own_stream_raises_no_alarm_and_damage_does(serve: Any, file: Path) -> None:
    """The profile is of raw logits, and so is what the endpoint feeds to the watch."""
    kept = profile(net_logits(stream(500, 0)))
    for seed in range(1, 21):
        service = serve.Service(file, max_batch=64, queue_size=16, profile=kept)
        for rows in np.split(stream(192, seed), 3):
            service.run(rows)
        assert service.seen.alarms == 0
        assert service.seen.evidence < 100
    for rows in np.split(stream(384, 99, scale=0.25), 6):
        service.run(rows)
    assert service.seen.alarms > 0
    lines = service.seen.lines()
    assert "recal_drift_threshold 100" in lines
    assert service.seen.evidence >= 100, "an alarm must stay visible in the metrics"


def test_confidences_follow_a_window_of_damaged_inputs(serve: Any, file: Path) -> None:
    rng = np.random.default_rng(5)
    clean = stream(600, 0)
    y = (net_logits(clean) + rng.gumbel(size=(600, 3))).argmax(1)
    kinds = {"hush": 1.5, "hiss": 3.0, "loud": 6.0}
    through = {}
    for number, (kind, size) in enumerate(kinds.items()):
        for strength in (0.3, 0.6, 1.0):
            noise = strength * size * np.random.default_rng(number).normal(size=clean.shape)
            through[f"{kind}:{strength}"] = net_logits((clean + noise).astype(np.float32))
    kept = profile(Views(net_logits(clean), through, y))
    service = serve.Service(file, 64, 16, kept, True)
    damaged = (stream(600, 7) + 2.0 * np.random.default_rng(8).normal(size=(600, 6))).astype(
        np.float32
    )
    plain = serve.Service(file, 64, 16)
    pairs = [(service.run(rows), plain.run(rows)) for rows in np.split(damaged, 12)]
    assert service.seen.condition.ratio < 0.9
    followed, as_they_were = pairs[-1]
    assert [one["prediction"] for one in followed] == [one["prediction"] for one in as_they_were]
    assert np.mean([one["confidence"] for one in followed]) < np.mean(
        [one["confidence"] for one in as_they_were]
    )
    assert "recal_followed_ratio" in service.seen.lines()


def test_names_thresholds_and_preparation_come_from_the_file(
    serve: Any, file: Path, tmp_path: Path
) -> None:
    logits = net_logits(stream(300, 1))
    labels = np.array(["ant", "bee", "cow"])[logits.argmax(1)]
    calibrator = TemperatureScaling().fit(logits, labels, classes=["ant", "bee", "cow"])
    calibrator.decision_ = DecisionRule((0.6, 0.7, math.inf), risk=0.05, confidence=0.95)
    calibrator.preprocessing_ = Preprocessing(resize=256, crop=224)
    named = export_onnx(file.parent / "net.onnx", path=tmp_path / "named.onnx", plan=calibrator)
    service = serve.Service(named, 8, 16, profile(logits), True)
    assert service.metadata["classes"] == ["ant", "bee", "cow"]
    assert service.metadata["risk"] == 0.05
    np.testing.assert_array_equal(service.thresholds, [0.6, 0.7, math.inf])
    answers = service.run(stream(50, 2))
    assert [answer["label"] for answer in answers] == [
        ["ant", "bee", "cow"][a["prediction"]] for a in answers
    ]
    assert not any(answer["accept"] for answer in answers if answer["label"] == "cow")
    assert "resize 256, crop 224" in serve.preparation(service.metadata)
    assert serve.preparation(serve.Service(file, 8, 16).metadata) is None


def test_following_uses_the_threshold_of_the_file(serve: Any, file: Path) -> None:
    kept = profile(net_logits(stream(200, 0)))
    stored = serve.Service(file, 64, 16, kept, True)
    stated = serve.Service(file, 64, 16, kept, True, np.array([0.7]))
    lower = serve.Service(file, 64, 16, kept, True, np.array([0.4]))
    accepted = [
        [answer["accept"] for answer in one.run(stream(64, 3))] for one in (stored, stated, lower)
    ]
    assert accepted[0] == accepted[1]
    assert sum(accepted[2]) > sum(accepted[0])


def test_sigterm_ends_the_service_while_a_slow_client_is_connected(
    file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"import runpy, sys; sys.argv = {['serve', str(file), '--port', str(port)]!r}; import uvicorn; "
    code += f"space = runpy.run_path({str(EXAMPLE)!r}); space['main'].__globals__['GRACE_SECONDS'] = 1; space['main']()"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        try:
            client = connected(port, process)
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n\0"
            )  # and no more
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)  # a machine may be busy; without the limit it would never end
        finally:
            process.kill()


def connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.1)
    raise AssertionError("the service did not start")
