"""A calibrated endpoint: one exported ONNX file behind HTTP, with batching, a bounded queue and a
watch without labels.

    pip install 'recal-calibration[onnx]' fastapi uvicorn
    recal export calibration.recal --model net.onnx --accept 0.97 --out calibrated.onnx
    python examples/serve.py calibrated.onnx --follow

POST /predict takes one input as the raw bytes of an array in the file's dtype and shape, or as JSON
{"input": [...]}, and answers {"prediction", "label", "confidence", "accept", "passes"}.
`prediction` is the index of the class and `label` its name; names and thresholds come from the
file's metadata. `accept` is false if a person should look, and null if the file has no threshold.
An input that cannot be read gets 400 or 413; one that the calibration does not take (floats above
white, for instance) gets 422. GET /health says whether the service is up and how inputs must be
prepared; GET /metrics gives counts and rates (Prometheus text). Requests that arrive together are
answered together. When the queue is full, the answer is 503 at once.

`recal export` writes the profile of the fit beside the file (calibrated.profile.recal). With it the
service compares the model's logits, an output of the file, with those of the fit. With --follow,
confidences follow damage: the last 1,000 inputs are judged together, again after each 100.
Predictions never change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException, Request, Response

from recal.collecting.models.base import to_dtype

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(uint8)": np.uint8}
# How long requests under way may take once the service was told to end (SIGTERM, SIGINT).
GRACE_SECONDS = 5
# A stream is compared with the fit anew after so many answers, so that the service's memory does
# not grow.
WATCHED = 50_000
# How many answers are judged together where inputs are followed, and after how many they are judged
# anew.
WINDOW, ANEW = 1000, 100


@dataclass
class Seen:
    """What /metrics tells."""

    answered: int = 0
    refused: int = 0
    failed: int = 0
    unfit: int = 0
    batches: int = 0
    accepted: int = 0
    passes: float = 0.0
    confidence: float = 0.0
    watch: Any = None
    alarms: int = 0
    evidence: float = 1.0  # the highest ever, which an alarm does not reset
    condition: Any = None

    def lines(self) -> str:
        count = max(1, self.answered)
        values = {
            "recal_answers_total": self.answered,
            "recal_refused_total": self.refused,
            "recal_failed_total": self.failed,
            "recal_unfit_inputs_total": self.unfit,
            "recal_batches_total": self.batches,
            "recal_accepted_share": self.accepted / count,
            "recal_passes_per_answer": self.passes / count,
            "recal_mean_confidence": self.confidence / count,
            "recal_drift_alarms_total": self.alarms,
            "recal_drift_evidence": 1.0 if self.watch is None else self.watch.capital,
            "recal_drift_evidence_highest": self.evidence,
            "recal_drift_threshold": math.nan if self.watch is None else 1 / self.watch.alpha,
        }
        if self.condition is not None:
            values["recal_followed_ratio"] = self.condition.ratio
            values["recal_estimated_accuracy"] = self.condition.accuracy
            values["recal_inputs_unlike_the_fit"] = float(self.condition.unlike)
        return "".join(f"{name} {value:g}\n" for name, value in values.items())


@dataclass
class Service:
    """The file, the queue in front of it and the one task that empties it."""

    file: Path
    max_batch: int
    queue_size: int
    profile: Any = None
    follow: bool = False
    thresholds: np.ndarray | None = None
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.session = onnxruntime.InferenceSession(
            str(self.file), providers=["CPUExecutionProvider"]
        )
        given = self.session.get_inputs()[0]
        self.input, self.shape = given.name, tuple(given.shape[1:])
        if given.type not in DTYPES or not all(isinstance(size, int) for size in self.shape):
            raise SystemExit(
                f"{self.file} takes {given.type} of {given.shape}; a dtype and sizes known are needed."
            )
        self.dtype = np.dtype(DTYPES[given.type])
        self.outputs = [output.name for output in self.session.get_outputs()]
        if self.profile is not None and "logits" not in self.outputs:
            raise SystemExit(
                f"{self.file} does not give the model's logits, which are watched; export it again."
            )
        if self.follow and self.profile is None:
            raise SystemExit(
                "--follow needs the profile that `recal export` writes beside the file, or --profile."
            )
        self.metadata = metadata_of(self.session)
        self.classes = self.metadata.get("classes")
        if self.thresholds is None and (limits := self.metadata.get("thresholds")) is not None:
            self.thresholds = np.array([math.inf if limit is None else limit for limit in limits])
        if self.follow and "accept" in self.outputs and self.thresholds is None:
            raise SystemExit(
                f"{self.file} does not say its threshold, which --follow needs; pass --threshold."
            )
        self.window: deque[Any] = deque(maxlen=WINDOW)
        self.due = ANEW
        self.queue: asyncio.Queue[tuple[np.ndarray, asyncio.Future[dict[str, Any]]]] = (
            asyncio.Queue(self.queue_size)
        )
        self._watch_anew()

    def read(self, body: bytes, content_type: str) -> np.ndarray:
        """Return one input; refuse what is not one with the reason."""
        if content_type.startswith("application/json"):
            try:
                array = to_dtype(np.asarray(json.loads(body)["input"]), self.dtype, self.file.name)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise HTTPException(
                    400, f'JSON of the form {{"input": [...]}} is needed: {error}'
                ) from None
        else:
            if len(body) != self.dtype.itemsize * int(np.prod(self.shape)):
                raise HTTPException(
                    400, f"{self.shape} values of {self.dtype} are needed, got {len(body)} bytes"
                )
            array = np.frombuffer(body, self.dtype).reshape(self.shape)
        if array.shape != self.shape:
            raise HTTPException(400, f"an input has the shape {self.shape}, got {array.shape}")
        return array

    @property
    def largest(self) -> int:
        """How many bytes a request may have: an input as text takes at most some 30 for each value."""
        return 1024 + 30 * int(np.prod(self.shape))

    async def answer(self, array: np.ndarray) -> dict[str, Any]:
        """Queue one input and wait for its answer."""
        waiting = asyncio.get_running_loop().create_future()
        try:
            self.queue.put_nowait((array, waiting))
        except asyncio.QueueFull:
            self.seen.refused += 1
            raise HTTPException(
                503, "too many requests wait; try again", {"Retry-After": "1"}
            ) from None
        return await waiting

    async def work(self) -> None:
        """Answer what waits, as many at a time as the batch allows."""
        while True:
            items = [await self.queue.get()]
            while len(items) < self.max_batch and not self.queue.empty():
                items.append(self.queue.get_nowait())
            arrays = np.stack([array for array, _ in items])
            try:
                results = await asyncio.to_thread(self.run, arrays)
            except Exception as error:
                self.seen.failed += len(items)
                for _, waiting in items:
                    if not waiting.done():
                        waiting.set_exception(HTTPException(500, f"the model failed: {error}"))
                continue
            for (_, waiting), result in zip(items, results):
                if waiting.done():  # the client may have gone
                    continue
                if result["prediction"] < 0:
                    waiting.set_exception(
                        HTTPException(422, "the input lies beyond what the calibration takes")
                    )
                else:
                    waiting.set_result(result)

    def run(self, arrays: np.ndarray) -> list[dict[str, Any]]:
        """Return the answers to a batch, and take note of them."""
        found = dict(zip(self.outputs, self.session.run(self.outputs, {self.input: arrays})))
        seen, count = self.seen, len(arrays)
        taken = found["prediction"] >= 0
        seen.answered += int(taken.sum())
        seen.unfit += int((~taken).sum())
        seen.batches += 1
        seen.passes += (
            float(found["passes"][taken].sum()) if "passes" in found else int(taken.sum())
        )
        sure, accept = found["confidence"], found.get("accept")
        if self.profile is not None and taken.any():
            self._look_at(found["logits"][taken])
            if self.follow:
                sure, accept = self._followed(found["probs"], found["prediction"], sure, accept)
        seen.confidence += float(sure[taken].sum())
        seen.accepted += int(taken.sum()) if accept is None else int(accept[taken].sum())
        return [
            {
                "prediction": int(found["prediction"][row]),
                "label": self._label(int(found["prediction"][row])),
                "confidence": float(sure[row]),
                "accept": None if accept is None else bool(accept[row]),
                "passes": int(found["passes"][row]) if "passes" in found else 1,
            }
            for row in range(count)
        ]

    def _look_at(self, logits: np.ndarray) -> None:
        """Compare the model's own logits, of which the profile was made, with those of the fit."""
        watch = self.seen.watch
        watch.update(logits)
        self.seen.evidence = max(self.seen.evidence, watch.highest)
        if watch.alarm or watch.n_seen >= WATCHED:
            self.seen.alarms += watch.alarm
            self._watch_anew()
        if not self.follow:
            return
        self.window.extend(logits)
        self.due -= len(logits)
        if self.due <= 0 or self.seen.condition is None:
            self.seen.condition, self.due = self.profile.condition(np.stack(self.window)), ANEW

    def _label(self, prediction: int) -> Any:
        """Return the name of a class; its index if the file holds no names."""
        return prediction if self.classes is None or prediction < 0 else self.classes[prediction]

    def _followed(
        self, probs: np.ndarray, predictions: np.ndarray, sure: np.ndarray, accept: Any
    ) -> tuple[np.ndarray, Any]:
        """Let confidences follow the window's condition; inputs unlike all of the fit's are never
        accepted.
        """
        from recal.decisions.follow import followed_confidences, to_the_power

        condition, rows = self.seen.condition, np.isfinite(sure)
        given, followed = probs[rows].astype(np.float64), sure.astype(np.float64)
        given /= given.sum(axis=1, keepdims=True)
        followed[rows] = followed_confidences(
            followed[rows], given, to_the_power(given, condition.ratio)
        )
        if self.thresholds is None:
            return followed, accept
        limits = self.thresholds[predictions] if len(self.thresholds) > 1 else self.thresholds[0]
        return followed, (followed >= limits) & (not condition.unlike)

    def _watch_anew(self) -> None:
        if self.profile is not None:
            from recal.decisions import StreamWatch

            self.seen.watch = StreamWatch(self.profile, use_views=False)


