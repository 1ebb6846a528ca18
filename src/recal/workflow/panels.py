"""From a table with the answers of several systems to automated answers, and to a cascade.

The folder also holds ``columns.json``: which column has the answer of which system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.panel_answers import normalised
from recal.decisions.cascade import CascadeOutcome, CascadeRule, plan_cascade
from recal.errors import FileError, InputError
from recal.files.paths import replacing
from recal.files.saved import save
from recal.files.tables import Table, read_table, write_with_columns
from recal.workflow.folder import CALIBRATION
from recal.workflow.parts import split
from recal.workflow.result import HeldOut, Result, Settings, running

COLUMNS = "columns.json"


@dataclass(frozen=True)
class SystemColumns:
    """The columns of one system: its answer, then its signals."""

    name: str
    answer: str
    signals: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> SystemColumns:
        """Read ``gpt=gpt_answer,gpt_stated``."""
        name, sign, columns = text.partition("=")
        answer, *signals = [column.strip() for column in columns.split(",")]
        if not name.strip() or not sign or not answer:
            raise InputError(
                f"--system takes NAME=ANSWER_COLUMN,SIGNAL,..., such as gpt=gpt_answer,gpt_stated; "
                f"got {text!r}."
            )
        return cls(name.strip(), answer, tuple(signals))


@dataclass(frozen=True, kw_only=True)
class PanelResult(Result):
    """The result for several systems; the calibrator is a `PanelCalibration`."""

    may_cross_fit: ClassVar[bool] = False
    rule: CascadeRule | None
    cascade_checked: tuple[int, int] = (0, 0)  # accepted and wrong among the checking questions

    def to_dict(self) -> dict[str, Any]:
        plain = {**super().to_dict(), "systems": self.calibrator.gains_}
        if self.rule is not None:
            plain["cascade"] = cascade_facts(self.rule)
            accepted, errors = self.cascade_checked
            plain["cascade"]["checked"] = {"accepted": accepted, "errors": errors}
        return plain

    def lines(self) -> list[str]:
        if self.rule is None:
            return super().lines()
        accepted, errors = self.cascade_checked
        return [
            self.reason,
            *self._measured(),
            *str(self.rule).splitlines(),
            f"On the checking questions the cascade accepts {accepted:,} of {self.sizes[2]:,}, "
            f"and {errors:,} of these are wrong.",
        ]

    def _measured(self) -> list[str]:
        nll, ece = self.after["nll"], self.after["ece"]
        return [f"Checked on {self.sizes[2]:,} other questions: NLL {nll:.3f}, ECE {ece:.3f}."]


def cascade_facts(rule: CascadeRule) -> dict[str, Any]:
    """Return a cascade as plain values for JSON."""
    others = zip(rule.others, rule.other_shares.tolist(), rule.other_costs.tolist())
    return {
        "systems": list(rule.systems),
        "promise": rule.promise,
        "share": rule.share,
        "cost": rule.cost,
        "total_cost": rule.total_cost,
        "curve": [
            dict(zip(("cost", "share", "expected_error"), point)) for point in rule.curve.tolist()
        ],
        "others": {name: {"share": share, "cost": cost} for name, share, cost in others},
    }


def calibrate_panel(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    truth: str,
    systems: Sequence[SystemColumns],
    answers: str = "free",
    match: str = "text",
    costs: Mapping[str, float] | None = None,
    review_cost: float | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> PanelResult:
    """Learn one confidence from the answers of several systems, and decide what can be automated.

    Parameters
    ----------
    path : a table with one row per question: .csv, .tsv, .parquet or .jsonl
    out : the folder for calibration, report and summary
    truth : the column of right answers
    systems : the columns of each system; the first is the main one
    answers, match : as in `PanelCalibration`
    costs : the price of asking each system, optional
    review_cost : the price of a review; with it, a cascade asks cheap systems first
    group, cluster : columns, as in `calibrate_table`
    """
    seed, say = settings.random_state, settings.say
    if len({one.name for one in systems}) < len(systems):
        raise InputError("Systems need different names, one --system each.")
    cascade = review_cost is not None
    if cascade:
        absent = [one.name for one in systems if one.name not in (costs or {})]
        if absent:
            raise InputError(f"A cascade needs the cost of each system: add --cost {absent[0]}=...")
        assert costs is not None
        systems = sorted(systems, key=lambda one: costs[one.name])
    table = read_table(path)
    key = _right_answers(table, truth)
    given, signals = read_systems(table, systems)
    groups = None if group is None else table[group]
    clusters = table.clusters(cluster)
    fit, decide_on, check_on = split(table.n_rows, seed, clusters)
    sizes = len(fit), len(decide_on), len(check_on)
    names = ", ".join(one.name for one in systems)
    say(f"1/3  Read {table.n_rows:,} questions with the answers of {names}.")
    say(f"2/3  Fit on {sizes[0]:,} questions, decide on {sizes[1]:,}, check on {sizes[2]:,}.")
    with running(Path(out), settings) as folder:
        kind: Any = match
        panel = PanelCalibration(answers, match=kind, random_state=seed)  # type: ignore[arg-type]
        panel.fit(
            _rows(given, fit),
            key[fit],
            _rows(signals, fit),
            groups=None if groups is None else groups[fit],
            clusters=None if clusters is None else clusters[fit],
        )
        predicted, confidence = panel.predict_both(given, signals, groups)
        right = _is_right(predicted, key, match)
        scored = HeldOut(None, confidence, right, None, groups, clusters, by=str(group))
        rule, checked = None, (0, 0)
        if review_cost is not None:
            assert costs is not None
            rule = plan_cascade(
                panel,
                _rows(given, decide_on),
                key[decide_on],
                _rows(signals, decide_on),
                costs=costs,
                review_cost=review_cost,
                risk=settings.risk,
                confidence=settings.confidence,
                guarantee=settings.guarantee,
                groups=None if groups is None or settings.one_rule else groups[decide_on],
                clusters=None if clusters is None else clusters[decide_on],
            )
            everyone = None if groups is None or settings.one_rule else groups[check_on]
            outcome = rule.apply(_rows(given, check_on), _rows(signals, check_on), everyone)
            accepted = outcome.next == "accept"
            wrong = accepted & ~_is_right(outcome.answer, key[check_on], match)
            checked = int(accepted.sum()), int(wrong.sum())
        say("3/3  Write the report.")
        write_systems(folder, systems, match, group)
        result = PanelResult.of(
            panel,
            scored.take(decide_on),
            scored.take(check_on),
            settings,
            folder,
            sizes=sizes,
            rule=rule,
            cascade_checked=checked,
        )
        if rule is not None:
            save(rule, folder / CALIBRATION)
        return result


def _rows(columns: Mapping[str, Any], rows: NDArray[np.intp]) -> dict[str, Any]:
    """Return some rows of columns, which may be grouped by system."""
    return {
        name: _rows(values, rows) if isinstance(values, Mapping) else values[rows]
        for name, values in columns.items()
    }


def _right_answers(table: Table, name: str) -> NDArray[Any]:
    """Return the column of right answers; refuse a row without one."""
    key = table[name]
    if (key == "").any():
        row = int(np.flatnonzero(key == "")[0]) + 1
        raise InputError(f"{table.path}, row {row}: the column {name!r} holds no right answer.")
    return key


def _is_right(answers: NDArray[Any], key: NDArray[Any], match: str) -> NDArray[np.bool_]:
    kind: Any = match
    return np.array(
        [
            one is not None and normalised(one, kind) == normalised(other, kind)
            for one, other in zip(answers, key)
        ]
    )


def read_systems(
    table: Table, systems: Sequence[SystemColumns], categories: Mapping[str, bool] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return answers and signals by system, from the columns that the table has.

    `categories` says which signals hold words, as at the fit; by default the contents decide.
    """
    answers: dict[str, Any] = {}
    signals: dict[str, Any] = {}
    for one in systems:
        if categories is not None and one.answer not in table:
            continue  # a system that was not asked yet
        cells = table.cells[one.answer] if one.answer in table else table[one.answer]
        lists = any(isinstance(cell, list) for cell in cells)  # several samples, in JSONL
        answers[one.name] = cells if lists else table[one.answer]
        columns = {}
        for name in one.signals:
            words = not table.is_numeric(name) if categories is None else categories.get(name)
            columns[name] = table[name] if words else table.numbers(name)
        if columns:
            signals[one.name] = columns
    if not answers:
        raise InputError(f"{table.path} has no answer of any system; it has {', '.join(table)}.")
    return answers, signals


