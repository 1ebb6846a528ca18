"""What every kind of `recal calibrate` shares: settings, parts of the labelled rows, and the end of
a run, which chooses the rule, checks it, writes the folder and sums up.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.clusters import ByRow, count_of_clusters, split_by_cluster
from recal.comparison import compare_probs
from recal.decisions import Decision, decide, risk_curve
from recal.decisions.rule import Guarantee, check_share, percentage
from recal.errors import InputError, recorded_warnings
from recal.files.paths import json_text, replacing
from recal.files.probabilities import Probabilities
from recal.files.saved import save
from recal.reporting.page import Page
from recal.reporting.verdict import SHOWN_RISKS
from recal.schema import Seed, check
from recal.workflow.folder import CALIBRATION, PAGE, SUMMARY, publishing

# Fitting needs the most inputs, the guarantee needs hundreds, and the final check needs the fewest.
SHARES = (0.5, 0.3, 0.2)
FEWEST = 20  # with fewer rows in a part, its figures would be meaningless
Parts = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of every kind of run.

    Attributes
    ----------
    risk, confidence : as in `recal.decide`
    calibrator : ``AutoCalibration()`` by default; graded answers always get a `SignalCalibration`
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
    cross_fit: bool = False
    guarantee: Guarantee = "confidence"
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

    def to_dict(self) -> dict[str, Any]:
        """Return what a later run with more labels repeats."""
        names = ("risk", "confidence", "guarantee", "cross_fit", "keep_rows", "random_state")
        return {name: getattr(self, name) for name in names}


@contextmanager
def running(out: Path, settings: Settings, *, keep_previous: bool = False) -> Iterator[Path]:
    """Give a run a folder to work in, keep its warnings, and publish the folder at the end."""
    with (
        recorded_warnings(settings.warnings),
        publishing(out, keep_previous=keep_previous) as folder,
    ):
        yield folder


def split(
    n_samples: int, random_state: int, clusters: NDArray[Any] | None = None, cross_fit: bool = False
) -> Parts:
    """Return the rows to fit, to decide and to check on: random parts of 50, 30 and 20 %; clusters
    stay whole.

    With `cross_fit`, the first two results are the same rows: those of both parts.
    """
    needed = int(np.ceil(FEWEST / min(SHARES)))
    if n_samples < needed:
        raise InputError(
            f"At least {needed} labelled rows are needed, to fit, to decide and to check on; got "
            f"{n_samples}. A few thousand are better."
        )
    rng = np.random.default_rng([random_state, 2])
    if clusters is None:
        cuts = np.round(np.cumsum(SHARES[:2]) * n_samples).astype(int)
        first, second, third = (
            np.sort(rows) for rows in np.split(rng.permutation(n_samples), cuts)
        )
    else:
        first, second, third = split_by_cluster(clusters, SHARES, rng)
        if not (len(first) and len(second) and len(third)):
            raise InputError(
                f"There are {len(np.unique(clusters))} clusters, too few for three parts that "
                "share none",
                argument="clusters",
            )
    if cross_fit:
        first = second = np.sort(np.concatenate([first, second]))
    return first, second, third


def extend(
    sizes: Sequence[int],
    n_new: int,
    random_state: int,
    clusters: NDArray[Any] | None = None,
    cross_fit: bool = False,
) -> Parts:
    """Return the parts of old rows and new ones behind them.

    Old rows, which are in the order fit, decide, check, keep their part, so that no row that was
    fitted on ever decides or checks. A new row of a known cluster joins its part; others are split
    at random.

    Examples
    --------
    >>> [len(rows) for rows in extend((50, 30, 20), 10, random_state=0)]
    [55, 33, 22]
    """
    old = np.repeat([0, 2] if cross_fit else [0, 1, 2], list(sizes[1:] if cross_fit else sizes))
    rng = np.random.default_rng([random_state, 3, len(old)])
    names = np.arange(len(old) + n_new) if clusters is None else np.asarray(clusters)
    part_of = dict(zip(names[: len(old)].tolist(), old.tolist()))
    unknown = [name for name in dict.fromkeys(names[len(old) :].tolist()) if name not in part_of]
    cuts = np.round(np.cumsum(SHARES[:2]) * len(unknown)).astype(int)
    drawn = np.searchsorted(cuts, np.arange(len(unknown)), side="right")
    if cross_fit:
        drawn[drawn == 1] = 0
    part_of |= dict(zip(unknown, rng.permutation(drawn).tolist()))
    part = np.concatenate([old, [part_of[name] for name in names[len(old) :].tolist()]])
    first, second, third = (np.flatnonzero(part == number) for number in range(3))
    return (first, first, third) if cross_fit else (first, second, third)


def split_words(
    parts: Parts, clusters: NDArray[Any] | None, cross_fit: bool, rows: str = "labelled inputs"
) -> str:
    """Return a sentence about the sizes of the parts."""
    fit, decide, check = map(len, parts)
    by = "" if clusters is None else f" in {count_of_clusters(len(np.unique(clusters)))}"
    words = f"{fit:,} to fit, {decide:,} to decide"
    if cross_fit:
        words, decide = f"{fit:,} to fit and to decide", 0
    return f"Split {fit + decide + check:,} {rows}{by}: {words}, {check:,} to check."


@dataclass(frozen=True)
class HeldOut(ByRow, Probabilities):
    """Labelled answers that were not used for fitting.

    Attributes
    ----------
    before : the probabilities or confidences before calibration, if there are any
    ids : what traces each answer to its input, if that is known
    """

    whole = ("classes",)

    before: Floats | None = None
    ids: NDArray[Any] | None = None

    @property
    def methods(self) -> dict[str, Floats]:
        return {**({} if self.before is None else {"before": self.before}), "after": self.probs}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run of `recal calibrate` computed.

    Attributes
    ----------
    calibrator : fitted, with the rule as its `decision_`
    decisions : how much can be automated with the confidence "after" calibration and, if there is
        one, "before" it; measured on answers that were not used for fitting
    scores : the metrics of the checking answers, "after" and "before"
    sizes : (int, int, int)
        The numbers of answers to fit, to decide and to check on; with `cross_fit`, the first two
        are the same answers.
    n_accepted, n_errors, n_accepted_before : int
        The number of accepted checking answers, of errors among them, and of those accepted before
        calibration.
    rows_name : what the labelled rows are called
    facts : what else the summary says
    notes : further lines for people
    automated : lines about what is automated; by default, about what the rule accepts
    """

    calibrator: Any
    decisions: Mapping[str, Decision]
    scores: Mapping[str, Mapping[str, float]]
    sizes: tuple[int, int, int]
    n_accepted: int
    n_errors: int
    n_accepted_before: int
    cross_fit: bool = False
    rows_name: str = "answers"
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    automated: Sequence[str] = ()

    @property
    def decision(self) -> Decision:
        return self.decisions["after"]

    @property
    def reason(self) -> str:
        return str(getattr(self.calibrator, "reason_", ""))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("nll", "ece", "brier", "auroc", "error_rate")
        checked = {"accepted": self.n_accepted, "errors": self.n_errors}
        if "before" in self.decisions:
            checked["accepted_before"] = self.n_accepted_before
        return {
            "reason": self.reason,
            "parts": dict(zip(("fit", "decide", "check"), self.sizes)),
            **{
                when: {name: scores[name] for name in names if name in scores}
                for when, scores in self.scores.items()
            },
            "decision": self.decision.to_dict(),
            "cross_fit": self.cross_fit,
            "checked": checked,
            **self.facts,
        }

    def lines(self) -> list[str]:
        """Return a summary for people in a few lines, about the checking answers alone."""
        lines = [self.reason, self._measured(), *(self.automated or self._automated()), *self.notes]
        return [line for line in lines if line]

    def _measured(self) -> str:
        before, after = self.scores.get("before"), self.scores["after"]
        both = [one["error_rate"] for one in (before, after) if one and "error_rate" in one]
        # Answers that are kept have one accuracy.
        shown = " -> ".join(dict.fromkeys(f"{1 - rate:.1%}" for rate in both))
        told = [f"Accuracy {shown}"] if shown else []
        for name in ("nll", "ece"):
            was = "" if before is None else f"{before[name]:.4f} -> "
            told.append(f"{name.upper()} {was}{after[name]:.4f}")
        order = "" if before is None else "before -> after, "
        return (
            f"{', '.join(told)} ({order}lower is better; {self.sizes[2]:,} checking "
            f"{self.rows_name}, used for nothing else)."
        )

    def _automated(self) -> list[str]:
        """Return lines with the share of answers that the rule accepts, or why it accepts none."""
        decision, (_, n_deciding, n_checked) = self.decision, self.sizes
        share = n_deciding / sum(self.sizes[1:] if self.cross_fit else self.sizes)
        risk, was = f"{percentage(decision.risk)} errors", ""
        if "before" in self.decisions:
            possible = self.decisions["before"].possible
            was = f"{self.n_accepted_before / n_checked:.1%}" if possible else "none"
            was = f" ({was} before calibration)"
        note = decision.note_on(self.n_errors, self.n_accepted)
        lines = [
            f"{self.n_accepted / n_checked:.1%} of the answers can be automated with at most "
            f"{risk}{was}: {self.n_accepted:,} of the {n_checked:,} checking {self.rows_name} "
            f"accepted, {self.n_errors:,} wrong. {note}{' ' if note else ''}The threshold was "
            f"chosen on {n_deciding:,} other {self.rows_name}, of which it accepts "
            f"{decision.coverage:.1%}. Promise: {decision.promise}. {decision.other_promise}"
        ]
        if not decision.possible:
            lines = [decision.refusal(share)]
        if decision.rule.groups:
            lines += group_lines(decision, share)
        return lines


