"""The HTTP application of `recal serve`: reads requests, refuses what is too large, answers."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from recal.errors import RecalError
from recal.serving.service import Service


@dataclass(frozen=True)
class Limits:
    """What a request may hold, and the token that it must bring."""

    max_bytes: int = 4_000_000
    max_rows: int = 1000
    token: str | None = None
    seconds_between_counts: float = 5.0


def make_app(service: Service, limits: Limits | None = None) -> FastAPI:
    """Return the application: POST /answers and /grades, GET /metrics, /healthz, /status and /."""
    bounds = limits or Limits()

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async def save() -> None:
            while True:
                await asyncio.sleep(bounds.seconds_between_counts)
                await asyncio.to_thread(service.save_counts)

        task = asyncio.create_task(save())
        yield
        task.cancel()
        service.save_counts()

    app = FastAPI(title="recal", lifespan=running, docs_url=None, redoc_url=None)

    @app.middleware("http")
    async def guarded(request: Request, forward: Any) -> Any:
        """Ask for the token, and never tell a client more than one sentence about an error."""
        if bounds.token and request.url.path != "/healthz":
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), bounds.token.encode()):
                return _refused(401, "send the header Authorization: Bearer TOKEN")
        try:
            return await forward(request)
        except Exception:
            service.counts["failed"] += 1
            return _refused(500, "internal error; see the log of the service")

    def _refused(status: int, problem: str) -> Any:
        service.counts["refused"] += 1
        return JSONResponse({"error": problem}, status_code=status)

    async def read(request: Any) -> Any:
        """Return the JSON of a request, or a refusal."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > bounds.max_bytes:
                return _refused(413, f"a request has at most {bounds.max_bytes:,} bytes")
        try:
            return json.loads(bytes(body))
        except (ValueError, RecursionError):
            return _refused(400, "the body must be JSON")

    @app.post("/answers")
    async def answers(request: Request) -> Any:
        content = await read(request)
        if isinstance(content, JSONResponse):
            return content
        single = isinstance(content, dict) and "rows" not in content
        rows = [content] if single else content
        if isinstance(rows, dict):
            rows = rows["rows"]
        if not isinstance(rows, list) or not 0 < len(rows) <= bounds.max_rows:
            return _refused(422, f"send one row, or a list of at most {bounds.max_rows} rows")
        try:
            found = service.answer(rows)
        except (RecalError, ValueError, TypeError, KeyError, AttributeError) as error:
            return _refused(422, str(error) if isinstance(error, RecalError) else "malformed rows")
        return JSONResponse(found[0] if single else found)

    @app.post("/grades")
    async def grades(request: Request) -> Any:
        content = await read(request)
        if isinstance(content, JSONResponse):
            return content
        rows = [content] if isinstance(content, dict) else content
        good = isinstance(rows, list) and all(
            isinstance(row, dict)
            and isinstance(row.get("id"), str)
            and isinstance(row.get("right"), bool)
            for row in rows
        )
        if not good or not rows:
            return _refused(422, 'send {"id": "...", "right": true}, or a list of such objects')
        try:
            found = service.grade({row["id"]: row["right"] for row in rows})
        except RecalError as error:
            return _refused(422, str(error))
        return JSONResponse(found)

    @app.get("/healthz")
    async def healthz() -> Any:
        return {"status": "ok", "fields": list(service.scorer.fields)}

    @app.get("/metrics")
    async def metrics() -> Any:
        return PlainTextResponse(service.metrics())

    @app.get("/status")
    async def status() -> Any:
        return {**service.state(), "counts": dict(service.counts), **service.history()}

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
        counts=service.counts,
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
