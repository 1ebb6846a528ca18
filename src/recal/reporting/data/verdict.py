"""The verdict: errors expected and errors made, before and after, and whether the change is real."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recal.comparison import Comparison, Judgement, Recommendation, judge
from recal.comparison.judgement import cost
from recal.comparison.tables import number, passes_words, signed
from recal.metrics import CalibrationTest
from recal.reporting.data.thresholds import Acceptance, threshold_table

_LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5)
# A level is spoken of where at least this share of the answers lies above it.
_ENOUGH = 0.05


@dataclass(frozen=True)
class Verdict:
    """All that the verdict says of a method, as values; `sentences` says it in words.

    Attributes
    ----------
    judgement : by proper scores, against the model before; None where there is nothing to compare with
    before, after : the answers above a confidence: errors expected, made, and what a calibrated model would make
    tests : the calibration tests over all answers, before and after
    changed : how many answers are not those from before
    ece_high : the largest ECE that agrees with the samples; NaN where no interval was asked for
    """

    method: str
    judgement: Judgement | None
    before: Acceptance | None
    after: Acceptance
    tests: tuple[CalibrationTest, ...]
    changed: int
    error_rates: tuple[float, ...]
    ece_high: float
    remark: str

    @property
    def outcome(self) -> str:
        return "" if self.judgement is None else self.judgement.outcome

    @property
    def headline(self) -> str:
        """The first sentence: better, worse, or no difference that these samples can show."""
        if self.judgement is None:
            return _promise(self.after, "")
        nll = self.judgement.difference("nll")
        low, high = nll.interval(self.judgement.level)
        numbers = f"NLL {signed(nll.value)} [{signed(low)}, {signed(high)}]"
        brier = self.judgement.difference("brier")
        low, high = brier.interval(self.judgement.level)
        digits = 5
        numbers += f", Brier / K {signed(brier.value, digits)} [{signed(low, digits)}, {signed(high, digits)}]"
        name, n = _after(self.method), self.after.n_samples
        # What is better may still break its promises, and may break them the other way round.
        better = "Better, but still miscalibrated" if self.tests[-1].rejected else "Better"
        return {
            "better": f"{better}: {name}, the probabilities are better than before ({numbers}; lower is better).",
            "worse": f"Worse: {name}, the probabilities are worse than before ({numbers}; lower is better).",
            "mixed": f"Undecided: {name}, one proper score is better and the other worse than before ({numbers}).",
            "no difference": (
                f"No significant difference on these {n:,} samples: {name}, the probabilities are neither better nor "
                f"worse than before ({numbers})."
            ),
        }[self.judgement.outcome]

    @property
    def sentences(self) -> tuple[str, ...]:
        """In the order in which people read them."""
        if self.judgement is None:
            found = [self.headline, _test(self.tests[0], self.ece_high)]
            return tuple(sentence for sentence in [*found, self.remark] if sentence)
        assert self.before is not None
        found = [
            self.headline,
            f"{_promise(self.before, 'Before: ')} {_promise(self.after, _after(self.method).capitalize() + ': ')}",
            f"Calibration test (all predictions): before {self.tests[0].shown}, {_after(self.method)} "
            f"{_test(self.tests[1], self.ece_high)}",
            self._answers(),
            self.remark,
        ]
        return tuple(sentence for sentence in found if sentence)

    def _answers(self) -> str:
        if self.changed == 0:
            return "Every answer is the same as before."
        old, new = self.error_rates
        return (
            f"It changed {self.changed:,} of {self.after.n_samples:,} answers: the error rate went from "
            f"{_percent(old)} to {_percent(new)}."
        )


def verdict(comparison: Comparison, method: str) -> Verdict:
    """Judge a method against the model before it, by expected and made errors and by proper scores."""
    first = comparison.methods[0]
    names = [method] if method == first else [first, method]
    tables = [threshold_table(comparison.samples[name]) for name in names]
    # The first level that enough answers reach, before and after: not the one at which the method looks best.
    level = next((v for v in _LEVELS if all(table.at(v).share >= _ENOUGH for table in tables)), 0.0)
    tests = tuple(comparison.calibration_tests[name] for name in names)
    interval = comparison.row("ece", method).interval
    remark = "" if comparison.setup.splits > 1 else tests[-1].beside(interval)
    answers = [comparison.answers[name] for name in names]
    return Verdict(
        method,
        None if method == first else judge(comparison, method, first),
        None if method == first else tables[0].at(level),
        tables[-1].at(level),
        tests,
        int((answers[0] != answers[-1]).sum()),
        tuple(1 - float(comparison.samples[name].correct.mean()) for name in names),
        float(interval[1]),
        remark,
    )


def advice(comparison: Comparison, found: Recommendation) -> str:
    """Which method to use, and why: one sentence."""
    others = [name for name in found.contenders if name != found.method]
    many = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    first = comparison.methods[0]
    if not comparison.setup.n_fit:  # probabilities from anywhere: what they cost is not known
        if len(comparison.methods) == 2 and others:
            return "These samples do not show which of the two to use."
        return use(found.method)
    if found.method == first:
        why = f"no method is significantly better, {many} among them" if others else "every method is worse"
        return f"Leave the model as it is: {why}, and its own confidence passes the calibration test."
    start = f"Use {found.method}, {passes_words(found.passes)} per answer: "
    if comparison.calibration_tests[found.method].rejected:
        many += ". It is still miscalibrated: see the expected errors below"
    if not others:
        return start + f"every other method is significantly worse{many}."
    return start + f"the best of the cheapest that no other method beats significantly; the others are {many}."


def use(method: str) -> str:
    """Probabilities from anywhere are called "before" and "after" themselves."""
    named = {"before": "the probabilities as they were", "after": "the calibrated probabilities"}
    named |= {"default": "the default of recal"}
    return f"Use {named.get(method, method)}."


def shown_first(comparison: Comparison, found: Recommendation) -> str:
    """The method that the page opens with: the recommended one, or, where that is none, the cheapest contender."""
    first = comparison.methods[0]
    if found.method != first or len(comparison.methods) == 1:
        return found.method
    others = [name for name in found.contenders if name != first] or [n for n in comparison.methods if n != first]
    return min(others, key=lambda name: cost(comparison, name))


def _promise(found: Acceptance, when: str) -> str:
    above = f"{found.accepted:,} answers above {found.threshold:g} confidence" if found.threshold else (
        f"all {found.accepted:,} answers"
    )  # fmt: skip
    text = (
        f"{above}, {_count(found.promised)} errors expected, {found.made:,} made: {found.kept} "
        f"(a calibrated model would make {found.low:,} to {found.high:,})."
    )
    return when + (text if when else text[0].upper() + text[1:])


def _test(tested: CalibrationTest, ece_high: float) -> str:
    text = f"{tested.shown}: {tested.finding}"
    if not tested.rejected and np.isfinite(ece_high):
        # Not to be rejected is no proof of calibration: how much may remain unseen belongs to it.
        return f"{text}; an ECE of up to {number(ece_high, 3)} would agree with these samples too."
    return f"{text}."


def _after(method: str) -> str:
    """Probabilities from anywhere are called "before" and "after" themselves."""
    return {"after": "after", "default": "with the default"}.get(method, f"with {method}")


def _count(value: float) -> str:
    return f"{value:.1f}" if value < 20 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
