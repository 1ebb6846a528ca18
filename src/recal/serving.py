"""The HTTP service of `recal serve`: scores rows, draws answers to check, takes their grades.

`make` builds the application from settings in the environment, as each worker process does.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.checks import Vector
from recal.decisions.cascade import CascadeRule
from recal.errors import InputError, RecalError
from recal.files.paths import Journal
from recal.files.saved import load
from recal.views import Views
from recal.workflow.auditing import AUDIT_FILE, FolderAudit, audited_rule, timestamp
from recal.workflow.scoring import Scored, panel_of, score_signals, score_systems, score_views

VARIABLE = "RECAL_SERVE"
_LOG = logging.getLogger("recal.serving")
JsonRow = dict[str, Any]
# What a field of a row must be: an object, a list of numbers, or text.
_KINDS = {"signals": dict, "answers": dict, "logits": list, "views": dict, "group": str, "id": str}


class Scorer:
    """Reads rows of JSON in the form that a calibration needs, and scores them.

    Attributes
    ----------
    fields : the fields of a row besides `id`; the first one is needed
    needs_group : bool
        Whether each row must have the field `group`.
    """

    def __init__(self, calibration: Any) -> None:
        self.calibration = calibration
        rule = getattr(calibration, "decision_", None)
        grouped = hasattr(calibration, "group_offsets_") or bool(rule and rule.groups)
        self.fields: tuple[str, ...] = ("logits", "views")
        self._score: Callable[[Sequence[JsonRow], Any], Scored] = self._score_logits
        if isinstance(calibration, PanelCalibration | CascadeRule):
            if isinstance(calibration, CascadeRule):
                grouped = bool(calibration.groups)
            self.fields, self._score = ("answers", "signals"), self._score_panel
        elif isinstance(calibration, SignalCalibration):
            grouped = calibration.table_.grouped
            self.fields, self._score = ("signals",), self._score_signals
        self.needs_group = grouped
        self.fields += ("group",) if grouped else ()

    def __call__(self, rows: Sequence[Any]) -> Scored:
        """Score rows; an error names the first row that is wrong."""
        needed = {self.fields[0], *(["group"] if self.needs_group else ())}
        for number, row in enumerate(rows):
            is_good = isinstance(row, dict) and needed <= set(row) <= {*self.fields, "id"}
            if not is_good or not all(isinstance(row[name], _KINDS[name]) for name in row):
                fields = ", ".join(f"{name} ({_KINDS[name].__name__})" for name in self.fields)
                raise InputError(
                    f"Row {number} must be an object with the fields {fields}, of which it needs "
                    f"{' and '.join(sorted(needed))}, and perhaps id (str); got "
                    f"{', '.join(row) if isinstance(row, dict) else row!r}."
                )
        groups = np.array([row["group"] for row in rows]) if self.needs_group else None
        return self._score(rows, groups)

    def _score_signals(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        table = self.calibration.table_
        names = table.names[: len(table.names) - table.grouped]
        signals = _columns([row["signals"] for row in rows], names)
        return score_signals(self.calibration, signals, groups)

    def _score_panel(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        table = panel_of(self.calibration).table_
        given = dict.fromkeys(name for row in rows for name in row["answers"])
        answers = {name: [row["answers"].get(name) for row in rows] for name in given}
        owners = [] if table.table is None else list(zip(table.owner, table.table.names))
        signals: dict[str, dict[str, Any]] = {}
        for system in dict.fromkeys(name for row in rows for name in row.get("signals", ())):
            names = [
                name.removeprefix(f"{system}: ")
                for owner, name in owners
                if table.systems[owner] == system
            ]
            signals[system] = _columns([row.get("signals", {}).get(system) for row in rows], names)
        return score_systems(self.calibration, answers, signals or None, groups)

    def _score_logits(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        specs = sorted(set.intersection(*(set(row.get("views", ())) for row in rows)))
        views = Views(
            _matrix([row["logits"] for row in rows]),
            {spec: _matrix([row["views"][spec] for row in rows]) for spec in specs},
        )
        return score_views(self.calibration, views, groups)


def _columns(given: Sequence[Any], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return signals by name, one value per row; null is missing, as is a whole row."""
    rows = [dict.fromkeys(names) if row is None else row for row in given]
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(names):
            raise InputError(
                f"Row {number}: the signals must be {', '.join(names)}; give null if one is missing."
            )
        for name, value in row.items():
            if not isinstance(value, str | int | float | None):
                raise InputError(f"Row {number}: {name!r} must be a number, a text or null.")
    return {name: np.array([row[name] for row in rows], dtype=object) for name in names}


