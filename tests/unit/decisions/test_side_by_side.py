"""Several methods on the same samples, and curves of share against risk."""

from __future__ import annotations

import numpy as np
import pytest

from recal import decide
from recal.decisions import decide_each, risk_curve
from recal.errors import InputError


def columns(confidence):
    return np.column_stack([confidence, 1 - confidence])


def problem(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    sure = rng.random(n)
    y = (rng.random(n) > 0.6 + 0.4 * sure).astype(int)
    return (
        columns(0.5 + 0.49 * sure),
        columns(0.5 + 0.49 * np.clip(sure + rng.normal(0, 0.2, n), 0, 1)),
        y,
    )


def test_each_method_is_decided_as_alone_and_a_method_does_not_differ_from_itself():
    good, noisy, y = problem()
    found = decide_each({"good": good, "noisy": noisy, "again": good}, y, risk=0.1, draws=50)
    assert found["good"] == decide(good, y, risk=0.1)
    assert found.gains["again"].interval == (0.0, 0.0)
    assert not found.gains["again"].differs
    gain = found.gains["noisy"]
    assert gain.difference == pytest.approx(found["noisy"].coverage - found["good"].coverage)
    assert gain.interval[1] < 0, "noise in the confidence costs coverage"


def test_costs_and_classes_are_paired_too():
    good, noisy, y = problem()
    for options in ({"cost_error": 10.0, "cost_review": 1.0}, {"per_class": True, "risk": 0.15}):
        found = decide_each({"noisy": noisy, "good": good}, y, draws=30, **options)
        low, high = found.gains["good"].interval
        assert low <= found.gains["good"].difference + 0.1
        assert high > 0


def test_methods_must_answer_for_the_same_samples():
    good, _, y = problem()
    with pytest.raises(InputError, match=r"\(2000, 2\) and \(2000, 3\)"):
        decide_each({"a": good, "b": np.column_stack([good, np.zeros(2000)])}, y, draws=1)
    with pytest.raises(InputError, match="at least one method"):
        decide_each({}, y)


def test_a_curve_holds_what_decide_finds_at_each_risk():
    good, _, y = problem()
    curve = risk_curve(good, y, risks=(0.05, 0.1, 0.2))
    for index, risk in enumerate(curve.risks):
        found = decide(good, y, risk=risk)
        assert (curve.thresholds[index], curve.coverage[index]) == (found.threshold, found.coverage)
        assert curve.intervals[index] == found.interval
        assert curve.seen[index] >= curve.coverage[index]
