"""What a calibrator answers and what its answers take: all that is said of them where no model is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats, Labels
from recal.decisions.following.class_mix import ClassMix, adapt_to_class_mix
from recal.decisions.following.condition import Condition
from recal.decisions.following.powers import followed_confidences, to_the_power
from recal.decisions.profiles import Profile
from recal.errors import InputError, Remedy
from recal.plan import Plan


@dataclass(frozen=True)
class Applied:
    """Calibrated probabilities of some inputs, with their labels where those are known."""

    probs: NDArray[np.float64]
    labels: Labels | None
    classes: NDArray[Any] | None
    passes: NDArray[np.int64] | None = None  # forward passes of each answer
    confidences: NDArray[np.float64] | None = None  # the chance that each answer is right, as `predict_confidence`
    fitted_rows: int = 0  # how many of the inputs the calibrator was fitted on
    condition: Condition | None = None  # what following found of these inputs, where it was asked for
    class_mix: ClassMix | None = None  # where another class mix than the fit's was asked for
    predictions_changed: int = 0  # by the class mix

    def followed(self, condition: Condition) -> Applied:
        """Return the same answers at the temperature that suits these inputs."""
        probs = to_the_power(self.probs, condition.ratio)
        sure = (
            self.confidences if self.confidences is None else followed_confidences(self.confidences, self.probs, probs)
        )
        return replace(self, probs=probs, confidences=sure, condition=condition)

    def adapted(self, mix: ClassMix) -> Applied:
        """Return the answers for another class mix, which can be others."""
        probs = adapt_to_class_mix(self.probs, mix)
        other, sure = probs.argmax(axis=1) != self.probs.argmax(axis=1), self.confidences
        if sure is not None:
            sure = np.where(other, probs.max(axis=1), followed_confidences(sure, self.probs, probs))
        return replace(self, probs=probs, confidences=sure, class_mix=mix, predictions_changed=int(other.sum()))

    def judged(
        self, profile: Profile, condition: Condition | None, mix: ClassMix | None, *, estimated: bool = False
    ) -> Applied:
        """Return the answers for the condition and the class mix of these inputs, as far as they were asked for.

        Where an estimated mix alone explains the inputs they are not damaged, and the temperature stays.
        """
        if condition is not None and mix is not None and estimated and mix.changed:
            condition = replace(condition, ratio=1.0, beta=profile.beta)
        found = self if condition is None else self.followed(condition)
        return found if mix is None else found.adapted(mix)

    @property
    def passes_per_answer(self) -> float | None:
        """How many forward passes an answer took on average."""
        return None if self.passes is None or not len(self.passes) else float(self.passes.mean())


def gate_of(calibrator: Calibrator) -> Plan | None:
    """Return the calibrator's plan where it has a gate."""
    plan = getattr(calibrator, "plan_", None)
    return plan if isinstance(plan, Plan) and plan.blend is not None and plan.blend.gate is not None else None


def passes_of(calibrator: Calibrator, logits: Floats) -> NDArray[np.int64]:
    """Return how many forward passes the answer to each sample takes, (n_samples,)."""
    views, plan = len(calibrator.needed_transforms()), gate_of(calibrator)
    needed = np.ones(len(logits), dtype=bool) if plan is None else plan.needs_views(logits)
    return 1 + views * needed.astype(np.int64)


def profile_of(calibrator: Any) -> Profile:
    """Return the profile that a calibrator carries; say how to make one where it carries none."""
    found = getattr(calibrator, "profile_", None)
    if not isinstance(found, Profile):
        raise InputError(
            "Following needs a profile of the fit's samples, and this calibration holds none.",
            remedy=Remedy(
                "Set calibrator.profile_ = recal.profile(views, y) on the fit's views",
                typed="Fit it again: recal fit VIEWS --out calibration.recal, with views of `--pool damage`",
            ),
        )
    return found


def class_names(calibrator: Calibrator) -> list[Any] | None:
    """Return the classes where they have names, and None where they are column numbers."""
    names = calibrator.classes_
    numbered = names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names)))
    return None if numbered else list(names.tolist())
