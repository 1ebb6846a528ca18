"""What `recal calibrate` writes and says: the files of its folder, and the result in a few lines."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.errors import FileError, GroupRiskWarning

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator
    from recal.decisions import Decision
    from recal.decisions.curves import Gain
    from recal.metrics import Evaluation
    from recal.reporting.verdict import AnswerChange

CALIBRATION, PAGE, SUMMARY = "calibration.recal", "report.html", "summary.json"
# One store of views for each part of the labelled inputs; an interrupted run resumes from them.
FIT, DECIDE, JUDGE = "fit.zarr", "decide.zarr", "judge.zarr"
CROSS_FIT = "cross-fit"  # the folder of these stores for a run that fits and decides on the same inputs
NAMES = (CALIBRATION, PAGE, SUMMARY)


def is_unfinished(path: Path) -> bool:
    """Whether a run of `recal calibrate` was interrupted in this folder; it writes the calibration last."""
    stores = (path / FIT).exists() or (path / CROSS_FIT).exists()
    return stores and not (path / CALIBRATION).exists()


def file_or_in(path: Path) -> Path:
    """Return the calibration in a folder of `recal calibrate`; any other path as it is."""
    inner = path / CALIBRATION
    return inner if path.is_dir() and inner.is_file() else path


def calibration_in(path: Path) -> Path:
    """Return the calibration's file: `path` itself, or the one in the folder that `recal calibrate` wrote."""
    if not path.is_dir():
        return path
    found = path / CALIBRATION
    if not found.is_file():
        raise FileError(
            f"{path} holds no {CALIBRATION}. "
            + (
                "Its run was interrupted: run the same recal calibrate command again to resume it."
                if is_unfinished(path)
                else "Make it with: recal calibrate --model MODEL --data LABELLED --out FOLDER"
            )
        )
    return found


# Groups that are named in the terminal; the page has all of them.
_MOST_GROUPS = 10


def broken_groups(decision: Decision, probs: Any, y: Any, groups: Any, confidences: Any = None) -> tuple[str, ...]:
    """Return the groups in which one rule for all makes clearly more mistakes than its risk, the worst first."""
    if groups is None or decision.rule.groups or not decision.possible:
        return ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GroupRiskWarning)  # `broken_line` says it
        return tuple(str(one.name) for one in decision.by_group(probs, y, groups, confidences) if one.broken)


def broken_line(names: tuple[str, ...], risk: float) -> str:
    """Name the groups in which one rule for all is broken; empty if there are none."""
    if not names:
        return ""
    rest = f" and {len(names) - _MOST_GROUPS:,} more" if len(names) > _MOST_GROUPS else ""
    return (
        f"One rule for all makes clearly more than {100 * risk:g} % errors in {', '.join(names[:_MOST_GROUPS])}{rest}. "
        "Leave out --one-rule: each group then gets its own threshold and guarantee."
    )


def group_lines(decision: Decision, share: float) -> list[str]:
    """Say which groups accept nothing and how many labels they need, the worst first.

    `share` is the share of labelled inputs that decide, so that more inputs than `needed` must be labelled.
    """
    refused = [part for part in decision.parts if not part.possible] if decision.rule.groups else []
    if not refused:
        return []
    refused.sort(key=lambda part: (part.needed is not None, -(part.needed or 0), str(part.name)))
    lines = [f"Nothing is accepted yet in {len(refused):,} of {len(decision.parts):,} groups:"]
    for part in refused[:_MOST_GROUPS]:
        more = (
            "even its most confident answers are wrong too often"
            if part.needed is None
            else f"about {_two_digits(part.needed / share):,} more labels needed"
        )
        lines.append(f"  {part.name}: {more}")
    if len(refused) > _MOST_GROUPS:
        lines.append(f"  and {len(refused) - _MOST_GROUPS:,} more groups")
    return lines


def _two_digits(number: float) -> int:
    """Round up to two digits: an estimate should look like one."""
    digits = 10 ** max(0, len(str(int(number))) - 2)
    return int(math.ceil(number / digits) * digits)


