"""The service behind `recal serve`: answers, grades, counts and the audit."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recal.decisions import StreamWatch
from recal.errors import InputError
from recal.files.ledger import Journal
from recal.serving.scorer import JsonRow, Scored, Scorer
from recal.workflow.auditing import AUDIT_FILE, FolderAudit, audited_rule

# Upper ends of the buckets of the latency histogram, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, math.inf)


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
        self.counts: Counter[str] = Counter()  # of this process, since they were last saved
        self._hours: dict[str, Counter[str]] = {}  # of all processes, as far as they are saved
        self._rng = np.random.default_rng()
        self._lock = threading.Lock()
        self._journal = Journal(folder / AUDIT_FILE)
        rule = audited_rule(scorer.calibration)
        self.audit = None if rule is None else FolderAudit(folder, rule, below=0.0)
        self.key = "" if self.audit is None else self.audit.key
        profile = getattr(scorer.calibration, "profile_", None)
        self.watch: StreamWatch | None = None
        if profile is not None and profile.clusters is None and not profile.graded:
            self.watch = StreamWatch(profile, use_views=False)

    def answer(self, rows: Sequence[Any]) -> list[JsonRow]:
        """Score rows, and say which answers a person should check."""
        begin = time.perf_counter()
        scored = self.scorer(rows)
        with self._lock:
            checks = self._draw(scored, rows)
            if self.watch is not None and scored.logits is not None:
                self.watch.update(scored.logits)
            spent = time.perf_counter() - begin
            bucket = next(end for end in BUCKETS if spent <= end)
            self.counts.update({"answers": len(rows), "requests": 1, f"le {bucket:g}": 1})
            self.counts["accepted"] += int(scored.accepted.sum())
            self.counts["microseconds"] += round(1e6 * spent)
        answers = []
        for place, row in enumerate(rows):
            name = checks.get(place) or row.get("id") or secrets.token_hex(8)
            one: JsonRow = {"id": name, "confidence": float(scored.confidence[place])}
            if scored.answers is not None:
                one["answer"] = scored.answers[place]
            if self.audit is not None:
                one["accepted"], one["check"] = bool(scored.accepted[place]), place in checks
                one["rule"] = self.key
            if scored.next is not None:
                one["next"] = scored.next[place]
            if place in scored.unlike:
                one["unlike_fit"] = scored.unlike[place]
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
        audit = self.audit.audit
        low, high = audit.interval
        return {
            "rule": self.key,
            "risk": audit.rule.risk,
            "graded": audit.n_graded,
            "error": audit.error if audit.n_graded else None,
            "interval": [low, high],
            "alarm": audit.alarm,
            "verdict": audit.verdict,
        }

    def save_counts(self) -> None:
        """Write new counts to the journal, where all processes read them."""
        with self._lock:
            new, self.counts = self.counts, Counter()
            if new:
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                served = {"kind": "served", "rule": self.key, "time": now, **new}
                self._journal.append(served, sync=False)
            for record in self._journal.read():
                if record.get("kind") == "served" and record.get("rule") == self.key:
                    hour = self._hours.setdefault(str(record["time"])[:13], Counter())
                    hour.update({key: n for key, n in record.items() if isinstance(n, int)})

    def totals(self) -> Counter[str]:
        """Return the counts of all processes that have served this rule, up to the last saved."""
        self.save_counts()
        return sum(self._hours.values(), Counter())

    def metrics(self) -> str:
        """Return counts and rates in the text format of Prometheus."""
        counts = self.totals()
        lines = []

        def add(name: str, kind: str, value: float) -> None:
            lines.append(f"# TYPE recal_{name} {kind}\nrecal_{name} {value:.10g}")

        for name in ("answers", "accepted", "grades", "refused", "failed"):
            add(f"{name}_total", "counter", counts[name])
        if self.audit is not None:
            add("accepted_share", "gauge", counts["accepted"] / max(counts["answers"], 1))
            state = self.state()
            add("audited_error", "gauge", math.nan if state["error"] is None else state["error"])
            add("audited_error_low", "gauge", state["interval"][0])
            add("audited_error_high", "gauge", state["interval"][1])
            add("promised_risk", "gauge", state["risk"])
            add("promise_refuted", "gauge", state["alarm"])
        if self.watch is not None:
            add("drift_evidence", "gauge", self.watch.capital)
            add("drift_alarm", "gauge", self.watch.alarm)
        lines.append("# TYPE recal_latency_seconds histogram")
        through = np.cumsum([counts[f"le {end:g}"] for end in BUCKETS])
        for end, count in zip(BUCKETS, through.tolist()):
            label = "+Inf" if end == math.inf else f"{end:g}"
            lines.append(f'recal_latency_seconds_bucket{{le="{label}"}} {count}')
        lines.append(f"recal_latency_seconds_sum {counts['microseconds'] / 1e6:.10g}")
        lines.append(f"recal_latency_seconds_count {counts['requests']}")
        return "\n".join(lines) + "\n"

    def history(self) -> dict[str, list[Any]]:
        """Return the share accepted by hour and the audited error by grade."""
        self.save_counts()
        if self.audit is None:
            return {"served": [], "audited": []}
        served = [
            {
                "time": f"{hour}:00Z",
                "share": one["accepted"] / one["answers"],
                "answers": one["answers"],
                "accepted": one["accepted"],
            }
            for hour, one in sorted(self._hours.items())
            if one["answers"]
        ]
        wrong = np.cumsum([check.accepted and wrong for check, wrong in self.audit.audit.graded])
        audited = [
            {"graded": count, "error": float(total) / count} for count, total in enumerate(wrong, 1)
        ]
        step = max(1, len(audited) // 200)
        return {"served": served, "audited": audited[::step]}
