"""Audits by simulation: false alarms, checks until an alarm, and rules that can be loosened.

    python -m benchmarks.audits --streams 500 --checks 5000

Confidences are calibrated, and 5 % of the answers above the threshold are wrong. From a random
check on, mistakes are twice as frequent. The alarm is looked at after every check.
"""

from __future__ import annotations

import argparse

import numpy as np

from recal import Audit, DecisionRule

RISK, THRESHOLD = 0.05, 0.81  # 5 % of these answers are wrong


def answers(rng: np.random.Generator, n: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences, and which answers are right; mistakes are `factor` times as frequent."""
    confidence = 1 - 0.5 * rng.beta(0.4, 1.6, n)
    return confidence, rng.random(n) >= factor * (1 - confidence)


def stream(seed: int, checks: int, *, weighted: bool, change: int | None) -> tuple[int, bool]:
    """Return the number of checks after the change until the alarm, and whether it came before."""
    rng = np.random.default_rng(seed)
    rule = DecisionRule((THRESHOLD,), risk=RISK, confidence=0.95)
    audit = Audit(rule, weighted=weighted, below=0.0, random_state=seed)
    done = 0
    while done < checks and not audit.alarm:
        size = 50 if change is None or done >= change else min(50, change - done)
        confidence, right = answers(rng, 2000, 2.0 if change is not None and done >= change else 1)
        audit.add(right[audit.draw(confidence, size)])
        done += size
    at = audit.alarm_at
    if change is None or at is None:
        return checks, at is not None
    return at - change, at <= change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--checks", type=int, default=5000)
    given = parser.parse_args()
    seeds = range(given.streams)
    for weighted in (False, True):
        name = "weighted" if weighted else "uniform"
        false = [stream(seed, given.checks, weighted=weighted, change=None)[1] for seed in seeds]
        print(f"{name:9} false alarms in {np.mean(false):.1%} of {given.streams} streams", end="")
        changes = np.random.default_rng(1).integers(1, 2000, given.streams)
        found = [
            stream(seed, given.checks, weighted=weighted, change=int(change))
            for seed, change in zip(seeds, changes)
        ]
        delays = [delay for delay, early in found if not early]
        print(
            f"; errors doubled: median {np.median(delays):.0f} checks until the alarm "
            f"(90 %: {np.quantile(delays, 0.9):.0f})"
        )
    loosen()


def loosen(n_rules: int = 40) -> None:
    """Audit a rule that accepts half of what is possible, and count how it is loosened."""
    shares, errors, checks = [], [], []
    for seed in range(n_rules):
        rng = np.random.default_rng(seed)
        rule = DecisionRule((0.97,), risk=RISK, confidence=0.95)
        audit = Audit(rule, below=0.3, random_state=seed)
        while not audit.can_loosen and audit.n_graded < 3000:
            confidence, right = answers(rng, 2000, 1.0)
            audit.add(right[audit.draw(confidence, 50)])
        confidence, right = answers(rng, 100_000, 1.0)
        looser = audit.updated_rule()
        if looser is not None:
            accepted = looser.accept(confidence)
            shares.append(accepted.mean() / rule.accept(confidence).mean())
            errors.append(1 - right[accepted].mean())
            checks.append(len(audit.graded))
    print(
        f"loosened {len(shares)} of {n_rules} rules after a median of {np.median(checks):.0f} checks: "
        f"{np.mean(shares):.2f} times the share, errors at most {np.max(errors):.1%} (risk 5 %)"
    )


if __name__ == "__main__":
    main()
