"""Confidence for graded answers of any system, learned from the numbers that come with them."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import RULE, Estimator, from_fit
from recal.calibrators.samples import Samples
from recal.calibrators.signal_models import (
    choose_kinds,
    encoding_of,
    fit_regressions,
    importance,
    mean_loss,
    ridge,
)
from recal.calibrators.signal_table import SignalTable, named_groups, read_correct
from recal.checks import Flags, Indices, Vector
from recal.clusters import count_of_clusters, effective_count, stratified_folds
from recal.copies import count_fitted, row_hashes, sampled_rows, warn_of_copies
from recal.engine import one_thread
from recal.errors import FewSamplesWarning, InputError
from recal.maps.arrays import sigmoid
from recal.maps.signals import SignalMap
from recal.schema import Instance, Integers, RandomState, check_parameters
from recal.solvers.convex import mixture_weights, without_light_ones

# With fewer graded answers, or fewer of the rarer kind, only Platt scaling of the best signal is
# fitted. Below the second pair of numbers, a fit warns.
_FEWEST, _FEWEST_OF_A_KIND = 50, 5
_FEW, _FEW_OF_A_KIND = 200, 20


class SignalCalibration(Estimator):
    """Probability that an answer is right, from the signals that come with it.

    A signal is any number that may separate right answers from wrong ones: a stated confidence, the
    mean log-probability of the tokens, the length, the agreement between samples, a judge's score.
    A few hundred answers graded as right or wrong are enough. The likelihood chooses how each
    signal is transformed: not at all, by logarithm, log-odds or ranks. Four models are mixed by
    their likelihood on rows left out: Platt scaling of the best signal, ridge regression with an
    offset per category and group, the same with slopes per category, and the same with splines and
    products of signals.

    Parameters
    ----------
    random_state : int, Generator or None
        Decides the folds.

    Attributes
    ----------
    map_ : SignalMap
        The fitted function of an (n_samples, n_signals) array.
    table_ : SignalTable
        Names, levels and ranges of the columns of the fit.
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
        Saved with the calibration; a new fit removes it.
    profile_ : Profile, if one was set
        What answers looked like at the fit, for `recal.watch`.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import SignalCalibration
    >>> rng = np.random.default_rng(0)
    >>> stated = rng.uniform(0.5, 1.0, 400)
    >>> correct = rng.random(400) < stated**2  # overconfident
    >>> calibration = SignalCalibration().fit({"stated": stated}, correct)
    >>> bool(abs(calibration.predict_confidence({"stated": 0.9})[0] - 0.81) < 0.1)
    True
    """

    random_state: RandomState = 0

    map_: SignalMap = from_fit()
    reason_: str = from_fit()
    signal_importance_: dict[str, float] = from_fit()
    weights_: dict[str, float] = from_fit()
    losses_: dict[str, float] = from_fit()
    table_: SignalTable = from_fit()
    n_fitted_: int = from_fit()
    classes_: NDArray[Any] = from_fit()
    confidence_hashes_: Annotated[NDArray[np.uint64], Integers(None)] = from_fit()
    decision_: Annotated[Any, RULE] = from_fit()
    profile_: Annotated[Any, Instance("Profile")] = from_fit()

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
        signals : data frame, mapping of name to column, or array-like (n_samples, n_signals)
            Missing values are allowed. Text columns are categories.
        correct : array-like of shape (n_samples,)
            Whether each answer is right: True or False, 1 or 0.
        groups : array-like of shape (n_samples,), or {name: values}, optional
            The subject, customer or source of each answer; one more category. Predictions then
            need groups, too.
        sample_weight : array-like of shape (n_samples,), optional
            How much each answer counts.
        clusters : array-like of shape (n_samples,), optional
            Names of answers that belong together, such as answers to one question. Cross-validation
            never divides a cluster. Copies of a row are a cluster by themselves.
        """
        check_parameters(self)
        table = SignalTable.of(signals, groups)
        values = table.values(signals, groups)
        right = read_correct(correct, len(values))
        table.refuse_leaks(values, right)
        if all(len(np.unique(column)) == 1 for column in values.T):
            rule = (
                "have the same value, or none, in every answer, so they cannot tell answers apart"
            )
            remedy = "Check the columns (--signals)"
            raise InputError(rule, argument="signals", remedy=remedy)
        samples = Samples.checked(values, right, sample_weight, clusters)
        rng = np.random.default_rng(self.random_state)
        fitted = fit_mixture(samples, table.n_levels, rng)
        ranked = sorted(zip(table.names, fitted.importance.tolist()), key=lambda item: -item[1])
        self.set_state(
            {
                "map_": fitted.map,
                "weights_": fitted.weights,
                "losses_": fitted.losses,
                "signal_importance_": dict(ranked),
                "reason_": _signal_reason(fitted, table, samples),
                "table_": table,
                "n_fitted_": len(right),
                "classes_": np.array([False, True]),
            }
        )
        some = sampled_rows(row_hashes(values))
        self.confidence_hashes_ = np.sort(row_hashes(self._confidence(values[some])[:, None]))
        return self

    def predict_confidence(self, signals: Any, groups: Any = None) -> Vector:
        """Return the probability that each answer is right, (n_samples,).

        One answer may be given as a mapping of names to single values. Levels and groups that were
        not in the fit have no offset; a warning names them, and values far outside the range of the
        fit.

        Examples
        --------
        >>> import numpy as np
        >>> from recal import SignalCalibration
        >>> rng = np.random.default_rng(0)
        >>> stated, subject = rng.random(400), rng.choice(["law", "art"], 400)
        >>> right = rng.random(400) < stated
        >>> calibration = SignalCalibration().fit({"stated": stated}, right, subject)
        >>> calibration.predict_confidence({"stated": 0.9}, "law").shape
        (1,)
        """
        self._check_fitted()
        values = self.table_.values(signals, groups)
        self.table_.warn_of_unlike(values, signals, groups)
        return self._confidence(values)

    def accept(self, signals: Any, groups: Any = None) -> Flags:
        """Return whether the rule in `decision_` accepts each answer, (n_samples,)."""
        names = None if groups is None else named_groups(groups)[1]
        return self.rule().accept(self.predict_confidence(signals, groups), groups=names)

    def fitted_rows(self, confidence: ArrayLike) -> int:
        """Return about how many of these confidences belong to answers of the fit."""
        self._check_fitted()
        column = np.asarray(confidence, dtype=np.float64).reshape(-1, 1)
        return count_fitted(column, self.confidence_hashes_, self.n_fitted_)

    def check_state(self) -> None:
        super().check_state()
        if hasattr(self, "decision_"):
            self.decision_.check_classes(len(self.classes_))
        if self.table_.n_levels.tolist() != self.map_.encoding.n_levels.tolist():
            raise InputError(
                f"{len(self.table_.names)} signals have names, and the map reads "
                f"{len(self.map_.encoding.n_levels)} with other levels."
            )

    def _confidence(self, values: Vector) -> Vector:
        block = 16_384  # rows at a time, to bound the memory
        starts = range(0, max(len(values), 1), block)
        return np.concatenate([self.map_.confidence(values[at : at + block]) for at in starts])