@dataclass(frozen=True)
class CalibrationResult:
    """What `calibrate` found.

    Attributes
    ----------
    calibrator : Calibrator
        Fitted, with the rule as its `decision_`.
    decision, decision_before : Decision
        How much can be automated with the calibrated probabilities, and with the model's own.
    before, after : Evaluation
        Of the judging part: the model's own probabilities, and the calibrated ones.
    sizes : (int, int, int)
        Inputs for fitting, deciding and judging; where `cross_fit`, the first two are the same.
    gain : Gain
        How much more is automated after calibration than before, with the interval of that difference.
    n_accepted, n_errors, n_accepted_before : int
        Accepted answers of the checking part, the mistakes among them, and answers accepted before calibration.
    change : AnswerChange
        What answers that the calibration may change would gain on the checking part.
    cross_fit : bool
        Whether fitting and deciding used the same inputs.
    passes_per_answer : float
    folder : Path
    n_passes : int or None
        Forward passes of this run, all of its parts included; None if they were made on a cluster.
    broken_groups : tuple of str
        Groups in which one rule for all makes clearly more mistakes than its risk.
    """

    calibrator: Calibrator
    decision: Decision
    decision_before: Decision
    gain: Gain
    before: Evaluation
    after: Evaluation
    sizes: tuple[int, int, int]
    n_accepted: int
    n_errors: int
    n_accepted_before: int
    change: AnswerChange
    passes_per_answer: float
    cross_fit: bool
    folder: Path
    n_passes: int | None = None
    broken_groups: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "reason": getattr(self.calibrator, "reason_", ""),
            "method": getattr(self.calibrator, "choice_", self.calibrator.short_name),
            "parts": dict(zip(("fit", "decide", "judge"), self.sizes)),
            "before": {name: self.before[name] for name in ("nll", "ece", "brier", "error_rate")},
            "after": {name: self.after[name] for name in ("nll", "ece", "brier", "error_rate")},
            "decision": self.decision.to_dict(),
            "decision_before": self.decision_before.to_dict(),
            "gain": {"difference": self.gain.difference, "interval": list(self.gain.interval)},
            "cross_fit": self.cross_fit,
            "judged": {"accepted": self.n_accepted, "errors": self.n_errors, "accepted_before": self.n_accepted_before},
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
        """What a person wants to know, in a few lines; all figures come from the checking inputs."""
        before, after = self.before, self.after
        scores = (
            f"Accuracy {1 - after['error_rate']:.1%}, NLL {before['nll']:.4f} -> {after['nll']:.4f}, ECE "
            f"{before['ece']:.4f} -> {after['ece']:.4f} (before -> after, lower is better; {self.sizes[2]:,} checking "
            "inputs, used for nothing else)."
        )
        passes = f"Forward passes per answer: {self.passes_per_answer:.2f}."
        passes += "" if self.n_passes is None else f" This run made {self.n_passes:,} in all."
        free = self.change.words if self.change.clear and "--answers free" not in self.reason else ""
        groups = group_lines(self.decision, self._share) if self.decision.possible else []
        broken = broken_line(self.broken_groups, self.decision.risk)
        return [line for line in (self.reason, scores, free, self._automated(), *groups, broken, passes) if line]

    @property
    def reason(self) -> str:
        return str(getattr(self.calibrator, "reason_", ""))

    def _automated(self) -> str:
        risk = f"{100 * self.decision.risk:g} %"
        if not self.decision.possible:
            return f"No answers can be automated with at most {risk} errors: {self._why_none()}"
        old = self.decision_before
        was = f"{self.n_accepted_before / self.sizes[2]:.1%}" if old.possible else "none"
        return (
            f"{self.n_accepted / self.sizes[2]:.1%} of the answers can be automated with at most {risk} errors ({was} "
            f"before calibration): {self.n_accepted:,} of the {self.sizes[2]:,} checking inputs accepted, "
            f"{self.n_errors:,} wrong. The threshold was chosen on {self.sizes[1]:,} other inputs.{self._chance()}"
        )

    def _chance(self) -> str:
        """Say how uncertain the change is, unless the share is clearly larger than before."""
        low, high = self.gain.interval
        if not self.decision_before.possible or low > 0:
            return ""
        said = (
            f" The change is uncertain: {100 * low:+.0f} to {100 * high:+.0f} percentage points in resamples of the "
            f"{self.sizes[1]:,} inputs that choose the threshold."
        )
        return said if self.cross_fit else f"{said} --cross-fit lets more inputs choose."

    def _why_none(self) -> str:
        needed, instead = self.decision.needed, self.decision.suggested_risk
        some = "" if instead is None else f" With --risk {instead:g} some can be automated."
        if needed is None:
            return f"even the most confident answers have more. More labels would not help, a better model would.{some}"
        enough = not self.cross_fit and needed <= self.sizes[0]  # those of the fit would decide, too
        return (
            f"{self.sizes[1]:,} inputs to decide on are too few to show it. Add about "
            f"{_two_digits(needed / self._share):,} labelled inputs"
            f"{', or let more of them decide with --cross-fit' if enough else ''}.{some}"
        )

    @property
    def _share(self) -> float:
        """The share of labelled inputs that decide."""
        labelled = self.sizes[2] + (self.sizes[1] if self.cross_fit else self.sizes[0] + self.sizes[1])
        return self.sizes[1] / labelled
