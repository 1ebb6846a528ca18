"""The choice of a method, made on samples left out: what `recal fit` does where no method is named."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator, kept_by_answers
from recal.calibrators.ets import EnsembleTemperatureScaling
from recal.calibrators.machinery.folds import stratified_folds
from recal.calibrators.machinery.parameters import check_random_state
from recal.calibrators.recal import ReCal
from recal.calibrators.stacking.estimator import ViewStacking
from recal.calibrators.stacking.view_choice import LossGain
from recal.calibrators.structured_vector import StructuredVectorScaling
from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Labels
from recal.errors import FewSamplesWarning, InputError
from recal.plan import Answers
from recal.progress import track
from recal.transforms import Transform
from recal.views import Views

_N_FOLDS = 5
# So few samples choose nothing, and so many choose as well as more would.
_LEAST_SAMPLES, _MOST_SAMPLES = 100, 20_000
# The share of the loss that must be gained at all, and for each further forward pass per answer.
_LEAST_GAIN, _GAIN_PER_PASS = 0.001, 0.005


@dataclass(frozen=True)
class _Trial:
    """One method on samples left out: their losses, and what an answer costs."""

    method: Calibrator
    losses: NDArray[np.float64]
    passes: float
    parameters: int


class AutoCalibration(Calibrator):
    """Choose among a few methods by the NLL of samples left out, towards fewer forward passes and fewer parameters.

    Tried are temperature scaling, ensemble temperature scaling, structured vector scaling where answers may change,
    and, where there are views, view stacking and ReCal with its guard. From the cheapest on, a method replaces the one
    before it only where its mean loss is lower by more than one standard error of the paired differences, and by a
    thousandth, and half a per cent more for every forward pass that it adds to an answer. The chosen one is fitted to
    all samples.

    Parameters
    ----------
    answers : {"kept", "free"}
        Whether the model's own answers always stay the likeliest.
    random_state : int, Generator or None
        Draws the folds, and serves the methods that draw.

    Attributes
    ----------
    choice_ : str
        The chosen method's short name.
    calibrator_ : Calibrator
        The chosen method, fitted.
    reason_ : str
        One sentence: what was chosen, over what, and why.
    trials_ : list of dict
        For each method, from the cheapest on: `method`, `nll` of samples left out, `gain` over temperature scaling with
        its `standard_error`, and `passes` per answer.
    plan_ : Plan
        The chosen method's, where it has one.

    Notes
    -----
    Below 100 samples nothing is tried and temperature scaling is taken; above 20,000 the trials take as many at random.

    Examples
    --------
    >>> from recal import AutoCalibration
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> auto = AutoCalibration(random_state=0).fit(4 * (np.eye(3)[y] + rng.normal(size=(500, 3))), y)
    >>> auto.choice_
    'ts'
    """

    short_name: ClassVar[str] = "auto"
    keeps_accuracy: ClassVar[bool] = kept_by_answers("kept")
    reads_views: ClassVar[bool] = True

    calibrator_: Calibrator

    def __init__(self, *, answers: Answers = "kept", random_state: int | np.random.Generator | None = 0) -> None:
        self.answers = answers
        self.random_state = random_state

    def fit(
        self,
        X: Views | ArrayLike,
        y: ArrayLike | None = None,
        *,
        classes: Sequence[Any] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        super().fit(X, y, classes=classes, sample_weight=sample_weight)
        self.calibrator_.classes_, self.calibrator_.n_fitted_ = self.classes_, self.n_fitted_
        return self

    def _fit(self, views: Views, labels: Labels) -> None:
        rng = check_random_state(self.random_state)
        seed = int(rng.integers(2**31))
        methods = self._methods(bool(views.transforms), seed)
        if len(labels) < _LEAST_SAMPLES:
            chosen, trials = methods[0], []
            why = f"{len(labels)} samples are too few to choose by: {_LEAST_SAMPLES} are needed"
        else:
            trials = _try_all(methods, views, labels, rng)
            chosen, why = _choose(trials)
        vars(self).pop("plan_", None)  # of an earlier fit
        self.choice_ = chosen.short_name
        self.calibrator_ = chosen
        chosen._fit(views, labels)
        if hasattr(chosen, "plan_"):
            self.plan_ = chosen.plan_
        others = ", ".join(method.short_name for method in methods if method is not chosen)
        self.reason_ = f"Chosen: {self.choice_}, over {others}; {why}."
        self.trials_ = _table(trials)

    def _check_state(self, n_classes: int) -> None:
        inner = getattr(self, "calibrator_", None)
        if not isinstance(inner, Calibrator) or getattr(self, "choice_", None) != inner.short_name:
            raise InputError("must be the method that `choice_` names", argument="calibrator_")
        inner.check_state()
        if len(inner.classes_) != n_classes or getattr(self, "plan_", None) != getattr(inner, "plan_", None):
            raise InputError("must have the classes and the plan of its `calibrator_`", subject="AutoCalibration")

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        return self.calibrator_._predict_proba(views)

    def needed_transforms(self) -> tuple[Transform, ...]:
        self._check_fitted()
        return self.calibrator_.needed_transforms()

    def _methods(self, with_views: bool, seed: int) -> list[Calibrator]:
        methods: list[Calibrator] = [TemperatureScaling(), EnsembleTemperatureScaling()]
        if self.answers == "free":
            methods.append(StructuredVectorScaling())
        if with_views:
            methods += [ViewStacking(answers=self.answers, random_state=seed), ReCal(guard="ece", random_state=seed)]
        return methods


def _try_all(methods: list[Calibrator], views: Views, labels: Labels, rng: np.random.Generator) -> list[_Trial]:
    """Return each method's trial, from the cheapest on."""
    if len(labels) > _MOST_SAMPLES:
        rows = np.sort(rng.choice(len(labels), _MOST_SAMPLES, replace=False))
        views, labels = views[rows], labels[rows]
    folds = stratified_folds(labels, _N_FOLDS, rng)
    trials = [_try(method, views, labels, folds) for method in track(methods, "trying methods")]
    return sorted(trials, key=lambda trial: (round(trial.passes, 2), trial.parameters))


