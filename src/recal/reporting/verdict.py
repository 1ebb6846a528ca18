"""The verdict on a method: which one to use, whether it is better, how much it automates, which
answers it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.clusters import check_names
from recal.comparison import Comparison, Judgement, Recommendation, judge
from recal.comparison.recommendation import cost
from recal.decisions import Decision, RiskCurve, decide, risk_curve
from recal.decisions.certify import chance_of_so_few
from recal.decisions.decision import Outcome
from recal.metrics import CalibrationTest
from recal.metrics.intervals import rate_interval
from recal.metrics.row_scores import RowScores
from recal.reporting.chart import sentences
from recal.reporting.figure_data import Acceptance, holm, threshold_table

SHOWN_RISKS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2)


@dataclass(frozen=True, kw_only=True)
class Automation(Outcome):
    """How much one method, its name, automates on the rows of the page.

    Attributes
    ----------
    decision : the rule; chosen on these rows, unless the caller brought one from other rows
    rows : confidence and correctness of each row of the page
    accepted : for each row, whether the rule accepts the answer
    curve : the share of these rows that can be accepted at each risk; None if the thresholds are
        not known
    """

    decision: Decision
    rows: RowScores
    accepted: NDArray[np.bool_]
    curve: RiskCurve | None

    def by_group(self, groups: NDArray[Any]) -> tuple[GroupRisk, ...]:
        """Return how the rule does in each group of the rows, worst first."""
        return risk_by_group(self.accepted, self.rows.correct, groups, self.decision.risk)


@dataclass(frozen=True, kw_only=True)
class GroupRisk(Outcome):
    """How one rule does in one group.

    `interval` is the 95 % interval of the share of mistakes among accepted answers. `broken` says
    whether this share is clearly above the risk, after correcting for the number of groups.
    """

    broken: bool


def risk_by_group(
    accepted: NDArray[np.bool_], correct: NDArray[np.bool_], groups: NDArray[Any], risk: float
) -> tuple[GroupRisk, ...]:
    """Return how a rule does in each group of labelled answers, the worst group first."""
    names, index = check_names(groups, len(accepted), "groups")
    n_samples, n_accepted, n_errors = (
        np.bincount(index[some], minlength=len(names))
        for some in (slice(None), accepted, accepted & ~correct)
    )
    broken = holm(1.0 - chance_of_so_few(n_errors - 1, n_accepted, risk)) <= 0.05
    columns = (one.tolist() for one in (n_samples, n_accepted, n_errors, broken))
    found = [
        GroupRisk(
            name=name,
            n_samples=n,
            n_accepted=count,
            n_errors=errors,
            interval=rate_interval(errors, count),
            broken=is_broken,
        )
        for name, n, count, errors, is_broken in zip(names, *columns)
    ]
    return tuple(
        sorted(found, key=lambda one: (-one.interval[0], -np.nan_to_num(one.error_rate), one.name))
    )


def automation(
    comparison: Comparison,
    method: str,
    risk: float,
    *,
    decision: Decision | None = None,
    curve: RiskCurve | None = None,
    groups: NDArray[Any] | None = None,
) -> Automation:
    """Apply a rule to the test rows, or search one there.

    `decision` and `curve` come from other rows: their thresholds are applied to these rows.
    `groups` are those of a decision that has a threshold for each group.
    """
    rows, graded = comparison.samples[method], comparison.graded
    probs = comparison.probs[method]
    if curve is not None:
        curve = _applied(curve, rows.confidence)
    if decision is None:
        truth = rows.correct if graded else comparison.test_labels
        # The model's own confidence is not calibrated: it cannot say where the search should start.
        own = None if graded or method == comparison.methods[0] else rows.confidence
        how: dict[str, Any] = {"confidences": own, "clusters": comparison.clusters}
        decision = decide(probs, truth, risk, **how)
        curve = curve or risk_curve(probs, truth, SHOWN_RISKS, **how)
    accepted = decision.accept(probs, None if graded else rows.confidence, groups)
    return Automation(
        name=method,
        n_samples=len(rows),
        n_accepted=int(accepted.sum()),
        n_errors=int((accepted & ~rows.correct).sum()),
        decision=decision,
        rows=rows,
        accepted=accepted,
        curve=curve,
    )


def _applied(curve: RiskCurve, confidence: NDArray[np.float64]) -> RiskCurve:
    """Return the curve with the shares that its thresholds accept among other rows."""
    n = len(confidence)
    counts = [int((confidence >= threshold).sum()) for threshold in curve.thresholds]
    intervals = tuple(rate_interval(count, n) for count in counts)
    return replace(curve, coverage=tuple(count / n for count in counts), intervals=intervals)


@dataclass(frozen=True)
class Verdict:
    """Everything that the verdict says about a method, as values; `sentences` says it in words.

    Attributes
    ----------
    judgement : by proper scores, against the model before; None if there is nothing to compare with
    before, after : answers that reach a confidence: errors expected and observed, and the range of
        a calibrated model
    tests : the calibration tests over all answers, before and after; they alone say whether a
        method is calibrated
    changed : how many answers differ from those before
    ece_high : the largest ECE that agrees with the samples; NaN if no interval was computed
    """

    method: str
    judgement: Judgement | None
    before: Acceptance | None
    after: Acceptance
    tests: tuple[CalibrationTest, ...]
    changed: int
    error_rates: tuple[float, ...]
    ece_high: float

    @property
    def outcome(self) -> str:
        return "" if self.judgement is None else self.judgement.outcome

    @property
    def sentences(self) -> tuple[str, ...]:
        """In the order in which people read them; the first says better, worse, or no significant
        difference.
        """
        return sentences("verdict", self)


def verdict(comparison: Comparison, method: str) -> Verdict:
    """Judge a method against the model before it, by expected and observed errors and by proper
    scores.
    """
    first = comparison.methods[0]
    names = [method] if method == first else [first, method]
    tables = [threshold_table(comparison.samples[name]) for name in names]
    # The first level that 5 % of the answers reach, before and after: not the one at which the
    # method looks best.
    levels = (0.9, 0.8, 0.7, 0.6, 0.5)
    level = next((v for v in levels if all(table[v].share >= 0.05 for table in tables)), 0.0)
    tests = tuple(comparison.calibration_tests[name] for name in names)
    answers = [comparison.answers[name] for name in names]
    return Verdict(
        method,
        None if method == first else judge(comparison, method, first),
        None if method == first else tables[0][level],
        tables[-1][level],
        tests,
        int((answers[0] != answers[-1]).sum()),
        tuple(1 - float(comparison.samples[name].correct.mean()) for name in names),
        float(comparison.row("ece", method).interval[1]),
    )


def advice(comparison: Comparison, choice: Recommendation) -> str:
    """Say which method to use, and why, in one sentence."""
    others = [name for name in choice.contenders if name != choice.method]
    return sentences("advice", comparison, choice, others)[0]


def shown_first(comparison: Comparison, choice: Recommendation) -> str:
    """Return the method that the page opens with: the recommended one, or the cheapest contender if
    that is none.
    """
    first = comparison.methods[0]
    if choice.method != first or len(comparison.methods) == 1:
        return choice.method
    others = {*choice.contenders} - {first} or {*comparison.methods} - {first}
    return min(others, key=lambda name: cost(comparison, name))


def headline(
    comparison: Comparison, choice: Recommendation, automated: Mapping[str, Automation]
) -> tuple[str, ...]:
    """Return the lines that a reader in a hurry needs: which method, what it costs, how much it
    automates.
    """
    first, method = comparison.methods[0], choice.method
    # Two sets of probabilities of which neither is shown to be better.
    undecided = (
        not comparison.setup.n_fit and len(comparison.methods) == len(choice.contenders) == 2
    )
    if undecided:
        method = shown_first(comparison, choice)
    after, before = automated[method], automated[first] if method != first else None
    less = before is not None and automates_less(before, after)
    return sentences("headline", comparison, choice, before, after, less, undecided)


def automates_less(before: Automation, after: Automation) -> bool:
    """Whether the share that can be automated falls visibly, in the digits that the page shows."""
    return round(after.coverage, 3) < round(before.coverage, 3)
