"""What can be accepted at each risk, and one rule in several groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import check_names
from recal.decisions.certify import chance_of_so_few
from recal.decisions.decision import Outcome
from recal.decisions.guarantee import Terms, read_answers
from recal.decisions.rule import DecisionRule, Guarantee, check_share, percentage
from recal.errors import GroupRiskWarning
from recal.metrics.intervals import Interval, rate_interval
from recal.metrics.row_scores import Classes, score

# From one mistake in a thousand to one in five.
RISKS = tuple(float(f"{risk:.3g}") for risk in np.geomspace(0.001, 0.2, 24))


@dataclass(frozen=True)
class RiskCurve:
    """The share of predictions that can be accepted at each risk, as found by `decide`.

    Every point has its own guarantee; there is none for the whole curve at once. `seen` is the
    share at which mistakes reach the risk in these samples, without a guarantee. More labels could
    close the distance between the two.
    """

    risks: tuple[float, ...]
    thresholds: tuple[float, ...]
    coverage: tuple[float, ...]
    intervals: tuple[Interval, ...]
    seen: tuple[float, ...]
    confidence: float


def risk_curve(
    probs: ArrayLike,
    y: ArrayLike,
    risks: Sequence[float] = RISKS,
    confidence: float = 0.95,
    *,
    guarantee: Guarantee = "confidence",
    confidences: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    classes: Classes = None,
) -> RiskCurve:
    """Return the share that can be accepted at each of several risks.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import risk_curve
    >>> confidence = np.linspace(1, 0.5, 1000)
    >>> wrong = np.arange(1000) % 50 == 49
    >>> curve = risk_curve(np.column_stack([confidence, 1 - confidence]), wrong.astype(int), risks=(0.01, 0.05))
    >>> curve.coverage, curve.seen
    ((0.0, 1.0), (0.049, 1.0))
    """
    check_share(confidence, "confidence")
    part = read_answers(probs, y, confidences, clusters=clusters, classes=classes).parts()[0]
    rows = part.all_rows
    n = len(rows)
    rates = rows.errors[rows.ends] / rows.ends
    thresholds = [
        Terms(check_share(risk, "risks"), confidence, guarantee).threshold(part) for risk in risks
    ]
    counts = [int((rows.confidence >= threshold).sum()) for threshold in thresholds]
    within = [rows.ends[rates <= risk] for risk in risks]
    scale = len(part.evidence) / n
    return RiskCurve(
        risks=tuple(float(risk) for risk in risks),
        thresholds=tuple(thresholds),
        coverage=tuple(count / n for count in counts),
        intervals=tuple(rate_interval(scale * count, scale * n, confidence) for count in counts),
        seen=tuple(float(ends[-1] / n) if len(ends) else 0.0 for ends in within),
        confidence=confidence,
    )


@dataclass(frozen=True, kw_only=True)
class GroupRisk(Outcome):
    """How one rule does in one group of labelled samples.

    `interval` is the 95 % interval of the share of mistakes among accepted predictions. `broken`
    says whether this share is clearly above the risk, after correcting for the number of groups.
    """

    broken: bool


def risk_by_group(
    rule: DecisionRule,
    probs: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    confidences: ArrayLike | None = None,
    *,
    classes: Any = None,
) -> tuple[GroupRisk, ...]:
    """Return how one rule does in each group of labelled samples, the worst group first.

    A rule that holds on average can fail in a group. A warning names the groups in which it is
    clearly broken; `decide` with `groups=` gives each group its own threshold and guarantee.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.decisions import DecisionRule, risk_by_group
    >>> confidence, groups = np.full(400, 0.9), np.repeat(["law", "physics"], 200)
    >>> correct = np.arange(400) % np.repeat([4, 50], 200) > 0
    >>> worst, best = risk_by_group(DecisionRule((0.5,), 0.05, 0.95), confidence, correct, groups)
    >>> worst.name, worst.error_rate, worst.broken, best.broken
    ('law', 0.25, True, False)
    """
    wrong = ~score(probs, y, classes).correct
    names, index = check_names(groups, len(wrong), "groups")
    accepted = rule.accept(probs, confidences, groups)
    n_accepted, n_errors = (
        np.bincount(index[some], minlength=len(names)) for some in (accepted, accepted & wrong)
    )
    chances = 1.0 - chance_of_so_few(n_errors - 1, n_accepted, rule.risk)
    broken = holm(chances) <= 0.05
    columns = (names, *(one.tolist() for one in (np.bincount(index), n_accepted, n_errors, broken)))
    rows = [
        GroupRisk(
            name=name,
            n_samples=n,
            n_accepted=count,
            n_errors=errors,
            interval=rate_interval(errors, count),
            broken=bad,
        )
        for name, n, count, errors, bad in zip(*columns)
    ]
    rows.sort(key=lambda row: (-row.interval[0], -np.nan_to_num(row.error_rate), row.name))
    if bad := [row for row in rows if row.broken]:
        worst = bad[0]
        warnings.warn(
            f"The rule for at most {percentage(rule.risk)} mistakes is clearly broken in {len(bad)} of "
            f"{len(rows)} groups. The worst is {worst.name!r}: {worst.n_errors:,} of "
            f"{worst.n_accepted:,} accepted predictions are wrong. Use decide(..., groups=groups) "
            "for a threshold and a guarantee per group.",
            GroupRiskWarning,
            stacklevel=2,
        )
    return tuple(rows)


def holm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct p-values for their number (Holm, 1979): never weaker than Bonferroni, and valid for
    any dependence.
    """
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(
        np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0
    )
    return corrected
