"""The members of the ensemble: simple methods that err differently, fitted to all samples and to folds of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.calibrators.beta import BetaCalibration
from recal.calibrators.ets import EnsembleTemperatureScaling
from recal.calibrators.isotonic import IsotonicCalibration
from recal.calibrators.machinery.common_scale import fit_beta
from recal.calibrators.structured_matrix import StructuredMatrixScaling
from recal.calibrators.structured_vector import StructuredVectorScaling
from recal.calibrators.temperature import TemperatureScaling
from recal.checks import Floats, Labels
from recal.errors import ConvergenceWarning, FewSamplesWarning
from recal.progress import track
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
# These read the log-probabilities of another member in place of the logits.
READS = {"ets-svs": "ets", "ets-sms": "ets"}
# Beyond so many classes a matrix of weights is slow to fit and a curve of its own for each class sees too few samples.
MANY_CLASSES = 256
_NEED_SAMPLES_PER_CLASS = ("sms", "ets-sms", "isotonic")
# How many probabilities are worked on at a time.
_BLOCK = 500_000
_SMALLEST = float(np.finfo(np.float64).tiny)


def member_names(n_classes: int) -> tuple[str, ...]:
    """Return the names of the members that are worth their time with so many classes."""
    return tuple(name for name in _FAMILIES if n_classes <= MANY_CLASSES or name not in _NEED_SAMPLES_PER_CLASS)


def needed_for(names: Iterable[str]) -> tuple[str, ...]:
    """Return these members and those that they read, in the order in which they are fitted."""
    wanted = set(names)
    wanted |= {READS[name] for name in wanted if name in READS}
    return tuple(name for name in _FAMILIES if name in wanted)


def family_of(name: str) -> type[Calibrator] | None:
    """Return the class of a member."""
    return _FAMILIES.get(name)


def fit_members(
    names: Iterable[str], logits: Floats, labels: Labels, weights: Vector | None = None, near: Members | None = None
) -> Members:
    """Return these members and those that they read, fitted; `near` are those of nearly the same samples.

    Temperatures are fitted once for all who read the same logits.
    """
    members: Members = {}
    read: dict[str | None, Floats] = {None: logits}
    betas: dict[str | None, float] = {}
    repeated = None if weights is None else np.repeat(np.arange(len(labels)), _whole(weights))
    for name in needed_for(names):
        source, known = READS.get(name), None if near is None else near[name]
        if source is not None and source not in read:
            read[source] = log_probs(members[source], logits)
        if source not in betas:
            betas[source] = fit_beta(read[source], labels, weights, getattr(known, "beta_", None))
        member = members[name] = _FAMILIES[name]()
        views = Views.unchecked(read[source], {}, None, None)
        with warnings.catch_warnings():
            # The weights judge each member on samples left out: one that had too few samples gets none.
            warnings.simplefilter("ignore", FewSamplesWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            if repeated is None or member.takes_weights:
                member._fit_near(views, labels, betas[source], known)
            else:
                member._fit_near(views[repeated], labels[repeated], betas[source], known)
        member.classes_ = np.arange(logits.shape[1])
        member.n_fitted_ = len(labels if repeated is None or member.takes_weights else repeated)
    return members


def _whole(weights: Vector) -> NDArray[np.intp]:
    """Return how often each sample stands among the others: the weights, rounded so that running sums stay true."""
    return np.diff(np.floor(np.cumsum(weights) + 0.5).astype(np.intp), prepend=0)


def log_probs(member: Calibrator, logits: Floats) -> NDArray[np.float64]:
    """Return the logarithms of what a member answers."""
    probs = member._predict_proba(Views.unchecked(logits, {}, None, None))
    return np.log(np.maximum(probs, _SMALLEST))


def each_probs(members: Mapping[str, Calibrator], names: Iterable[str], logits: Floats) -> list[NDArray[np.float64]]:
    """Return what each of these members answers, (n_samples, n_classes) each."""
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
    """Return the weighted mean of what the members answer, (n_samples, n_classes)."""
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
    """Return what each member answers to samples that it did not see, (n_members, n_samples, n_classes).

    Fits begin at those of all samples, `near`.
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
