"""The HTTP application of `recal serve`: reads requests, refuses what is too large, answers.

`make` builds it from settings in the environment, as each worker process does.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from recal.errors import RecalError
from recal.serving.scorer import Scorer, read_inputs
from recal.serving.service import Service

VARIABLE = "RECAL_SERVE"
_LOG = logging.getLogger("recal.serving")


def make() -> FastAPI:
    """Return the application that the environment describes."""
    settings = json.loads(os.environ[VARIABLE])
    return make_app(
        make_service(settings),
        max_bytes=settings["max_bytes"],
        max_rows=settings["max_rows"],
        token=os.environ.get("RECAL_TOKEN"),
    )


def make_service(settings: dict[str, Any]) -> Service:
    """Return the service; errors in the settings are raised here."""
    from recal import load

    calibration = load(settings["file"])
    predict = None if settings["model"] is None else _predictor(calibration, settings)
    return Service(Path(settings["folder"]), Scorer(calibration, predict), settings["check_rate"])


def _predictor(calibration: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    """Return a function from inputs and groups to predictions of the model and its calibration."""
    from recal.collecting import apply
    from recal.collecting.models import as_model, import_model
    from recal.collecting.sources import as_source

    trusted = () if settings["trust"] is None else settings["trust"].split(",")
    opened = as_model(import_model(settings["model"], trusted=trusted))

    def predict(inputs: list[Any], groups: Any) -> Any:
        source = as_source(read_inputs(inputs, getattr(calibration, "preprocessing_", None)))
        source.groups = groups
        how = {"outputs": settings["outputs"], "progress": False}
        return apply(calibration, opened, source, **how)

    return predict


class _Guard:
    """Asks for the token, and never tells a client more than one sentence about an error."""

    def __init__(self, app: Any, service: Service, token: str | None) -> None:
        self.app, self.service, self.token = app, service, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if self.token and request.url.path != "/healthz" and not _is_allowed(request, self.token):
            self.service.counts["refused"] += 1
            problem = "send the header Authorization: Bearer TOKEN"
            asked = {"WWW-Authenticate": 'Basic realm="recal"'}  # a browser asks for it
            await JSONResponse({"error": problem}, 401, asked)(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.url.path)
            self.service.counts["failed"] += 1
            problem = "internal error; see the log of the service"
            await JSONResponse({"error": problem}, 500)(scope, receive, send)


def _is_allowed(request: Request, token: str) -> bool:
    """Whether a request has the token: as Bearer, or as the password that a browser asks for."""
    how, _, given = request.headers.get("authorization", "").partition(" ")
    if how.lower() == "basic":
        try:
            given = base64.b64decode(given).decode().partition(":")[2]
        except ValueError:
            return False
    return hmac.compare_digest(given.encode(), token.encode())


class _Refusal(Exception):
    """A request that is answered by a status and one sentence."""

    def __init__(self, status: int, problem: str) -> None:
        self.status, self.problem = status, problem


def make_app(
    service: Service,
    *,
    max_bytes: int = 4_000_000,
    max_rows: int = 1000,
    token: str | None = None,
    seconds_between_counts: float = 5.0,
) -> FastAPI:
    """Return the application: POST /answers and /grades, GET /metrics, /healthz, /status and /.

    A request has at most `max_bytes` and `max_rows`, and must bring the token if there is one.
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async def save() -> None:
            while True:
                await asyncio.sleep(seconds_between_counts)
                await asyncio.to_thread(service.save_counts)

        task = asyncio.create_task(save())
        yield
        task.cancel()
        service.save_counts()

    app = FastAPI(title="recal", lifespan=running, docs_url=None, redoc_url=None)

    @app.exception_handler(_Refusal)
    async def refuse(_: Request, refusal: Any) -> Any:
        service.counts["refused"] += 1
        return JSONResponse({"error": refusal.problem}, status_code=refusal.status)

    app.add_middleware(_Guard, service=service, token=token)

    async def read(request: Any) -> Any:
        """Return the JSON of a request."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise _Refusal(413, f"a request has at most {max_bytes:,} bytes")
        try:
            return json.loads(bytes(body))
        except (ValueError, RecursionError):
            raise _Refusal(400, "the body must be JSON") from None

    @app.post("/answers")
    async def answers(request: Request) -> Any:
        content = await read(request)
        single = isinstance(content, dict) and "rows" not in content
        rows = [content] if single else content
        if isinstance(rows, dict):
            rows = rows["rows"]
        if not isinstance(rows, list) or not 0 < len(rows) <= max_rows:
            raise _Refusal(422, f"send one row, or a list of at most {max_rows} rows")
        try:
            found = service.answer(rows)
        except RecalError as error:
            raise _Refusal(422, str(error)) from None
        except (ValueError, TypeError, OverflowError) as error:
            raise _Refusal(422, f"the rows cannot be read: {error}") from None
        return JSONResponse(found[0] if single else found)

    @app.post("/grades")
    async def grades(request: Request) -> Any:
        content = await read(request)
        try:
            rows = [content] if isinstance(content, dict) else content
            given = {row["id"]: row["right"] for row in rows}
        except (TypeError, KeyError):
            given = {}
        kinds = {(type(name), type(right)) for name, right in given.items()}
        if kinds != {(str, bool)}:
            raise _Refusal(422, 'send {"id": "...", "right": true}, or a list of such objects')
        try:
            return JSONResponse(service.grade(given))
        except RecalError as error:
            raise _Refusal(422, str(error)) from None

    @app.get("/healthz")
    async def healthz() -> Any:
        return {"status": "ok", "fields": list(service.scorer.fields), "rule": service.key}

    @app.get("/metrics")
    async def metrics() -> Any:
        return PlainTextResponse(service.metrics())

    @app.get("/status")
    async def status() -> Any:
        return {**service.state(), "counts": service.totals(), **service.history()}

    @app.get("/")
    async def page() -> Any:
        return HTMLResponse(_page(service))

    return app


def _page(service: Service) -> str:
    """Return the status page, with its curves drawn as SVG."""
    import jinja2

    text = files("recal.serving").joinpath("templates/status.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True).from_string(text)
    history, audit = service.history(), service.audit
    state = service.state()
    risk = state.get("risk", 0.0)
    top = max([one["error"] for one in history["audited"]] + [2 * risk, 0.01])
    return template.render(
        state=state,
        sentence=str(audit.audit) if audit is not None else "This calibration has no rule.",
        counts=service.totals(),
        drift=service.watch,
        shares=_points([one["share"] for one in history["served"]], 1.0),
        errors=_points([one["error"] for one in history["audited"]], top),
        risk_height=100 - 100 * risk / top,
        top=top,
        hours=[one["time"] for one in history["served"]],
    )


def _points(values: list[float], top: float) -> str:
    """Return a polyline in a box of 300 x 100."""
    width = max(len(values) - 1, 1)
    return " ".join(
        f"{300 * place / width:.1f},{100 - 100 * value / top:.1f}"
        for place, value in enumerate(values)
    )
