"""Chooses the rules, checks them on the checking answers, writes the folder, and sums up the result
in a few lines.
"""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.comparison import compare_probs
from recal.decisions import Decision, decide_each, risk_curve
from recal.decisions.curves import Gain
from recal.decisions.rule import check_share
from recal.errors import GroupRiskWarning, recorded_warnings
from recal.files.paths import json_text, replacing
from recal.files.saved import save
from recal.metrics import Evaluation, evaluate
from recal.reporting import report
from recal.reporting.verdict import RISKS, AnswerChange
from recal.schema import Seed, check
from recal.workflow.folder import CALIBRATION, PAGE, SUMMARY

DRAWS = 200  # bootstrap draws for intervals
# The terminal names at most this many groups; the page has all of them.
_MOST_GROUPS = 10


def broken_groups(
    decision: Decision, probs: Any, y: Any, groups: Any, confidences: Any = None
) -> tuple[str, ...]:
    """Return the groups in which a common rule makes clearly more mistakes than its risk, worst
    first.
    """
    if groups is None or decision.rule.groups or not decision.possible:
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GroupRiskWarning)  # `broken_line` reports it
        return tuple(
            str(one.name) for one in decision.by_group(probs, y, groups, confidences) if one.broken
        )


def broken_line(names: tuple[str, ...], risk: float) -> str:
    """Return a line that names the groups in which a common rule is broken; empty if there are
    none.
    """
    if not names:
        return ""
    rest = f" and {len(names) - _MOST_GROUPS:,} more" if len(names) > _MOST_GROUPS else ""
    return (
        f"One rule for all makes clearly more than {100 * risk:g} % errors in {', '.join(names[:_MOST_GROUPS])}{rest}. "
        "Leave out --one-rule: each group then gets its own threshold and guarantee."
    )


