"""Audits by simulation: false alarms, checks until an alarm, and rules that can be loosened.

    python -m benchmarks.audits --streams 500 --checks 5000

Confidences are calibrated, and 5 % of the answers above the threshold are wrong. From a random
check on, mistakes are twice as frequent. The alarm is looked at after every check. For comparison,
the same is done with a confidence sequence of the mean of all checks so far.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

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


def running_mean(seed: int, checks: int, change: int | None) -> tuple[int, bool]:
    """Return the same as `stream` for uniform draws and a lower bound of the mean since the start:
    the empirical Bernstein sequence of Waudby-Smith and Ramdas (2024, theorem 2).
    """
    rng = np.random.default_rng(seed)
    chance = np.full(checks, RISK)
    chance[checks if change is None else change :] *= 2.0
    wrong, n = (rng.random(checks) < chance).astype(float), np.arange(1, checks + 1)
    means = (0.5 + np.cumsum(wrong)) / (n + 1)
    variances = (0.25 + np.cumsum((wrong - means) ** 2)) / (n + 1)
    before, spread = np.r_[0.5, means[:-1]], np.r_[0.25, variances[:-1]]
    bets = np.minimum(np.sqrt(2 * np.log(1 / 0.05) / (spread * n * np.log(n + 1))), 0.5)
    cost = np.cumsum((wrong - before) ** 2 * (-np.log1p(-bets) - bets)) + np.log(1 / 0.05)
    alarms = np.flatnonzero((np.cumsum(bets * wrong) - cost) / np.cumsum(bets) > RISK)
    at = int(alarms[0]) + 1 if len(alarms) else checks
    return (at, len(alarms) > 0) if change is None else (at - change, at <= change)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--checks", type=int, default=5000)
    given = parser.parse_args()
    seeds = range(given.streams)
    changes = np.random.default_rng(1).integers(1, 2000, given.streams)
    monitors: dict[str, Callable[[int, int | None], tuple[int, bool]]] = {
        "uniform": lambda seed, change: stream(seed, given.checks, weighted=False, change=change),
        "weighted": lambda seed, change: stream(seed, given.checks, weighted=True, change=change),
        "running mean": lambda seed, change: running_mean(seed, given.checks, change),
    }
    for name, monitor in monitors.items():
        false = [monitor(seed, None)[1] for seed in seeds]
        print(f"{name:12} false alarms in {np.mean(false):.1%} of {given.streams} streams", end="")
        found = [monitor(seed, int(change)) for seed, change in zip(seeds, changes)]
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
        f"loosened {len(shares)} of {n_rules} rules after a median of {np.median(checks):.0f} "
        f"checks: {np.mean(shares):.2f} times the share, at most {np.max(errors):.1%} errors"
    )


if __name__ == "__main__":
    main()
