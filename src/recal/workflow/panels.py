"""From a table with the answers of several systems to automated answers, and to a cascade.

The summary in the folder says which column has the answer of which system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.panel import PanelCalibration
from recal.calibrators.panel_answers import Match, normalised
from recal.checks import Flags, as_objects
from recal.clusters import some_rows
from recal.decisions.cascade import CascadeRule, plan_cascade
from recal.errors import FileError, InputError
from recal.files.saved import save
from recal.files.tables import Table, read_table
from recal.maps.blend import Answers
from recal.workflow.folder import CALIBRATION, SUMMARY, read_summary
from recal.workflow.run import HeldOut, Result, Settings, finish, running, split, split_words


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


def cascade_facts(rule: CascadeRule) -> dict[str, Any]:
    """Return a cascade as plain values for JSON."""
    names = ("systems", "promise", "share", "cost", "total_cost")
    shares = zip(rule.others, rule.other_shares.tolist(), rule.other_costs.tolist())
    columns = ("cost", "share", "expected_error")
    return {
        **{name: getattr(rule, name) for name in names},
        "curve": [dict(zip(columns, point)) for point in rule.curve.tolist()],
        "others": {name: {"share": share, "cost": cost} for name, share, cost in shares},
    }


def calibrate_panel(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    truth: str,
    systems: Sequence[SystemColumns],
    answers: Answers = "free",
    match: Match = "text",
    costs: Mapping[str, float] | None = None,
    review_cost: float | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> Result:
    """Learn one confidence from the answers of several systems, and decide what can be automated.

    Parameters
    ----------
    path : a table with one row per question: .csv, .tsv, .parquet or .jsonl
    out : the folder for calibration, report and summary
    truth : the column of right answers
    systems : the columns of each system; the first is the main one
    answers, match : as in `PanelCalibration`
    costs : the price of asking each system
    review_cost : the price of a review; with it, a cascade asks cheap systems first
    group, cluster : columns, as in `calibrate_table`
    """
    seed, say = settings.random_state, settings.say
    if len({one.name for one in systems}) < len(systems):
        raise InputError("Systems need different names, one --system each.")
    prices = costs or {}
    absent = [one.name for one in systems if one.name not in prices]
    if absent and (prices or review_cost is not None):
        raise InputError(f"Every system needs its price: add --cost {absent[0]}=PRICE.")
    if review_cost is not None:
        systems = sorted(systems, key=lambda one: prices[one.name])
    table = read_table(path)
    key = table.filled(truth)
    given, signals = read_systems(table, systems)
    groups = None if group is None else table[group]
    clusters = table.clusters(cluster)
    parts = split(table.n_rows, seed, clusters)
    names = ", ".join(one.name for one in systems)
    say(f"1/3  Read {table.n_rows:,} questions with the answers of {names}.")
    say(f"2/3  {split_words(parts, clusters, cross_fit=False, rows='questions')}")

    def read(rows: NDArray[np.intp]) -> tuple[Any, Any, Any]:
        return some_rows(given, rows), key[rows], some_rows(signals, rows)

    with running(Path(out), settings) as folder:
        fit, decide_on, check_on = parts
        panel = PanelCalibration(answers=answers, match=match, random_state=seed)
        by = {"groups": some_rows(groups, fit), "clusters": some_rows(clusters, fit)}
        panel.fit(*read(fit), **by, costs=costs)
        predicted, confidence = panel.predict_both(given, signals, groups)
        right = is_right(predicted, key, match)
        ids = np.arange(table.n_rows)
        scored = HeldOut(confidence, right, None, groups=groups, clusters=clusters, ids=ids)
        facts: dict[str, Any] = {"systems": panel.gains_}
        rule, automated = None, []
        if review_cost is not None:
            rule = plan_cascade(
                panel,
                *read(decide_on),
                costs=prices,
                review_cost=review_cost,
                risk=settings.risk,
                confidence=settings.confidence,
                guarantee=settings.guarantee,
                groups=some_rows(groups, decide_on),
                clusters=some_rows(clusters, decide_on),
            )
            asked, _, told = read(check_on)
            found = rule.apply(asked, told, some_rows(groups, check_on))
            accepted = found.next == "accept"
            wrong = accepted & ~is_right(found.answer, key[check_on], match)
            counts = {"accepted": int(accepted.sum()), "errors": int(wrong.sum())}
            facts["cascade"] = {**cascade_facts(rule), "checked": counts}
            automated = [
                *str(rule).splitlines(),
                f"On the checking questions the cascade accepts {counts['accepted']:,} of "
                f"{len(check_on):,}, and {counts['errors']:,} of these are wrong.",
            ]
            about = f"{automated[-1]} The report is about asking all systems."
            settings = replace(settings, about={**settings.about, "Cascade": about})
        say("3/3  Write the report.")
        result = finish(
            panel,
            scored[decide_on],
            scored[check_on],
            settings,
            folder,
            by=str(group),
            columns={"systems": [vars(one) for one in systems], "group": group},
            rows_name="questions",
            sizes=tuple(map(len, parts)),
            facts=facts,
            automated=automated,
        )
        if rule is not None:
            save(rule, folder / CALIBRATION)
        return result


def is_right(answers: NDArray[Any], key: NDArray[Any], match: Match) -> Flags:
    return np.array(
        [
            one is not None and normalised(one, match) == normalised(other, match)
            for one, other in zip(answers, key)
        ]
    )


def read_systems(
    table: Table, systems: Sequence[SystemColumns], categories: Mapping[str, bool] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return answers and signals by system, from the columns that the table has.

    `categories` says which signals hold words, as at the fit; by default the contents decide.
    """
    table.check([systems[0].answer])
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
    return answers, signals


def read_columns(folder: Path) -> tuple[list[SystemColumns], str | None]:
    """Return the columns of each system, and the column of groups."""
    try:
        facts = read_summary(folder)["columns"]
        systems = [
            SystemColumns(one["name"], one["answer"], tuple(one["signals"]))
            for one in facts["systems"]
        ]
        return systems, facts["group"]
    except (KeyError, TypeError) as error:
        raise FileError(
            f"{folder / SUMMARY} does not say which column has the answers of which system; recal "
            "calibrate writes it."
        ) from error


def read_questions(
    panel: PanelCalibration, folder: Path, table: Table
) -> tuple[dict[str, Any], dict[str, Any], NDArray[Any] | None]:
    """Return answers and signals by system, and the groups, from the columns that the fit read."""
    systems, group = read_columns(folder)
    fitted = panel.table_.table
    words = {} if fitted is None else dict(zip(fitted.names, map(bool, fitted.levels)))
    categories = {name.partition(": ")[2]: is_word for name, is_word in words.items()}
    answers, signals = read_systems(table, systems, categories)
    for name, count in zip(panel.table_.systems, panel.table_.samples):
        if count > 1 and name in answers:
            answers[name] = as_objects(map(_samples_of, answers[name]))
    return answers, signals, None if group is None else table[group]


def _samples_of(cell: Any) -> Any:
    """Return several answers as a list, which a .csv file holds as JSON."""
    with suppress(TypeError, ValueError):
        found = json.loads(cell)
        return found if isinstance(found, list) else cell
    return cell
