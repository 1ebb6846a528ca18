"""The service behind `recal serve`: scores of rows of JSON, grades, counts and the audit."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.signals import SignalCalibration
from recal.decisions import StreamWatch
from recal.errors import InputError
from recal.views import Views
from recal.workflow.auditing import FolderAudit

Row = dict[str, Any]

# Upper ends of the buckets of the latency histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


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
        self.started = time.time()
        self.counts: Counter[str] = Counter()
        self.latency = np.zeros(len(BUCKETS) + 1, dtype=np.int64)
        self.seconds = 0.0
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        self._saved: Counter[str] = Counter()
        rule = scorer.rule
        self.audit = None if rule is None else FolderAudit(folder, rule, below=0.0)
        profile = getattr(scorer.calibration, "profile_", None)
        self.watch: StreamWatch | None = None
        if profile is not None and profile.clusters is None and not profile.graded:
            self.watch = StreamWatch(profile, use_views=False)

    def answer(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Score rows, and say which answers a person should check."""
        begin = time.perf_counter()
        scored = self.scorer(rows)
        with self._lock:
            checks = self._draw(scored.confidence, scored.accepted, rows)
            if self.watch is not None and scored.logits is not None:
                self.watch.update(scored.logits)
            self.counts["answers"] += len(rows)
            self.counts["accepted"] += int(scored.accepted.sum())
            spent = time.perf_counter() - begin
            self.latency[np.searchsorted(BUCKETS, spent)] += 1
            self.seconds += spent
        decided = "accepted" if self.scorer.rule is not None else None
        answers = []
        for place, row in enumerate(rows):
            one: dict[str, Any] = {"id": checks.get(place) or row.get("id") or secrets.token_hex(8)}
            if scored.answers[place] is not None:
                one["answer"] = scored.answers[place]
            one["confidence"] = float(scored.confidence[place])
            if decided:
                one["accepted"] = bool(scored.accepted[place])
                one["check"] = place in checks
            if self.audit is not None:
                one["rule"] = self.audit.key
            answers.append(one)
        return answers

    def _draw(self, confidence: Any, accepted: Any, rows: Sequence[Row]) -> dict[int, str]:
        """Draw accepted answers independently; return the id of each drawn row."""
        if self.audit is None:
            return {}
        drawn = np.flatnonzero(accepted & (self._rng.random(len(accepted)) < self.check_rate))
        if not len(drawn):
            return {}
        groups = [str(rows[row].get("group", "")) for row in drawn]
        return dict(zip(drawn.tolist(), self.audit.offer(confidence[drawn], groups)))

    def grade(self, grades: Mapping[str, bool]) -> dict[str, Any]:
        """Add grades by id; those of answers that were not drawn are counted as unused."""
        if self.audit is None:
            raise InputError("This calibration has no rule, so there is nothing to audit.")
        with self._lock:
            self.audit.refresh()  # another process may have drawn these answers
            known = {check.name for check in self.audit.audit.pending} | self.audit.graded_names
            used = {name: right for name, right in grades.items() if name in known}
            added = self.audit.add(used)
            self.counts["grades"] += added
        return {"added": added, "unused": len(grades) - len(used), **self.state()}

    def state(self) -> dict[str, Any]:
        """Return what the audit says now."""
        if self.audit is None:
            return {}
        audit = self.audit.audit
        low, high = audit.interval
        return {
            "rule": self.audit.key,
            "risk": audit.rule.risk,
            "graded": audit.n_graded,
            "error": audit.error if audit.n_graded else None,
            "interval": [low, high],
            "alarm": audit.alarm,
            "verdict": audit.verdict,
        }

    def save_counts(self) -> None:
        """Write new counts to the journal, from which the status page draws its curves."""
        with self._lock:
            new = self.counts - self._saved
            if self.audit is None or not new:
                return
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.audit.journal.append(
                {"kind": "served", "rule": self.audit.key, "time": now, **new}
            )
            self._saved = self.counts.copy()

    def metrics(self) -> str:
        """Return counts and rates in the text format of Prometheus."""
        answers = self.counts["answers"]
        values: dict[str, float] = {
            "recal_answers_total": answers,
            "recal_accepted_total": self.counts["accepted"],
            "recal_accepted_share": self.counts["accepted"] / max(answers, 1),
            "recal_grades_total": self.counts["grades"],
            "recal_refused_total": self.counts["refused"],
        }
        if self.audit is not None:
            audit = self.audit.audit
            values["recal_audited_error"] = audit.error
            values["recal_audited_error_low"], values["recal_audited_error_high"] = audit.interval
            values["recal_promised_risk"] = audit.rule.risk
            values["recal_promise_refuted"] = float(audit.alarm)
        if self.watch is not None:
            values["recal_drift_evidence"] = self.watch.capital
            values["recal_drift_alarm"] = float(self.watch.alarm)
        lines = [f"{name} {value:g}" for name, value in values.items()]
        through = np.cumsum(self.latency)
        ends = [*(f"{end:g}" for end in BUCKETS), "+Inf"]
        lines += [
            f'recal_latency_seconds_bucket{{le="{end}"}} {count}'
            for end, count in zip(ends, through.tolist())
        ]
        lines += [f"recal_latency_seconds_sum {self.seconds:g}"]
        lines += [f"recal_latency_seconds_count {through[-1]}"]
        return "\n".join(lines) + "\n"

    def history(self) -> dict[str, list[Any]]:
        """Return, from the journal, the share accepted by hour and the audited error by grade."""
        if self.audit is None:
            return {"served": [], "audited": []}
        hours: dict[str, Counter[str]] = {}
        for record in self.audit.journal.read():
            if record.get("kind") == "served" and record.get("rule") == self.audit.key:
                hour = hours.setdefault(str(record["time"])[:13], Counter())
                hour.update({name: record.get(name, 0) for name in ("answers", "accepted")})
        served = [
            {"time": f"{hour}:00Z", "share": one["accepted"] / one["answers"], **one}
            for hour, one in sorted(hours.items())
            if one["answers"]
        ]
        wrong = np.cumsum([check.accepted and wrong for check, wrong in self.audit.audit.graded])
        audited = [
            {"graded": count, "error": float(total) / count} for count, total in enumerate(wrong, 1)
        ]
        step = max(1, len(audited) // 200)
        return {"served": served, "audited": audited[::step]}


@dataclass(frozen=True)
class Scored:
    """The answer to each row.

    Attributes
    ----------
    answers : the predicted class or answer; None if the system's own answer is scored
    confidence, accepted : (n_rows,); nothing is accepted without a rule
    logits : what a watch compares with the fit, if there are logits
    """

    answers: list[Any]
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    logits: NDArray[Any] | None = None


class Scorer:
    """Reads rows of JSON in the form that a calibration needs, and scores them.

    Parameters
    ----------
    calibration : a fitted calibrator
    predict : function from inputs to `Predictions`, optional
        The model with its calibration, if rows hold inputs.
    """

    def __init__(self, calibration: Any, predict: Callable[[Any], Any] | None = None) -> None:
        self.calibration, self._predict = calibration, predict
        self.rule = getattr(calibration, "decision_", None)
        self.fields: tuple[str, ...]
        if isinstance(calibration, PanelCalibration):
            self.fields, self._score = ("answers", "signals"), self._panel
        elif isinstance(calibration, SignalCalibration):
            self.fields, self._score = ("signals",), self._signals
        elif predict is not None:
            self.fields, self._score = ("input",), self._inputs
        else:
            self.fields, self._score = ("logits", "views"), self._logits

    def __call__(self, rows: Sequence[Row]) -> Scored:
        """Score rows; an error names the first row that is wrong."""
        first, known = self.fields[0], {*self.fields, "group", "id"}
        for number, row in enumerate(rows):
            if not isinstance(row, dict) or first not in row:
                raise InputError(f"Row {number} must be an object with the field {first!r}.")
            if strange := sorted(set(row) - known):
                raise InputError(
                    f"Row {number} has the unknown field {strange[0]!r}; known are "
                    f"{', '.join(sorted(known))}."
                )
        groups = None
        if any("group" in row for row in rows):
            groups = np.array([str(row.get("group", "")) for row in rows])
        return self._score(rows, groups)

    def _accepted(
        self, confidence: NDArray[np.float64], probs: Any = None, groups: Any = None
    ) -> NDArray[np.bool_]:
        if self.rule is None:
            return np.zeros(len(confidence), dtype=bool)
        groups = groups if self.rule.groups else None
        if probs is None:
            return self.rule.accept(confidence, groups=groups)
        return self.rule.accept(probs, confidence, groups)

    def _signals(self, rows: Sequence[Row], groups: Any) -> Scored:
        names = list(dict.fromkeys(name for row in rows for name in row["signals"]))
        columns = {name: [row["signals"].get(name) for row in rows] for name in names}
        confidence = self.calibration.predict_confidence(_arrays(columns), groups)
        accepted = self._accepted(confidence, groups=groups)
        return Scored([None] * len(rows), confidence, accepted)

    def _panel(self, rows: Sequence[Row], groups: Any) -> Scored:
        systems = list(dict.fromkeys(name for row in rows for name in row["answers"]))
        answers = {name: [row["answers"].get(name) for row in rows] for name in systems}
        given = [row.get("signals") or {} for row in rows]
        signals: dict[str, Any] = {}
        for system in dict.fromkeys(name for one in given for name in one):
            names = dict.fromkeys(name for one in given for name in one.get(system) or {})
            signals[system] = _arrays(
                {name: [(one.get(system) or {}).get(name) for one in given] for name in names}
            )
        chosen, confidence = self.calibration.predict_both(answers, signals or None)
        accepted = self._accepted(confidence, groups=groups)
        return Scored(np.asarray(chosen, dtype=object).tolist(), confidence, accepted)

    def _logits(self, rows: Sequence[Row], groups: Any) -> Scored:
        specs = list(dict.fromkeys(spec for row in rows for spec in row.get("views") or {}))
        logits = _matrix([row["logits"] for row in rows])
        views = {spec: _matrix([(row.get("views") or {})[spec] for row in rows]) for spec in specs}
        samples = Views(logits, views)
        has_offsets = hasattr(self.calibration, "group_offsets_")
        if has_offsets and groups is None:
            raise InputError("This calibration was fitted with groups: every row needs `group`.")
        probs, confidence = self.calibration.predict_both(samples, groups if has_offsets else None)
        classes = self.calibration.classes_[probs.argmax(axis=1)].tolist()
        return Scored(classes, confidence, self._accepted(confidence, probs, groups), logits)

    def _inputs(self, rows: Sequence[Row], groups: Any) -> Scored:
        assert self._predict is not None
        found = self._predict([row["input"] for row in rows])
        probs, confidence = found.probs, found.confidences
        classes = self.calibration.classes_[probs.argmax(axis=1)].tolist()
        return Scored(classes, confidence, self._accepted(confidence, probs, groups), found.logits)


def _arrays(columns: dict[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """Return columns of numbers with gaps as floats, and others as they are."""
    arrays = {}
    for name, values in columns.items():
        numeric = all(value is None or isinstance(value, int | float) for value in values)
        filled = [math.nan if value is None else value for value in values]
        arrays[name] = np.array(filled if numeric else values, dtype=float if numeric else object)
    return arrays


def _matrix(rows: list[Any]) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("Logits must be lists of numbers of equal length.") from None