def metadata_of(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Return what `recal export` wrote into the file besides the graph: classes, thresholds,
    preprocessing.
    """
    stored = session.get_modelmeta().custom_metadata_map
    return {
        name.removeprefix("recal_"): json.loads(text)
        for name, text in stored.items()
        if name.startswith("recal_")
    }


def preparation(metadata: dict[str, Any]) -> str | None:
    """Return how inputs must be prepared before they are sent: resizing and cropping are not part
    of the file.
    """
    stored = metadata.get("preprocessing", {})
    steps = {
        name: stored[name]
        for name in ("read", "pixels", "resize", "crop", "seconds")
        if name in stored
    }
    if not steps:
        return None
    listed = ", ".join(f"{name} {value}" for name, value in steps.items())
    return (
        f"Files were read with {listed} at the fit (resized bilinearly with antialiasing). "
        "This is not part of the ONNX file: do the same before sending."
    )


def make_app(service: Service) -> FastAPI:
    """Return the HTTP application around a service."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(service.work())
        yield
        while not service.queue.empty():  # what was taken is answered before the service ends
            await asyncio.sleep(0.01)
        worker.cancel()

    app = FastAPI(title="recal", lifespan=running)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        waiting, needed = service.queue.qsize(), preparation(service.metadata)
        return {
            "status": "ok",
            "file": service.file.name,
            "waiting": waiting,
            "preparation": needed,
        }

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.seen.lines(), media_type="text/plain")

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > service.largest:
                raise HTTPException(413, f"an input has at most {service.largest} bytes")
        return await service.answer(
            service.read(bytes(body), request.headers.get("content-type", ""))
        )

    return app


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="what `recal export --model` wrote")
    parser.add_argument(
        "--profile",
        type=Path,
        help="of the fit; by default what `recal export` wrote beside the file",
    )
    parser.add_argument("--follow", action="store_true", help="let confidences follow damage")
    parser.add_argument(
        "--threshold", type=float, help="with --follow: another threshold than the file's"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument(
        "--queue", type=int, default=256, help="how many requests may wait before others get 503"
    )
    given = parser.parse_args()
    profile, path = None, given.profile or given.file.with_suffix(".profile.recal")
    if given.profile is not None or path.exists():
        import recal

        profile = recal.load(path)
    import uvicorn

    thresholds = None if given.threshold is None else np.array([given.threshold])
    service = Service(given.file, given.max_batch, given.queue, profile, given.follow, thresholds)
    if (needed := preparation(service.metadata)) is not None:
        print(needed)
    # A client that sends its request slowly must not keep the service from ending.
    ending = {"timeout_graceful_shutdown": GRACE_SECONDS}
    uvicorn.run(make_app(service), host=given.host, port=given.port, log_level="warning", **ending)


if __name__ == "__main__":
    main()
