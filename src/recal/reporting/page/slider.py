"""The slider: what happens when answers above a confidence are accepted without a second look."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from recal.reporting.data.thresholds import THRESHOLDS, Thresholds
from recal.reporting.drawing.charts import percent, threshold_chart
from recal.reporting.page.data_tables import threshold_table_of
from recal.reporting.page.parts import Page

# Where the slider stands at first, and for readers without scripts.
FIRST = 0.9


def slider_card(view: Page) -> str:
    """The slider with its numbers and chart, filled for the first threshold."""
    shown = THRESHOLDS.index(FIRST)
    tables = {"after": view.tables[view.shown]}
    if view.before is not None:
        tables = {"before": view.tables[view.before], **tables}
    heads = {"before": escape(str(view.before)), "after": f'<span class="method-name">{escape(view.shown)}</span>'}
    header = "".join(
        f'<th scope="col"><span class="key {key}" aria-hidden="true"></span>{heads[key]}</th>' for key in tables
    )
    lines = [
        ("Answers accepted", "coverage", "accepted"),
        ("Accuracy of accepted answers", "accuracy", None),
        ("Errors made", "errors", None),
        ("Errors expected from its confidence", "promised", "range"),
    ]
    body = []
    for words, name, below in lines:
        cells = "".join(_cell(key, table, shown, name, below) for key, table in tables.items())
        body.append(f'<tr><th scope="row">{words}</th>{cells}</tr>')
    named = {view.keys[key]: one for key, one in tables.items()}
    return f"""<section id="threshold-section"><h2>Confidence threshold</h2>
<div class="card slider"><div>
<label for="threshold">Accept answers with more than <output id="threshold-value" for="threshold">{FIRST:g}</output>
confidence</label>
<input type="range" id="threshold" min="0" max="{len(THRESHOLDS) - 1}" step="1" value="{shown}"
 aria-valuetext="{escape(_spoken(tables, view.keys, shown))}">
<noscript><p class="note">Moving the slider needs scripts; the table below the chart holds other thresholds.</p>
</noscript>
<table class="numbers"><thead><tr><th></th>{header}</tr></thead>
<tbody>{"".join(body)}</tbody></table>
<p class="note">The confidence is calibrated where the errors made lie in the range that a calibrated model would show
in 95 % of samples.</p>
</div><div>{threshold_chart(tables, shown)}
<details class="data"><summary>Other thresholds as a table</summary>{threshold_table_of(named)}</details></div></div>
</section>"""


def _spoken(tables: Mapping[str, Thresholds], names: Mapping[str, str], index: int) -> str:
    """What a screen reader says of the slider: the threshold and what it means, in the words that the script uses."""
    parts = [f"more than {tables['after'].thresholds[index]:g} confidence"]
    for key, table in tables.items():
        accepted, right = int(table.accepted[index]), int(table.right[index])
        parts.append(
            f"{names[key]}: {percent(accepted / table.n_samples)} accepted, "
            f"{percent(right / accepted if accepted else np.nan)} right, {accepted - right:,} errors, "
            f"{table.promised_errors[index]:,.0f} expected"
        )
    return "; ".join(parts)


def _cell(key: str, table: Thresholds, index: int, name: str, below: str | None) -> str:
    accepted, right = int(table.accepted[index]), int(table.right[index])
    words = {
        "coverage": percent(accepted / table.n_samples),
        "accepted": f"{accepted:,} of {table.n_samples:,}",
        "accuracy": percent(right / accepted if accepted else np.nan),
        "errors": f"{accepted - right:,}",
        "promised": f"{table.promised_errors[index]:,.0f}",
        "range": f"{table.low[index]:,} to {table.high[index]:,} if calibrated",
    }
    small = f'<small id="{below}-{key}">{words[below]}</small>' if below else ""
    return f'<td><span id="{name}-{key}">{words[name]}</span>{small}</td>'