def group_lines(decision: Decision, share: float) -> list[str]:
    """Return lines that say which groups accept nothing and how many labels they need, worst first.

    `share` is the share of labelled inputs that decide; more inputs than `needed` must be labelled
    because of it.
    """
    refused = [part for part in decision.parts if not part.possible] if decision.rule.groups else []
    if not refused:
        return []
    refused.sort(key=lambda part: (part.needed is not None, -(part.needed or 0), str(part.name)))
    lines = [f"Nothing is accepted yet in {len(refused):,} of {len(decision.parts):,} groups:"]
    for part in refused[:_MOST_GROUPS]:
        lines.append(f"  {part.name}: {part.more_labels(share)}")
    if len(refused) > _MOST_GROUPS:
        lines.append(f"  and {len(refused) - _MOST_GROUPS:,} more groups")
    return lines


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of every kind of run.

    Attributes
    ----------
    risk, confidence : as in `recal.decide`
    calibrator : ``AutoCalibration()`` by default; graded answers always get a `SignalCalibration`
    one_rule : use one threshold for all groups; its guarantee holds for all of them together
    cross_fit : bool
        Fit and decide on the same inputs, as `recal.decisions.decide_crossfitted` does. More inputs
        choose the threshold, which automates more if there are few labels. The guarantee is then
        measured, not proven.
    guarantee : as in `recal.decide`
    keep_rows : keep the labelled rows in the folder, so that later ones can be added to them
    command : the command that makes the report again
    about : facts for the top of the page; the date is added
    warnings : what the run warned of, for the page and the summary
    say : called with each line about the progress of the run
    """

    risk: float = 0.01
    confidence: float = 0.95
    calibrator: Calibrator | None = None
    one_rule: bool = False
    cross_fit: bool = False
    guarantee: Literal["confidence", "average"] = "confidence"
    keep_rows: bool = True
    random_state: int = 0
    command: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        check_share(self.risk, "risk")
        check_share(self.confidence, "confidence")
        check(self.random_state, Seed(), "random_state")

    @property
    def promise(self) -> dict[str, Any]:
        """The arguments of `decide` about its guarantee."""
        return {"risk": self.risk, "confidence": self.confidence, "guarantee": self.guarantee}

    def to_dict(self) -> dict[str, Any]:
        """Return what a later run with more labels repeats."""
        names = ("risk", "confidence", "guarantee", "one_rule", "cross_fit", "keep_rows")
        return {**{name: getattr(self, name) for name in names}, "seed": self.random_state}


def recording(run: Callable[..., Any]) -> Callable[..., Any]:
    """Let a run keep its warnings in its settings."""

    @wraps(run)
    def recorded(*values: Any, **options: Any) -> Any:
        settings = next(one for one in (*values, *options.values()) if isinstance(one, Settings))
        with recorded_warnings(settings.warnings):
            return run(*values, **options)

    return recorded


@dataclass(frozen=True)
class Answers:
    """Labelled answers that were not used for fitting.

    Attributes
    ----------
    before, after : probabilities of shape (n_samples, n_classes), or the confidence of each answer
        `before` is None if there is no confidence before calibration.
    truth : the labels; for graded answers, which of them are right
    confidences : what `predict_confidence` gave for `after`; None if `after` is the confidence
    classes : names of the classes, if they have any
    ids : what traces each answer to its input, if that is known
    by : what the groups are called
    """

    before: Floats | None
    after: Floats
    truth: NDArray[Any]
    confidences: Floats | None = None
    groups: NDArray[Any] | None = None
    clusters: NDArray[Any] | None = None
    classes: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    by: str = "group"

    def take(self, rows: NDArray[np.intp]) -> Answers:
        """Return some of the answers."""
        names = ("before", "after", "truth", "confidences", "groups", "clusters", "ids")
        columns = {name: getattr(self, name) for name in names}
        return replace(
            self, **{name: values[rows] for name, values in columns.items() if values is not None}
        )

    @property
    def methods(self) -> dict[str, Floats]:
        return {**({} if self.before is None else {"before": self.before}), "after": self.after}

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.asarray(
            self.truth if self.after.ndim == 1 else self.after.argmax(axis=1) == self.truth
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run of `recal calibrate` computed.

    Attributes
    ----------
    calibrator : fitted, with the rule as its `decision_`
    decision, decision_before : Decision
        How much can be automated with the calibrated confidence, and with the model's own; measured
        on answers that were not used for fitting. `decision_before` and `before` are None if there
        is no confidence before calibration.
    before, after : Evaluation
        The model's own confidence and the calibrated confidence, measured on the checking answers.
    sizes : (int, int, int)
        The numbers of answers to fit, to decide and to check on.
    n_accepted, n_errors, n_accepted_before : int
        The number of accepted checking answers, of errors among them, and of those accepted before
        calibration.
    broken_groups : tuple of str
        Groups in which a common rule makes clearly more errors than its risk.
    folder : Path
    gain : Gain or None
        How much more is automated after calibration than before. Only a `CalibrationResult` has an
        interval.
    change : AnswerChange or None
        What would be gained on the checking part if the calibration could change predictions.
    passes_per_answer : float or None
        Forward passes of the model; None if there is no model.
    columns : mapping
        The columns of a table of graded answers.
    """

    rows_name: ClassVar[str] = "answers"
    gain_draws: ClassVar[int] = (
        1  # the interval of `gain` takes seconds, and a run on graded answers does not show it
    )
    calibrator: Any
    decision: Decision
    decision_before: Decision | None
    before: Evaluation | None
    after: Evaluation
    sizes: tuple[int, int, int]
    n_accepted: int
    n_errors: int
    n_accepted_before: int
    broken_groups: tuple[str, ...]
    folder: Path
    gain: Gain | None
    change: AnswerChange | None = None
    passes_per_answer: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, calibrator: Any, deciding: Answers, checking: Answers, settings: Settings, **own: Any
    ) -> Self:
        """Choose the rules on one part, measure what they accept on another, and write the folder."""
        decisions = decide_each(
            deciding.methods,
            deciding.truth,
            **settings.promise,
            confidences={"after": deciding.confidences},
            groups=None if settings.one_rule else deciding.groups,
            clusters=deciding.clusters,
            draws=cls.gain_draws,
            random_state=settings.random_state,
        )
        decision, groups = decisions["after"], None if settings.one_rule else checking.groups
        accepted = {
            name: decisions[name].accept(
                probs, checking.confidences if name == "after" else None, groups
            )
            for name, probs in checking.methods.items()
        }
        options: dict[str, Any] = {
            "clusters": checking.clusters,
            "random_state": settings.random_state,
        }
        before = (
            None
            if checking.before is None
            else evaluate(checking.before, checking.truth, DRAWS, **options)
        )
        calibrator.decision_ = decision.rule
        result = cls(
            calibrator=calibrator,
            decision=decision,
            decision_before=decisions.get("before"),
            before=before,
            after=evaluate(
                checking.after, checking.truth, DRAWS, confidences=checking.confidences, **options
            ),
            n_accepted=int(accepted["after"].sum()),
            n_errors=int((accepted["after"] & ~checking.correct).sum()),
            n_accepted_before=int(accepted["before"].sum()) if "before" in accepted else 0,
            broken_groups=broken_groups(
                decision, deciding.after, deciding.truth, deciding.groups, deciding.confidences
            ),
            gain=decisions.gains.get("after"),
            **own,
        )
        result._write(deciding, checking, settings)
        return result

    def _write(self, deciding: Answers, checking: Answers, settings: Settings) -> None:
        """Write the page and the summary, then the calibration: a folder that has it is complete.

        The page applies the rules of the deciding answers to the checking answers, as the lines of
        the terminal do.
        """
        curves = {
            name: risk_curve(
                probs,
                deciding.truth,
                RISKS,
                settings.confidence,
                guarantee=settings.guarantee,
                confidences=deciding.confidences if name == "after" else None,
                clusters=deciding.clusters,
            )
            for name, probs in deciding.methods.items()
        }
        classes, passes = checking.classes, self.passes_per_answer
        compared = compare_probs(
            checking.methods,
            checking.truth if classes is None else classes[checking.truth],
            confidences={"after": checking.confidences},
            passes=None if passes is None else {"after": passes},
            classes=classes,
            clusters=checking.clusters,
            ids=checking.ids,
            random_state=settings.random_state,
        )
        decisions = {"before": self.decision_before, "after": self.decision}
        self.folder.mkdir(parents=True, exist_ok=True)
        report(
            compared,
            self.folder / PAGE,
            about={**settings.about, "Date": today()},
            rows=f"checking {self.rows_name}",
            command=settings.command,
            groups=None if checking.groups is None else {checking.by: checking.groups},
            risk=settings.risk,
            decisions={name: one for name, one in decisions.items() if one is not None},
            curves=curves,
            change=self.change,
            warnings=settings.warnings,
        )
        about = {**settings.to_dict(), **self.columns}
        summary = {**self.to_dict(), "warnings": settings.warnings, "settings": about}
        with replacing(self.folder / SUMMARY) as file:
            file.write(json_text(summary).encode())
        save(self.calibrator, self.folder / CALIBRATION)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        raise NotImplementedError

    def _scores(self, *names: str) -> dict[str, dict[str, float]]:
        """Return metrics before (if there was a confidence) and after calibration."""
        both = {"before": self.before, "after": self.after}
        return {
            when: {name: one[name] for name in names}
            for when, one in both.items()
            if one is not None
        }

    def _automated(self, before: str = "") -> str:
        """Return a line with the share of answers that the rule accepts; `before` is text about the
        share before.
        """
        name, n_checked = self.rows_name, self.sizes[2]
        note = self.decision.rule.note_on(self.n_errors, self.n_accepted)
        note += " " if note else ""
        return (
            f"{self.n_accepted / n_checked:.1%} of the answers can be automated with at most "
            f"{100 * self.decision.risk:g} % errors{before}: {self.n_accepted:,} of the {n_checked:,} checking {name} "
            f"accepted, {self.n_errors:,} wrong. {note}The threshold was chosen on {self.sizes[1]:,} "
            f"other {name}. Promise: {self.decision.promise}. {self.decision.other_promise}"
        )


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(Result):
    """What `calibrate` computed from a model's answers; with `cross_fit`, the first two sizes are
    the same inputs.

    Attributes
    ----------
    cross_fit : bool
        Whether fitting and deciding used the same inputs.
    n_passes : int or None
        Forward passes of this run, including all of its parts; None if they ran on a cluster.
    """

    rows_name: ClassVar[str] = "inputs"
    gain_draws: ClassVar[int] = DRAWS
    decision_before: Decision
    before: Evaluation
    gain: Gain
    change: AnswerChange
    passes_per_answer: float
    cross_fit: bool
    n_passes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": getattr(self.calibrator, "reason_", ""),
            "method": getattr(self.calibrator, "choice_", self.calibrator.short_name),
            "parts": dict(zip(("fit", "decide", "check"), self.sizes)),
            **self._scores("nll", "ece", "brier", "error_rate"),
            "decision": self.decision.to_dict(),
            "decision_before": self.decision_before.to_dict(),
            "gain": {"difference": self.gain.difference, "interval": list(self.gain.interval)},
            "cross_fit": self.cross_fit,
            "checked": {
                "accepted": self.n_accepted,
                "errors": self.n_errors,
                "accepted_before": self.n_accepted_before,
            },
            "free_answers": {
                "changed": self.change.changed,
                "accuracy": self.change.free_accuracy,
                "clear": self.change.clear,
            },
            "passes_per_answer": self.passes_per_answer,
            "passes": self.n_passes,
            "broken_groups": list(self.broken_groups),
        }

    def lines(self) -> list[str]:
        """Return a summary for people in a few lines; all figures come from the checking inputs."""
        before, after = self.before, self.after
        scores = (
            f"Accuracy {1 - after['error_rate']:.1%}, NLL {before['nll']:.4f} -> {after['nll']:.4f}, ECE "
            f"{before['ece']:.4f} -> {after['ece']:.4f} (before -> after, lower is better; {self.sizes[2]:,} checking "
            "inputs, used for nothing else)."
        )
        passes = f"Forward passes per answer: {self.passes_per_answer:.2f}."
        passes += "" if self.n_passes is None else f" This run made {self.n_passes:,} in all."
        reason = str(getattr(self.calibrator, "reason_", ""))
        free = self.change.words if self.change.clear and "--answers free" not in reason else ""
        if self.decision.possible:
            was = (
                f"{self.n_accepted_before / self.sizes[2]:.1%}"
                if self.decision_before.possible
                else "none"
            )
            automated = self._automated(f" ({was} before calibration)") + self._chance()
            groups = group_lines(self.decision, self._share)
        else:
            risk = f"{100 * self.decision.risk:g} %"
            automated, groups = (
                f"No answers can be automated with at most {risk} errors: {self._why_none()}",
                [],
            )
        broken = broken_line(self.broken_groups, self.decision.risk)
        return [line for line in (reason, scores, free, automated, *groups, broken, passes) if line]

    def _chance(self) -> str:
        """Return how uncertain the change is, or nothing if the share is clearly larger than
        before.
        """
        low, high = self.gain.interval
        if not self.decision_before.possible or low > 0:
            return ""
        change = f"The change is uncertain: {100 * low:+.0f} to {100 * high:+.0f} percentage points"
        if round(100 * low) == round(100 * high) == 0:
            change = "No change: less than one percentage point"
        words = f" {change} in resamples of the {self.sizes[1]:,} inputs that choose the threshold."
        return words if self.cross_fit else f"{words} --cross-fit lets more inputs choose."

    def _why_none(self) -> str:
        if self.decision.needed is None:
            return f"{self.sizes[1]:,} inputs to decide on do not show it."
        return (
            f"{self.sizes[1]:,} inputs to decide on are too few to show it. Add "
            f"{self.decision.more_labels(self._share)}"
            f"{'' if self.cross_fit else ', or let more inputs decide with --cross-fit'}."
        )

    @property
    def _share(self) -> float:
        """The share of labelled inputs that decide."""
        labelled = self.sizes[2] + (
            self.sizes[1] if self.cross_fit else self.sizes[0] + self.sizes[1]
        )
        return self.sizes[1] / labelled


def today() -> str:
    """Return the date for the page; reproducible builds set SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        if epoch.isdigit()
        else datetime.datetime.now()
    )
    return now.date().isoformat()
