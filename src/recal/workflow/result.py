"""Chooses the rules, checks them on the checking answers, writes the folder, and sums up the result
in a few lines.
"""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.comparison import compare_probs
from recal.decisions import Decision, decide_each, risk_by_group, risk_curve
from recal.decisions.curves import Gain
from recal.decisions.rule import check_share
from recal.errors import GroupRiskWarning, recorded_warnings
from recal.files.paths import json_text, replacing
from recal.files.saved import save
from recal.reporting.page import Page
from recal.reporting.verdict import SHOWN_RISKS, AnswerChange
from recal.schema import Seed, check
from recal.workflow.folder import CALIBRATION, PAGE, SUMMARY, publishing


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
            str(one.name)
            for one in risk_by_group(
                decision.rule, probs, y, groups, confidences, classes=decision.classes
            )
            if one.broken
        )


def broken_line(names: tuple[str, ...], risk: float, most: int = 10) -> str:
    """Return a line that names the groups in which a common rule is broken; empty if there are
    none.
    """
    if not names:
        return ""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (
        f"One rule for all makes clearly more than {100 * risk:g} % errors in "
        f"{', '.join(names[:most])}{rest}. Leave out --one-rule: each group then gets its own "
        "threshold and guarantee."
    )


def group_lines(decision: Decision, share: float, most: int = 10) -> list[str]:
    """Return lines that say which groups accept nothing and how many labels they need, worst first.

    `share` is the share of labelled inputs that decide; more inputs than `needed` must be labelled
    because of it.
    """
    refused = [part for part in decision.parts if not part.possible] if decision.rule.groups else []
    if not refused:
        return []
    refused.sort(key=lambda part: (part.needed is not None, -(part.needed or 0), str(part.name)))
    lines = [f"Nothing is accepted yet in {len(refused):,} of {len(decision.parts):,} groups:"]
    lines += [f"  {part.name}: {part.more_labels(share)}" for part in refused[:most]]
    if len(refused) > most:
        lines.append(f"  and {len(refused) - most:,} more groups")
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


@contextmanager
def running(out: Path, settings: Settings, *, keep_previous: bool = False) -> Iterator[Path]:
    """Give a run a folder to work in, keep its warnings, and publish the folder at the end."""
    with (
        recorded_warnings(settings.warnings),
        publishing(out, keep_previous=keep_previous) as folder,
    ):
        yield folder


