"""All numbers, and all that is needed to make the report again."""

from __future__ import annotations

from html import escape

from recal.comparison.tables import describe
from recal.metrics import LABELS
from recal.reporting.page.parts import Page, section, table
from recal.reporting.page.sections import value_cell


def all_metrics(view: Page) -> str:
    """Every metric of every method, folded away."""
    comparison = view.comparison
    lines = [
        [escape(label), *(value_cell(row, metric, comparison.digits(metric)) for row in comparison.rows(metric))]
        for metric, label in LABELS.items()
    ]
    inside = table(["metric", *comparison.methods], lines)
    return f"<section><details><summary>All metrics of all methods</summary>{inside}</details></section>"


def how_it_was_made(view: Page) -> str:
    """All that is needed to make the report again."""
    comparison, setup = view.comparison, view.comparison.setup
    facts = [("Data", escape(describe(comparison)))]
    facts += [(f"Fingerprint, {escape(name)}", f"<code>{value}</code>") for name, value in setup.fingerprints.items()]
    facts += [("Seed", str(setup.random_state)), ("Bins", str(setup.n_bins)), ("Baseline", escape(comparison.baseline))]
    facts += [
        (f"Method {escape(name)}", f"<code>{escape(repr(c))}</code>") for name, c in comparison.calibrators.items()
    ]
    facts.append(("Versions", escape(", ".join(f"{name} {value}" for name, value in setup.versions.items()))))
    if view.command:
        facts.append(("Command", f"<code>{escape(view.command)}</code>"))
    shown = "Figures, verdict and slider show the first split. " if setup.splits > 1 else ""
    rows = "".join(f"<dt>{term}</dt><dd>{fact}</dd>" for term, fact in facts)
    note = f"{shown}Intervals of a single split come from the bootstrap; see the documentation of recal.metrics."
    return section("made", "Data, versions and command", f'<div class="card"><dl>{rows}</dl></div>', note)
