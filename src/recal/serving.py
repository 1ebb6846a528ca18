"""The HTTP service of `recal serve`: scores rows, draws answers to check, takes their grades."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import math
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.checks import Vector
from recal.collecting.local import apply, job_of
from recal.collecting.sources import as_source
from recal.decisions import Profile, WatchResult, watch
from recal.decisions.cascade import CascadeRule
from recal.decisions.rule import percentage
from recal.errors import InputError, RecalError
from recal.files.paths import Journal
from recal.reporting.chart import render
from recal.reporting.charts import course_chart
from recal.views import Views
from recal.workflow.auditing import AUDIT_FILE, FolderAudit, audited_rule, timestamp
from recal.workflow.scoring import (
    Scored,
    panel_of,
    score_probs,
    score_signals,
    score_systems,
    score_views,
)

# The latest rows that are compared with those of the fit. More would notice a change later.
WINDOW = 1000
_LOG = logging.getLogger("recal.serving")
JsonRow = dict[str, Any]
# What a field of a row must be.
_KINDS = {
    "signals": dict,
    "answers": dict,
    "logits": list,
    "views": dict,
    "input": str | dict | list,
    "group": str,
    "id": str,
}


class Scorer:
    """Reads rows of JSON in the form that a calibration needs, and scores them.

    Parameters
    ----------
    calibration : a fitted calibrator, a panel or a cascade
    model : adapter, optional
        The model of the fit. Rows then hold its inputs, prepared as those of the fit.

    Attributes
    ----------
    fields : the fields of a row besides `id`; the first one is needed
    needs_group : bool
        Whether each row must have the field `group`.
    """

    def __init__(self, calibration: Any, model: Any = None) -> None:
        self.calibration, self._model = calibration, model
        self.profile: Profile | None = None
        profile = getattr(calibration, "profile_", None)
        # With clusters, the test would need those of the rows.
        if isinstance(profile, Profile) and profile.clusters is None:
            self.profile = replace(profile, following=None)  # accuracy would take longer
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
        elif model is not None:
            job_of(calibration, model, None, None, None, ())  # refuses what cannot be prepared
            self.fields, self._score = ("input",), self._score_inputs
        self.needs_group = grouped
        self.fields += ("group",) if grouped else ()

    def __call__(self, rows: Sequence[Any]) -> Scored:
        """Score rows; an error names the first row that is wrong."""
        needed = {self.fields[0], *(["group"] if self.needs_group else ())}
        for number, row in enumerate(rows):
            is_good = isinstance(row, dict) and needed <= set(row) <= {*self.fields, "id"}
            if not is_good or not all(isinstance(row[name], _KINDS[name]) for name in row):
                kinds = {name: getattr(_KINDS[name], "__name__", _KINDS[name]) for name in _KINDS}
                fields = ", ".join(f"{name} ({kinds[name]})" for name in self.fields)
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
        found = score_signals(self.calibration, signals, groups)
        values = table.values(signals, groups)
        compared = () if self.profile is None else self.profile.signal_names
        places = [names.index(name) for name in compared]
        watched = np.column_stack([found.confidence, values[:, places]])
        odd = table.unlike(values, signals, groups)
        unlike = [[name for name, one in zip((*names, "group"), row) if one] for row in odd]
        return replace(found, unlike=unlike, watched=watched)

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
        return replace(score_views(self.calibration, views, groups), watched=views.logits)

    def _score_inputs(self, rows: Sequence[JsonRow], groups: Any) -> Scored:
        stored = getattr(self.calibration, "preprocessing_", None)
        source = as_source(_inputs([row["input"] for row in rows], stored))
        source.groups = groups
        found = apply(self.calibration, self._model, source, progress=False)
        scored = score_probs(self.calibration, found.probs, found.confidences, groups)
        return replace(scored, watched=found.logits)


def _inputs(given: list[Any], stored: Any) -> Any:
    """Return inputs in the form of those of the fit: a table, texts or an array.

    Pixels from 0 to 255 and from 0 to 1 are not the same to a model, so numbers of another kind or
    range are refused.
    """
    if getattr(stored, "columns", None) is not None:
        from pandas import DataFrame

        table = DataFrame(_columns(given, stored.columns, "columns")).infer_objects()
        return table.astype(dict.fromkeys(table.columns[table.isna().all()], float))
    dtype, shape = getattr(stored, "dtype", None), getattr(stored, "shape", None)
    if dtype is None and all(isinstance(one, str) for one in given):
        return given
    try:
        array = np.array(given)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    kind = np.dtype(dtype or np.float32)
    is_right = array.dtype.kind in ("iu" if kind.kind in "iu" else "iufb")
    if not is_right or (shape is not None and array.shape[1:] != tuple(shape)):
        numbers = "whole numbers" if kind.kind in "iu" else "numbers"
        wanted = "all of one shape" if shape is None else f"of the shape {tuple(shape)}"
        raise InputError(f"Each input must be {numbers} {wanted}, as at the fit ({kind}).")
    if kind.kind in "iu" and not (array.astype(kind) == array).all():
        limits = np.iinfo(kind)
        raise InputError(f"Inputs must be from {limits.min} to {limits.max}, as at the fit.")
    return array.astype(kind)


def _columns(
    given: Sequence[Any], names: Sequence[str], what: str = "signals"
) -> dict[str, NDArray[Any]]:
    """Return columns by name, one value per row; null is missing, as is a whole row."""
    rows = [dict.fromkeys(names) if row is None else row for row in given]
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(names):
            raise InputError(
                f"Row {number}: the {what} must be {', '.join(names)}; give null if one is missing."
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
    scorer : how rows are scored
    check_rate : float
        The share of accepted answers that a person is asked to check.
    """

    def __init__(self, folder: Path, scorer: Scorer, check_rate: float = 0.05) -> None:
        if not 0.0 <= check_rate <= 1.0:
            raise InputError(f"must lie in [0, 1], got {check_rate!r}", argument="check_rate")
        self.scorer, self.check_rate = scorer, check_rate
        self.recent: deque[Vector] = deque(maxlen=WINDOW)  # rows of this process
        self._counts: Counter[str] = Counter()  # of this process, since they were last saved
        self._hours: dict[str, Counter[str]] = {}  # of all processes, as far as they are saved
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        self._journal = Journal(folder / AUDIT_FILE)
        rule = audited_rule(scorer.calibration)
        self.audit = None if rule is None else FolderAudit(folder, rule, below=0.0)
        self.key = "" if self.audit is None else self.audit.key

    def answer(self, rows: Sequence[Any]) -> list[JsonRow]:
        """Score rows, and say which answers a person should check."""
        begin = time.perf_counter()
        scored = self.scorer(rows)
        with self._lock:
            checks = self._draw(scored, rows)
            if scored.watched is not None:
                self.recent.extend(scored.watched)
            self._counts.update({"answers": len(rows), "requests": 1})
            self._counts["accepted"] += int(scored.accepted.sum())
            self._counts["microseconds"] += round(1e6 * (time.perf_counter() - begin))
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
            if scored.unlike and scored.unlike[place]:
                one["unlike_fit"] = scored.unlike[place]
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
            self._counts["grades"] += added
        return {"added": added, "unused": len(grades) - len(used), **self.state()}

    def count(self, what: str) -> None:
        """Count a request that was not answered."""
        with self._lock:
            self._counts[what] += 1

    def state(self) -> dict[str, Any]:
        """Return what the audit says now."""
        if self.audit is None:
            return {}
        with self._lock:
            self.audit.refresh()
            return {"rule": self.key, **self.audit.facts()}

    def totals(self) -> Counter[str]:
        """Save new counts in the journal; return those of all processes that served this rule."""
        with self._lock:
            new, self._counts = self._counts, Counter()
            if new:
                served = {"kind": "served", "rule": self.key, "time": timestamp(), **new}
                self._journal.append(served, sync=False)
            for record in self._journal.read():
                if record.get("kind") == "served" and record.get("rule") == self.key:
                    hour = self._hours.setdefault(str(record.get("time", ""))[:13], Counter())
                    hour.update({key: n for key, n in record.items() if isinstance(n, int)})
            return sum(self._hours.values(), Counter())

    def drift(self) -> WatchResult | None:
        """Compare the latest rows of this process with those of the fit, from 50 rows on."""
        profile = self.scorer.profile
        if profile is None or len(self.recent) < 50:
            return None
        with self._lock:
            rows = np.array(self.recent)
        signals = dict(zip(profile.signal_names, rows[:, 1:].T))
        batch = rows[:, 0] if profile.graded else rows
        return watch(profile, batch, signals=signals, permutations=199)

    def metrics(self) -> str:
        """Return counts, the state of the audit and drift in the text format of Prometheus."""
        counts, state, drift = self.totals(), self.state(), self.drift()
        found = {
            f"{name}_total": ("counter", float(counts[name]))
            for name in ("answers", "accepted", "grades", "refused", "failed")
        }
        if state:
            found |= {
                "accepted_share": ("gauge", counts["accepted"] / max(counts["answers"], 1)),
                "audited_error": ("gauge", math.nan if state["error"] is None else state["error"]),
                "audited_error_low": ("gauge", state["interval"][0]),
                "audited_error_high": ("gauge", state["interval"][1]),
                "promised_risk": ("gauge", state["risk"]),
                "promise_refuted": ("gauge", state["alarm"]),
            }
        if drift is not None:
            found["drift_rows"] = ("gauge", drift.n_samples)
            found["drift_p_value"] = ("gauge", drift.p_value)
        lines = [
            f"# TYPE recal_{name} {kind}\nrecal_{name} {value:.10g}\n"
            for name, (kind, value) in found.items()
        ]
        lines.append("# TYPE recal_latency_seconds summary\n")
        lines.append(f"recal_latency_seconds_sum {counts['microseconds'] / 1e6:.10g}\n")
        lines.append(f"recal_latency_seconds_count {counts['requests']}\n")
        return "".join(lines)

    def page(self) -> str:
        """Return the status page: the state of the audit in words, and its course so far."""
        counts, drift = self.totals(), self.drift()
        facts = {"Answers": f"{counts['answers']:,}"}
        if drift is not None:
            chance = f"A false alarm has a probability of {drift.alpha:.0%} at each look."
            facts["Inputs"] = f"{drift.test_message} {chance}"
        shown: dict[str, Any] = {"facts": facts, "comparison": None, "charts": [], "alarm": False}
        if self.audit is None:
            title = "This calibration has no rule, so no answer is accepted."
            return render("status.html", title=title, **shown)
        with self._lock:
            self.audit.refresh()
            audit = self.audit.audit
            title, shown["alarm"] = str(audit), audit.alarm
            hours = [(at, one) for at, one in sorted(self._hours.items()) if at and one["answers"]]
            graded = [(one.weight, wrong) for one, wrong in audit.graded if one.accepted]
        if audit.alarm:
            title += (
                " Stop automating. Write a stricter rule with recal audit FOLDER --update (for a "
                "cascade: recal calibrate), and start the service again."
            )
        share = counts["accepted"] / max(counts["answers"], 1)
        facts["Answers"] += f", of which {counts['accepted']:,} ({share:.1%}) were accepted"
        facts["Rule"] = self.key
        times = [f"{at[:10]} {at[11:]}:00" for at, _ in hours]
        shares = np.array([one["accepted"] / one["answers"] for _, one in hours])
        weights, wrong = np.array(graded, np.float64).reshape(-1, 2).T
        errors = np.cumsum(weights * wrong) / np.cumsum(weights)
        some = np.linspace(0, len(errors) - 1, min(len(errors), 200)).astype(np.intp)
        by_hour = f"by hour (UTC), {times[0]} to {times[-1]}" if times else "no answers yet"
        by_grade = f"grades 1 to {len(errors):,}" if graded else "no grades yet"
        by_grade += f" (dotted: at most {percentage(audit.rule.risk)})"
        shown["charts"] = [
            course_chart("share of answers accepted", by_hour, shares),
            course_chart("errors among checked answers", by_grade, errors[some], audit.rule.risk),
        ]
        return render("status.html", title=title, **shown)


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
    """Return the application: POST /answers and /grades, GET /, /status, /metrics and /healthz.

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

    async def check_client(request: Request) -> None:
        origin = request.headers.get("origin")  # a browser names the site whose page asks
        if origin and origin.partition("://")[2] != request.headers.get("host"):
            raise _Refusal(403, "this service answers no other site's pages")
        if token is None or request.url.path == "/healthz":
            return
        how, _, given = request.headers.get("authorization", "").partition(" ")
        if how.lower() == "basic":  # a browser sends the token as a password
            try:
                given = base64.b64decode(given).decode().partition(":")[2]
            except ValueError:
                given = ""
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise _Refusal(401, "send the header Authorization: Bearer TOKEN")

    app = FastAPI(
        title="recal",
        lifespan=running,
        dependencies=[Depends(check_client)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.exception_handler(_Refusal)
    async def refuse(_: Request, refusal: Any) -> Any:
        service.count("refused")
        asks = {"WWW-Authenticate": 'Basic realm="recal"'} if refusal.status == 401 else None
        return JSONResponse({"error": refusal.problem}, refusal.status, asks)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Any:
        """Never tell a client more than one sentence about an error."""
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
        service.count("failed")
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
            return JSONResponse(found[0] if isinstance(content, dict) else found)
        except RecalError as error:
            raise _Refusal(422, str(error)) from None
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]  # models explain at length
            raise _Refusal(422, f"the rows cannot be read: {reason}") from None

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

    # These are run in threads, because a comparison with the fit takes a while.

    @app.get("/metrics")
    def metrics() -> Any:
        return PlainTextResponse(service.metrics())

    @app.get("/status")
    def status() -> Any:
        return {**service.state(), "counts": service.totals()}

    @app.get("/")
    def page() -> Any:
        return HTMLResponse(service.page())

    return app
