"""Vector scaling, matrix scaling and Dirichlet calibration, plain and structured.

The structured methods have ridges that follow the size of the data. Matrix scaling and Dirichlet
calibration (Kull et al., 2019) minimise the mean NLL of softmax(W x + b)
    + lambda * mean of the squared off-diagonal weights + mu * mean of the squared intercepts.
Their diagonal has no penalty, so a strong lambda and mu leave one scale for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Floats, Labels
from recal.clusters import each_fold
from recal.maps.arrays import linear, log_softmax, soft_log_probs
from recal.maps.base import wide
from recal.maps.scaling import (
    Affine,
    Linear,
    StructuredAffine,
    StructuredLinear,
    linear_features,
    within,
)
from recal.progress import track
from recal.schema import RandomState, Strength
from recal.solvers.softmax import NEAR_TOL, DiagonalMap, LinearMap
from recal.solvers.temperature import fit_beta


class VectorScaling(GuardedCalibrator):
    """Scale and shift the logits class by class, softmax(v * z + b), to minimise the negative
    log-likelihood.

    Parameters
    ----------
    penalty : float
        Strength of a weak ridge, ``penalty * (sum of (v - beta)^2 + sum of b^2)``, where beta is
        the common scale of temperature scaling. It keeps the solution finite and unique, for
        instance if a class is missing from the labels or is separated perfectly. Otherwise the
        default changes the loss by less than 1e-7.

    Notes
    -----
    The limit of the map is 20 times the largest logit of a typical row, and at least 100. If a row
    has larger logits, such as a row filled with the lowest float32, its maximum is subtracted, and
    lower values are then clipped at minus the limit.

    Examples
    --------
    >>> logits, y = [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 2.0]], [0, 0, 1, 1]
    >>> VectorScaling(penalty=0.1).fit(logits, y).predict_proba([[2.0, 0.0]]).round(2)
    array([[0.79, 0.21]])
    """

    takes_weights: ClassVar[bool] = True

    penalty: Strength = 1e-7

    map_: Affine = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        labels, weights = samples.labels, samples.weights
        logits: Floats = np.array(samples.logits, dtype=np.float64, order="C")
        limit = max(100.0, 20.0 * float(np.median(np.abs(logits).max(axis=1))))
        logits = within(logits, limit)
        start = np.zeros((2, samples.n_classes))
        start[0] = fit_beta(logits, labels, weights)
        problem = DiagonalMap(logits, labels, samples.n_classes, weights=weights)
        problem.penalise(self.penalty, start)
        scale, shift = problem.solve(start).point
        return {"map_": Affine(scale, shift, limit)}


class StructuredVectorScaling(GuardedCalibrator):
    """Scale and shift class by class, as far from temperature scaling as the number of samples
    warrants (SVS).

    With x the log-probabilities after temperature scaling, mixed with a share of 1 / (n + 1) of the
    uniform distribution, minimise

        mean NLL of softmax(v * x + b)  +  K/n * (sum of (v - 1)^2 + sum of b^2).

    Examples
    --------
    >>> model = StructuredVectorScaling().fit([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]], [0, 1, 1])
    >>> model.map_.scale.round(2).tolist(), model.map_.shift.round(2).tolist()
    ([1.11, 0.95], [-0.12, 0.12])
    """

    map_: StructuredAffine = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        beta, labels, near = samples.beta, samples.labels, samples.near
        features, uniform = _robust_features(samples)
        identity = np.zeros((2, samples.n_classes))
        identity[0] = 1.0
        problem = DiagonalMap(features, labels, samples.n_classes)
        problem.penalise(samples.n_classes / len(labels), identity)
        start, tol = identity, 1e-7
        if isinstance(near, StructuredAffine):
            start, tol = np.stack([near.scale, near.shift]), NEAR_TOL
        return {"map_": StructuredAffine(beta, uniform, *problem.solve(start, tol=tol).point)}


class StructuredMatrixScaling(GuardedCalibrator):
    """Mix the classes linearly, as far from temperature scaling as the number of samples warrants
    (SMS).

    With x the log-probabilities after temperature scaling, mixed with a share of 1 / (n + 1) of the
    uniform distribution, minimise over W = diag(v) + M, M off the diagonal, the mean NLL of
    softmax(W x + b) plus

        K/n * (sum of (v - 1)^2 + sum of b^2) + K(K-1)/n * sum of M^2.

    Examples
    --------
    >>> StructuredMatrixScaling().fit(2.0 * np.eye(3), [0, 1, 2]).map_.weights.shape
    (3, 3)
    """

    map_: StructuredLinear = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        beta, labels, near = samples.beta, samples.labels, samples.near
        count = samples.n_classes
        ridge = np.full((count, count + 1), count - 1.0)
        np.fill_diagonal(ridge, 1.0)
        ridge[:, -1] = 1.0
        ridge *= count / len(labels)
        features, uniform = _robust_features(samples)
        problem = LinearMap(features, labels, count)
        identity = np.eye(count, count + 1)
        problem.penalise(ridge, identity)
        start, tol = identity, 1e-7
        if isinstance(near, StructuredLinear):
            start, tol = np.column_stack([near.weights, near.intercept]), NEAR_TOL
        point = problem.solve(start, tol=tol).point
        weights, intercept = point[:, :-1].copy(), point[:, -1].copy()
        return {"map_": StructuredLinear(beta, uniform, weights, intercept)}


def _robust_features(samples: Samples) -> tuple[np.ndarray, float]:
    """Return log-probabilities at the fitted temperature, and their uniform share."""
    uniform = 1.0 / (len(samples) + 1.0)
    return soft_log_probs(wide(samples.logits) * samples.beta, 1.0, uniform), uniform


# A slight ridge on the free diagonal keeps it finite if the classes are separated perfectly.
_TRACE = 1e-9
# A search compares losses that differ in the third digit.
_PATH_TOL = 1e-4


def _held_out_losses(
    features: np.ndarray,
    labels: Labels,
    fold: np.ndarray,
    beta: float,
    lambdas: Sequence[float],
    mus: Sequence[float],
) -> np.ndarray:
    """Return the held-out NLL of each lambda (row) and mu (column), inf after a path was cut short.

    Each path goes from strong to weak lambda.
    """
    totals = np.zeros((len(lambdas), len(mus)))
    for rows, left_out in track([*each_fold(fold)], "searching lambda and mu, fold"):
        problem = LinearMap(features[rows], labels[rows], features.shape[1])
        outside, truth = features[left_out], labels[left_out]
        for column, mu in track(tuple(enumerate(mus)), "mu"):
            theta, least = _starting_point(problem, beta, mu), np.inf
            for row, lam in enumerate(lambdas):
                _penalise(problem, lam, mu, beta)
                theta = problem.solve(theta, tol=_PATH_TOL, warn=False).point
                logs = log_softmax(linear(outside, theta[:, :-1], theta[:, -1]))
                loss = float(-logs[np.arange(len(truth)), truth].sum())
                totals[row, column] += loss
                least = min(least, loss)
                # Weaker penalties would only overfit more, and their fits take longest.
                if loss > 1.1 * least:
                    totals[row + 1 :, column] = np.inf
                    break
    return totals / len(labels)


def _penalise(problem: LinearMap, lam: float, mu: float, beta: float) -> None:
    """Set the penalties of the objective on a problem."""
    count = problem.n_classes
    ridge = np.full((count, count + 1), lam / (count * (count - 1)))
    np.fill_diagonal(ridge, _TRACE)
    ridge[:, -1] = mu / count
    problem.penalise(ridge, beta * np.eye(count, count + 1))


def _starting_point(problem: LinearMap, beta: float, mu: float) -> np.ndarray:
    """Return the start of a path: the map without off-diagonal weights, which is cheap compared
    with any other.
    """
    common = np.array([[beta], [0.0]]) * np.ones(problem.n_classes)
    ridge = np.array([[_TRACE], [mu / problem.n_classes]])
    diagonal = DiagonalMap(problem.features, problem.labels, problem.n_classes)
    diagonal.penalise(ridge, common)
    scales, shifts = diagonal.solve(common, tol=_PATH_TOL, warn=False).point
    return np.column_stack([np.diag(scales), shifts])


class MatrixScaling(GuardedCalibrator):
    """Mix the logits linearly, softmax(W z + b), with penalties chosen by cross-validation
    (MS-ODIR).

    Minimises the mean NLL + lambda * mean of the squared off-diagonal weights + mu * mean of the
    squared intercepts.

    Parameters
    ----------
    penalty, intercept_penalty : float or sequence of float, optional
        The strengths lambda and mu to try. By default eight lambdas from 1e-4 to 1e3 times K(K-1),
        which is 1e-4 to 1e3 for each weight, and five mus from 1e-4 to 1e2 times K. With more than
        200 classes, one fit takes long, so the default is four lambdas from 1 to 1e3 times K(K-1)
        and two mus, 0.1 and 100 times K. Five stratified folds choose the pair with the lowest
        held-out NLL, and the result is the mean of the probabilities of the folds' maps, as in the
        original experiments. With one value of each, one map is fitted to all samples.
    random_state : int, optional
        Seed of the folds.

    Notes
    -----
    The cost of a fit grows with n K^2, and no array is larger than the logits: 25,000 x 1,000 takes
    half a minute and 2 GB. A search is about two hundred fits: seconds at 5,000 x 10, half a minute
    at 5,000 x 100, more than a minute at 1,000 x 1,000. For larger data, pass one value of each, or
    use `StructuredMatrixScaling`, which needs no search. The diagonal has no penalty, as published:
    with fewer than about ten samples per class it overfits at any lambda and mu.

    Examples
    --------
    >>> y = np.arange(300) % 3
    >>> logits = np.eye(3)[y] + np.random.default_rng(0).normal(size=(300, 3))
    >>> MatrixScaling().fit(logits, y).map_.weights.shape  # the matrices of five folds
    (5, 3, 3)
    """

    features: ClassVar[Literal["logits", "log-probabilities"]] = "logits"

    penalty: Strength | Sequence[Strength] | None = None
    intercept_penalty: Strength | Sequence[Strength] | None = None
    random_state: RandomState = 0

    map_: Linear = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        rng = np.random.default_rng(self.random_state)
        labels, count = samples.labels, samples.n_classes
        # Powers of ten per weight and per intercept that suit 10 to 1,000 classes; the result
        # depends little on mu.
        weights_by, intercepts_by = np.arange(-4.0, 4.0), np.array([-4.0, -2.5, -1.0, 0.5, 2.0])
        if count > 200:  # a fit takes long, and weak penalties only overfit
            weights_by, intercepts_by = np.arange(0.0, 4.0), np.array([-1.0, 2.0])
        lambdas = _strongest_first(self.penalty, count * (count - 1) * 10.0**weights_by)
        mus = _strongest_first(self.intercept_penalty, count * 10.0**intercepts_by)
        features = linear_features(wide(samples.logits), self.features)
        beta = fit_beta(features, labels)
        # With a single sample or cluster nothing can be left out: use the strongest penalties.
        lam, mu = lambdas[0], mus[0]
        folds: list[np.ndarray] = [np.ones(len(labels), dtype=bool)]
        n_units = samples.n_units
        if len(lambdas) * len(mus) > 1 and n_units > 1:
            fold = samples.folds(min(5, n_units), rng)
            scores = _held_out_losses(features, labels, fold, beta, lambdas, mus)
            # Among equal scores, the strongest penalty is used.
            row, column = np.unravel_index(int(np.argmin(scores)), scores.shape)
            lam, mu = lambdas[row], mus[column]
            folds = [rows for rows, _ in each_fold(fold)]
        maps = []
        for rows in folds:
            problem = LinearMap(features[rows], labels[rows], count)
            _penalise(problem, lam, mu, beta)
            maps.append(problem.solve(_starting_point(problem, beta, mu), max_iter=100).point)
        weights = np.stack(maps)
        return {"map_": Linear(weights[:, :, :-1], weights[:, :, -1], self.features)}


def _strongest_first(
    values: float | Sequence[float] | None, defaults: np.ndarray
) -> tuple[float, ...]:
    """Return the strengths to try; the defaults if none are given."""
    given = defaults if values is None or np.size(values) == 0 else values
    return tuple(np.unique(np.asarray(given, dtype=np.float64))[::-1].tolist())


class DirichletCalibration(MatrixScaling):
    """Mix the log-probabilities linearly, softmax(W log p + b): exact if they are Dirichlet
    distributed (Dir-ODIR).

    Objective, search, parameters and attributes are those of `MatrixScaling`. It mixes
    log-probabilities instead of logits, so the result does not depend on a constant added to all
    logits of a sample.

    Examples
    --------
    >>> model = DirichletCalibration(penalty=1.0).fit(2.0 * np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 1])
    >>> up, down = model.predict_proba(np.eye(3) + 5.0), model.predict_proba(np.eye(3) - 5.0)
    >>> bool(np.allclose(up, down))
    True
    """

    features: ClassVar[Literal["logits", "log-probabilities"]] = "log-probabilities"