def write_systems(
    folder: Path, systems: Sequence[SystemColumns], match: str, group: str | None
) -> None:
    """Write which columns belong to which system."""
    facts = {"systems": [vars(one) for one in systems], "match": match, "group": group}
    with replacing(folder / COLUMNS) as file:
        file.write(json.dumps(facts, indent=1).encode())


def read_columns(folder: Path) -> tuple[list[SystemColumns], str | None]:
    """Return the columns of each system, and the column of groups."""
    try:
        facts = json.loads((folder / COLUMNS).read_bytes())
        systems = [
            SystemColumns(str(one["name"]), str(one["answer"]), tuple(map(str, one["signals"])))
            for one in facts["systems"]
        ]
        group = facts["group"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{folder / COLUMNS} cannot be read ({type(error).__name__}). It says which column has "
            "the answers of which system; recal calibrate writes it."
        ) from error
    return systems, None if group is None else str(group)


def apply_panel(
    calibration: PanelCalibration | CascadeRule,
    folder: Path,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
) -> tuple[dict[str, int], int]:
    """Write a copy of a table with `answer`, `confidence`, `accepted` and, with a cascade, `next`.

    `next` is "accept", "review" or "ask NAME". Rows may lack the systems that were not asked yet.
    Returns how many rows have which next step, and in how many a system that was asked refused.
    """
    table = read_table(path)
    found, steps, n_refused = panel_steps(calibration, folder, table)
    added: dict[str, Any] = {
        "answer": ["" if one is None else str(one) for one in found.answer],
        "confidence": found.confidence,
        "accepted": steps == "accept",
    }
    if isinstance(calibration, CascadeRule):
        added["next"] = steps
    write_with_columns(table, out, added)
    names, counts = np.unique(steps, return_counts=True)
    return dict(zip(names.tolist(), counts.tolist())), n_refused