class SignalFit(NamedTuple):
    """The mixture, the share and cross-fitted loss of each member, and what each signal adds.

    `left_out` is the mixture's confidence in rows left out. Losses, importance and `left_out` are
    empty if there are too few answers to combine signals.
    """

    map: SignalMap
    weights: dict[str, float]
    losses: dict[str, float]
    importance: Vector
    left_out: Vector


def _signal_reason(fitted: SignalFit, table: SignalTable, samples: Samples) -> str:
    losses, answers = fitted.losses, f"{len(samples):,} graded answers"
    if samples.clusters is not None:
        answers += f" in {count_of_clusters(samples.n_units)}"
    if not losses:
        best = table.names[int(np.abs(fitted.map.weights[0]).sum(axis=1).argmax())]
        return f"Platt scaling of {best!r}: {answers} are too few to combine signals."
    shares = [f"{name} {share:.0%}" for name, share in fitted.weights.items() if share >= 0.005]
    return (
        f"Mixture of {', '.join(shares)}, fitted on {answers}: "
        f"NLL {losses['mixture']:.3f} on rows left out, {losses['Platt scaling']:.3f} for Platt "
        "scaling of the best signal."
    )


@one_thread()
def fit_mixture(samples: Samples, n_levels: Indices, rng: np.random.Generator) -> SignalFit:
    """Cross-fit the members, choose their penalties and weights, and fit the slope.

    `samples.inputs` are the values of a `SignalTable`, and labels are 1.0 for right answers.
    """
    values, right = samples.inputs, samples.labels
    clusters = copies_of_answers(values, right) if samples.clusters is None else samples.clusters
    # Rows of a cluster repeat each other: all rows together count as this many.
    effective = effective_count(right, clusters)
    counts = samples.counts * (effective / samples.counts.sum())
    rarer = effective * min(right.sum(), (1.0 - right).sum()) / len(right)
    few = effective < _FEWEST or rarer < _FEWEST_OF_A_KIND
    if few or effective < _FEW or rarer < _FEW_OF_A_KIND:
        independent = "" if clusters is None else " (counted as independent answers)"
        only = " Only Platt scaling of the best signal was fitted." if few else ""
        warnings.warn(
            f"{effective:.0f} graded answers, {rarer:.0f} of the rarer kind{independent}, are few: "
            f"below about {_FEW} and {_FEW_OF_A_KIND}, results depend on individual answers.{only}"
            " Grade more answers.",
            FewSamplesWarning,
            stacklevel=4,
        )

    encoding = encoding_of(values, choose_kinds(values, right, counts, n_levels), n_levels)
    if few:
        design, members = fit_regressions(encoding, values, right, counts, None)
        shares, none = {"Platt scaling": 1.0}, np.zeros(0)
        return SignalFit(design.map_of(encoding, members, shares, 1.0), shares, {}, none, none)
    n_folds = 10 if effective < _FEW else 5
    folds = stratified_folds(right.astype(np.intp), n_folds, rng, clusters=clusters)
    design, members = fit_regressions(encoding, values, right, counts, folds)
    probs = {name: sigmoid(member.left_out) for name, member in members.items()}
    # Pseudo-counts favour simple members. Platt scaling gets more of them if few answers are of
    # the rarer kind, the others fewer if there are less than ten such answers per signal.
    trust = min(1.0, rarer / (10.0 * max(len(design.curves), 1)))
    prior = np.array([0.5 + 30.0 / rarer, 3.0 * trust, *[2.0 * trust] * (len(probs) - 2)])
    stacked = np.stack(list(probs.values()), axis=1)
    likelihoods = np.where(right[:, None] > 0.5, stacked, 1.0 - stacked)
    weights = without_light_ones(tuple(probs), mixture_weights(likelihoods, counts, prior))
    mixed = np.sum([share * probs[name] for name, share in weights.items()], axis=0)
    mixed = np.log(mixed) - np.log1p(-mixed)
    # A mixture is less confident than its members. The slope, pulled towards 1, corrects this.
    change = ridge(mixed[:, None], right, counts, np.array([100.0]), offset=mixed)[0]
    slope = max(1.0 + float(change), 0.1)
    probs["mixture"] = sigmoid(slope * mixed)
    losses = {name: mean_loss(each, right, counts) for name, each in probs.items()}
    fitted = design.map_of(encoding, members, weights, slope)
    rises = importance(design, members["splines"], right, counts, n_levels)
    return SignalFit(fitted, weights, losses, rises, probs["mixture"])


def copies_of_answers(values: Vector, right: NDArray[Any]) -> Indices | None:
    """Return a number for each row that its copies share; None if there are no copies."""
    _, index = np.unique(np.column_stack([values, right]), axis=0, return_inverse=True)
    same = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    # Any two different rows are far apart: only equal rows of signals can be copies.
    places = np.random.default_rng(0).normal(size=(int(same.max()) + 1, 4))
    if not warn_of_copies(places[same], right < 0.5, stacklevel=5):
        return None
    return np.asarray(index.reshape(-1))
