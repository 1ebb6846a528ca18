"""Fitting an ensemble: cross-fitted members, their weights, then views on top of the mixture."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.class_weights import choose_class_weights
from recal.calibrators.ets import EnsembleTemperatureScaling
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.logistic import BetaCalibration
from recal.calibrators.samples import Samples
from recal.calibrators.scaling import StructuredMatrixScaling, StructuredVectorScaling
from recal.calibrators.stacking import plan_of, share_of_chance, shortlist, stack_data
from recal.calibrators.temperature import TemperatureScaling
from recal.calibrators.view_selection import (
    WORTH,
    Choice,
    JudgedStack,
    LossGain,
    StackData,
    choose_views,
    judged_stack,
    losses_of,
)
from recal.checks import Floats
from recal.clusters import effective_count, stratified_folds
from recal.copies import copies_of
from recal.engine.compiled import one_thread
from recal.errors import ConvergenceWarning, FewSamplesWarning
from recal.maps.aggregation import member_probs
from recal.maps.arrays import log_softmax, safe_log
from recal.maps.base import wide
from recal.maps.blend import Blend
from recal.progress import track
from recal.solvers.convex import mixture_weights, without_light_ones
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.views import Views

if TYPE_CHECKING:
    from recal.calibrators.ensemble import CalibrationEnsemble

Vector = NDArray[np.float64]
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
_NEED_SAMPLES_PER_CLASS = ("sms", "ets-sms", "isotonic")
# With these numbers of classes the curves of beta calibration are fitted jointly. With fewer
# classes the mixture does not improve, and with more the joint fit takes too long.
_JOINT_BETA = range(21, 257)


def member_names(n_classes: int) -> tuple[str, ...]:
    """Return the names of the members that are fitted with this number of classes."""
    return tuple(
        name
        for name in FAMILIES
        if n_classes <= MANY_CLASSES or name not in _NEED_SAMPLES_PER_CLASS
    )


def needed_for(names: Iterable[str]) -> tuple[str, ...]:
    """Return these members and those that they read, in the order in which they are fitted."""
    every = {*names, *(READS[name] for name in names if name in READS)}
    return tuple(name for name in FAMILIES if name in every)


def fit_members(names: Iterable[str], samples: Samples, near: Members | None = None) -> Members:
    """Fit these members and those that they read; `near` contains fits to nearly the same samples.

    Members that read the same logits share one temperature.
    """
    members: Members = {}
    logits = samples.logits
    sources: dict[str | None, Samples] = {None: _of_logits(samples, logits)}
    for name in needed_for(names):
        source, start = READS.get(name), None if near is None else near[name].map_
        if source is not None and source not in sources:
            logs = safe_log(members[source].map_.probs(wide(logits)))
            sources[source] = _of_logits(samples, logs)
        known = sources[source]
        if known.known_beta is None:
            beta = replace(known, near=start).beta
            known = sources[source] = replace(known, known_beta=beta)
        member = members[name] = FAMILIES[name]()
        if isinstance(member, BetaCalibration):
            member.joint = logits.shape[1] in _JOINT_BETA
        used = known if member.takes_weights else _repeated(known)
        with warnings.catch_warnings():
            # A member with too few samples does badly on samples left out and gets no weight.
            warnings.simplefilter("ignore", FewSamplesWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            member.learn(replace(used, near=start, known_beta=known.known_beta))
    return members


def _of_logits(samples: Samples, logits: Floats) -> Samples:
    """Return the samples with these logits and without views."""
    return replace(samples, inputs=Views.unchecked(logits, {}, None, None), known_beta=None)


def _repeated(samples: Samples) -> Samples:
    """Return samples repeated by their weights, rounded so that their running sums are kept."""
    if samples.weights is None:
        return samples
    whole = np.diff(np.floor(np.cumsum(samples.weights) + 0.5).astype(np.intp), prepend=0)
    return replace(samples, weights=None)[np.repeat(np.arange(len(samples)), whole)]


def places_read(names: tuple[str, ...]) -> list[int]:
    """Return the index of the member that each of these members reads; -1 for the logits."""
    return [names.index(READS[name]) if name in READS else -1 for name in names]


# With fewer samples, or no mistakes, there is no evidence about which method is best.
LEAST_SAMPLES = 50
# Few samples are split into more folds, so that each fit sees nearly all of them.
_FEW_SAMPLES, _FOLDS, _MORE_FOLDS = 1000, 3, 5
# The most samples and logits that decide about weights and views, and the most logits that members
# are fitted to. If there are more, a random subset is used.
_MOST_SAMPLES, _MOST_VALUES, _MOST_FOR_MEMBERS = 50_000, 5_000_000, 25_000_000
# Whole-number weights repeat samples up to this many times on average; small sets may be repeated
# more often.
_MOST_REPEATS = 10
# Pseudo-counts of the weights: half a sample for each member that shrinks towards a temperature.
# Temperature scaling gets this many more, divided by the number of mistakes, because only mistakes
# show which member is better.
_PRIOR = dict.fromkeys(("ts", "ets", "svs", "sms", "ets-svs", "ets-sms"), 0.5)
_PRIOR_BY_MISTAKES = 30.0
# With this many mistakes, samples left out show whether another method does as well as the mixture.
_MANY_MISTAKES = 200
# How many views are stacked by default.
_MOST_VIEWS = 3
# A member with more parameters than a temperature needs this share of the weight to be used alone.
_HALF = 0.5


@dataclass
class Evidence:
    """Losses of samples left out under each member and under the mixture, with and without views."""

    samples: Samples
    copies: NDArray[np.intp] | None
    share: float
    """The effective number of samples divided by the number of samples: 1 without clusters."""
    folds: NDArray[np.intp]
    losses: dict[str, Vector] = field(default_factory=dict)
    passes: float = 0.0

    def gain(self) -> LossGain:
        """Return the gain over temperature scaling."""
        mine = self.losses.get("ensemble with views", self.losses["ensemble"])
        return LossGain.between(
            self.losses["ts"], mine, self.samples.weights, self.samples.clusters
        )

    @property
    def many_mistakes(self) -> bool:
        """Whether there are enough mistakes to compare methods with many parameters."""
        mistakes = int((np.argmax(self.samples.views.logits, axis=1) != self.samples.labels).sum())
        return self.share * mistakes >= _MANY_MISTAKES


@dataclass(frozen=True)
class FittedEnsemble:
    """The members and their weights, the plan and the choice of views if there are any, and the
    evidence.
    """

    members: Members
    weights: dict[str, float]
    plan: Blend | None = None
    choice: Choice | None = None
    candidates: tuple[Transform, ...] = ()
    evidence: Evidence | None = None


def without_counts(samples: Samples) -> Samples:
    """Return the samples, repeated and without weights if the weights are counts.

    Large whole numbers, such as amounts of money, are treated as plain weights; repeated rows would
    fill the memory.
    """
    weights, most = samples.weights, max(_MOST_REPEATS * len(samples.labels), _MOST_SAMPLES)
    if weights is None or weights.sum() > most or (weights != np.rint(weights)).any():
        return samples
    return replace(samples, weights=None)[
        np.repeat(np.arange(len(weights)), weights.astype(np.intp))
    ]


def fit_ensemble(
    method: CalibrationEnsemble, samples: Samples, rng: np.random.Generator
) -> FittedEnsemble:
    """Return the ensemble of these samples."""
    logits, labels, n_classes = samples.views.logits, samples.labels, samples.views.n_classes
    if samples.weights is not None:  # weights are relative
        samples = replace(samples, weights=samples.weights * (len(labels) / samples.weights.sum()))
    every = samples.drawn(_MOST_FOR_MEMBERS // n_classes, rng)
    independent = float(len(labels))
    if samples.clusters is not None:
        scaled = log_softmax(fit_beta(logits, labels) * np.asarray(logits, np.float64))
        independent = effective_count(-scaled[np.arange(len(labels)), labels], samples.clusters)
    enough = independent >= LEAST_SAMPLES and bool((np.argmax(logits, axis=1) != labels).any())
    names = member_names(n_classes) if enough else ("ts",)
    members = fit_members(names, every)
    if not enough:
        return FittedEnsemble(members, {"ts": 1.0})
    share = independent / len(labels)
    samples = samples.drawn(min(_MOST_SAMPLES, _MOST_VALUES // n_classes), rng)
    views, labels = samples.views, samples.labels
    copies = copies_of(views.logits, labels)
    n_folds = _MORE_FOLDS if share * len(labels) < _FEW_SAMPLES else _FOLDS
    folds = stratified_folds(labels, n_folds, rng, copies, samples.clusters)
    evidence = Evidence(samples, copies, share, folds)
    probs = cross_fitted(members, evidence)
    with one_thread():
        weights = _weigh(probs, tuple(members), evidence, method.answers == "kept")
    plan, choice = None, None
    candidates: tuple[Transform, ...] = ()
    if views.transforms and method.max_views != 0:
        mixed = np.tensordot([weights.get(name, 0.0) for name in members], probs, axes=1)
        single = "sms" if "sms" in members else "svs"
        alone = probs[tuple(members).index(single)]
        beta = float(members["ts"].beta_)  # type: ignore[attr-defined]
        plan, choice, candidates, replaced = _stack(method, evidence, mixed, alone, beta, rng)
        weights = {single: 1.0} if replaced else weights
    if plan is None:
        weights = _one_or_all(weights, evidence)
    used = {name: members[name] for name in needed_for(weights)}
    return FittedEnsemble(used, weights, plan, choice, candidates, evidence)


def cross_fitted(members: Members, evidence: Evidence) -> NDArray[np.float32]:
    """Return probabilities of each member for samples left out, (n_members, n_samples, n_classes).

    Fits start from `members`, the fits to all samples.
    """
    samples, folds = evidence.samples, evidence.folds
    logits = samples.views.logits
    probs = np.empty((len(members), *logits.shape), dtype=np.float32)
    for fold in track(range(int(folds.max()) + 1), "members on samples left out, fold"):
        rest, left_out = samples[np.flatnonzero(folds != fold)], np.flatnonzero(folds == fold)
        fitted = fit_members(members, rest, near=members)
        maps, reads = [member.map_ for member in fitted.values()], places_read(tuple(fitted))
        probs[:, left_out] = member_probs(maps, reads, wide(logits[left_out]))
    return probs


def _weigh(
    probs: NDArray[np.float32], names: tuple[str, ...], evidence: Evidence, kept: bool
) -> dict[str, float]:
    """Return the weights of the members by name, the largest first, from their cross-fitted
    probabilities.

    The losses of the mixture in the evidence come from weights fitted without the sample's own
    fold.
    """
    samples, labels, folds = evidence.samples, evidence.samples.labels, evidence.folds
    counts = evidence.share * (np.ones(len(labels)) if samples.weights is None else samples.weights)
    answers = np.argmax(samples.views.logits, axis=1)
    likelihoods = probs[:, np.arange(len(labels)), labels].T.astype(np.float64)

    def weigh(some: NDArray[np.bool_]) -> Vector:
        prior = np.array([_PRIOR.get(name, 0.0) for name in names])
        prior[0] += _PRIOR_BY_MISTAKES / max(1.0, float(counts[(answers != labels) & some].sum()))
        return mixture_weights(likelihoods[some], counts[some], prior)

    nested = np.empty(len(labels))
    for fold in range(int(folds.max()) + 1):
        left_out = folds == fold
        mixed = np.tensordot(weigh(~left_out), probs[:, left_out], axes=1)
        nested[left_out] = losses_of(mixed, labels[left_out], answers[left_out] if kept else None)
    for name, member in zip(names, probs):
        evidence.losses[name] = losses_of(member, labels, answers if kept else None)
    evidence.losses["ensemble"] = nested
    weights = without_light_ones(names, weigh(np.ones(len(labels), dtype=bool)))
    return dict(sorted(weights.items(), key=lambda item: -item[1]))


def _one_or_all(weights: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """Return the weights, or one member alone if the evidence shows that the mixture is no better."""
    samples = evidence.samples
    # Members are fitted as if rows were independent, so they follow the clusters of the fit too
    # closely.
    if samples.clusters is not None and not evidence.gain().exceeds(
        1.0, len(np.unique(samples.clusters))
    ):
        evidence.losses["ensemble"] = evidence.losses["ts"]
        return {"ts": 1.0}
    mean = {
        name: float(np.average(losses, weights=samples.weights))
        for name, losses in evidence.losses.items()
    }
    mixture = mean.pop("ensemble")
    alone = min(mean, key=lambda name: mean[name])
    trusted = alone in ("ts", "ets") or weights.get(alone, 0.0) >= _HALF
    if not evidence.many_mistakes or mean[alone] > mixture or not trusted:
        return weights
    evidence.losses["ensemble"] = evidence.losses[alone]
    return {alone: 1.0}


def _stack(
    method: CalibrationEnsemble,
    evidence: Evidence,
    mixed: NDArray[np.floating],
    alone: NDArray[np.float32],
    beta: float,
    rng: np.random.Generator,
) -> tuple[Blend | None, Choice, tuple[Transform, ...], bool]:
    """Return the plan of the mixture with views (None if no view is worth it), the choice of views,
    and the candidates.

    The views are those that `ViewStacking` chooses. The last value says whether `alone`, structured
    scaling by itself, replaces the mixture because its loss on samples left out is lower.
    """
    samples, answers, max_views = evidence.samples, method.answers, method.max_views
    kept = answers == "kept"
    views, labels, epsilon = samples.views, samples.labels, share_of_chance(len(samples.labels))
    candidates, _ = shortlist(samples, views.transforms, beta, epsilon)
    data = stack_data(samples, candidates, beta, epsilon, kept=kept, copies=evidence.copies)
    most = _MOST_VIEWS if max_views is None else max_views
    choice = choose_views(
        data, rng, max_views=most, gate=method.gate, no_harm=True, worth=WORTH[answers]
    )
    used = () if choice.stack is None else choice.stack.views
    plain = losses_of(mixed, labels, data.answers if kept else None)
    features = np.concatenate([data.features[[0, 0]], data.features[1:]])
    data = replace(data, features=features, plain_losses=plain, n_base=2)
    seed, best, replaced = int(rng.integers(2**31)), None, False
    if used:
        best, replaced = _mixture_or_one(data, used, (mixed, alone), epsilon, choice.gate, seed)
    features[1] = _soft_log(alone if replaced else mixed, epsilon)
    by_class = choose_class_weights(
        data, used, best is not None, choice.gate, seed, max_views=max_views
    )
    if by_class is not None:
        used, best = by_class
    if best is None:
        return None, choice, candidates, False
    transforms = tuple(candidates[view - 1] for view in used)
    plan = plan_of(
        best.base, best.stack, transforms, beta, epsilon, answers, choice.gate, best.matrices
    )
    assert isinstance(plan, Blend)
    evidence.losses["ensemble with views"] = best.losses
    evidence.passes = len(plan.transforms) * float(plan.needs_views(views.logits).mean())
    return plan, choice, candidates, replaced


def _mixture_or_one(
    data: StackData,
    used: tuple[int, ...],
    probs: tuple[NDArray[np.floating], NDArray[np.floating]],
    epsilon: float,
    gate: float | None,
    seed: int,
) -> tuple[JudgedStack | None, bool]:
    """Stack these views with each of two arrays of probabilities; return the better stack and
    whether it is the second.

    The stack is None if it is not worth its forward passes.
    """
    features = data.features[[0, 1, *(1 + view for view in used)]]
    data, judged = replace(data, features=features, lossless=()), []
    for some in probs:
        features[1] = _soft_log(some, epsilon)
        judged.append(judged_stack(data, gate, np.random.default_rng(seed)))
    replaced = bool(np.average(judged[1].losses - judged[0].losses, weights=data.weights) < 0.0)
    best = judged[replaced]
    return (best, replaced) if best.pays and best.stack.views else (None, False)


def _soft_log(probs: NDArray[np.floating], epsilon: float) -> NDArray[np.floating]:
    return np.log((1.0 - epsilon) * probs + epsilon / probs.shape[1])