@dataclass(frozen=True)
class HeldOut:
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

    def take(self, rows: NDArray[np.intp]) -> HeldOut:
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
        graded = self.after.ndim == 1
        return np.asarray(self.truth if graded else self.after.argmax(axis=1) == self.truth)


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
    before, after : mapping of metric to its value on the checking answers
    sizes : (int, int, int)
        The numbers of answers to fit, to decide and to check on; with `cross_fit`, the first two
        are the same answers.
    n_accepted, n_errors, n_accepted_before : int
        The number of accepted checking answers, of errors among them, and of those accepted before
        calibration.
    broken_groups : tuple of str
        Groups in which a common rule makes clearly more errors than its risk.
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
    may_cross_fit: ClassVar[bool] = True  # whether the command has this option
    metrics: ClassVar[tuple[str, ...]] = ("nll", "ece", "brier", "auroc")
    # The interval of `gain` takes seconds, and a run on graded answers does not show it.
    gain_draws: ClassVar[int] = 1
    calibrator: Any
    decision: Decision
    decision_before: Decision | None
    before: Mapping[str, float] | None
    after: Mapping[str, float]
    sizes: tuple[int, int, int]
    n_accepted: int
    n_errors: int
    n_accepted_before: int
    broken_groups: tuple[str, ...]
    gain: Gain | None
    change: AnswerChange | None = None
    passes_per_answer: float | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    cross_fit: bool = False

    @classmethod
    def of(
        cls,
        calibrator: Any,
        deciding: HeldOut,
        checking: HeldOut,
        settings: Settings,
        folder: Path,
        **own: Any,
    ) -> Self:
        """Choose the rules on one part, measure what they accept on another, and write the folder.

        The page applies the rules of the deciding answers to the checking answers; all figures of
        the result are those of the page.
        """
        seed = settings.random_state
        decisions = decide_each(
            deciding.methods,
            deciding.truth,
            **settings.promise,
            confidences={"after": deciding.confidences},
            groups=None if settings.one_rule else deciding.groups,
            clusters=deciding.clusters,
            draws=cls.gain_draws,
            random_state=seed,
        )
        curves = {
            name: risk_curve(
                probs,
                deciding.truth,
                SHOWN_RISKS,
                settings.confidence,
                guarantee=settings.guarantee,
                confidences=deciding.confidences if name == "after" else None,
                clusters=deciding.clusters,
            )
            for name, probs in deciding.methods.items()
        }
        classes, passes = checking.classes, own.get("passes_per_answer")
        compared = compare_probs(
            checking.methods,
            checking.truth if classes is None else classes[checking.truth],
            confidences={"after": checking.confidences},
            passes=None if passes is None else {"after": passes},
            classes=classes,
            clusters=checking.clusters,
            ids=checking.ids,
            random_state=seed,
        )
        page = Page(
            compared,
            about={**settings.about, "Date": today()},
            rows=f"checking {cls.rows_name}",
            command=settings.command,
            groups={} if checking.groups is None else {checking.by: checking.groups},
            risk=settings.risk,
            decisions=decisions,
            curves=curves,
            change=own.get("change"),
            warnings=settings.warnings,
        )
        scores = {
            name: {metric: float(values[0, index]) for metric, values in compared.values.items()}
            for index, name in enumerate(compared.methods)
        }
        accepted = page.automated
        decision = decisions["after"]
        calibrator.decision_ = decision.rule
        result = cls(
            calibrator=calibrator,
            decision=decision,
            decision_before=decisions.get("before"),
            before=scores.get("before"),
            after=scores["after"],
            n_accepted=accepted["after"].n_accepted,
            n_errors=accepted["after"].n_errors,
            n_accepted_before=accepted["before"].n_accepted if "before" in accepted else 0,
            broken_groups=broken_groups(
                decision, deciding.after, deciding.truth, deciding.groups, deciding.confidences
            ),
            gain=decisions.gains.get("after"),
            cross_fit=settings.cross_fit,
            **own,
        )
        page.write(folder / PAGE)
        about = {**settings.to_dict(), **result.columns}
        summary = {**result.to_dict(), "warnings": settings.warnings, "settings": about}
        with replacing(folder / SUMMARY) as file:
            file.write(json_text(summary).encode())
        # The calibration comes last: a folder that has it is complete.
        save(calibrator, folder / CALIBRATION)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        both = {"before": self.before, "after": self.after}
        return {
            "reason": self.reason,
            "parts": dict(zip(("fit", "decide", "check"), self.sizes)),
            **{
                when: {name: scores[name] for name in self.metrics}
                for when, scores in both.items()
                if scores is not None
            },
            "decision": self.decision.to_dict(),
            "cross_fit": self.cross_fit,
            "checked": {"accepted": self.n_accepted, "errors": self.n_errors},
            "broken_groups": list(self.broken_groups),
        }

    def lines(self) -> list[str]:
        """Return a summary for people in a few lines; all figures come from the checking answers."""
        lines = [
            self.reason,
            *self._measured(),
            self._automated() if self.decision.possible else self._why_none(),
            *group_lines(self.decision, self._share),
            broken_line(self.broken_groups, self.decision.risk),
        ]
        return [line for line in lines if line]

    @property
    def reason(self) -> str:
        return str(getattr(self.calibrator, "reason_", ""))

    def _measured(self) -> list[str]:
        """Return lines about the metrics of the checking answers."""
        raise NotImplementedError

    def _automated(self, before: str = "") -> str:
        """Return a line with the share of answers that the rule accepts; `before` is text about the
        share before.
        """
        name, n_checked = self.rows_name, self.sizes[2]
        note = self.decision.note_on(self.n_errors, self.n_accepted)
        note += " " if note else ""
        return (
            f"{self.n_accepted / n_checked:.1%} of the answers can be automated with at most "
            f"{100 * self.decision.risk:g} % errors{before}: {self.n_accepted:,} of the {n_checked:,} checking {name} "
            f"accepted, {self.n_errors:,} wrong. {note}The threshold was chosen on {self.sizes[1]:,} "
            f"other {name}. Promise: {self.decision.promise}. {self.decision.other_promise}"
        )

    def _why_none(self) -> str:
        hint = (
            "\nMore rows decide with --cross-fit."
            if self.may_cross_fit and not self.cross_fit
            else ""
        )
        return f"{self.decision.refusal(self._share)}{hint}"

    @property
    def _share(self) -> float:
        """The share of labelled inputs that decide."""
        return self.sizes[1] / sum(self.sizes[1:] if self.cross_fit else self.sizes)


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(Result):
    """What `calibrate` computed from a model's answers.

    `n_passes` counts the forward passes of this run, including all of its parts; None if they ran
    on a cluster.
    """

    rows_name: ClassVar[str] = "inputs"
    metrics: ClassVar[tuple[str, ...]] = ("nll", "ece", "brier", "error_rate")
    gain_draws: ClassVar[int] = 200
    decision_before: Decision
    before: Mapping[str, float]
    gain: Gain
    change: AnswerChange
    passes_per_answer: float
    n_passes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        plain["checked"]["accepted_before"] = self.n_accepted_before
        return {
            **plain,
            "method": getattr(self.calibrator, "choice_", self.calibrator.short_name),
            "decision_before": self.decision_before.to_dict(),
            "gain": {"difference": self.gain.difference, "interval": list(self.gain.interval)},
            "free_answers": {
                "changed": self.change.changed,
                "accuracy": self.change.free_accuracy,
                "clear": self.change.clear,
            },
            "passes_per_answer": self.passes_per_answer,
            "passes": self.n_passes,
        }

    def lines(self) -> list[str]:
        passes = f"Forward passes per answer: {self.passes_per_answer:.2f}."
        passes += "" if self.n_passes is None else f" This run made {self.n_passes:,} in all."
        return [*super().lines(), passes]

    def _measured(self) -> list[str]:
        before, after = self.before, self.after
        scores = (
            f"Accuracy {1 - after['error_rate']:.1%}, NLL {before['nll']:.4f} -> {after['nll']:.4f}, ECE "
            f"{before['ece']:.4f} -> {after['ece']:.4f} (before -> after, lower is better; {self.sizes[2]:,} checking "
            "inputs, used for nothing else)."
        )
        told = "--answers free" in self.reason
        return [scores, self.change.words if self.change.clear and not told else ""]

    def _automated(self, before: str = "") -> str:
        was = "none"
        if self.decision_before.possible:
            was = f"{self.n_accepted_before / self.sizes[2]:.1%}"
        return super()._automated(f" ({was} before calibration)") + self._chance()

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


def today() -> str:
    """Return the date for the page; reproducible builds set SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
        if epoch.isdigit()
        else datetime.datetime.now()
    )
    return now.date().isoformat()