def group_lines(decision: Decision, share: float, most: int = 10) -> list[str]:
    """Return lines that say which groups accept nothing and how many labels they need, worst first.

    `share` is the share of labelled inputs that decide; more inputs than `needed` must be labelled
    because of it.
    """
    refused = [part for part in decision.parts if not part.possible]
    refused.sort(key=lambda part: (part.needed is not None, -(part.needed or 0), str(part.name)))
    if not refused:
        return []
    lines = [f"Nothing is accepted yet in {len(refused):,} of {len(decision.parts):,} groups:"]
    lines += [f"  {part.name}: {part.more_labels(share)}" for part in refused[:most]]
    if len(refused) > most:
        lines.append(f"  and {len(refused) - most:,} more groups")
    return lines


def finish(
    calibrator: Any,
    deciding: HeldOut,
    checking: HeldOut,
    settings: Settings,
    folder: Path,
    *,
    by: str = "group",
    columns: Mapping[str, Any] | None = None,
    passes: float | None = None,
    **own: Any,
) -> Result:
    """Choose the rules on one part, measure what they accept on another, and write the folder.

    The page applies the rules of the deciding answers to the checking answers; all figures of the
    result are those of the page.

    Parameters
    ----------
    by : what the groups are called
    columns : which columns of a table were read, for later rows
    passes : forward passes per answer
    **own : further fields of the result
    """
    truth: Any = deciding.labels
    clusters = deciding.clusters
    how: dict[str, Any] = {"guarantee": settings.guarantee, "clusters": clusters}
    decisions, curves = {}, {}
    for name, probs in deciding.methods.items():
        how["confidences"] = deciding.confidence if name == "after" else None
        level, groups = settings.confidence, deciding.groups
        decisions[name] = decide(probs, truth, settings.risk, level, groups=groups, **how)
        curves[name] = risk_curve(probs, truth, SHOWN_RISKS, level, **how)
    compared = compare_probs(
        checking.methods,
        checking.named_labels,
        confidences={"after": checking.confidence},
        passes=None if passes is None else {"after": passes},
        classes=checking.classes,
        clusters=checking.clusters,
        ids=checking.ids,
        random_state=settings.random_state,
    )
    own = {"rows_name": "answers", **own}
    own["facts"] = {**own.get("facts", {}), "warnings": settings.warnings}
    page = Page(
        compared,
        about={**settings.about, "Date": today()},
        rows=f"checking {own['rows_name']}",
        command=settings.command,
        groups={} if checking.groups is None else {by: checking.groups},
        risk=settings.risk,
        decisions=decisions,
        curves=curves,
        warnings=settings.warnings,
    )
    accepted = page.automated
    calibrator.decision_ = decisions["after"].rule
    result = Result(
        calibrator=calibrator,
        decisions=decisions,
        scores={
            name: {metric: float(values[0, index]) for metric, values in compared.values.items()}
            for index, name in enumerate(compared.methods)
        },
        n_accepted=accepted["after"].n_accepted,
        n_errors=accepted["after"].n_errors,
        n_accepted_before=accepted["before"].n_accepted if "before" in accepted else 0,
        cross_fit=settings.cross_fit,
        **own,
    )
    page.write(folder / PAGE)
    kept = {"settings": settings.to_dict(), "columns": columns}
    summary = {**result.to_dict(), **kept}
    with replacing(folder / SUMMARY) as file:
        file.write(json_text(summary).encode())
    # The calibration comes last: a folder that has it is complete.
    save(calibrator, folder / CALIBRATION)
    return result


def today() -> str:
    """Return the date for the page; reproducible builds set SOURCE_DATE_EPOCH."""
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
