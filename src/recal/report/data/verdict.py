"""The verdict: two plain sentences that come first."""

from __future__ import annotations

import numpy as np

from recal.comparison import Comparison
from recal.metrics import calibration_test
from recal.report.data.figures import threshold_table

_LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5)


def recommended(comparison: Comparison) -> str:
    """The method with the lowest NLL among those that never change a prediction; the only one where there is one."""
    first = comparison.methods[0]
    rows = [
        row
        for row, keeps in zip(comparison.rows("nll"), comparison.keeps_accuracy)
        if keeps and row.method != first and np.isfinite(row.value)
    ]
    if not rows:
        others = [name for name in comparison.methods if name != first]
        return others[-1] if others else first
    return min(rows, key=lambda row: row.value).method


def verdict(comparison: Comparison, method: str) -> tuple[str, str]:
    """What changed for the answers people would act on, and what did not change."""
    before_name = comparison.methods[0]
    before = threshold_table(comparison.samples[before_name])
    after = threshold_table(comparison.samples[method])
    if method == before_name:
        return _alone(comparison, method)
    level = next(
        (v for v in _LEVELS if before.at(v)[0] >= 0.05 and after.at(v)[0] >= 0.05),
        0.0,
    )
    answers = f"Of the answers given with more than {level:g} confidence" if level else "Of all answers"
    (share_before, right_before, _, _), (share_after, right_after, _, _) = before.at(level), after.at(level)
    # Probabilities from anywhere are called "before" and "after" themselves.
    after_words = "after" if method == "after" else f"after {method}"
    if level:
        first = f"{answers}, {_percent(right_before)} were right before and {_percent(right_after)} {after_words}."
    else:
        confidence = [float(comparison.samples[name].confidence.mean()) for name in (before_name, method)]
        first = (
            f"{answers}, {_percent(right_after)} were right; the model claimed {_percent(confidence[0])} before and "
            f"{_percent(confidence[1])} {after_words}."
        )
    second = _how_many(share_before, share_after) + _what_else(comparison, before_name, method)
    return first, second[0].upper() + second[1:]


def _how_many(before: float, after: float) -> str:
    """More are right among fewer, or the other way round: who acts on these answers must know how many they are."""
    if abs(after - before) < 0.0005:
        return ""
    word = "Fewer" if after < before else "More"
    return f"{word} answers are that sure, {_percent(after)} of all instead of {_percent(before)}; "


def _what_else(comparison: Comparison, before: str, method: str) -> str:
    old, new = (comparison.probabilities(name).argmax(axis=1) for name in (before, method))
    changed = int((old != new).sum())
    if changed == 0:
        return "nothing else changed: every prediction is the same as before."
    errors = [1 - float(comparison.samples[name].correct.mean()) for name in (before, method)]
    return (
        f"it also changed {changed:,} of {len(old):,} predictions: the error rate went from {_percent(errors[0])} "
        f"to {_percent(errors[1])}."
    )


def _alone(comparison: Comparison, method: str) -> tuple[str, str]:
    rows = comparison.samples[method]
    table = threshold_table(rows)
    level = next((v for v in _LEVELS if table.at(v)[0] >= 0.05), 0.0)
    chosen = rows.confidence > level
    answers = f"Of the answers given with more than {level:g} confidence" if level else "Of all answers"
    first = (
        f"{answers}, {_percent(float(rows.correct[chosen].mean()))} were right, where the model promised "
        f"{_percent(float(rows.confidence[chosen].mean()))}."
    )
    tested = calibration_test(comparison.probabilities(method), comparison.test_labels)
    words = (
        "An honest model would hardly look like this"
        if tested.p_value < 0.05
        else "An honest model could well look like this"
    )
    sign = "≤" if tested.p_value <= 1 / (tested.draws + 1) else "="
    return first, f"{words} (test of calibration, p {sign} {tested.p_value:.2g})."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