def graded_panel(
    calibration: PanelCalibration | CascadeRule,
    folder: Path,
    path: str | os.PathLike[str],
    truth: str,
    cluster: str | None = None,
) -> tuple[NDArray[np.bool_], HeldOut, int]:
    """Return which answers to labelled questions are accepted, which are right, and on about how
    many of the questions the panel was fitted.

    `truth` names the column of right answers.
    """
    table = read_table(path)
    table.check([truth])
    key, clusters = _right_answers(table, truth), table.clusters(cluster)
    found, steps, _ = panel_steps(calibration, folder, table)
    panel = calibration.panel if isinstance(calibration, CascadeRule) else calibration
    answers, signals, _ = _read_questions(panel, folder, table)
    n_fitted = panel.fitted_questions(panel.read(answers, signals))
    right = _is_right(found.answer, key, panel.match)
    return steps == "accept", HeldOut(None, found.confidence, right, clusters=clusters), n_fitted


def panel_steps(
    calibration: PanelCalibration | CascadeRule, folder: Path, table: Table
) -> tuple[CascadeOutcome, NDArray[Any], int]:
    """Return the answers to the questions in a table, the next step of each, and in how many a
    system that was asked gave neither an answer nor a signal.
    """
    panel = calibration.panel if isinstance(calibration, CascadeRule) else calibration
    answers, signals, groups = _read_questions(panel, folder, table)
    if isinstance(calibration, CascadeRule):
        groups = groups if calibration.groups else None
        told = table["next"] if "next" in table else np.full(table.n_rows, "")
        asked, n_refused = _asked(calibration, answers, signals, groups, told)
        found = calibration.apply(answers, signals, groups, asked=asked)
        steps = [one if one in ("accept", "review") else f"ask {one}" for one in found.next]
        return found, np.array(steps), n_refused
    offsets = groups if hasattr(panel, "group_offsets_") else None
    chosen, confidence = panel.predict_both(answers, signals, offsets)
    rule = getattr(panel, "decision_", None)
    accepted = np.zeros(len(confidence), bool)
    if rule is not None:
        accepted = rule.accept(confidence, groups=groups if rule.groups else None)
    step = np.where(accepted, "accept", "review")
    everyone = np.full(len(chosen), len(panel.table_.systems))
    return CascadeOutcome(chosen, confidence, step, everyone), step, 0


def _asked(
    rule: CascadeRule, answers: Any, signals: Any, groups: Any, told: NDArray[Any]
) -> tuple[NDArray[np.float64], int]:
    """Return how many systems each question was put to, and how many questions one refused.

    A system refused if an earlier `apply` wrote into the column `next` to ask it, or went past it,
    and it has answered other questions only.
    """
    found = rule.panel.read(answers, signals).asked
    asked = found.copy()
    order = {f"ask {name}": place for place, name in enumerate(rule.systems)}
    last = dict.fromkeys(("accept", "review"), len(rule.systems))
    reached = np.array([(order | last).get(one, -1) for one in told.tolist()])
    for place, name in enumerate(rule.systems):
        number = rule.panel.table_.systems.index(name) + 1
        step = rule.next(answers, signals, groups, asked=asked)
        if (found >= number).any():
            asked[(step == name) & (reached >= place)] = number
    return asked, int((asked > found).sum())


def _read_questions(
    panel: PanelCalibration, folder: Path, table: Table
) -> tuple[dict[str, Any], dict[str, Any], NDArray[Any] | None]:
    """Return answers and signals by system, and the groups, from the columns that the fit read."""
    systems, group = read_columns(folder)
    fitted = panel.table_.table
    words = {} if fitted is None else dict(zip(fitted.names, map(bool, fitted.levels)))
    categories = {name.partition(": ")[2]: is_word for name, is_word in words.items()}
    answers, signals = read_systems(table, systems, categories)
    main = systems[0]
    if main.name not in answers:
        raise InputError(
            f"{table.path} has no column {main.answer!r} with the answers of {main.name}, the first "
            f"system; it has {', '.join(table)}."
        )
    return answers, signals, None if group is None else table[group]