def _try(method: Calibrator, views: Views, labels: Labels, folds: NDArray[np.intp]) -> _Trial:
    """Return the losses of samples left out. What is wrong with the samples is said once, by the fit to all of them."""
    losses, passes, parameters = np.empty(len(labels)), 0.0, 0
    for fold in track(range(_N_FOLDS), f"{method.short_name}, fold"):
        rest, left_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewSamplesWarning)
            method._fit(views[rest], labels[rest])
        method.classes_ = np.arange(views.n_classes)
        part = views[left_out]
        probs = method.predict_proba(part)
        losses[left_out] = -np.log(probs[np.arange(len(left_out)), labels[left_out]])
        passes += _passes(method, part) / _N_FOLDS
        parameters = max(parameters, _count(method, views.n_classes))
    del method.classes_
    return _Trial(method, losses, passes, parameters)


def _passes(method: Calibrator, views: Views) -> float:
    """Return how many forward passes an answer costs beyond the first."""
    needed, plan = len(method.needed_transforms()), getattr(method, "plan_", None)
    return needed * (1.0 if plan is None else float(plan.needs_views(views.logits).mean())) if needed else 0.0


def _count(method: Calibrator, n_classes: int) -> int:
    """Return how many numbers the method has learned."""
    plan = getattr(method, "plan_", None)
    if plan is None:
        return 3 if isinstance(method, EnsembleTemperatureScaling) else 2 * n_classes
    return (
        1 + 4 * len(plan.steps) + (0 if plan.blend is None else 1 + len(plan.blend.weights) + len(plan.blend.offsets))
    )


def _choose(trials: list[_Trial]) -> tuple[Calibrator, str]:
    best, why = trials[0], "nothing that costs more lowered the NLL of samples left out by more than one standard error"
    for trial in trials[1:]:
        gain = LossGain.between(best.losses, trial.losses)
        share = gain.mean / float(best.losses.mean())
        if gain.is_clear and share >= _LEAST_GAIN + _GAIN_PER_PASS * (trial.passes - best.passes):
            cost = f", for {trial.passes:.2f} more forward passes per answer" if trial.passes else ""
            why = (
                f"on samples left out its NLL is {100 * share:.1f} % below that of {best.method.short_name} "
                f"({gain.mean:.4f}, standard error {gain.error:.4f}){cost}"
            )
            best = trial
    return best.method, why


def _table(trials: list[_Trial]) -> list[dict[str, Any]]:
    plain = next((trial.losses for trial in trials if isinstance(trial.method, TemperatureScaling)), np.zeros(0))
    table = []
    for trial in trials:
        gain = LossGain.between(plain, trial.losses)
        table.append(
            {
                "method": trial.method.short_name,
                "nll": float(trial.losses.mean()),
                "gain": gain.mean,
                "standard_error": gain.error,
                "passes": trial.passes,
            }
        )
    return table
