"""What the calibration knows of damaged inputs, and the condition of new ones."""

from __future__ import annotations

from html import escape

from recal.reporting.data.damage import DamageStudy
from recal.reporting.drawing.charts import percent
from recal.reporting.drawing.part_charts import damage_chart
from recal.reporting.page.parts import Page, figure, legend, section, table


def damaged_inputs(view: Page) -> str:
    """How temperature and accuracy move with damage; nothing where there is no profile with views."""
    study = view.damage
    if study is None:
        return ""
    words = "".join(f'<p class="finding">{escape(words)}</p>' for words in (study.words, *study.found))
    keys = {"before": "a view of the labelled samples", **({"after": "new inputs"} if study.place else {})}
    card = figure("Temperature and accuracy of each view", damage_chart(study), legend(keys))
    numbers = f'<div class="card tight"><h3>By kind of damage</h3>{_table(study)}</div>'
    note = (
        "Each view of the labelled samples is a damaged set with known labels. From these sets the calibration learns "
        "to estimate the temperature (relative to the fit’s) and the accuracy of new inputs from their logits alone. "
        "Damage unlike every view is reported as unknown. Predictions never change."
    )
    return section("damage", "Damaged inputs", f'{words}<div class="two">{card}{numbers}</div>', note)


def _table(study: DamageStudy) -> str:
    rows = [
        [
            escape(kind) + ("" if kind in study.damaging else " (no damage)"),
            str(count),
            f"{100 * low:.0f} – {percent(high, 0)}",
            f"{cool:.2f} – {hot:.2f}",
        ]
        for kind, count, (low, high), (cool, hot) in study.rows()
    ]
    return table(["kind", "views", "accuracy", "temperature"], rows, "Views by kind of damage", card=False)
