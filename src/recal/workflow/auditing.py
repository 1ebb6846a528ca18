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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import as_array
from recal.clusters import check_clusters, effective_count
from recal.decisions.audit import Audit, Check
from recal.decisions.rule import DecisionRule, check_share
from recal.errors import InputError
from recal.files.ledger import Journal
from recal.files.paths import replacing
from recal.files.tables import Table, read_table, write_with_columns
from recal.metrics.intervals import rate_interval

NAME = "audit.jsonl"
_GRADES = {
    **dict.fromkeys(("1", "true", "yes", "right", "correct"), True),
    **dict.fromkeys(("0", "false", "no", "wrong", "incorrect"), False),
}


class FolderAudit:
    """The audit of one rule, stored in a folder.

    Parameters
    ----------
    folder : the folder of `recal calibrate`
    rule : its rule
    weighted, below : as in `Audit`
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rule: DecisionRule,
        *,
        weighted: bool = True,
        below: float = 0.1,
    ) -> None:
        self.journal = Journal(Path(folder) / NAME)
        self.rule, self.key = rule, rule_key(rule)
        self._settings: dict[str, Any] = {"weighted": weighted, "below": below}
        self._bytes = -1  # of the journal, as far as this process knows it
        self.refresh()

    def refresh(self) -> None:
        """Read the journal again if another process has added to it."""
        size = self.journal.size()
        if size == self._bytes:
            return
        self._bytes = size
        drawn: dict[str, Check] = {}
        grades: dict[str, bool] = {}
        band, self.n_drawn = None, 0
        for record in self.journal.read():
            if record.get("rule") != self.key:
                continue
            if record.get("kind") == "draw":
                drawn[record["id"]] = Check(record["id"], *record["check"])
                band = record["band_from"] if band is None else band
                self.n_drawn += 1
            elif record.get("kind") == "grade" and record["id"] in drawn:
                grades.setdefault(record["id"], bool(record["right"]))
        self.audit = Audit(self.rule, random_state=self.n_drawn, **self._settings)
        self.audit.band_from = band
        self.audit.replay((drawn[name], not right) for name, right in grades.items())
        self.audit.pending = [check for name, check in drawn.items() if name not in grades]
        self._grades = grades

    def draw(
        self, confidence: Any, n: int, **columns: Any
    ) -> tuple[np.ndarray[Any, Any], list[str]]:
        """Draw answers and write them to the journal; return their rows and ids."""
        names = np.array([f"{self.key}-{self.n_drawn + row}" for row in range(len(confidence))])
        before = len(self.audit.pending)
        rows = self.audit.draw(confidence, n, **columns)
        ids = names[: len(rows)].tolist()
        drawn = [check._replace(name=one) for check, one in zip(self.audit.pending[before:], ids)]
        self.audit.pending[before:] = drawn
        self._write_draws(drawn)
        return rows, ids

    def _write_draws(self, drawn: list[Check]) -> None:
        self.n_drawn += len(drawn)
        common: dict[str, Any] = {"kind": "draw", "rule": self.key, "time": _now()}
        common["band_from"] = self.audit.band_from
        rows = ({**common, "id": check.name, "check": check[1:]} for check in drawn)
        self._bytes += self.journal.append(*rows, sync=False)

    def offer(self, confidence: Any, groups: Sequence[str]) -> list[str]:
        """Record accepted answers that were drawn one by one with equal probability; return ids."""
        names = [f"{self.key}-{secrets.token_hex(6)}" for _ in groups]
        labels = groups if self.rule.groups else [""] * len(names)
        new = [
            Check(name, float(value), True, label, 1.0, 1.0)
            for name, value, label in zip(names, confidence, labels)
        ]
        self.audit.pending += new
        self._write_draws(new)
        return names

    @property
    def graded_names(self) -> set[str]:
        """The ids that have a grade."""
        return set(self._grades)

    def add(self, grades: Mapping[str, bool]) -> int:
        """Add grades by id, in the journal first; return how many are new."""
        pending = {check.name for check in self.audit.pending}
        for name, right in grades.items():
            if self._grades.get(name, right) != right:
                raise InputError(f"The answer {name!r} was graded differently before.")
            if name not in pending and name not in self._grades:
                raise InputError(
                    f"The answer {name!r} was not drawn for a check of this rule",
                    remedy="Draw answers with recal audit FOLDER ANSWERS --checks N",
                )
        new = {name: right for name, right in grades.items() if name in pending}
        common = {"kind": "grade", "rule": self.key, "time": _now()}
        records = ({**common, "id": name, "right": right} for name, right in new.items())
        self._bytes += self.journal.append(*records)
        self._grades |= new
        return self.audit.add(new)


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
) -> int:
    """Draw rows of a table of `recal apply`, and write them with columns `check` and `right`.

    A person fills in `right`. Returns the number of rows.
    """
    table = read_table(answers)
    confidence = table.numbers("confidence")
    columns: dict[str, Any] = {}
    if "accepted" in table:
        columns["accepted"] = table["accepted"] == "true"
    if audit.rule.groups:
        if group is None:
            raise InputError(
                "The rule has a threshold per group: name their column with --group COLUMN."
            )
        columns["groups"] = table[group]
    rows, ids = audit.draw(confidence, n, **columns)
    order = np.argsort(rows)
    picked = Table({name: table.cells[name][rows[order]] for name in table}, table.path)
    added = {"check": [ids[place] for place in order], "right": [""] * len(rows)}
    write_with_columns(picked, out, added)
    return len(rows)


def read_checked(path: str | os.PathLike[str], correct: str = "right") -> dict[str, bool]:
    """Read the grades that a person filled in; rows without a grade are left out."""
    table = read_table(path)
    grades = {}
    for row, (name, word) in enumerate(zip(table["check"], table[correct]), 1):
        if not word.strip():
            continue
        known = _GRADES.get(word.strip().lower())
        if known is None:
            raise InputError(
                f"{path}, row {row}: the column {correct!r} must say yes or no, got {word!r}."
            )
        grades[name] = known
    if not grades:
        raise InputError(f"{path} holds no grades: fill in the column {correct!r} with yes or no.")
    return grades


def _now() -> str:
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
    n_samples, n_accepted, n_errors : int
    p_value : float
        The probability of at least as many errors if exactly the promised share is wrong. Below
        `alpha` the promise is refuted.
    interval : 95 % interval of the share of errors
    """

    risk: float
    n_samples: int
    n_accepted: int
    n_errors: int
    p_value: float
    interval: tuple[float, float]
    alpha: float
    n_clusters: int | None = None

    @property
    def refuted(self) -> bool:
        return self.p_value < self.alpha

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "holds": not self.refuted,
            "risk": self.risk,
            "samples": self.n_samples,
            "accepted": self.n_accepted,
            "errors": self.n_errors,
            "error_rate": self.n_errors / self.n_accepted if self.n_accepted else None,
            "interval": list(self.interval) if self.n_accepted else None,
            "p_value": self.p_value,
            "alpha": self.alpha,
            "clusters": self.n_clusters,
        }

    def __str__(self) -> str:
        if not self.n_accepted:
            return f"The rule accepts none of these {self.n_samples:,} rows, so nothing is tested."
        low, high = self.interval
        counts = (
            f"{self.n_errors:,} of {self.n_accepted:,} accepted answers are wrong "
            f"({self.n_errors / self.n_accepted:.1%}, 95 % interval {low:.1%} to {high:.1%})"
        )
        if self.refuted:
            return (
                f"Refuted: {counts}, and at most {self.risk:.3g} were promised. If the promise "
                f"held, so many errors would have a probability of at most {self.p_value:.2g}."
            )
        return (
            f"The promise of at most {self.risk:.3g} holds: {counts}. If exactly the promised "
            f"share were wrong, at least so many errors would have the probability "
            f"{self.p_value:.2g}."
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
    n, n_clusters = float(n_accepted), None
    if clusters is not None and n_accepted:
        names = check_clusters(clusters, len(taken))[taken]
        n_clusters = len(np.unique(names))
        n = effective_count(wrong.astype(np.float64), names)
    k = n_errors * n / max(1, n_accepted)
    p_value = float(binom.sf(np.floor(k) - 1, max(1, round(n)), rule.risk)) if n_errors else 1.0
    interval = rate_interval(k, n) if n_accepted else (0.0, 1.0)
    return PromiseCheck(
        rule.risk, len(taken), n_accepted, n_errors, p_value, interval, alpha, n_clusters
    )
