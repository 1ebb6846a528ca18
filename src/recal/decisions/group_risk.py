"""How one rule does in each group of labelled samples."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.clusters import check_names
from recal.decisions.certify import chance_of_so_few
from recal.decisions.outcome import Outcome
from recal.decisions.rule import DecisionRule, percent
from recal.errors import GroupRiskWarning
from recal.metrics.intervals import rate_interval
from recal.metrics.row_scores import score


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
    accepted = rule.accept(probs, confidences, groups if rule.groups else None)
    totals = np.bincount(index)
    counts = np.bincount(index, accepted).astype(int)
    errors = np.bincount(index, accepted & wrong).astype(int)
    chances = 1.0 - chance_of_so_few(errors - 1, counts, rule.risk)
    broken = holm(np.where(errors > 0, chances, 1.0)) <= 0.05
    rows = [
        GroupRisk(
            name=name,
            n_samples=n,
            n_accepted=m,
            n_errors=k,
            interval=rate_interval(k, m),
            broken=bad,
        )
        for name, n, m, k, bad in zip(
            names, *(column.tolist() for column in (totals, counts, errors, broken))
        )
    ]
    rows.sort(key=lambda row: (-row.interval[0], -np.nan_to_num(row.error_rate), row.name))
    if bad := [row for row in rows if row.broken]:
        worst = bad[0]
        warnings.warn(
            f"The rule for at most {percent(rule.risk)} mistakes is clearly broken in {len(bad)} of {len(rows)} "
            f"groups. The worst is {worst.name!r}: {worst.n_errors:,} of {worst.n_accepted:,} accepted predictions are "
            "wrong. Use decide(..., groups=groups) for a threshold and a guarantee per group.",
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
