"""The ensemble of calibrators: a weighted mean of simple methods, plus views if they are worth
their forward passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, GuardedCalibrator, from_fit
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.logistic import BetaCalibration
from recal.calibrators.samples import LossGain, Samples
from recal.calibrators.scaling import StructuredMatrixScaling, StructuredVectorScaling
from recal.calibrators.stacking import share_of_chance, stack_data, stack_plan
from recal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling
from recal.calibrators.view_selection import choose_class_weights, choose_views, judged_stack
from recal.checks import Indices, Vector
from recal.clusters import each_fold, effective_count
from recal.engine import one_thread
from recal.errors import ConvergenceWarning
from recal.maps.arrays import log_softmax, safe_log
from recal.maps.base import wide
from recal.maps.blend import Answers, Blend, Mixture, member_probs
from recal.progress import track
from recal.schema import RandomState
from recal.solvers.convex import mixture_weights, without_light_ones
from recal.solvers.temperature import fit_beta
from recal.transforms.base import short_spec
from recal.views import Views

Members = dict[str, Calibrator]

FAMILIES: dict[str, type[Calibrator]] = {
    "ts": TemperatureScaling,
    "ets": EnsembleTemperatureScaling,
    "svs": StructuredVectorScaling,
    "sms": StructuredMatrixScaling,
    "beta": BetaCalibration,
    "isotonic": IsotonicCalibration,
    "ets-svs": StructuredVectorScaling,
    "ets-sms": StructuredMatrixScaling,
}
# These members read the log-probabilities of another member instead of the logits.
READS = {"ets-svs": "ets", "ets-sms": "ets"}
# With more classes a matrix of weights is slow to fit, and a curve per class sees too few samples.
MANY_CLASSES = 256


def member_names(n_classes: int) -> tuple[str, ...]:
    """Return the names of the members that are fitted with this number of classes."""
    many = ("sms", "ets-sms", "isotonic") if n_classes > MANY_CLASSES else ()
    return tuple(name for name in FAMILIES if name not in many)


def fit_members(names: Iterable[str], samples: Samples, near: Members | None = None) -> Members:
    """Fit these members in their order; `near` contains fits to nearly the same samples.

    Members that read the same logits share one temperature.
    """
    members: Members = {}
    sources: dict[str | None, Samples] = {}
    for name in names:
        source, start = READS.get(name), None if near is None else near[name].map_
        if source not in sources:
            logits = samples.logits
            if source is not None:
                logits = safe_log(members[source].map_.probs(wide(logits)))
            plain = replace(samples, inputs=Views.unread(logits, {}), near=start)
            sources[source] = replace(plain, known_beta=plain.beta)
        known = sources[source]
        member = members[name] = FAMILIES[name]()
        if isinstance(member, BetaCalibration):
            # With fewer classes the mixture does not improve; with more the joint fit takes long.
            member.joint = 20 < samples.n_classes <= MANY_CLASSES
        used = known if member.takes_weights else known.repeated()
        with warnings.catch_warnings():
            # A member that does badly on samples left out gets no weight.
            warnings.simplefilter("ignore", ConvergenceWarning)
            member.learn(replace(used, near=start, known_beta=known.known_beta))
    return members


def places_read(names: tuple[str, ...]) -> list[int]:
    """Return the index of the member that each of these members reads; -1 for the logits."""
    return [names.index(READS[name]) if name in READS else -1 for name in names]


class MixedCalibrator(GuardedCalibrator):
    """A calibrator made of simple methods that samples left out decide about.

    Parameters
    ----------
    answers : {"kept", "free"}
        "kept": predictions never change. "free": they may change if another class is more likely.
    random_state : int, Generator or None
        Seed of the folds, and of methods that use random numbers.
    """

    reads_views: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    answers: Answers = "kept"
    random_state: RandomState = 0


class CalibrationEnsemble(MixedCalibrator):
    """Mix the probabilities of several simple calibrators, with weights chosen on samples left out.

    The members are temperature scaling (`ts`), ensemble temperature scaling (`ets`), structured
    vector and matrix scaling (`svs`, `sms`), beta calibration, isotonic regression, and structured
    scaling of the result of `ets` (`ets-svs`, `ets-sms`). With p_m the probabilities of member m,
    the ensemble predicts

        p = sum of w_m p_m,   w_m >= 0, sum of w_m = 1.

    The weights maximise the likelihood of cross-fitted probabilities. Pseudo-counts of half a
    sample are added for each member except `beta` and `isotonic`, and for `ts` also 30 divided by
    the number of mistakes, so that few mistakes lead to temperature scaling. Members with a weight
    below a thousandth are dropped. With at least 200 mistakes, the best member is used alone if the
    mixture has no lower loss on samples left out; members other than `ts` and `ets` also need half
    of the weight.

    If there are views, the log-probabilities of the mixture, of temperature scaling and of a few
    views (at most 3) are weighted together, as in `ViewStacking`, if samples left out show that
    views are worth their forward passes. If there are two samples for each entry of a matrix of
    weights per view, such matrices are tried, shrunk towards the single weight of `ViewStacking`.
    They are used if they gain more than one standard error on samples left out. With at most eight
    candidates, all of them may then be used.

    Parameters are those of `MixedCalibrator`.

    Attributes
    ----------
    weights_ : dict of str to float
        The weight of each member in use, the largest first.
    reason_ : str
        One sentence: which members were mixed, and the gain.
    plan_ : Blend, if views are used
        Their weights and the gate; the mixture is part of it.

    Notes
    -----
    With more than 256 classes, `sms`, `ets-sms` and `isotonic` are left out: a matrix of weights
    would be slow to fit, and a curve for each class would get too few samples. With fewer than 50
    samples, or if the model makes no mistake, only `ts` is fitted. Weights and views are chosen on
    at most 50,000 samples and 5 million logits, and members are fitted to at most 25 million
    logits, drawn at random.

    Examples
    --------
    >>> y = np.arange(500) % 3
    >>> logits = 4.0 * (np.eye(3)[y] + np.random.default_rng(0).normal(size=(500, 3)))
    >>> round(sum(CalibrationEnsemble().fit(logits, y).weights_.values()), 6)
    1.0
    """

    map_: Mixture = from_fit()
    reason_: str = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        return fit_ensemble(samples.without_counts(), self.answers, rng).record()

    @property
    def weights_(self) -> dict[str, float]:
        pairs = zip(self.map_.names, self.map_.weights.tolist())
        weights = sorted(pairs, key=lambda item: -item[1])
        return {name: weight for name, weight in weights if weight > 0.0}


@dataclass
class EnsembleFit:
    """The members of an ensemble and their weights, the plan of its views if it uses some, and the
    evidence.
    """

    members: Members
    weights: dict[str, float]
    samples: Samples
    """The samples that the members are compared on."""
    share: float
    """The effective number of samples divided by the number of samples: 1 without clusters."""
    folds: Indices
    losses: dict[str, Vector] = field(default_factory=dict)
    """Losses of samples left out under each member and under the mixture, with and without views;
    empty if there are too few samples to choose by.
    """
    plan: Blend | None = None
    passes: float = 0.0

    @property
    def best_losses(self) -> Vector:
        return self.losses.get("ensemble with views", self.losses["ensemble"])

    @property
    def many_mistakes(self) -> bool:
        """Whether there are enough mistakes to compare methods with many parameters."""
        return self.share * self.samples.n_mistakes >= 200

    def gain(self) -> LossGain:
        """Return the gain over temperature scaling."""
        return self.samples.gain(self.losses["ts"], self.best_losses)

    def record(self) -> dict[str, Any]:
        """Return the fitted attributes."""
        needed = {*self.weights, *(READS[name] for name in self.weights if name in READS)}
        names = tuple(name for name in FAMILIES if name in needed)
        mixture = Mixture(
            names=names,
            members=tuple(self.members[name].map_ for name in names),
            weights=np.array([self.weights.get(name, 0.0) for name in names]),
            reads=np.array(places_read(names)),
            plan=self.plan,
        )
        return {"map_": mixture, "reason_": f"{self._members()}: {self._evidence()}."}

    def _members(self) -> str:
        # Smaller weights would show as 0 %.
        shares = {name: weight for name, weight in self.weights.items() if weight >= 0.005}
        parts = [f"{name} ({100 * weight:.0f} %)" for name, weight in shares.items()]
        mixed = f"Mixes {', '.join(parts[:-1])} and {parts[-1]}"
        if len(parts) == 1:
            mixed = f"Uses {next(iter(shares))} alone"
        if self.plan is None:
            return mixed
        used = ", ".join(short_spec(transform) for transform in self.plan.transforms)
        by_class = ", with weights for each class," if self.plan.matrices else ""
        passes = f"{self.passes:.2f} more forward passes per answer"
        return f"{mixed}, and stacks {used}{by_class} on top for {passes}"

    def _evidence(self) -> str:
        if not self.losses:
            return "there are too few samples, or no mistakes, to choose by"
        gain = self.gain()
        share = 100.0 * gain.mean / self.samples.mean(self.losses["ts"])
        change = f"{abs(share):.1f} % {'lower' if share >= 0.0 else 'higher'}"
        told = f"{change} than that of temperature scaling"
        if abs(gain.mean) < 2.0 * gain.error:
            told = f"about that of temperature scaling ({change}, which chance explains)"
        return f"on samples left out, its NLL is {told}"


def fit_ensemble(samples: Samples, answers: Answers, rng: np.random.Generator) -> EnsembleFit:
    """Return the ensemble of these samples."""
    n_classes, share = samples.n_classes, 1.0
    if samples.weights is not None:  # weights are relative
        samples = replace(samples, weights=samples.weights * (len(samples) / samples.weights.sum()))
    # Members are fitted to at most 25 million logits, and compared on 5 million.
    every = samples.drawn(25_000_000 // n_classes, rng)
    if samples.clusters is not None:
        scaled = log_softmax(fit_beta(samples.logits, samples.labels) * wide(samples.logits))
        losses = -scaled[np.arange(len(samples)), samples.labels]
        share = effective_count(losses, samples.clusters) / len(samples)
    # With fewer samples, or no mistakes, there is no evidence about which method is best.
    enough = share * len(samples) >= 50 and samples.n_mistakes > 0
    members = fit_members(member_names(n_classes) if enough else ("ts",), every)
    if not enough:
        return EnsembleFit(members, {"ts": 1.0}, samples, share, np.zeros(0, np.intp))
    samples = samples.drawn(min(50_000, 5_000_000 // n_classes), rng)
    # Few samples are split into more folds, so that each fit sees nearly all of them.
    folds = samples.folds(5 if share * len(samples) < 1000 else 3, rng)
    fit = EnsembleFit(members, {}, samples, share, folds)
    probs = _cross_fitted(fit)
    with one_thread():
        _weigh(fit, probs, answers == "kept")
    if samples.views.transforms:
        mixed = np.tensordot([fit.weights.get(name, 0.0) for name in members], probs, axes=1)
        _stack_views(fit, answers, mixed, rng)
    if fit.plan is None:
        fit.weights = _one_or_all(fit)
    return fit


def _cross_fitted(fit: EnsembleFit) -> NDArray[np.float32]:
    """Return probabilities of each member for samples left out, (n_members, n_samples, n_classes).

    Fits start from the fits to all samples.
    """
    samples, logits = fit.samples, fit.samples.logits
    probs = np.empty((len(fit.members), *logits.shape), dtype=np.float32)
    reads = places_read(tuple(fit.members))
    for rest, left_out in track([*each_fold(fit.folds)], "members on samples left out, fold"):
        fitted = fit_members(fit.members, samples[np.flatnonzero(rest)], near=fit.members)
        maps = [member.map_ for member in fitted.values()]
        probs[:, left_out] = member_probs(maps, reads, wide(logits[left_out]))
    return probs


def _weigh(fit: EnsembleFit, probs: NDArray[np.float32], kept: bool) -> None:
    """Set the weights of the members, the largest first, from their cross-fitted probabilities.

    The losses of the mixture come from weights fitted without the sample's own fold.
    """
    samples, names = fit.samples, tuple(fit.members)
    counts = fit.share * samples.counts
    wrong = samples.answers != samples.labels
    likelihoods = probs[:, np.arange(len(samples)), samples.labels].T.astype(np.float64)

    def weigh(some: NDArray[np.bool_]) -> Vector:
        # Pseudo-counts: half a sample for each member that shrinks towards a temperature. The
        # first, temperature scaling, gets more if there are few mistakes, which alone show what is
        # better.
        prior = np.array([0.0 if name in ("beta", "isotonic") else 0.5 for name in names])
        prior[0] += 30.0 / max(1.0, float(counts[wrong & some].sum()))
        return mixture_weights(likelihoods[some], counts[some], prior)

    nested = np.empty(len(samples))
    for rest, left_out in each_fold(fit.folds):
        mixed = np.tensordot(weigh(rest), probs[:, left_out], axes=1)
        nested[left_out] = samples.losses(mixed, kept=kept, rows=left_out)
    fit.losses = {name: samples.losses(one, kept=kept) for name, one in zip(names, probs)}
    fit.losses["ensemble"] = nested
    weights = without_light_ones(names, weigh(np.ones(len(samples), dtype=bool)))
    fit.weights = dict(sorted(weights.items(), key=lambda item: -item[1]))


def _one_or_all(fit: EnsembleFit) -> dict[str, float]:
    """Return the weights, or one member alone if the mixture is shown to be no better."""
    samples, losses = fit.samples, fit.losses
    # Members are fitted as if rows were independent, so they follow the clusters of the fit too
    # closely.
    if samples.clusters is not None and not fit.gain().exceeds(1.0, samples.n_units):
        losses["ensemble"] = losses["ts"]
        return {"ts": 1.0}
    mean = {name: samples.mean(of_one) for name, of_one in losses.items()}
    mixture = mean.pop("ensemble")
    alone = min(mean, key=lambda name: mean[name])
    # A member with more parameters than a temperature needs half of the weight.
    trusted = alone in ("ts", "ets") or fit.weights.get(alone, 0.0) >= 0.5
    if not fit.many_mistakes or mean[alone] > mixture or not trusted:
        return fit.weights
    losses["ensemble"] = losses[alone]
    return {alone: 1.0}


def _stack_views(
    fit: EnsembleFit, answers: Answers, mixed: NDArray[np.floating], rng: np.random.Generator
) -> None:
    """Set the plan of the mixture with the views that `ViewStacking` chooses, or that class-wise
    weights can use; no plan if they are not worth their forward passes.
    """
    samples = fit.samples
    epsilon = share_of_chance(len(samples))
    beta = float(fit.members["ts"].beta_)  # type: ignore[attr-defined]
    data = stack_data(samples, samples.views.transforms, beta, epsilon, answers, gate=0.99)
    choice = choose_views(data, rng, max_views=3, no_harm=True)
    used = () if choice.stack is None else choice.stack.views
    features = np.concatenate([data.features[[0, 0]], data.features[1:]])
    features[1] = np.log((1.0 - epsilon) * mixed + epsilon / mixed.shape[1])
    plain = samples.losses(mixed, kept=answers == "kept")
    data = replace(data, features=features, plain_losses=plain, n_base=2)
    seed = int(rng.integers(2**31))
    best = judged_stack(data.only(used), np.random.default_rng(seed)) if used else None
    best = choose_class_weights(data, used, best is not None, seed) or best
    if best is not None:
        plan = cast(Blend, stack_plan(best.data, best.base, best.stack, best.matrices))
        fit.plan, fit.losses["ensemble with views"] = plan, best.losses
        fit.passes = len(plan.transforms) * float(plan.needs_views(samples.logits).mean())
