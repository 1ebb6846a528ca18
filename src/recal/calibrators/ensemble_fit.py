"""Fitting an ensemble: cross-fitted members, their weights, then views on top of the mixture."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.beta import BetaCalibration
from recal.calibrators.class_weights import choose_class_weights
from recal.calibrators.ets import EnsembleTemperatureScaling
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.solvers.folds import copies_of, stratified_folds
from recal.calibrators.solvers.mixture import mixture_weights, without_light_ones
from recal.calibrators.solvers.temperature import fit_beta
from recal.calibrators.stacking import material_of, share_of_chance, shortlist
from recal.calibrators.structured import StructuredMatrixScaling, StructuredVectorScaling
from recal.calibrators.temperature import TemperatureScaling
from recal.calibrators.view_choice import (
    WORTH,
    Choice,
    JudgedStack,
    LossGain,
    Material,
    choose_views,
    judged_stack,
)
from recal.checks import Floats, Labels
from recal.engine.clusters import effective_count
from recal.errors import ConvergenceWarning, FewSamplesWarning
from recal.maps.arrays import log_softmax
from recal.maps.guard import keep_answers
from recal.maps.plan import Answers, Blend, Plan
from recal.progress import track
from recal.transforms import Transform
from recal.views import Views

Vector = NDArray[np.float64]
Members = dict[str, Calibrator]

_FAMILIES: dict[str, type[Calibrator]] = {
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
# With these numbers of classes the curves of beta calibration are fitted jointly. With fewer the mixture is no better,
# with more it takes too long.
_JOINT_BETA = range(21, 257)
# How many probabilities are computed at a time.
_BLOCK = 500_000
_SMALLEST = float(np.finfo(np.float64).tiny)


def member_names(n_classes: int) -> tuple[str, ...]:
    """Return the names of the members that are fitted with so many classes."""
    return tuple(name for name in _FAMILIES if n_classes <= MANY_CLASSES or name not in _NEED_SAMPLES_PER_CLASS)


def needed_for(names: Iterable[str]) -> tuple[str, ...]:
    """Return these members and those that they read, in the order in which they are fitted."""
    wanted = set(names)
    wanted |= {READS[name] for name in wanted if name in READS}
    return tuple(name for name in _FAMILIES if name in wanted)


def family_of(name: str) -> type[Calibrator] | None:
    """Return the class of a member."""
    return _FAMILIES.get(name)


def _make(name: str, n_classes: int) -> Calibrator:
    """Return a new member with the options that suit so many classes."""
    return BetaCalibration(joint=n_classes in _JOINT_BETA) if name == "beta" else _FAMILIES[name]()


def fit_members(
    names: Iterable[str], logits: Floats, labels: Labels, weights: Vector | None = None, near: Members | None = None
) -> Members:
    """Return these members and those that they read, fitted; `near` holds fits to nearly the same samples.

    Members that read the same logits share one temperature.
    """
    members: Members = {}
    read: dict[str | None, Floats] = {None: logits}
    betas: dict[str | None, float] = {}
    repeated = None if weights is None else np.repeat(np.arange(len(labels)), _whole(weights))
    for name in needed_for(names):
        source, start = READS.get(name), None if near is None else near[name]
        if source is not None and source not in read:
            read[source] = log_probs(members[source], logits)
        if source not in betas:
            betas[source] = fit_beta(read[source], labels, weights, getattr(start, "beta_", None))
        member = members[name] = _make(name, logits.shape[1])
        views = Views.unchecked(read[source], {}, None, None)
        with warnings.catch_warnings():
            # A member with too few samples does badly on samples left out and gets no weight.
            warnings.simplefilter("ignore", FewSamplesWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            if repeated is None or member.takes_weights:
                member._fit_near(views, labels, betas[source], start)
            else:
                member._fit_near(views[repeated], labels[repeated], betas[source], start)
        member.classes_ = np.arange(logits.shape[1])
        member.n_fitted_ = len(labels if repeated is None or member.takes_weights else repeated)
    return members


def _whole(weights: Vector) -> NDArray[np.intp]:
    """Return how often to repeat each sample: the weights, rounded so that their running sums are kept."""
    return np.diff(np.floor(np.cumsum(weights) + 0.5).astype(np.intp), prepend=0)


def log_probs(member: Calibrator, logits: Floats) -> NDArray[np.float64]:
    """Return the log-probabilities of a member."""
    probs = member._predict_proba(Views.unchecked(logits, {}, None, None))
    return np.log(np.maximum(probs, _SMALLEST))


def each_probs(members: Mapping[str, Calibrator], names: Iterable[str], logits: Floats) -> list[NDArray[np.float64]]:
    """Return the probabilities of each of these members, (n_samples, n_classes) each."""
    views, read, answers = Views.unchecked(logits, {}, None, None), {}, []
    for name in names:
        source = READS.get(name)
        if source is None:
            answers.append(members[name]._predict_proba(views))
            continue
        if source not in read:
            read[source] = Views.unchecked(log_probs(members[source], logits), {}, None, None)
        answers.append(members[name]._predict_proba(read[source]))
    return answers


def mixture_probs(members: Mapping[str, Calibrator], weights: Mapping[str, float], logits: Floats) -> Vector:
    """Return the weighted mean of the probabilities of the members, (n_samples, n_classes)."""
    mixed = np.zeros(logits.shape)
    size = max(1, _BLOCK // logits.shape[1])
    for begin in range(0, len(logits), size):
        block = mixed[begin : begin + size]
        for name, probs in zip(weights, each_probs(members, weights, logits[begin : begin + size])):
            block += weights[name] * probs
    return mixed


def cross_fitted(
    near: Members, logits: Floats, labels: Labels, folds: NDArray[np.intp], weights: Vector | None = None
) -> NDArray[np.float32]:
    """Return cross-fitted probabilities of each member, (n_members, n_samples, n_classes).

    Fits start from `near`, the fits to all samples.
    """
    names = tuple(near)
    answers = np.empty((len(names), *logits.shape), dtype=np.float32)
    for fold in track(range(int(folds.max()) + 1), "members on samples left out, fold"):
        rest, left_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        counts = None if weights is None else weights[rest]
        members = fit_members(names, logits[rest], labels[rest], counts, near)
        for place, probs in enumerate(each_probs(members, names, logits[left_out])):
            answers[place, left_out] = probs
    return answers


# With fewer samples, or no mistakes, there is no evidence about which method is best.
LEAST_SAMPLES = 50
# Few samples are split into more folds, so that each fit sees nearly all of them.
_FEW_SAMPLES, _FOLDS, _MORE_FOLDS = 1000, 3, 5
# The most samples and logits that decide about weights and views, and the most logits that members are fitted to. Of
# more, a random subset is used.
_MOST_SAMPLES, _MOST_VALUES, _MOST_FOR_MEMBERS = 50_000, 5_000_000, 25_000_000
# Whole-number weights repeat samples up to this often on average; small sets may be repeated more.
_MOST_REPEATS = 10
# Pseudo-counts of the weights: half a sample for each member that shrinks towards a temperature. Temperature scaling
# gets this many more, divided by the number of mistakes, because mistakes are what tells members apart.
_PRIOR = dict.fromkeys(("ts", "ets", "svs", "sms", "ets-svs", "ets-sms"), 0.5)
_PRIOR_BY_MISTAKES = 30.0
# With this many mistakes, samples left out show whether another method does as well as the mixture.
_MANY_MISTAKES = 200
# How many views are stacked by default.
_MOST_VIEWS = 3
# A member with more parameters than a temperature needs this share of the weight to be used alone.
_HALF = 0.5


@dataclass(frozen=True)
class Options:
    """The options of the ensemble that the fit reads."""

    answers: Answers
    max_views: int | None
    gate: float | str | None


@dataclass
class Evidence:
    """Losses of samples left out: under each member and under the mixture, with and without views."""

    views: Views
    labels: Labels
    counts: Vector | None
    copies: NDArray[np.intp] | None
    clusters: NDArray[np.intp] | None
    share: float
    """The effective number of samples divided by the number of samples: 1 without clusters."""
    folds: NDArray[np.intp]
    losses: dict[str, Vector] = field(default_factory=dict)
    passes: float = 0.0

    @property
    def many_mistakes(self) -> bool:
        """Whether there are enough mistakes to compare methods with many parameters."""
        mistakes = int((np.argmax(self.views.logits, axis=1) != self.labels).sum())
        return self.share * mistakes >= _MANY_MISTAKES


@dataclass(frozen=True)
class FittedEnsemble:
    """The members and their weights, the plan and the choice of views if there are any, and the evidence."""

    members: Members
    weights: dict[str, float]
    plan: Plan | None = None
    choice: Choice | None = None
    candidates: tuple[Transform, ...] = ()
    evidence: Evidence | None = None


def are_whole(weights: Vector) -> bool:
    """Whether weights are counts: samples are then repeated, in folds too.

    Large whole numbers, such as amounts of money, are treated as plain weights; repeated rows would fill the memory.
    """
    few = weights.sum() <= max(_MOST_REPEATS * len(weights), _MOST_SAMPLES)
    return bool(few and (weights == np.rint(weights)).all())


def fit_ensemble(
    views: Views,
    labels: Labels,
    counts: Vector | None,
    options: Options,
    rng: np.random.Generator,
    clusters: NDArray[np.intp] | None = None,
) -> FittedEnsemble:
    """Return the ensemble of these samples, with the weight and the cluster of each one."""
    logits, n_classes = views.logits, views.n_classes
    if counts is not None:
        counts = counts * (len(counts) / counts.sum())  # weights are relative
    every = _drawn(len(labels), _MOST_FOR_MEMBERS // n_classes, rng)
    every_counts = None if counts is None else counts[every]
    independent = _effective_samples(logits, labels, clusters)
    if independent < LEAST_SAMPLES or not (np.argmax(logits, axis=1) != labels).any():
        return FittedEnsemble(fit_members(("ts",), logits[every], labels[every], every_counts), {"ts": 1.0})
    share = independent / len(labels)
    rows = _drawn(len(labels), min(_MOST_SAMPLES, _MOST_VALUES // n_classes), rng)
    if not isinstance(rows, slice):
        views, labels_left, counts_left = views[rows], labels[rows], None if counts is None else counts[rows]
        clusters = None if clusters is None else clusters[rows]
    else:
        labels_left, counts_left = labels, counts
    copies = copies_of(views.logits, labels_left)
    n_folds = _MORE_FOLDS if share * len(labels_left) < _FEW_SAMPLES else _FOLDS
    folds = stratified_folds(labels_left, n_folds, rng, copies, clusters)
    evidence = Evidence(views, labels_left, counts_left, copies, clusters, share, folds)
    members = fit_members(member_names(n_classes), logits[every], labels[every], every_counts)
    weights, probs = _mix(members, evidence, options.answers == "kept")
    plan, choice = None, None
    candidates: tuple[Transform, ...] = ()
    if views.transforms and options.max_views != 0:
        temperature = members["ts"]
        assert isinstance(temperature, TemperatureScaling)
        mixed = np.tensordot([weights.get(name, 0.0) for name in members], probs, axes=1)
        single = "sms" if "sms" in members else "svs"
        alone = probs[tuple(members).index(single)]
        plan, choice, candidates, replaced = _stack(evidence, mixed, alone, temperature.beta_, options, rng)
        weights = {single: 1.0} if replaced else weights
    if plan is None:
        weights = _one_or_all(weights, evidence)
    return FittedEnsemble(_used(members, weights), weights, plan, choice, candidates, evidence)


def _effective_samples(logits: Floats, labels: Labels, clusters: NDArray[np.intp] | None) -> float:
    """Return the effective number of samples for the loss of temperature scaling."""
    if clusters is None:
        return float(len(labels))
    beta = fit_beta(logits, labels)
    losses = -log_softmax(beta * np.asarray(logits, np.float64))[np.arange(len(labels)), labels]
    return effective_count(losses, clusters)


def _used(members: Members, weights: dict[str, float]) -> Members:
    return {name: members[name] for name in needed_for(weights)}


def _mix(members: Members, evidence: Evidence, kept: bool) -> tuple[dict[str, float], NDArray[np.float32]]:
    """Return the weights and the cross-fitted probabilities of each member.

    The losses of the mixture in the evidence come from weights fitted without the sample's own fold.
    """
    names, labels, rows = tuple(members), evidence.labels, np.arange(len(evidence.labels))
    counts = evidence.share * (np.ones(len(labels)) if evidence.counts is None else evidence.counts)
    probs = cross_fitted(members, evidence.views.logits, labels, evidence.folds, evidence.counts)
    answers = np.argmax(evidence.views.logits, axis=1)
    wrong = answers != labels
    likelihoods = probs[:, rows, labels].T.astype(np.float64)

    def weigh(some: NDArray[np.bool_]) -> Vector:
        prior = np.array([_PRIOR.get(name, 0.0) for name in names])
        prior[0] += _PRIOR_BY_MISTAKES / max(1.0, float(counts[wrong & some].sum()))
        return mixture_weights(likelihoods[some], counts[some], prior)

    nested = np.empty(len(labels))
    for fold in range(int(evidence.folds.max()) + 1):
        left_out = evidence.folds == fold
        mixed = np.tensordot(weigh(~left_out), probs[:, left_out], axes=1)
        nested[left_out] = losses_of(mixed, labels[left_out], answers[left_out] if kept else None)
    for name, member in zip(names, probs):
        evidence.losses[name] = losses_of(member, labels, answers if kept else None)
    evidence.losses["ensemble"] = nested
    weights = without_light_ones(names, weigh(np.ones(len(labels), dtype=bool)))
    return dict(sorted(weights.items(), key=lambda item: -item[1])), probs


def _one_or_all(weights: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """Return the weights, or one member alone if the evidence shows that the mixture is no better."""
    if evidence.clusters is not None:
        # Members were fitted as if rows were independent, so they follow the clusters of the fit too closely.
        gain = LossGain.between(evidence.losses["ts"], evidence.losses["ensemble"], evidence.counts, evidence.clusters)
        if not gain.exceeds(1.0, len(np.unique(evidence.clusters))):
            evidence.losses["ensemble"] = evidence.losses["ts"]
            return {"ts": 1.0}
    mean = {name: float(np.average(losses, weights=evidence.counts)) for name, losses in evidence.losses.items()}
    mixture = mean.pop("ensemble")
    alone = min(mean, key=lambda name: mean[name])
    trusted = alone in ("ts", "ets") or weights.get(alone, 0.0) >= _HALF
    if not evidence.many_mistakes or mean[alone] > mixture or not trusted:
        return weights
    evidence.losses["ensemble"] = evidence.losses[alone]
    return {alone: 1.0}


def losses_of(probs: NDArray[np.floating], labels: Labels, answers: Labels | None) -> Vector:
    """Return the negative log-likelihood of each sample, after the guard if predictions are kept."""
    wide = probs.astype(np.float64)
    if answers is not None:
        wide = keep_answers(wide, answers[:, None])
    return -np.log(np.maximum(wide[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


def _stack(
    evidence: Evidence,
    mixed: NDArray[np.floating],
    alone: NDArray[np.float32],
    beta: float,
    options: Options,
    rng: np.random.Generator,
) -> tuple[Plan | None, Choice, tuple[Transform, ...], bool]:
    """Return the plan of the mixture with views (None if no view pays), the choice of views, and the candidates.

    The views are those that `ViewStacking` chooses. The last value says whether `alone`, structured scaling by itself,
    replaces the mixture: the lower loss on samples left out decides.
    """
    views, labels, counts = evidence.views, evidence.labels, evidence.counts
    kept = options.answers == "kept"
    epsilon = share_of_chance(len(labels))
    candidates = shortlist(views, labels, views.transforms, beta, epsilon)
    material = material_of(views, labels, candidates, beta, epsilon, kept=kept)
    material = replace(material, weights=counts, copies=evidence.copies, clusters=evidence.clusters)
    most = _MOST_VIEWS if options.max_views is None else options.max_views
    choice = choose_views(material, rng, max_views=most, gate=options.gate, no_harm=True, worth=WORTH[options.answers])
    used = () if choice.stack is None else choice.stack.views
    plain = losses_of(mixed, labels, material.answers if kept else None)
    features = np.concatenate([material.features[[0, 0]], material.features[1:]])
    material = replace(material, features=features, plain_losses=plain, n_base=2)
    seed, best, replaced = int(rng.integers(2**31)), None, False
    if used:
        best, replaced = _mixture_or_one(material, used, (mixed, alone), epsilon, choice.gate, seed)
    features[1] = _soft_log(alone if replaced else mixed, epsilon)
    by_class = choose_class_weights(material, used, best is not None, choice.gate, seed, max_views=options.max_views)
    if by_class is not None:
        used, best = by_class
    if best is None:
        return None, choice, candidates, False
    plan = _plan(best, tuple(candidates[view - 1] for view in used), choice.gate, beta, epsilon, options.answers)
    evidence.losses["ensemble with views"] = best.losses
    evidence.passes = len(plan.transforms) * float(plan.needs_views(views.logits).mean())
    return plan, choice, candidates, replaced


def _mixture_or_one(
    material: Material,
    used: tuple[int, ...],
    probs: tuple[NDArray[np.floating], NDArray[np.floating]],
    epsilon: float,
    gate: float | None,
    seed: int,
) -> tuple[JudgedStack | None, bool]:
    """Return the better stack of these views with either kind of probabilities, and whether it has the second.

    None if it is not worth its forward passes.
    """
    features = material.features[[0, 1, *(1 + view for view in used)]]
    material, judged = replace(material, features=features, lossless=()), []
    for some in probs:
        features[1] = _soft_log(some, epsilon)
        judged.append(judged_stack(material, gate, np.random.default_rng(seed)))
    replaced = bool(np.average(judged[1].losses - judged[0].losses, weights=material.weights) < 0.0)
    best = judged[replaced]
    return (best, replaced) if best.pays and best.stack.views else (None, False)


def _soft_log(probs: NDArray[np.floating], epsilon: float) -> NDArray[np.floating]:
    return np.log((1.0 - epsilon) * probs + epsilon / probs.shape[1])


def _plan(
    judged: JudgedStack,
    transforms: tuple[Transform, ...],
    gate: float | None,
    beta: float,
    epsilon: float,
    answers: Answers,
) -> Plan:
    """Return the plan of a stack of temperature scaling, a mixture and the views of these transforms, in this order."""
    stack, base = judged.stack, judged.base
    own, mixture = (float(weight) for weight in stack.weights[:2])
    gated_own, gated_mixture = (float(weight) for weight in base.weights)
    weights = tuple(
        (transform, float(weight))
        for transform, weight in zip(transforms, stack.weights[2:])
        if weight > 0.0 or judged.matrices is not None
    )
    matrices = () if judged.matrices is None else judged.matrices.tolist()
    blend = Blend(
        own,
        weights,
        tuple(stack.offsets.tolist()),
        epsilon,
        gate,
        gated_own=gated_own,
        gated_offsets=tuple(base.offsets.tolist()),
        answers=answers,
        mixture=mixture,
        gated_mixture=gated_mixture,
        matrices=matrices,
    )
    return Plan(start=beta, blend=blend)


def _drawn(count: int, most: int, rng: np.random.Generator) -> NDArray[np.intp] | slice:
    """Return all rows, or a random subset of `most` rows."""
    return slice(None) if count <= most else np.sort(rng.choice(count, most, replace=False))
