"""Confidence for the graded answers of any system, learned from the numbers that come with an
answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.estimator import RULE, Estimator
from recal.calibrators.group_offsets import ridge_offsets
from recal.calibrators.signal_models import FITS, Fit, fit_linear, fit_platt, fit_scale, fit_splines
from recal.calibrators.signal_table import SignalTable, read_correct
from recal.checks import check_weights
from recal.clusters import check_clusters, effective_count, stratified_folds
from recal.engine.compiled import one_thread
from recal.errors import FewSamplesWarning, InputError, NotFittedError
from recal.maps.arrays import sigmoid
from recal.maps.signals import LinearSignals, SignalMap, SignalModel, SignalScale
from recal.schema import RandomState, check_parameters
from recal.solvers.convex import mixture_weights, without_light_ones

Vector = NDArray[np.float64]

# With fewer graded answers, or fewer of the rarer kind, only Platt scaling of the best signal is
# fitted.
_FEWEST, _FEWEST_OF_A_KIND = 50, 5
_FEW, _FOLDS, _MORE_FOLDS = 200, 5, 10
# Pseudo-counts of the mixture's weights. With few answers of the rarer kind, Platt scaling gets
# more of them. With many, the others get more, in equal parts: an even mixture is better calibrated
# than one that fits noise.
_PRIOR = {"Platt scaling": 0.5, "ridge": 3.0, "splines": 2.0, "trees": 0.5}
_PLATT_PRIOR, _EVEN_PRIOR, _MOST_EVEN = 300.0, 60.0, 100.0
# Ridge penalties of the offsets per category. Using no offsets is a candidate, too.
_STRENGTHS = (10.0, 20.0, 40.0, 100.0)
# Ridge penalty that pulls the slope towards 1.
_SLOPE_RIDGE = 100.0
# The most rows used to measure how important each signal is.
_MOST_FOR_IMPORTANCE = 3000
_ROWS_AT_A_TIME = 16_384


class SignalCalibration(Estimator):
    """Probability that an answer is right, from the signals that come with it.

    A signal is any number that may separate right answers from wrong ones: a stated confidence, the
    mean log-probability of the tokens, the length, the agreement between samples, a judge's score.
    A few hundred answers graded as right or wrong are enough. Four models are mixed by their
    likelihood on rows left out: Platt scaling of the best signal, ridge regression, splines and
    small boosted trees. Each category and each group then gets an offset.

    Parameters
    ----------
    random_state : int, Generator or None
        Decides the folds.

    Attributes
    ----------
    map_ : SignalMap
        The fitted function of an (n_samples, n_signals) array.
    reason_ : str
        One sentence: what was fitted, and how well it does on rows left out.
    signal_importance_ : dict of str to float
        How much the negative log-likelihood per answer rises when a signal is left out, largest
        first.
    weights_ : dict of str to float
        The share of each model in the mixture.
    losses_ : dict of str to float
        Cross-fitted negative log-likelihood of each model and of the mixture.
    decision_ : DecisionRule, if one was set
        Which answers can be automated; saved with the calibration, and a new fit removes it.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import SignalCalibration
    >>> rng = np.random.default_rng(0)
    >>> stated = rng.uniform(0.5, 1.0, 400)
    >>> correct = rng.random(400) < stated**2  # overconfident
    >>> calibration = SignalCalibration().fit({"stated": stated}, correct)
    >>> bool(abs(calibration.predict_confidence({"stated": [0.9]})[0] - 0.81) < 0.1)
    True
    """

    map_: SignalMap
    reason_: str
    signal_importance_: dict[str, float]
    weights_: dict[str, float]
    losses_: dict[str, float]
    table_: SignalTable
    n_fitted_: int
    classes_: NDArray[Any]
    decision_: Annotated[Any, RULE]

    def __init__(self, random_state: RandomState = 0) -> None:
        self.random_state = random_state

    @one_thread()
    def fit(
        self,
        signals: Any,
        correct: ArrayLike,
        groups: Any = None,
        sample_weight: ArrayLike | None = None,
        clusters: ArrayLike | None = None,
    ) -> Self:
        """Learn P(right | signals) from graded answers.

        Parameters
        ----------
        signals : data frame, mapping of name to column, or array-like of shape (n_samples,
        n_signals)
            Missing values are allowed. Text columns are categories.
        correct : array-like of shape (n_samples,)
            Whether each answer is right: True or False, 1 or 0.
        groups : array-like of shape (n_samples,), or {name: values}, optional
            The subject, customer or source of each answer. Each group gets an offset, shrunk
            towards 0.
        sample_weight : array-like of shape (n_samples,), optional
            How much each answer counts.
        clusters : array-like of shape (n_samples,), optional
            Names of answers that belong together, such as answers to one question. Cross-validation
            never divides a cluster.
        """
        check_parameters(self)
        rng = np.random.default_rng(self.random_state)
        table = SignalTable.of(signals, groups)
        values = table.values(signals, groups)
        right = read_correct(correct, len(values))
        table.refuse_leaks(values, right)
        counts = (
            np.ones(len(right))
            if sample_weight is None
            else check_weights(sample_weight, len(right))
        )
        counts = counts * (len(counts) / counts.sum())
        together = None if clusters is None else check_clusters(clusters, len(right))
        share = effective_count(right, together) / len(right)
        answers = _GradedAnswers(values, right, counts, table.categories, together, share)
        rarer = int(share * min(right.sum(), len(right) - right.sum()))
        if share * len(right) < _FEWEST or rarer < _FEWEST_OF_A_KIND:
            independent = "" if together is None else " (counted as independent answers)"
            warnings.warn(
                f"{share * len(right):.0f} graded answers, {rarer} of the rarer kind{independent}, are too few to "
                f"combine signals; at least {_FEWEST} and {_FEWEST_OF_A_KIND} are needed. Only Platt scaling of the "
                "best signal was fitted.",
                FewSamplesWarning,
                stacklevel=2,
            )
            fitted = answers.fit_platt_only()
        else:
            fitted = answers.fit_mixture(rng, rarer)
        self.map_, self.weights_, self.losses_ = fitted
        self.table_, self.n_fitted_, self.classes_ = table, len(right), np.array([False, True])
        self.__dict__.pop("decision_", None)  # it was made for the confidences of an earlier fit
        self.signal_importance_ = answers.importance(table.names, rng) if self.losses_ else {}
        self.reason_ = self._sentence()
        return self

    def predict_confidence(self, signals: Any, groups: Any = None) -> Vector:
        """Return the probability that each answer is right, (n_samples,).

        Levels and groups that were not in the fit get no offset.
        """
        self._check_fitted()
        values = self.table_.values(signals, groups)
        confidence = np.empty(len(values))
        for start in range(0, len(values), _ROWS_AT_A_TIME):
            rows = slice(start, start + _ROWS_AT_A_TIME)
            confidence[rows] = self.map_.confidence(values[rows])
        return confidence

    def check_state(self) -> None:
        super().check_state()
        if hasattr(self, "decision_"):
            self.decision_.check_classes(len(self.classes_))
        if len(self.table_.names) != len(self.map_.offsets):
            raise InputError(
                f"{len(self.table_.names)} signals have names, and the map reads {len(self.map_.offsets)}."
            )

    def _check_fitted(self) -> None:
        if "map_" not in vars(self) or "table_" not in vars(self):
            raise NotFittedError(
                "This SignalCalibration is not fitted yet; call `fit` with graded answers first."
            )

    def _sentence(self) -> str:
        best = (
            self.table_.names[_best_signal(self.map_)] if "Platt scaling" in self.weights_ else ""
        )
        if not self.losses_:
            return f"Platt scaling of {best!r}: {self.n_fitted_:,} graded answers are too few to combine signals."
        shares = ", ".join(
            f"{name} {share:.0%}" for name, share in self.weights_.items() if share >= 0.005
        )
        levels = int(np.count_nonzero(self.map_.offsets.any(axis=1)))
        offsets = (
            f" with offsets per level of {levels} column{'s' * (levels > 1)}" if levels else ""
        )
        return (
            f"Mixture of {shares}{offsets}, fitted on {self.n_fitted_:,} graded answers: "
            f"NLL {self.losses_['mixture']:.3f} on rows left out, {self.losses_['Platt scaling']:.3f} for Platt "
            "scaling of the best signal."
        )


def _best_signal(fitted: SignalMap) -> int:
    (platt,) = [model for model in fitted.models if isinstance(model, LinearSignals)][:1]
    return int(np.argmax(np.abs(platt.weights) + np.abs(platt.missing_weights)))


@dataclass(frozen=True)
class _GradedAnswers:
    """Graded answers as arrays, and the fits on them."""

    values: Vector
    right: Vector
    counts: Vector
    categories: tuple[int, ...]
    clusters: NDArray[np.intp] | None = None
    share: float = 1.0
    """The effective number of answers divided by their number."""

    def fit_platt_only(self) -> tuple[SignalMap, dict[str, float], dict[str, float]]:
        scale, scaled, missing = self._scaled(np.arange(len(self.right)))
        model = fit_platt(scaled, missing, self.right, self.counts)
        offsets = np.zeros((self.values.shape[1], 1))
        return SignalMap(scale, (model,), np.ones(1), 1.0, offsets), {"Platt scaling": 1.0}, {}

    def fit_mixture(
        self, rng: np.random.Generator, rarer: int
    ) -> tuple[SignalMap, dict[str, float], dict[str, float]]:
        """Cross-fit the models, choose weights, add offsets per category, and fit models with
        weight on all rows.
        """
        right, counts = self.right, self.counts
        n_folds = _MORE_FOLDS if self.share * len(right) < _FEW else _FOLDS
        folds = stratified_folds(right.astype(np.intp), n_folds, rng, clusters=self.clusters)
        probs = self._cross_fitted(tuple(FITS.values()), folds)
        likelihoods = np.where(right > 0.5, probs, 1.0 - probs).T
        prior = np.array(list(_PRIOR.values()))
        prior += [
            _PLATT_PRIOR / rarer,
            *[min((rarer / _EVEN_PRIOR) ** 3, _MOST_EVEN)] * (len(FITS) - 1),
        ]
        weights = without_light_ones(
            tuple(FITS), mixture_weights(likelihoods, self.share * counts, prior)
        )
        mixed = sum(share * probs[tuple(FITS).index(name)] for name, share in weights.items())
        losses = {name: _loss(probs[place], right, counts) for place, name in enumerate(FITS)}
        mixed, slope, offsets = self._finish(mixed, folds)
        losses["mixture"] = _loss(mixed, right, counts)
        scale, scaled, missing = self._scaled(np.arange(len(right)))
        models: tuple[SignalModel, ...] = tuple(
            FITS[name](scaled, missing, right, counts) for name in weights
        )
        fitted = SignalMap(scale, models, np.array(list(weights.values())), slope, offsets)
        return fitted, weights, losses

    def importance(self, names: tuple[str, ...], rng: np.random.Generator) -> dict[str, float]:
        """Return the rise of the cross-fitted loss of ridge and splines when a signal is left out,
        largest first.
        """
        rows = np.arange(len(self.right))
        if len(rows) > _MOST_FOR_IMPORTANCE:
            rows = np.sort(rng.choice(rows, _MOST_FOR_IMPORTANCE, replace=False))
        clusters = None if self.clusters is None else self.clusters[rows]
        folds = stratified_folds(self.right[rows].astype(np.intp), _FOLDS, rng, clusters=clusters)
        numeric = [place for place in range(self.values.shape[1]) if place not in self.categories]
        whole = self._simple_loss(rows, folds, numeric, self.categories)
        rise = {}
        for place in range(self.values.shape[1]):
            others = [other for other in numeric if other != place]
            kept = tuple(other for other in self.categories if other != place)
            rise[names[place]] = self._simple_loss(rows, folds, others, kept) - whole
        return dict(sorted(rise.items(), key=lambda item: -item[1]))

    def _simple_loss(
        self,
        rows: NDArray[np.intp],
        folds: NDArray[np.intp],
        columns: list[int],
        categories: tuple[int, ...],
    ) -> float:
        part = _GradedAnswers(self.values[rows], self.right[rows], self.counts[rows], categories)
        if columns:
            numeric = replace(part, values=part.values[:, columns], categories=())
            probs = numeric._cross_fitted((fit_linear, fit_splines), folds).mean(axis=0)
        else:
            probs = np.empty(len(rows))
            for fold in range(int(folds.max()) + 1):
                rest = folds != fold
                probs[~rest] = np.average(part.right[rest], weights=part.counts[rest])
        return _loss(part._finish(probs, folds)[0], part.right, part.counts)

    def _cross_fitted(self, fits: Sequence[Fit], folds: NDArray[np.intp]) -> Vector:
        """Return the probabilities of each model for rows left out, (n_models, n_samples)."""
        log_odds = np.empty((len(fits), len(folds)))
        for fold in range(int(folds.max()) + 1):
            inside, left_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            scale, scaled, missing = self._scaled(inside)
            outside = scale.standardise(self.values[left_out])
            for place, fit in enumerate(fits):
                model = fit(scaled, missing, self.right[inside], self.counts[inside])
                log_odds[place, left_out] = model.log_odds(*outside)
        return sigmoid(log_odds)

    def _scaled(self, rows: NDArray[np.intp]) -> tuple[SignalScale, Vector, Vector]:
        scale = fit_scale(self.values[rows], self.categories)
        scaled, missing = scale.standardise(self.values[rows])
        return scale, scaled, missing

    def _finish(self, probs: Vector, folds: NDArray[np.intp]) -> tuple[Vector, float, Vector]:
        """Return cross-fitted probabilities with slope and offsets, the slope, and the offsets
        fitted on all rows.

        A mixture is less confident than its members, and a model without a relevant category is
        less confident than a model with it. The slope corrects both.
        """
        n_levels = {
            place: 1 + int(np.nanmax(self.values[:, place], initial=0.0))
            for place in self.categories
        }
        offsets = np.zeros((self.values.shape[1], max(n_levels.values(), default=1)))
        log_odds = np.log(probs) - np.log1p(-probs)
        total = np.zeros(len(probs))  # offsets of each row, from the other folds
        for place, count in n_levels.items():
            codes = self.values[:, place]
            level = np.where(np.isnan(codes), count, codes).astype(
                np.intp
            )  # the last index means no level
            base, trials = log_odds + total, np.zeros((len(_STRENGTHS) + 1, len(probs)))
            for trial, strength in zip(trials, _STRENGTHS):
                for fold in range(int(folds.max()) + 1):
                    left_out = folds == fold
                    trial[left_out] = self._offsets(base, level, count, strength, ~left_out)[
                        level[left_out]
                    ]
            best = int(
                np.argmin(
                    [_loss(sigmoid(base + trial), self.right, self.counts) for trial in trials]
                )
            )
            if best < len(_STRENGTHS):
                every = np.ones(len(probs), dtype=bool)
                offsets[place, :count] = self._offsets(base, level, count, _STRENGTHS[best], every)[
                    :-1
                ]
            total = total + trials[best]
        slope = 1.0 + _fit_slope(log_odds, total, self.right, self.counts)
        return sigmoid(slope * log_odds + total), slope, offsets

    def _offsets(
        self,
        log_odds: Vector,
        level: NDArray[np.intp],
        n_levels: int,
        strength: float,
        rows: NDArray[np.bool_],
    ) -> Vector:
        """Return the offset of each level, fitted to these rows, and 0 for rows without a level."""
        right, counts = self.right[rows], self.counts[rows]
        return np.append(
            ridge_offsets(log_odds[rows], right, level[rows], n_levels + 1, strength, counts)[:-1],
            0.0,
        )


def _fit_slope(log_odds: Vector, offsets: Vector, right: Vector, counts: Vector) -> float:
    """Return the difference of the log-odds' slope from 1; the slope stays positive."""
    change = 0.0
    for _ in range(20):
        probability = sigmoid((1.0 + change) * log_odds + offsets)
        gradient = counts @ ((probability - right) * log_odds) + _SLOPE_RIDGE * change
        curvature = counts @ (probability * (1.0 - probability) * log_odds**2) + _SLOPE_RIDGE
        step = float(np.clip(gradient / curvature, -0.5, 0.5))
        change = max(change - step, -0.9)
        if abs(step) < 1e-9:
            break
    return float(change)


def _loss(probs: Vector, right: Vector, counts: Vector) -> float:
    likelihood = np.where(right > 0.5, probs, 1.0 - probs)
    return float(counts @ -np.log(np.maximum(likelihood, 1e-12)) / counts.sum())
