"""The audit of a calibration folder: which answers to check, what their grades say, and whether
its promise holds on fresh labelled rows.

The folder's journal ``audit.jsonl`` holds every drawn answer and every grade, for each rule that
the folder has had. The state of an audit is always computed from it, so a kill loses nothing, and
several processes may add grades.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import as_array, grades_of
from recal.clusters import check_clusters, effective_count
from recal.decisions.audit import Audit, Check
from recal.decisions.cascade import CascadeRule
from recal.decisions.rule import DecisionRule, check_share, percentage
from recal.errors import InputError
from recal.files.paths import Journal, replacing
from recal.files.tables import Table, read_table, write_with_columns, written_name
from recal.metrics.intervals import rate_interval

AUDIT_FILE = "audit.jsonl"


class FolderAudit:
    """The audit of one rule, stored in a folder.

    Parameters
    ----------
    folder : the folder of `recal calibrate`
    rule : its rule
    below : as in `Audit`

    Attributes
    ----------
    key : what the journal calls the rule
    audit : Audit
        The audit after all grades in the journal.
    pending : dict of id to Check
        The drawn answers that have no grade yet.
    grades : dict of id to bool
    """

    def __init__(
        self, folder: str | os.PathLike[str], rule: DecisionRule, *, below: float = 0.1
    ) -> None:
        self.journal = Journal(Path(folder) / AUDIT_FILE)
        self.rule, self.key = rule, rule_key(rule)
        records = list(self.journal.read())
        # A new seed for each draw.
        self.audit = Audit(rule, below=below, random_state=len(records))
        self.pending: dict[str, Check] = {}
        self.grades: dict[str, bool] = {}
        self._apply(records)

    def refresh(self) -> None:
        """Read what this process and others have added to the journal."""
        self._apply(self.journal.read())

    def _apply(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            if record.get("rule") != self.key:
                continue
            name = str(record.get("id"))
            if record.get("kind") == "draw" and not self.knows(name):
                try:
                    self.pending[name] = Check(name, *record["check"])
                except (KeyError, TypeError):
                    continue  # somebody else wrote it
                if self.audit.band_from is None:
                    self.audit.band_from = record.get("band_from")
            elif record.get("kind") == "grade" and name in self.pending:
                self.grades[name] = bool(record.get("right"))
                self.audit.replay([(self.pending.pop(name), not self.grades[name])])

    def knows(self, name: str) -> bool:
        """Whether an answer of this id was drawn."""
        return name in self.pending or name in self.grades

    def draw(
        self, confidence: Any, n: int, **columns: Any
    ) -> tuple[np.ndarray[Any, Any], list[str]]:
        """Draw answers and write them to the journal; return their rows and ids."""
        rows = self.audit.draw(confidence, n, **columns)
        drawn, self.audit.pending = self.audit.pending, []
        return rows, self._record(check._replace(name=None) for check in drawn)

    def offer(
        self, confidence: Iterable[float], groups: Iterable[str], names: Iterable[str | None]
    ) -> list[str]:
        """Record accepted answers that were drawn one by one with equal probability.

        `names` are ids that are used if no other answer has them. Returns the ids.
        """
        self.refresh()
        taken = set()
        new = []
        for value, group, name in zip(confidence, groups, names):
            free = name is not None and name not in taken and not self.knows(name)
            taken.add(name)
            label = group if self.rule.groups else ""
            own = name if free else None
            new.append(Check(own, float(value), True, label, 1.0, 1.0, with_band=False))
        return self._record(new)

    def _record(self, checks: Iterable[Check]) -> list[str]:
        """Write draws to the journal; return their ids, which are random if they have none."""
        common: dict[str, Any] = {"kind": "draw", "rule": self.key, "time": timestamp()}
        common["band_from"] = self.audit.band_from
        drawn = [
            {**common, "id": check.name or f"{self.key}-{secrets.token_hex(6)}", "check": check[1:]}
            for check in checks
        ]
        self.journal.append(*drawn, sync=False)
        self.refresh()
        return [record["id"] for record in drawn]

    def add(self, grades: Mapping[str, bool]) -> int:
        """Write grades by id to the journal; return how many are new."""
        for name, right in grades.items():
            if not self.knows(name) or self.grades.get(name, right) != right:
                raise InputError(
                    f"The answer {name!r} was not drawn for a check of this rule, or was graded "
                    "differently before",
                    remedy="Draw answers with recal audit FOLDER ANSWERS --checks N",
                )
        new = {name: right for name, right in grades.items() if name in self.pending}
        common = {"kind": "grade", "rule": self.key, "time": timestamp()}
        self.journal.append(*({**common, "id": name, "right": new[name]} for name in new))
        self.refresh()
        return len(new)

    def facts(self) -> dict[str, Any]:
        """Return the state of the audit as plain values for JSON."""
        audit = self.audit
        return {
            "rule": self.key,
            "risk": audit.rule.risk,
            "graded": audit.n_graded,
            "error": audit.error if audit.n_graded else None,
            "interval": list(audit.interval),
            "alarm": audit.alarm,
            "verdict": audit.verdict,
        }


def audited_rule(calibration: Any) -> DecisionRule | None:
    """Return the rule whose promise is audited, or None; for a cascade, one that stands for it.

    It has the promise of the cascade, and the thresholds of its last stage.
    """
    if not isinstance(calibration, CascadeRule):
        found: DecisionRule | None = getattr(calibration, "decision_", None)
        return found
    last = calibration.accept[:, -1]
    return DecisionRule(
        tuple(np.where(last > 1.0, np.inf, last).tolist()),
        risk=calibration.risk,
        confidence=calibration.confidence,
        groups=calibration.groups,
        guarantee=calibration.guarantee,
    )


def rule_key(rule: DecisionRule) -> str:
    """Return a short name for a rule: a digest of its thresholds, groups and risk."""
    facts = [list(map(str, rule.thresholds)), list(rule.groups), rule.risk, rule.confidence]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=4).hexdigest()


def write_checks(
    audit: FolderAudit,
    answers: str | os.PathLike[str],
    n: int,
    out: str | os.PathLike[str],
    *,
    group: str | None = None,
) -> tuple[int, str]:
    """Draw rows of a table of `recal apply`, and write them with columns `check` and `right`.

    Returns the number of rows, and the name of the column that a person fills in: `recal_right` if
    the table has a column `right` of its own.
    """
    table = read_table(answers)
    confidence = table.numbers(written_name(table, "confidence"))
    columns: dict[str, Any] = {}
    if (accepted := written_name(table, "accepted")) in table:
        columns["accepted"] = grades_of(table[accepted]) == 1.0
    if audit.rule.groups:
        if group is None and "group" not in table:
            raise InputError(
                "The rule has a threshold per group: name their column with --group COLUMN."
            )
        columns["groups"] = table[group or "group"]  # recal apply calls it so
    rows, ids = audit.draw(confidence, n, **columns)
    order = np.argsort(rows)
    picked = Table({name: table.cells[name][rows[order]] for name in table}, table.path)
    added = {"check": [ids[place] for place in order], "right": [""] * len(rows)}
    return len(rows), write_with_columns(picked, out, added)["right"]


def read_checked(path: str | os.PathLike[str]) -> dict[str, bool]:
    """Read the grades that a person filled in; rows without a grade are left out."""
    table = read_table(path)
    check, right = (written_name(table, name) for name in ("check", "right"))
    grades = {}
    names, words = table[check], table[right]
    for row, (name, word, grade) in enumerate(zip(names, words, grades_of(words)), 1):
        if grade == grade:
            grades[name] = bool(grade)
        elif word.strip():
            raise InputError(
                f"{path}, row {row}: the column {right!r} must say yes or no, got {word!r}."
            )
    if not grades:
        raise InputError(f"{path} holds no grades: fill in the column {right!r} with yes or no.")
    return grades


def timestamp() -> str:
    """Return the time as the journal writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def keep_previous(file: Path) -> Path:
    """Copy a calibration to the first free name beside it, such as calibration.previous-1.recal."""
    number = 1
    while (target := file.with_suffix(f".previous-{number}{file.suffix}")).exists():
        number += 1
    with replacing(target) as copy:
        copy.write(file.read_bytes())
    return target


