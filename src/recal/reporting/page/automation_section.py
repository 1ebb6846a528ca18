"""How much can be automated: shares with a guarantee, and prediction sets."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from recal.reporting.data.automation import CONFIDENCE, Automation
from recal.reporting.drawing.charts import percent
from recal.reporting.drawing.part_charts import automation_chart
from recal.reporting.page.parts import Page, figure, legend, section, table


def how_much_can_be_automated(view: Page) -> str:
    """For every method, beside the model before it."""
    before = None if view.before is None else view.automated[view.before]
    blocks = {}
    for name in view.choices:
        found = {**({} if before is None else {"before": before}), "after": view.automated[name]}
        blocks[name] = _block(found)
    note = (
        f"Guarantee: with {CONFIDENCE:.0%} confidence, at most this share of accepted answers is wrong on inputs like "
        "these. The threshold search is accounted for. Each point has its own guarantee. "
        "Prediction sets: the smallest sets of classes that contain the true class with the requested coverage. They "
        "are made on one half of the test rows and measured on the other."
    )
    return section("automation", "Answers that can be automated", view.per_method(blocks), note.replace("%", "&nbsp;%"))


def _block(found: Mapping[str, Automation]) -> str:
    words = escape(str(found["after"].decision))
    if "before" in found and found["before"].decision.possible:
        words += f" Before, {percent(found['before'].decision.coverage)} at the same risk."
    keys = legend({key: one.method for key, one in found.items()})
    card = figure("Share automated by risk", automation_chart(found), keys, _curves(found))
    sets = _sets(found)
    return f'<p class="finding">{words}</p><div class="two">{card}{sets}</div>'


def _curves(found: Mapping[str, Automation]) -> str:
    head = ["mistakes allowed"]
    for one in found.values():
        head += [f"{one.method}: accepted", "interval", "from confidence"]
    rows = []
    for index, risk in enumerate(found["after"].curve.risks):
        cells = [percent(risk, 2)]
        for one in found.values():
            low, high = one.curve.intervals[index]
            from_on = one.curve.thresholds[index]
            shown = f"{from_on:.4f}" if from_on <= 1 else "–"
            cells += [percent(one.curve.coverage[index]), f"{percent(low)} – {percent(high)}", shown]
        rows.append(cells)
    return table(head, rows, "Share automated by risk", card=False)


def _sets(found: Mapping[str, Automation]) -> str:
    rows = []
    for one in found.values():
        if one.sets is not None:
            low, high = one.sets.interval
            held = f"{percent(one.sets.coverage)}<small>{percent(low)} – {percent(high)}</small>"
            rows.append([escape(one.method), held, f"{one.sets.mean_size:.3f}", percent(one.sets.single)])
    if not rows:
        return ""
    title = f"Prediction sets that contain the true class {100 * found['after'].set_coverage:g} % of the time"
    head = ["method", "truth held", "mean size", "one class"]
    return f'<div class="card tight"><h3>{title}</h3>{table(head, rows, title, card=False)}</div>'
