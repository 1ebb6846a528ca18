"""The audit of a calibration folder: which answers to check, and what their grades say.

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recal.decisions.audit import Audit, Check
from recal.decisions.rule import DecisionRule
from recal.errors import InputError
from recal.files.ledger import Journal
from recal.files.paths import replacing
from recal.files.tables import Table, read_table, write_with_columns

NAME = "audit.jsonl"
_RIGHT = {"1": True, "true": True, "yes": True, "right": True, "correct": True}
_WRONG = {"0": False, "false": False, "no": False, "wrong": False, "incorrect": False}


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
        self._bytes += self.journal.append(*_grade_records(self.key, new.items()))
        self._grades |= new
        return self.audit.add(new)


def _grade_records(key: str, grades: Iterable[tuple[str, bool]]) -> list[dict[str, Any]]:
    common = {"kind": "grade", "rule": key, "time": _now()}
    return [{**common, "id": name, "right": right} for name, right in grades]


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
        known = {**_RIGHT, **_WRONG}.get(word.strip().lower())
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
