"""The first lines of the report: which method, what it costs, how much can be automated."""

from __future__ import annotations

from collections.abc import Mapping

from recal.comparison import Comparison, Recommendation
from recal.comparison.tables import passes_words
from recal.decisions import Decision
from recal.reporting.data.automation import Automation
from recal.reporting.data.verdict import use


def headline(comparison: Comparison, found: Recommendation, automated: Mapping[str, Automation]) -> tuple[str, ...]:
    """Return the lines that a reader in a hurry needs."""
    first, method = comparison.methods[0], found.method
    lines = []
    if len(comparison.methods) > 1:
        lines.append("Leave the model as it is." if method == first else use(method))
    if comparison.passes_known:
        lines.append(f"It costs {passes_words(found.passes)} per answer.")
    before = automated[first].decision if method != first else None
    return (*lines, _automated(automated[method].decision, before))


def _automated(decision: Decision, before: Decision | None) -> str:
    risk = _percent(decision.risk)
    if decision.possible:
        was = "" if before is None else f" ({_share(before)} before)" if before.possible else " (none before)"
        return f"{_share(decision)} of the answers can be automated with at most {risk} errors{was}."
    labels = f"{decision.n_samples:,} labelled samples"
    if decision.supported_risk is not None:
        return (
            f"These {labels} cannot guarantee at most {risk} errors; {_percent(decision.supported_risk)} is the lowest "
            "rate at which answers can be automated."
        )
    return f"No answer can be automated: these {labels} guarantee no error rate below 50 %."


def _share(decision: Decision) -> str:
    return f"{100 * decision.coverage:.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
