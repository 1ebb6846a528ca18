"""How much can be automated with a guarantee, and how small prediction sets become: before and after."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from recal.comparison import Comparison
from recal.decisions import Decision, RiskCurve, SetReport, decide, evaluate_sets, prediction_sets, risk_curve
from recal.errors import FewSamplesWarning

# How sure the guarantee is.
CONFIDENCE = 0.95
# Sets that hold the truth less often than the answer itself is right would be single answers: the first above it.
_COVERAGES = (0.9, 0.95, 0.99, 0.999)
# The curve needs few points; sets need few rows.
_RISKS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)
_MOST_ROWS = 50_000


@dataclass(frozen=True)
class Automation:
    """What one method allows.

    Attributes
    ----------
    decision : the threshold at the risk that was asked for
    curve : the share that may be accepted at each risk
    set_coverage : how often sets are asked to hold the truth: the first of 90, 95, 99, 99.9 % above the accuracy
    sets : prediction sets made on a random half of the test rows and measured on the other; None for fewer than 40
    """

    method: str
    decision: Decision
    curve: RiskCurve
    set_coverage: float
    sets: SetReport | None


def automation(comparison: Comparison, method: str, risk: float, seed: int = 0) -> Automation:
    """Search thresholds and sets on the test rows, which the method was not fitted on."""
    probs, labels = comparison.probabilities(method), comparison.test_labels
    # The model's own confidence is not calibrated: it cannot say where the search had best begin.
    sure = None if method == comparison.methods[0] else comparison.samples[method].confidence
    decision = decide(probs, labels, risk, CONFIDENCE, confidences=sure)
    curve = risk_curve(probs, labels, _RISKS, CONFIDENCE, confidences=sure)
    accuracy = float(comparison.samples[comparison.methods[0]].correct.mean())
    asked = next((share for share in _COVERAGES if share > accuracy), _COVERAGES[-1])
    order = np.random.default_rng(seed).permutation(len(labels))[:_MOST_ROWS]
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    if len(first) < 20:
        return Automation(method, decision, curve, asked, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)  # the page shows how large the sets are
        sets = prediction_sets(probs[first], labels[first], asked, at_least_one=True)
    return Automation(method, decision, curve, asked, evaluate_sets(sets, probs[second], labels[second]))