def _matrix(rows: list[Any]) -> Vector:
    try:
        matrix = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.ndim != 2:
        raise InputError("Logits must be lists of numbers of equal length.")
    return matrix


class Service:
    """Scores rows, draws some accepted answers for a check, and audits the rule by their grades.

    Several processes may serve one folder: draws, grades and counts are in its journal.

    Parameters
    ----------
    folder : the folder of `recal calibrate`
    calibration : what scores the rows
    check_rate : float
        The share of accepted answers that a person is asked to check.
    """

    def __init__(self, folder: Path, calibration: Any, check_rate: float = 0.05) -> None:
        if not 0.0 <= check_rate <= 1.0:
            raise InputError(f"must lie in [0, 1], got {check_rate!r}", argument="check_rate")
        self.scorer, self.check_rate = Scorer(calibration), check_rate
        self.counts: Counter[str] = Counter()  # of this process, since they were last saved
        self._saved: Counter[str] = Counter()  # of all processes
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        self._journal = Journal(folder / AUDIT_FILE)
        rule = audited_rule(calibration)
        self.audit = None if rule is None else FolderAudit(folder, rule, below=0.0)
        self.key = "" if self.audit is None else self.audit.key

    def answer(self, rows: Sequence[Any]) -> list[JsonRow]:
        """Score rows, and say which answers a person should check."""
        begin = time.perf_counter()
        scored = self.scorer(rows)
        with self._lock:
            checks = self._draw(scored, rows)
            self.counts.update({"answers": len(rows), "requests": 1})
            self.counts["accepted"] += int(scored.accepted.sum())
            self.counts["microseconds"] += round(1e6 * (time.perf_counter() - begin))
        own = None if scored.answers is None else scored.answers.tolist()
        answers = []
        for place, row in enumerate(rows):
            name = checks.get(place) or row.get("id") or secrets.token_hex(8)
            one: JsonRow = {"id": name, "confidence": float(scored.confidence[place])}
            if own is not None:
                one["answer"] = own[place]
            if self.audit is not None:
                one["accepted"], one["check"] = bool(scored.accepted[place]), place in checks
                one["rule"] = self.key
            if scored.next is not None:
                one["next"] = str(scored.next[place])
            answers.append(one)
        return answers

    def _draw(self, scored: Scored, rows: Sequence[JsonRow]) -> dict[int, str]:
        """Draw accepted answers independently; return the id of each drawn row."""
        if self.audit is None:
            return {}
        lots = self._rng.random(len(rows)) < self.check_rate
        drawn = np.flatnonzero(scored.accepted & lots).tolist()
        if not drawn:
            return {}
        groups = [rows[place].get("group", "") for place in drawn]
        names = [rows[place].get("id") for place in drawn]
        ids = self.audit.offer(scored.confidence[drawn].tolist(), groups, names)
        return dict(zip(drawn, ids))

    def grade(self, grades: Mapping[str, bool]) -> dict[str, Any]:
        """Add grades by id; those of answers that were not drawn are counted as unused."""
        if self.audit is None:
            raise InputError("This calibration has no rule, so there is nothing to audit.")
        with self._lock:
            self.audit.refresh()  # another process may have drawn these answers
            used = {name: right for name, right in grades.items() if self.audit.knows(name)}
            added = self.audit.add(used)
            self.counts["grades"] += added
        return {"added": added, "unused": len(grades) - len(used), **self.state()}

    def state(self) -> dict[str, Any]:
        """Return what the audit says now."""
        if self.audit is None:
            return {}
        self.audit.refresh()
        return {"rule": self.key, **self.audit.facts()}

    def totals(self) -> Counter[str]:
        """Save new counts in the journal; return those of all processes that served this rule."""
        with self._lock:
            new, self.counts = self.counts, Counter()
            if new:
                served = {"kind": "served", "rule": self.key, "time": timestamp(), **new}
                self._journal.append(served, sync=False)
            for record in self._journal.read():
                if record.get("kind") == "served" and record.get("rule") == self.key:
                    self._saved.update({key: n for key, n in record.items() if isinstance(n, int)})
            return self._saved.copy()

    def metrics(self) -> str:
        """Return counts and the state of the audit in the text format of Prometheus."""
        counts, state = self.totals(), self.state()
        found = {
            f"{name}_total": ("counter", float(counts[name]))
            for name in ("requests", "answers", "accepted", "grades", "refused", "failed")
        }
        found["seconds_total"] = ("counter", counts["microseconds"] / 1e6)
        if state:
            found |= {
                "audited_error": ("gauge", math.nan if state["error"] is None else state["error"]),
                "audited_error_low": ("gauge", state["interval"][0]),
                "audited_error_high": ("gauge", state["interval"][1]),
                "promised_risk": ("gauge", state["risk"]),
                "promise_refuted": ("gauge", state["alarm"]),
            }
        lines = (
            f"# TYPE recal_{name} {kind}\nrecal_{name} {value:.10g}\n"
            for name, (kind, value) in found.items()
        )
        return "".join(lines)


