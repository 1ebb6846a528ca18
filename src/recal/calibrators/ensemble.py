"""The ensemble of calibrators: a weighted mean of simple methods, plus views if they are worth
their forward passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.ensemble_views import ViewEvidence, stack_views
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.logistic import BetaCalibration
from recal.calibrators.samples import Samples
from recal.calibrators.scaling import StructuredMatrixScaling, StructuredVectorScaling
from recal.calibrators.stacking import Gate, report_of
from recal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling
from recal.calibrators.view_selection import ViewChoice, losses_of
from recal.checks import Vector
from recal.clusters import effective_count, stratified_folds
from recal.copies import copies_of
from recal.engine.compiled import one_thread
from recal.errors import ConvergenceWarning, FewSamplesWarning, InputError
from recal.maps.arrays import log_softmax, safe_log
from recal.maps.base import Map, wide
from recal.maps.blend import Answers, Blend, Mixture, member_probs
from recal.progress import track
from recal.schema import Instance, RandomState, Size, check
from recal.solvers.convex import mixture_weights, without_light_ones
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
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


def needed_for(names: Iterable[str]) -> tuple[str, ...]:
    """Return these members and those that they read, in the order in which they are fitted."""
    every = {*names, *(READS[name] for name in names if name in READS)}
    return tuple(name for name in FAMILIES if name in every)


def fit_members(names: Iterable[str], samples: Samples, near: Members | None = None) -> Members:
    """Fit these members and those that they read; `near` contains fits to nearly the same samples.

    Members that read the same logits share one temperature.
    """
    members: Members = {}
    sources: dict[str | None, Samples] = {}
    for name in needed_for(names):
        source, start = READS.get(name), None if near is None else near[name].map_
        if source not in sources:
            logits = samples.logits
            if source is not None:
                logits = safe_log(members[source].map_.probs(wide(logits)))
            plain = replace(samples, inputs=Views.unchecked(logits, {}, None, None), near=start)
            sources[source] = replace(plain, known_beta=plain.beta)
        known = sources[source]
        member = members[name] = FAMILIES[name]()
        if isinstance(member, BetaCalibration):
            # With fewer classes the mixture does not improve; with more the joint fit takes long.
            member.joint = 20 < samples.n_classes <= MANY_CLASSES
        used = known if member.takes_weights else _repeated(known)
        with warnings.catch_warnings():
            # A member with too few samples does badly on samples left out and gets no weight.
            warnings.simplefilter("ignore", FewSamplesWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            member.learn(replace(used, near=start, known_beta=known.known_beta))
    return members


def _repeated(samples: Samples) -> Samples:
    """Return samples repeated by their weights, rounded so that their running sums are kept."""
    if samples.weights is None:
        return samples
    whole = np.diff(np.floor(np.cumsum(samples.weights) + 0.5).astype(np.intp), prepend=0)
    return replace(samples, weights=None)[np.repeat(np.arange(len(samples)), whole)]


def places_read(names: tuple[str, ...]) -> list[int]:
    """Return the index of the member that each of these members reads; -1 for the logits."""
    return [names.index(READS[name]) if name in READS else -1 for name in names]


class CalibrationEnsemble(Calibrator):
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
    views are weighted together, as in `ViewStacking`, if samples left out show that views are worth
    their forward passes. If there are two samples for each entry of a matrix of weights per view,
    such matrices are tried, shrunk towards the single weight of `ViewStacking`. They are used if
    they gain more than one standard error on samples left out. With at most eight candidates, all
    of them may then be used.

    Parameters
    ----------
    answers : {"kept", "free"}
        "kept": predictions never change. "free": they may change if another class is more likely.
    max_views : int, optional
        The largest number of views; 0 uses none. By default 3, or up to 8 with class-wise weights.
    gate : float in (0, 1], "auto" or None
        Samples with at least this confidence (after temperature scaling) need no views, as in
        `ViewStacking`.
    random_state : int, Generator or None
        Seed of the folds.

    Attributes
    ----------
    weights_ : dict of str to float
        The weight of each member in use, the largest first.
    members_ : dict of str to Map
        The maps of the members in use, and of those that they read.
    reason_ : str
        One sentence: which members were mixed, and the gain.
    plan_ : Blend, if views are used
        Their weights and the gate; the mixture is part of it.
    views_report_ : list of dict
        A record of the search for views, as in `ViewStacking`.

    Notes
    -----
    With more than 256 classes, `sms`, `ets-sms` and `isotonic` are left out: a matrix of weights
    would be slow to fit, and a curve for each class would get too few samples. With fewer than 50
    samples, or if the model makes no mistake, only `ts` is fitted. Weights and views are chosen on
    at most 50,000 samples and 5 million logits, and members are fitted to at most 25 million
    logits, drawn at random.

    Examples
    --------
    >>> from recal.calibrators import CalibrationEnsemble
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 500)
    >>> ensemble = CalibrationEnsemble().fit(4 * (np.eye(3)[y] + rng.normal(size=(500, 3))), y)
    >>> round(sum(ensemble.weights_.values()), 6)
    1.0
    """

    short_name: ClassVar[str] = "ensemble"
    reads_views: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    answers: Answers = "kept"
    max_views: Size | None = None
    gate: Gate = 0.99
    random_state: RandomState = 0

    map_: Mixture = from_fit()
    reason_: str = from_fit()
    views_report_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        return record_of(fit_ensemble(self, samples.without_counts(), rng))

    @property
    def weights_(self) -> dict[str, float]:
        weights = sorted(
            zip(self.map_.names, self.map_.weights.tolist()), key=lambda item: -item[1]
        )
        return {name: weight for name, weight in weights if weight > 0.0}

    @property
    def members_(self) -> dict[str, Map]:
        return dict(zip(self.map_.names, self.map_.members))

    @property
    def plan_(self) -> Blend:
        if self.map_.plan is None:
            raise AttributeError("This CalibrationEnsemble uses no views and has no plan_.")
        return self.map_.plan

    def _check_state(self, n_classes: int) -> None:
        check(vars(self).get("map_"), Instance(Mixture), "map_")
        for name, member in self.members_.items():
            if name not in FAMILIES or not isinstance(
                member, get_type_hints(FAMILIES[name])["map_"]
            ):
                raise InputError(f"holds under {name!r} another method", argument="map_")


