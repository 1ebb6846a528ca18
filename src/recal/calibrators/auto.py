"""Choose a method on samples left out: what `recal fit` does if no method is named."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.ensemble import CalibrationEnsemble, EnsembleFit, fit_ensemble
from recal.calibrators.recal import ReCal
from recal.calibrators.samples import Samples
from recal.checks import Labels, Vector
from recal.clusters import cluster_sums
from recal.errors import FewSamplesWarning, InputError
from recal.maps.base import Map
from recal.maps.blend import Answers, Blend
from recal.maps.steps import Plan
from recal.schema import RandomState


class AutoCalibration(Calibrator):
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
        "kept": predictions never change. "free": they may change if another class is more likely.
    random_state : int, Generator or None
        Seed of the folds, and of methods that use random numbers.

    Attributes
    ----------
    choice_ : str
        The chosen method's short name.
    calibrator_ : Calibrator
        The chosen method, fitted.
    reason_ : str
        One sentence: which method was chosen, and its gain.
    trials_ : list of dict
        For each method that was tried: `method`, `nll` on samples left out, `gain` over temperature
        scaling with its `standard_error`, `passes` per prediction beyond the first, and `samples`,
        the number of samples left out.
    plan_ : Plan
        The plan of the chosen method, if it has one.

    Examples
    --------
    >>> from recal import AutoCalibration
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> auto = AutoCalibration(random_state=0).fit(4 * (np.eye(3)[y] + rng.normal(size=(500, 3))), y)
    >>> auto.choice_
    'ensemble'
    """

    short_name: ClassVar[str] = "auto"
    reads_views: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    answers: Answers = "kept"
    random_state: RandomState = 0

    calibrator_: Calibrator = from_fit()
    choice_: str = from_fit()
    reason_: str = from_fit()
    trials_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        samples = samples.without_counts()
        rng = np.random.default_rng(self.random_state)
        ensemble = CalibrationEnsemble(answers=self.answers, random_state=int(rng.integers(2**31)))
        fit = fit_ensemble(ensemble, samples, rng)
        ensemble.set_state({"n_fitted_": len(samples), **fit.record()})
        chosen, reason = _simplest(ensemble, fit)
        trials = []
        for name, losses in fit.losses.items():
            passes = fit.passes if name == "ensemble with views" else 0.0
            trials.append(_trial(name, fit.losses["ts"], losses, passes, fit.samples))
        # With few mistakes, ReCal may look best by chance: chosen on 100 to 200 samples, it had up
        # to twice the NLL.
        can_judge = fit.losses and fit.many_mistakes and samples.weights is None
        if can_judge and samples.views.transforms:
            recal, record, why = _try_recal(fit, int(rng.integers(2**31)))
            trials.append(record)
            if why:
                chosen, reason = recal.learn(samples), why
        if self.answers == "kept" and samples.weights is None:
            reason += _free_answers(chosen, samples)
        chosen.classes_ = (
            np.arange(samples.n_classes) if samples.classes is None else samples.classes
        )
        return {
            "calibrator_": chosen,
            "choice_": chosen.short_name,
            "reason_": reason,
            "trials_": trials,
        }

    def _check_state(self, n_classes: int) -> None:
        inner = getattr(self, "calibrator_", None)
        choice = getattr(self, "choice_", None)
        if (
            not isinstance(inner, Calibrator)
            or inner.short_name != choice
            or choice == self.short_name
        ):
            raise InputError("must be the method that `choice_` names", argument="calibrator_")
        inner.check_state()
        if len(inner.classes_) != n_classes:
            raise InputError("AutoCalibration must have the classes of its `calibrator_`.")

    @property
    def plan_(self) -> Plan | Blend:
        """The plan of the method, if it has one."""
        return self.calibrator_.plan_  # type: ignore[attr-defined]

    @property  # type: ignore[misc]
    def map_(self) -> Map:  # type: ignore[override]
        """The map of the method that was chosen."""
        return self.calibrator_.map_


def _free_answers(fitted: Calibrator, samples: Samples) -> str:
    """Return advice in one sentence if changed predictions would clearly raise the accuracy, else
    an empty text.

    The samples of the fit only give a hint. A fit on one half is then tested on the other half.
    """
    views, labels, clusters = samples.views, samples.labels, samples.clusters
    kept = views.logits.argmax(axis=1)
    together = (
        np.arange(len(labels)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    )
    changed = fitted._predict_proba(views).argmax(axis=1)
    # With fewer than 200 samples, changed predictions cannot be shown to be better.
    if together.max() + 1 < 200 or not _is_better(changed, kept, labels, together):
        return ""
    order = np.random.default_rng(0).permutation(int(together.max()) + 1)
    second_half = np.isin(together, order[1::2])
    first, second = np.flatnonzero(~second_half), np.flatnonzero(second_half)
    trial = AutoCalibration(answers="free")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial.learn(samples[first])
    free = trial.calibrator_._predict_proba(views[second]).argmax(axis=1)
    if not _is_better(free, kept[second], labels[second], together[second]):
        return ""
    before, after = (float((one == labels[second]).mean()) for one in (kept[second], free))
    return (
        f" Changing {int((free != kept[second]).sum()):,} of {len(second):,} answers left out would raise the accuracy "
        f"from {before:.1%} to {after:.1%}: "
        'use answers="free" (--answers free).'
    )


def _is_better(
    free: NDArray[np.intp], kept: NDArray[np.intp], labels: Labels, clusters: NDArray[np.intp]
) -> bool:
    """Whether changed predictions are clearly more often right: an exact sign test over clusters at
    the 1 % level.
    """
    change = cluster_sums((free == labels) - (kept == labels).astype(np.float64), clusters)
    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    if gained <= lost:
        return False
    from scipy.special import bdtrc

    return bool(bdtrc(gained - 1, gained + lost, 0.5) < 0.01)


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


def _try_recal(fit: EnsembleFit, seed: int) -> tuple[ReCal, dict[str, Any], str]:
    """Fit ReCal as published to all folds but one; return it, its row of `trials_`, and why to use
    it, or "".
    """
    method, samples = ReCal(random_state=seed), fit.samples
    rest, left_out = np.flatnonzero(fit.folds != 0), np.flatnonzero(fit.folds == 0)
    rest = rest[:: -(-len(rest) // 20_000)]  # enough samples to judge ReCal
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        method.learn(samples[rest])
    unseen = samples[left_out]
    losses = unseen.losses(method._predict_proba(unseen.views), kept=False)
    passes = float(len(method.plan_.transforms))
    best = fit.best_losses[left_out]
    record = _trial("recal", fit.losses["ts"][left_out], losses, passes, unseen)
    # Each additional forward pass must gain half a per cent of the loss.
    cost = 1.0 + 0.005 * (passes - fit.passes)
    wins = float(losses.mean()) * cost < float(best.mean())
    gain = 100.0 * (1.0 - losses.mean() / best.mean())
    sentence = (
        f"Chosen: recal, whose NLL on samples left out is {gain:.1f} % lower than that of the best mixture of methods, "
        f"for {passes:.0f} more forward passes per answer."
    )
    return method, record, sentence if wins else ""


def _trial(
    name: str, plain: Vector, losses: Vector, passes: float, samples: Samples
) -> dict[str, Any]:
    """Return a row of `trials_`; `plain` are the losses of temperature scaling."""
    gain = samples.gain(plain, losses)
    return {
        "method": name,
        "nll": samples.mean(losses),
        "gain": gain.mean,
        "standard_error": gain.error,
        "passes": passes,
        "samples": len(losses),
    }
