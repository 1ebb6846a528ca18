"""What notebooks show for a fitted calibrator, a decision and a comparison: a small table, figures
where there are outcomes, and no script.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from recal.comparison.results import MAIN_METRICS, Comparison
from recal.metrics import LABELS
from recal.reporting.chart import Line, percent, render
from recal.reporting.charts import reliability_chart
from recal.reporting.figure_data import reliability, reliability_of

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.calibrators.panel import PanelCalibration
    from recal.decisions import Decision


def calibrator_html(calibrator: Calibrator) -> str:
    """Return a card with what was fitted."""
    if not hasattr(calibrator, "classes_"):
        return Markup("<pre>{}</pre>").format(repr(calibrator))
    facts = {"Fitted on": f"{calibrator.n_fitted_:,} samples, {len(calibrator.classes_):,} classes"}
    if reason := getattr(calibrator, "reason_", ""):
        facts["Method"] = reason
    elif (beta := getattr(calibrator, "beta_", None)) is not None and np.ndim(beta) == 0:
        facts["Temperature"] = f"{1 / float(beta):.4g}"
    facts["Answers"] = (
        "those of the model, never changed"
        if calibrator.keeps_accuracy
        else "calibrated, may differ from the model's"
    )
    if views := calibrator.needed_transforms():
        facts["Views"] = ", ".join(map(str, views[:4])) + (" …" if len(views) > 4 else "")
    if (rule := getattr(calibrator, "decision_", None)) is not None:
        facts["Rule"] = str(rule)
    return render("card.html", title=repr(calibrator), facts=facts, comparison=None, charts=[])


def panel_html(panel: PanelCalibration) -> str:
    """Return a card with what each system of a panel adds."""
    if not hasattr(panel, "map_"):
        return Markup("<pre>{}</pre>").format(repr(panel))
    facts = {"Fitted on": f"{panel.n_fitted_:,} questions"}
    for gain in panel.gains_:
        name = gain["system"] if gain["used"] else f"{gain['system']} (not used)"
        facts[name] = (
            f"accuracy {percent(gain['accuracy'])}, {percent(gain['automated'])} automated at 5 % "
            "errors, together with the systems above"
        )
    return render("card.html", title=repr(panel), facts=facts, comparison=None, charts=[])


def decision_html(decision: Decision) -> str:
    """Return a card with the rule, what it accepts, and the reliability of the samples that it was
    made on.
    """
    promise = decision.promise if decision.possible else f"none: {decision.promise} cannot be shown"
    facts = {"Promise": promise, "Samples": f"{decision.n_samples:,} labelled"}
    threshold = decision.threshold if decision.possible and len(decision.thresholds) == 1 else None
    if decision.possible:
        low, high = decision.interval
        facts["Accepted"] = f"{percent(decision.coverage)} ({100 * low:.1f} – {percent(high)})"
        facts["Errors seen"] = f"{decision.n_errors:,} of {decision.n_accepted:,}"
        if threshold is None:
            facts["Thresholds"] = f"{len(decision.thresholds)}, one for each class or group"
        else:
            facts["Threshold"] = f"confidence of at least {threshold:.6g}"
    else:
        facts["Accepted"] = "none"
        facts["Needed"] = decision.more_labels()
    charts = []
    if decision.bins is not None:
        chart = reliability_chart(reliability_of(decision.bins), "after", "decision")
        if threshold is not None:
            line = Line((threshold, threshold), (0, 1), "cursor", f"threshold {threshold:.6g}")
            chart = replace(chart, marks=[*chart.marks, line])
        charts.append(chart)
    return render("card.html", title="Decision", facts=facts, comparison=None, charts=charts)


def comparison_html(comparison: Comparison) -> str:
    """Return a card with the main metrics of every method, and reliability before and after."""
    methods = dict.fromkeys((comparison.methods[0], comparison.best("nll")))
    charts = [
        reliability_chart(
            reliability(comparison.samples[name]), "after" if index else "before", name
        )
        for index, name in enumerate(methods)
    ]
    title = f"{len(comparison.methods)} methods on {comparison.setup.n_test:,} samples"
    metrics = {metric: LABELS[metric] for metric in MAIN_METRICS if metric in comparison.values}
    return render(
        "card.html", title=title, facts=None, comparison=comparison, metrics=metrics, charts=charts
    )