@dataclass(frozen=True)
class FittedEnsemble:
    """The members and their weights, the plan and the choice of views if there are any, and the
    evidence.
    """

    members: Members
    weights: dict[str, float]
    plan: Blend | None = None
    choice: ViewChoice | None = None
    candidates: tuple[Transform, ...] = ()
    evidence: ViewEvidence | None = None


def fit_ensemble(
    method: CalibrationEnsemble, samples: Samples, rng: np.random.Generator
) -> FittedEnsemble:
    """Return the ensemble of these samples."""
    labels, n_classes = samples.labels, samples.n_classes
    if samples.weights is not None:  # weights are relative
        samples = replace(samples, weights=samples.weights * (len(labels) / samples.weights.sum()))
    # Members are fitted to at most 25 million logits, and compared on 5 million.
    every = samples.drawn(25_000_000 // n_classes, rng)
    independent = float(len(labels))
    if samples.clusters is not None:
        beta = fit_beta(samples.logits, labels)
        scaled = log_softmax(beta * np.asarray(samples.logits, np.float64))
        independent = effective_count(-scaled[np.arange(len(labels)), labels], samples.clusters)
    # With fewer samples, or no mistakes, there is no evidence about which method is best.
    enough = independent >= 50 and samples.n_mistakes > 0
    names = member_names(n_classes) if enough else ("ts",)
    members = fit_members(names, every)
    if not enough:
        return FittedEnsemble(members, {"ts": 1.0})
    share = independent / len(labels)
    samples = samples.drawn(min(50_000, 5_000_000 // n_classes), rng)
    views, labels = samples.views, samples.labels
    copies = copies_of(views.logits, labels)
    # Few samples are split into more folds, so that each fit sees nearly all of them.
    n_folds = 5 if share * len(labels) < 1000 else 3
    folds = stratified_folds(labels, n_folds, rng, copies, samples.clusters)
    evidence = ViewEvidence(samples, copies, share, folds)
    probs = cross_fitted(members, evidence)
    with one_thread():
        weights = _weigh(probs, tuple(members), evidence, method.answers == "kept")
    plan, choice = None, None
    candidates: tuple[Transform, ...] = ()
    if views.transforms and method.max_views != 0:
        mixed = np.tensordot([weights.get(name, 0.0) for name in members], probs, axes=1)
        beta = float(members["ts"].beta_)  # type: ignore[attr-defined]
        plan, choice, candidates = stack_views(method, evidence, mixed, beta, rng)
    if plan is None:
        weights = _one_or_all(weights, evidence)
    used = {name: members[name] for name in needed_for(weights)}
    return FittedEnsemble(used, weights, plan, choice, candidates, evidence)


def cross_fitted(members: Members, evidence: ViewEvidence) -> NDArray[np.float32]:
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
    probs: NDArray[np.float32], names: tuple[str, ...], evidence: ViewEvidence, kept: bool
) -> dict[str, float]:
    """Return the weights of the members by name, the largest first, from their cross-fitted
    probabilities.

    The losses of the mixture in the evidence come from weights fitted without the sample's own
    fold.
    """
    samples, labels, folds = evidence.samples, evidence.samples.labels, evidence.folds
    counts = evidence.share * (np.ones(len(labels)) if samples.weights is None else samples.weights)
    answers = samples.answers
    likelihoods = probs[:, np.arange(len(labels)), labels].T.astype(np.float64)

    def weigh(some: NDArray[np.bool_]) -> Vector:
        # Pseudo-counts: half a sample for each member that shrinks towards a temperature. The first,
        # temperature scaling, gets more if there are few mistakes, which alone show what is better.
        prior = np.array([0.0 if name in ("beta", "isotonic") else 0.5 for name in names])
        prior[0] += 30.0 / max(1.0, float(counts[(answers != labels) & some].sum()))
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


def _one_or_all(weights: dict[str, float], evidence: ViewEvidence) -> dict[str, float]:
    """Return the weights, or one member alone if the evidence shows that the mixture is no better."""
    samples = evidence.samples
    # Members are fitted as if rows were independent, so they follow the clusters of the fit too
    # closely.
    if samples.clusters is not None and not evidence.gain().exceeds(1.0, samples.n_units):
        evidence.losses["ensemble"] = evidence.losses["ts"]
        return {"ts": 1.0}
    mean = {
        name: float(np.average(losses, weights=samples.weights))
        for name, losses in evidence.losses.items()
    }
    mixture = mean.pop("ensemble")
    alone = min(mean, key=lambda name: mean[name])
    # A member with more parameters than a temperature needs half of the weight.
    trusted = alone in ("ts", "ets") or weights.get(alone, 0.0) >= 0.5
    if not evidence.many_mistakes or mean[alone] > mixture or not trusted:
        return weights
    evidence.losses["ensemble"] = evidence.losses[alone]
    return {alone: 1.0}


def record_of(fitted: FittedEnsemble) -> dict[str, Any]:
    """Return the fitted attributes of an ensemble."""
    names = tuple(fitted.members)
    mixture = Mixture(
        names=names,
        members=tuple(member.map_ for member in fitted.members.values()),
        weights=np.array([fitted.weights.get(name, 0.0) for name in names]),
        reads=np.array(places_read(names)),
        plan=fitted.plan,
    )
    report: list[dict[str, Any]] = []
    if fitted.choice is not None:
        report = report_of(fitted.candidates, fitted.choice, fitted.plan)
    return {"map_": mixture, "reason_": sentence(fitted), "views_report_": report}


def sentence(fitted: FittedEnsemble) -> str:
    """Describe an ensemble and its gain in one sentence."""
    # Smaller weights would show as 0 %.
    shares = {name: weight for name, weight in fitted.weights.items() if weight >= 0.005}
    parts = [f"{name} ({100 * weight:.0f} %)" for name, weight in shares.items()]
    mixed = f"Mixes {', '.join(parts[:-1])} and {parts[-1]}"
    if len(parts) == 1:
        mixed = f"Uses {next(iter(shares))} alone"
    evidence = fitted.evidence
    if evidence is None:
        return f"{mixed}: there are too few samples, or no mistakes, to choose by."
    if fitted.plan is not None:
        used = ", ".join(short_spec(transform) for transform in fitted.plan.transforms)
        by_class = ", with weights for each class," if fitted.plan.matrices else ""
        mixed += (
            f", and stacks {used}{by_class} on top for {evidence.passes:.2f} more forward passes "
            "per answer"
        )
    return f"{mixed}: on samples left out, its NLL is {_beside_temperature(evidence)}."


def _beside_temperature(evidence: ViewEvidence) -> str:
    gain = evidence.gain()
    plain = float(np.average(evidence.losses["ts"], weights=evidence.samples.weights))
    share = 100.0 * gain.mean / plain
    change = f"{abs(share):.1f} % {'lower' if share >= 0.0 else 'higher'}"
    if abs(gain.mean) < 2.0 * gain.error:
        return f"about that of temperature scaling ({change}, which chance explains)"
    return f"{change} than that of temperature scaling"