class _Refusal(Exception):
    """A request that is answered by a status and one sentence."""

    def __init__(self, status: int, problem: str) -> None:
        self.status, self.problem = status, problem


def make() -> FastAPI:
    """Return the application that the environment describes."""
    settings = json.loads(os.environ[VARIABLE])
    limits = {name: settings[name] for name in ("max_bytes", "max_rows")}
    return make_app(make_service(settings), **limits, token=os.environ.get("RECAL_TOKEN"))


def make_service(settings: dict[str, Any]) -> Service:
    """Return the service; errors in the settings are raised here."""
    file = Path(settings["file"])
    return Service(file.parent, load(file), settings["check_rate"])


def make_app(
    service: Service,
    *,
    max_bytes: int = 4_000_000,
    max_rows: int = 1000,
    token: str | None = None,
    seconds_between_counts: float = 5.0,
) -> FastAPI:
    """Return the application: POST /answers and /grades, GET /metrics, /healthz and /status.

    A request has at most `max_bytes` and `max_rows`, and must bring the token if there is one.
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async def save() -> None:
            while True:
                await asyncio.sleep(seconds_between_counts)
                await asyncio.to_thread(service.totals)

        task = asyncio.create_task(save())
        yield
        task.cancel()
        service.totals()

    async def check_token(request: Request) -> None:
        given = request.headers.get("authorization", "")
        is_open = token is None or request.url.path == "/healthz"
        if not is_open and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise _Refusal(401, "send the header Authorization: Bearer TOKEN")

    app = FastAPI(
        title="recal",
        lifespan=running,
        dependencies=[Depends(check_token)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.exception_handler(_Refusal)
    async def refuse(_: Request, refusal: Any) -> Any:
        service.counts["refused"] += 1
        return JSONResponse({"error": refusal.problem}, status_code=refusal.status)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Any:
        """Never tell a client more than one sentence about an error."""
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
        service.counts["failed"] += 1
        return JSONResponse({"error": "internal error; see the log of the service"}, 500)

    async def read(request: Request) -> Any:
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
        rows = [content] if isinstance(content, dict) else content
        if not isinstance(rows, list) or not 0 < len(rows) <= max_rows:
            raise _Refusal(422, f"send one row, or a list of at most {max_rows} rows")
        try:
            found = service.answer(rows)
        except RecalError as error:
            raise _Refusal(422, str(error)) from None
        except (ValueError, TypeError, OverflowError) as error:
            raise _Refusal(422, f"the rows cannot be read: {error}") from None
        return JSONResponse(found[0] if isinstance(content, dict) else found)

    @app.post("/grades")
    async def grades(request: Request) -> Any:
        content = await read(request)
        try:
            rows = [content] if isinstance(content, dict) else content
            given = {row["id"]: row["right"] for row in rows}
        except (TypeError, KeyError):
            given = {}
        if {(type(name), type(right)) for name, right in given.items()} != {(str, bool)}:
            raise _Refusal(422, 'send {"id": "...", "right": true}, or a list of such objects')
        try:
            return JSONResponse(service.grade(given))
        except RecalError as error:
            raise _Refusal(422, str(error)) from None

    @app.get("/healthz")
    async def healthz() -> Any:
        return {"status": "ok", "fields": service.scorer.fields, "rule": service.key}

    @app.get("/metrics")
    async def metrics() -> Any:
        return PlainTextResponse(service.metrics())

    @app.get("/status")
    async def status() -> Any:
        return {**service.state(), "counts": service.totals()}

    return app