@dataclass(frozen=True)
class PromiseCheck:
    """How many accepted answers are wrong, and whether that refutes the promise.

    Attributes
    ----------
    risk : the promised largest share of wrong answers among the accepted ones
    samples, accepted, errors : int
    error_rate : float, None if nothing was accepted
    interval : 95 % interval of the error rate, None if nothing was accepted
    p_value : float
        The probability of at least as many errors if exactly the promised share is wrong. Below
        `alpha` the promise is refuted.
    clusters : the number of clusters with an accepted answer, if there are clusters
    """

    risk: float
    samples: int
    accepted: int
    errors: int
    error_rate: float | None
    interval: tuple[float, float] | None
    p_value: float
    alpha: float
    clusters: int | None = None

    @property
    def refuted(self) -> bool:
        return self.p_value < self.alpha

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"holds": not self.refuted, **asdict(self)}

    def __str__(self) -> str:
        if self.error_rate is None or self.interval is None:
            return f"The rule accepts none of these {self.samples:,} rows, so nothing is tested."
        low, high = self.interval
        verdict = "is refuted" if self.refuted else "holds"
        return (
            f"The promise of at most {percentage(self.risk)} errors {verdict}: {self.errors:,} of "
            f"{self.accepted:,} accepted answers are wrong ({self.error_rate:.1%}, 95% interval "
            f"{low:.1%} to {high:.1%}). If exactly the promised share were wrong, at least so many "
            f"errors would have the probability {self.p_value:.2g}."
        )


def check_promise(
    rule: DecisionRule,
    accepted: ArrayLike,
    correct: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    alpha: float = 0.05,
) -> PromiseCheck:
    """Test on fresh labelled rows whether at most the promised share of accepted answers is wrong.

    Rows of one cluster are not independent: counts are those of as many independent rows as the
    clusters are worth, which is estimated from these rows.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import decide
    >>> from recal.workflow.auditing import check_promise
    >>> rule = decide(np.linspace(0, 1, 500), np.arange(500) > 100, risk=0.1).rule
    >>> check_promise(rule, np.ones(200, bool), np.arange(200) >= 60).refuted
    True
    """
    from scipy.stats import binom

    check_share(alpha, "alpha")
    taken = as_array(accepted, "accepted").astype(bool)
    wrong = ~as_array(correct, "correct").astype(bool)[taken]
    n_accepted, n_errors = len(wrong), int(wrong.sum())
    if not n_accepted:
        return PromiseCheck(rule.risk, len(taken), 0, 0, None, None, 1.0, alpha)
    n, n_clusters = float(n_accepted), None
    if clusters is not None:
        names = check_clusters(clusters, len(taken))[taken]
        n_clusters = len(np.unique(names))
        n = effective_count(wrong.astype(np.float64), names)
    k = n_errors * n / n_accepted
    p_value = float(binom.sf(np.floor(k) - 1, max(1, round(n)), rule.risk)) if n_errors else 1.0
    return PromiseCheck(
        risk=rule.risk,
        samples=len(taken),
        accepted=n_accepted,
        errors=n_errors,
        error_rate=n_errors / n_accepted,
        interval=rate_interval(k, n),
        p_value=p_value,
        alpha=alpha,
        clusters=n_clusters,
    )
