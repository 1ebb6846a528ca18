"""The fit of an ensemble: members on samples left out, their weights, then views on top of the mixture."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.ensemble.members import Members, cross_fitted, fit_members, member_names, needed_for
from recal.calibrators.machinery.folds import stratified_folds
from recal.calibrators.machinery.mixture_weights import mixture_weights, without_light_ones
from recal.calibrators.stacking.estimator import fill_log_probs, is_lossless, shortlist
from recal.calibrators.stacking.view_choice import Choice, LossGain, Material, choose_views
from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Labels
from recal.plan import Answers, Blend, Plan
from recal.runtime.reference import keep_answers
from recal.transforms import Transform
from recal.views import Views

Vector = NDArray[np.float64]

# Fewer samples, or none that the model gets wrong, say nothing about which method suits them.
LEAST_SAMPLES = 50
# Few samples are cut into more folds: each fit then sees nearly all of them.
_FEW_SAMPLES, _FOLDS, _MORE_FOLDS = 1000, 3, 5
# How many samples and values decide about weights and views, and how many values the members are fitted to at most;
# beyond, samples are drawn at random.
_MOST_SAMPLES, _MOST_VALUES, _MOST_FOR_MEMBERS = 50_000, 5_000_000, 25_000_000
# What the weights start from: as if so many samples had been seen to follow each of these, the simplest members; and
# for temperature scaling so many more divided by the number of mistakes, since it is mistakes that tell members apart.
_PRIOR = {"ts": 1.0, "svs": 1.0, "ets-svs": 1.0}
_PRIOR_BY_MISTAKES = 50.0
# From so many mistakes on, a gain over temperature scaling that is worth having exceeds its standard error.
_MANY_MISTAKES = 200
# Of class offsets on top of the mixture, relative to that of `ViewStacking`: the search on samples left out judges them
# together with the views.
_OFFSET_PENALTY = 0.01
# What is mixed in of chance before a logarithm is taken, at most.
_MOST_EPSILON = 1e-4


@dataclass(frozen=True)
class Options:
    """What a user may choose."""

    answers: Answers
    max_views: int
    gate: float | str | None


@dataclass
class Evidence:
    """What samples left out say: their losses under each member and under the mixture, with and without views."""

    views: Views
    labels: Labels
    counts: Vector | None
    folds: NDArray[np.intp]
    losses: dict[str, Vector] = field(default_factory=dict)
    passes: float = 0.0


@dataclass(frozen=True)
class FittedEnsemble:
    """The members and their weights; the plan and the search of views, where there are any; what it rests on."""

    members: Members
    weights: dict[str, float]
    plan: Plan | None = None
    choice: Choice | None = None
    candidates: tuple[Transform, ...] = ()
    evidence: Evidence | None = None


def fit_ensemble(
    views: Views, labels: Labels, counts: Vector | None, options: Options, rng: np.random.Generator
) -> FittedEnsemble:
    """Return the ensemble of these samples, each of which counts so often."""
    logits, n_classes = views.logits, views.n_classes
    if counts is not None and (counts != np.rint(counts)).any():
        counts = counts * (len(counts) / counts.sum())  # not how often, but how much: the sum says nothing
    every = _drawn(len(labels), _MOST_FOR_MEMBERS // n_classes, rng)
    every_counts = None if counts is None else counts[every]
    if len(labels) < LEAST_SAMPLES or not (np.argmax(logits, axis=1) != labels).any():
        return FittedEnsemble(fit_members(("ts",), logits[every], labels[every], every_counts), {"ts": 1.0})
    rows = _drawn(len(labels), min(_MOST_SAMPLES, _MOST_VALUES // n_classes), rng)
    if not isinstance(rows, slice):
        views, labels_left, counts_left = views[rows], labels[rows], None if counts is None else counts[rows]
    else:
        labels_left, counts_left = labels, counts
    folds = stratified_folds(labels_left, _MORE_FOLDS if len(labels_left) < _FEW_SAMPLES else _FOLDS, rng)
    evidence = Evidence(views, labels_left, counts_left, folds)
    weights, mixed = _mix(member_names(n_classes), evidence, options.answers == "kept")
    members = fit_members((*weights, "ts"), logits[every], labels[every], every_counts)
    if not (views.transforms and options.max_views):
        return FittedEnsemble(_used(members, weights), weights, evidence=evidence)
    temperature = members["ts"]
    assert isinstance(temperature, TemperatureScaling)
    plan, choice, candidates = _stack(evidence, mixed, temperature.beta_, options, rng)
    return FittedEnsemble(_used(members, weights), weights, plan, choice, candidates, evidence)


def _used(members: Members, weights: dict[str, float]) -> Members:
    return {name: members[name] for name in needed_for(weights)}


def _mix(names: tuple[str, ...], evidence: Evidence, kept: bool) -> tuple[dict[str, float], Vector]:
    """Return the weights, and what the mixture gives samples that its members did not see.

    The mixture's losses in the evidence are those of weights found without the sample's own fold.
    """
    labels, rows = evidence.labels, np.arange(len(evidence.labels))
    counts = np.ones(len(labels)) if evidence.counts is None else evidence.counts
    probs = cross_fitted(names, evidence.views.logits, labels, evidence.folds, evidence.counts)
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
    clear = LossGain.between(evidence.losses["ts"], nested, evidence.counts).is_clear
    if wrong.sum() >= _MANY_MISTAKES and not clear:
        weights, evidence.losses["ensemble"] = {"ts": 1.0}, evidence.losses["ts"]
    heavy = np.array([weights.get(name, 0.0) for name in names])
    return dict(sorted(weights.items(), key=lambda item: -item[1])), np.tensordot(heavy, probs, axes=1)


def losses_of(probs: NDArray[np.floating], labels: Labels, answers: Labels | None) -> Vector:
    """Return each sample's negative log-likelihood, after the guard where answers are kept."""
    wide = probs.astype(np.float64)
    if answers is not None:
        wide = keep_answers(wide, answers)
    return -np.log(np.maximum(wide[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


def _stack(
    evidence: Evidence, mixed: Vector, beta: float, options: Options, rng: np.random.Generator
) -> tuple[Plan | None, Choice, tuple[Transform, ...]]:
    """Return the plan of the mixture with views, None where no view pays, how it was chosen, and from what."""
    views, labels = evidence.views, evidence.labels
    logits, n_classes = views.logits, views.n_classes
    epsilon = min(_MOST_EPSILON, 1.0 / (len(labels) + 1.0))
    candidates = shortlist(views, labels, views.transforms, beta, epsilon)
    features = np.empty((2 + len(candidates), *logits.shape), dtype=np.float32)
    fill_log_probs(features[0], logits, beta, epsilon)
    features[1] = np.log((1.0 - epsilon) * mixed + epsilon / n_classes)
    for place, transform in enumerate(candidates, 2):
        fill_log_probs(features[place], views.transformed(transform), beta, epsilon)
    kept = options.answers == "kept"
    answers = np.argmax(logits, axis=1)
    material = Material(
        features,
        labels,
        answers=answers,
        confidence=np.exp(features[0].max(axis=1).astype(np.float64)),
        plain_losses=losses_of(mixed, labels, answers if kept else None),
        lossless=tuple(is_lossless(transform) for transform in candidates),
        kept=kept,
        n_base=2,
        weights=evidence.counts,
        offset_penalty=_OFFSET_PENALTY,
    )
    choice = choose_views(
        material,
        rng,
        max_views=options.max_views,
        gate=options.gate,
        no_harm=True,
        worth=0.1 if kept else 0.03,
        offsets_alone=False,
    )
    plan = _plan(choice, candidates, beta, epsilon, options.answers)
    if plan is not None:
        evidence.losses["ensemble with views"] = choice.losses
        evidence.passes = len(plan.transforms) * float(plan.needs_views(logits).mean())
    return plan, choice, candidates


def _plan(
    choice: Choice, candidates: tuple[Transform, ...], beta: float, epsilon: float, answers: Answers
) -> Plan | None:
    stack = choice.stack
    if stack is None or not stack.views:
        return None
    weight_of = dict(zip(stack.used, stack.weights))
    weights = tuple((candidates[view - 2], float(weight_of[view])) for view in stack.views)
    offsets = tuple(float(value) for value in stack.offsets)
    blend = Blend(
        float(weight_of[0]),
        weights,
        offsets,
        epsilon,
        choice.gate,
        gated_own=0.0,
        answers=answers,
        mixture=float(weight_of[1]),
        gated_mixture=1.0,
    )
    return Plan(start=beta, blend=blend)


def _drawn(count: int, most: int, rng: np.random.Generator) -> NDArray[np.intp] | slice:
    """Return all rows, or as many as may be, at random."""
    return slice(None) if count <= most else np.sort(rng.choice(count, most, replace=False))
