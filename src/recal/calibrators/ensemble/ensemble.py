"""The ensemble of calibrators: a weighted mean of simple methods, and of views where these pay for their passes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, kept_by_answers
from recal.calibrators.ensemble.members import (
    Members,
    cross_fitted,
    family_of,
    fit_members,
    member_names,
    mixture_probs,
    needed_for,
)
from recal.calibrators.ensemble.weights import mixture_weights, without_light_ones
from recal.calibrators.machinery.folds import stratified_folds
from recal.calibrators.machinery.parameters import check_random_state
from recal.checks import Floats, Labels
from recal.engine.guard import keep_answers
from recal.errors import InputError
from recal.plan import Answers
from recal.views import Views

Vector = NDArray[np.float64]

# Fewer samples, or none that the model gets wrong, say nothing about which method suits them.
LEAST_SAMPLES = 50
# Few samples are cut into more folds: each fit then sees nearly all of them.
_FEW_SAMPLES, _FOLDS, _MORE_FOLDS = 1000, 3, 5
# How many values the fit of the weights and that of the members read at most; beyond, samples are drawn at random.
_MOST_FOR_WEIGHTS, _MOST_FOR_MEMBERS = 4_000_000, 25_000_000
# What the weights start from: as if so many samples had been seen to follow each of these, the simplest members; and
# for temperature scaling so many more divided by the number of mistakes, since it is mistakes that tell members apart.
_PRIOR = {"ts": 1.0, "svs": 1.0, "ets-svs": 1.0}
_PRIOR_BY_MISTAKES = 50.0


class CalibrationEnsemble(Calibrator):
    """Mix the answers of several simple calibrators, with weights that samples left out decide.

    The members are temperature scaling (`ts`), ensemble temperature scaling (`ets`), structured vector and matrix
    scaling (`svs`, `sms`), beta calibration, isotonic regression, and structured scaling of what `ets` answers
    (`ets-svs`, `ets-sms`). With p_m the probabilities of member m, the ensemble answers

        p = sum of w_m p_m,   w_m >= 0, sum of w_m = 1.

    The weights are the likeliest ones on cross-fitted probabilities. One sample's worth of evidence each is added for
    `ts`, `svs` and `ets-svs`, and 50 divided by the number of mistakes for `ts`: few samples lead to simple members,
    and few mistakes to temperature scaling. Members that get less than a thousandth are dropped, and the others are
    fitted to all samples.

    Parameters
    ----------
    answers : {"kept", "free"}
        "kept": the model's own prediction always stays the likeliest.
    random_state : int, Generator or None
        Draws the folds.

    Attributes
    ----------
    weights_ : dict of str to float
        The weight of each member in use, the largest first.
    members_ : dict of str to Calibrator
        The members in use, fitted, and those that they read.
    reason_ : str
        One sentence: what was mixed, and what it gains.

    Notes
    -----
    Above 256 classes `sms`, `ets-sms` and `isotonic` are left out: a matrix of weights is slow to fit there, and a
    curve for each class would see too few samples. Below 50 samples, and where the model makes no mistake, only `ts`
    is fitted. Weights are found from at most 4 million logits, members from 25 million, drawn at random.

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
    keeps_accuracy: ClassVar[bool] = kept_by_answers("kept")

    members_: Members
    weights_: dict[str, float]
    reason_: str

    def __init__(self, *, answers: Answers = "kept", random_state: int | np.random.Generator | None = 0) -> None:
        self.answers = answers
        self.random_state = random_state

    def _fit(self, views: Views, labels: Labels) -> None:
        rng = check_random_state(self.random_state)
        logits = views.logits
        names = member_names(views.n_classes)
        mistakes = int((np.argmax(logits, axis=1) != labels).sum())
        few = len(labels) < LEAST_SAMPLES or not mistakes
        weights = {"ts": 1.0} if few else _weights(names, logits, labels, rng)
        rows = _drawn(len(labels), _MOST_FOR_MEMBERS // views.n_classes, rng)
        self.reason_ = ""
        self.weights_ = dict(sorted(weights.items(), key=lambda item: -item[1]))
        self.members_ = fit_members(self.weights_, logits[rows], labels[rows])

    def _check_state(self, n_classes: int) -> None:
        members, weights = getattr(self, "members_", None), getattr(self, "weights_", None)
        if not isinstance(members, dict) or not isinstance(weights, dict) or not weights:
            raise InputError("must be given by name", argument=("members_", "weights_"))
        for name, member in members.items():
            if type(member) is not family_of(name) or len(member.classes_) != n_classes:
                raise InputError(f"holds under {name!r} another method, or one of other classes", argument="members_")
            member.check_state()
        if set(needed_for(weights)) != set(members) or not set(weights) <= set(members):
            raise InputError("must name the members", argument="weights_")
        shares = list(weights.values())
        positive = all(type(share) in (int, float) and 0.0 < share <= 1.0 for share in shares)
        if not positive or abs(sum(shares) - 1) > 1e-6:
            raise InputError("must be positive numbers that sum to 1", argument="weights_")

    def _predict_proba(self, views: Views) -> NDArray[np.float64]:
        probs = mixture_probs(self.members_, self.weights_, views.logits)
        return keep_answers(probs, np.argmax(views.logits, axis=1)) if self.answers == "kept" else probs


def _weights(names: tuple[str, ...], logits: Floats, labels: Labels, rng: np.random.Generator) -> dict[str, float]:
    rows = _drawn(len(labels), _MOST_FOR_WEIGHTS // logits.shape[1], rng)
    logits, labels = logits[rows], labels[rows]
    folds = stratified_folds(labels, _MORE_FOLDS if len(labels) < _FEW_SAMPLES else _FOLDS, rng)
    probs = cross_fitted(names, logits, labels, folds)
    likelihoods = probs[:, np.arange(len(labels)), labels].T.astype(np.float64)
    prior = np.array([_PRIOR.get(name, 0.0) for name in names])
    mistakes = (np.argmax(logits, axis=1) != labels).sum()
    prior[0] += _PRIOR_BY_MISTAKES / max(1.0, float(mistakes))
    return without_light_ones(names, mixture_weights(likelihoods, np.ones(len(labels)), prior))


def _drawn(count: int, most: int, rng: np.random.Generator) -> NDArray[np.intp] | slice:
    """Return all rows, or as many as may be, at random."""
    return slice(None) if count <= most else np.sort(rng.choice(count, most, replace=False))
