"""What notebooks show for a fitted calibrator, a decision and a comparison: a small table and a
figure, no script.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from recal.comparison.results import MAIN_METRICS, Comparison
from recal.errors import RecalError
from recal.metrics import LABELS
from recal.reporting.chart import Area, Axis, Chart, Line, Mark, percent, render
from recal.reporting.charts import FIFTHS, reliability_chart
from recal.reporting.figure_data import reliability, reliability_of

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.calibrators.panel import PanelCalibration
    from recal.decisions import Decision

# More classes than this would not change the picture of a map.
_MOST_CLASSES = 20


def calibrator_html(calibrator: Calibrator) -> str:
    """Return a card with what was fitted, and how the calibration changes the confidence."""
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
        facts["Rule"] = (
            f"at most {100 * rule.risk:g} % errors at {100 * rule.confidence:g} % confidence"
        )
    chart = _confidence_chart(calibrator)
    charts = [] if chart is None else [chart]
    return render("card.html", title=repr(calibrator), facts=facts, comparison=None, charts=charts)


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


def _confidence_chart(calibrator: Calibrator) -> Chart | None:
    """Confidence after calibration against confidence before, for one class against equal others;

    None with views.
    """
    n_classes = len(calibrator.classes_)
    # Up to 0.999999: an overconfident model gives most inputs a confidence above 0.999.
    start = np.log((1 / n_classes + 0.01) / (1 - 1 / n_classes - 0.01))
    odds = np.linspace(start, 14.0, 160)
    before = 1 / (1 + np.exp(-odds))
    margins = odds + np.log(n_classes - 1)
    after = []
    try:
        for column in range(min(n_classes, _MOST_CLASSES)):
            logits = np.zeros((len(margins), n_classes))
            logits[:, column] = margins
            after.append(calibrator.predict_confidence(logits))
    except RecalError:  # the method reads views, which no example can make up
        return None
    values = np.array(after)
    marks: list[Mark] = [
        Line(odds, before, "ideal", "unchanged"),
        Area(odds, values.min(axis=0), values.max(axis=0), "band after"),
        Line(odds, values.mean(axis=0), "curve after", "mean over the classes"),
    ]
    levels = [level for level in (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if level > before[0]]
    places = tuple((float(np.log(level / (1 - level))), f"{level:g}") for level in levels)
    x = Axis(float(odds[0]), float(odds[-1]), "confidence of the model, log-odds scale", places)
    y = Axis(0, 1, "after calibration", FIFTHS)
    return Chart("Confidence before and after calibration", x, y, marks)


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
