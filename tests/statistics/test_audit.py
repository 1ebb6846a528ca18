"""Audits by simulation: alarms without a cause, intervals that miss, alarms with a cause."""

from __future__ import annotations

import numpy as np

from recal import Audit, DecisionRule


def streams(weighted: bool, factor: float, n_streams: int, n_checks: int) -> list[Audit]:
    """Audit answers whose probability of being wrong is `factor` times what they say."""
    rng = np.random.default_rng(0)
    audits = []
    for seed in range(n_streams):
        confidence = 1 - 0.5 * rng.beta(0.4, 1.6, 20_000)
        right = rng.random(20_000) >= factor * (1 - confidence)
        rule = DecisionRule((0.81,), risk=0.05, confidence=0.95)  # exactly 5 % are wrong
        audit = Audit(rule, weighted=weighted, random_state=seed)
        for _ in range(n_checks // 50):
            audit.add(right[audit.draw(confidence, 50)])
        audits.append(audit)
    return audits


def test_an_audit_at_the_promised_risk_rarely_raises_an_alarm_and_its_interval_holds() -> None:
    for weighted in (True, False):
        audits = streams(weighted, 1.0, 60, 1000)
        # At 5 %, more than 8 of 60 have a probability below 0.2 %.
        assert sum(audit.alarm for audit in audits) <= 8
        missed = sum(not audit.interval[0] <= 0.05 <= audit.interval[1] for audit in audits)
        assert missed <= 8


def test_a_doubled_error_rate_is_found_sooner_by_weighted_draws() -> None:
    weighted, uniform = (
        np.median([audit.alarm_at or 10_000 for audit in streams(kind, 2.0, 40, 800)])
        for kind in (True, False)
    )
    assert weighted < 250
    assert weighted < uniform
