"""Choose a method on samples left out: what `recal fit` does if no method is named."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.ensemble import (
    CalibrationEnsemble,
    EnsembleFit,
    MixedCalibrator,
    fit_ensemble,
)
from recal.calibrators.recal import ReCal
from recal.calibrators.samples import Samples
from recal.checks import Labels
from recal.clusters import cluster_sums
from recal.maps.base import Map


class AutoCalibration(MixedCalibrator):
    """Fit the ensemble of calibrators, and use it or the single member that does as well.

    `CalibrationEnsemble` mixes simple methods with weights chosen on samples left out, and adds
    views if these are worth their forward passes. If one member does as well as the mixture on
    samples left out, or has 95 % of the weight, that member is used alone. With fewer than 50
    samples or no mistakes, temperature scaling is used; with few mistakes, it has most of the
    weight. If there are views and at least 200 mistakes, ReCal is tried as published. It is used if
    its loss on samples left out, plus half a per cent for each additional forward pass per
    prediction, is lower than the ensemble's.

    Parameters
    ----------
    answers : {"kept", "free"}
        Whether predictions are always those of the model.
    random_state : int, Generator or None
        Seed of the folds and of the methods.

    Attributes
    ----------
    choice_ : str
        The chosen method's short name.
    calibrator_ : Calibrator
        The chosen method, fitted.
    reason_ : str
        One sentence: which method was chosen, and its gain.
    plan_ : Plan
        The plan of the chosen method, if it has one.

    Examples
    --------
    >>> y = np.arange(500) % 3
    >>> logits = np.eye(3)[y] + np.random.default_rng(0).normal(size=(500, 3))
    >>> AutoCalibration().fit(logits, y).choice_
    'ensemble'
    """

    calibrator_: Calibrator = from_fit()
    choice_: str = from_fit()
    reason_: str = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        samples = samples.without_counts()
        rng = np.random.default_rng(self.random_state)
        ensemble = CalibrationEnsemble(answers=self.answers, random_state=int(rng.integers(2**31)))
        fit = fit_ensemble(samples, self.answers, rng)
        ensemble.set_state({"n_fitted_": len(samples), **fit.record()})
        chosen, reason = _simplest(ensemble, fit)
        # With few mistakes, ReCal may look best by chance: chosen on 100 to 200 samples, it had up
        # to twice the NLL.
        can_judge = fit.losses and fit.many_mistakes and samples.weights is None
        if can_judge and samples.views.transforms:
            recal, why = _try_recal(fit, int(rng.integers(2**31)))
            if why:
                chosen, reason = recal.learn(samples), why
        if self.answers == "kept" and samples.weights is None:
            reason += _free_answers(chosen, samples)
        chosen.classes_ = (
            np.arange(samples.n_classes) if samples.classes is None else samples.classes
        )
        return {"calibrator_": chosen, "choice_": chosen.short_name, "reason_": reason}

    @property  # type: ignore[misc]
    def map_(self) -> Map:  # type: ignore[override]
        """The map of the method that was chosen."""
        return self.calibrator_.map_


def _free_answers(fitted: Calibrator, samples: Samples) -> str:
    """Return advice in one sentence if changed predictions would clearly raise the accuracy, else
    an empty text.

    The samples of the fit only give a hint. A fit on one half is then tested on the other half.
    """
    changed = fitted._predict_proba(samples.views).argmax(axis=1)
    # With fewer than 200 samples, changed predictions cannot be shown to be better.
    if samples.n_units < 200 or not _is_better(changed, samples):
        return ""
    halves = samples.folds(2, np.random.default_rng(0))
    rest, left_out = (samples[np.flatnonzero(halves == half)] for half in (0, 1))
    trial = AutoCalibration(answers="free")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial.learn(rest)
    free = trial.calibrator_._predict_proba(left_out.views).argmax(axis=1)
    if not _is_better(free, left_out):
        return ""
    before, after = (float((one == left_out.labels).mean()) for one in (left_out.answers, free))
    return (
        f" Changing {int((free != left_out.answers).sum()):,} of {len(left_out):,} answers left "
        f"out would raise the accuracy from {before:.1%} to {after:.1%}: "
        'use answers="free" (--answers free).'
    )


def _is_better(free: Labels, samples: Samples) -> bool:
    """Whether changed predictions are clearly more often right: an exact sign test over clusters at
    the 1 % level.
    """
    right = (samples.answers == samples.labels).astype(np.float64)
    change = cluster_sums((free == samples.labels) - right, samples.clusters)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    return gained > lost and bool(scipy.special.bdtrc(gained - 1, gained + lost, 0.5) < 0.01)


def _simplest(ensemble: CalibrationEnsemble, fit: EnsembleFit) -> tuple[Calibrator, str]:
    """Return the ensemble, or the one member that replaces it, and the reason in one sentence."""
    name, weight = next(iter(fit.weights.items()))
    member = fit.members[name]
    # Above 95 % of the weight, the other members change too little to be worth computing.
    if fit.plan is not None or weight < 0.95 or member.short_name != name:
        reason = f"which {ensemble.reason_[0].lower()}{ensemble.reason_[1:]}"
        return ensemble, f"Chosen: ensemble, {reason}"
    if hasattr(member, "answers"):
        member.answers = ensemble.answers
    why = f"which has {100 * weight:.0f} % of the weight in the best mixture of methods"
    if not fit.losses:
        why = "since there are fewer than 50 samples, or no mistakes, to choose by"
    elif weight == 1.0:
        why = "since on samples left out no mixture of methods has a lower NLL"
    return member, f"Chosen: {name}, {why}."


def _try_recal(fit: EnsembleFit, seed: int) -> tuple[ReCal, str]:
    """Fit ReCal as published to all folds but one; return it, and why to use it, or ""."""
    method, samples = ReCal(random_state=seed), fit.samples
    rest, left_out = np.flatnonzero(fit.folds != 0), np.flatnonzero(fit.folds == 0)
    rest = rest[:: -(-len(rest) // 20_000)]  # enough samples to judge ReCal
    method.learn(samples[rest])
    unseen = samples[left_out]
    loss = float(unseen.losses(method._predict_proba(unseen.views), kept=False).mean())
    best = float(fit.best_losses[left_out].mean())
    # Each additional forward pass must gain half a per cent of the loss.
    passes = len(method.plan_.transforms)
    if loss * (1.0 + 0.005 * (passes - fit.passes)) >= best:
        return method, ""
    return method, (
        f"Chosen: recal, whose NLL on samples left out is {100.0 * (1.0 - loss / best):.1f} % "
        f"lower than that of the best mixture of methods, for {passes} more forward passes per "
        "answer."
    )
