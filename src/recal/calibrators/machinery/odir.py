"""Off-diagonal and intercept regularisation (ODIR) with its search, shared by matrix scaling and Dirichlet calibration.

The objective (Kull et al., 2019): mean NLL of softmax(W x + b)
    + lambda * mean of the squared off-diagonal weights + mu * mean of the squared intercepts.
The diagonal is free, so that a strong lambda and mu leave one scale per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.calibrators.machinery.diagonal_map import DiagonalMap
from recal.calibrators.machinery.folds import stratified_folds
from recal.calibrators.machinery.linear_map import LinearMap, linear_scores
from recal.calibrators.machinery.probabilities import log_softmax
from recal.checks import Labels
from recal.errors import InputError
from recal.progress import track

# The free diagonal is given a trace of ridge, else it would run away wherever the classes can be told apart.
_TRACE = 1e-9
# Weaker and weaker penalties lead from under- to over-fitting; once the held-out loss is this much above the best of
# its path, what follows is more of the same, and costs most.
_HOPELESS = 1.1
# A search compares losses that differ in the third digit.
_SEARCH_TOL = 1e-4


@dataclass(frozen=True)
class Search:
    """The held-out NLL of every pair: `scores[i, j]` for lambdas[i] and mus[j], inf where the path was cut short."""

    lambdas: tuple[float, ...]
    mus: tuple[float, ...]
    scores: np.ndarray

    @property
    def best(self) -> tuple[float, float]:
        """The pair with the least held-out NLL; of equals, the strongest penalty."""
        row, column = np.unravel_index(int(np.argmin(self.scores)), self.scores.shape)
        return self.lambdas[row], self.mus[column]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file: None where a path was cut short."""
        scores = [[float(score) if np.isfinite(score) else None for score in row] for row in self.scores]
        return {"lambdas": list(self.lambdas), "mus": list(self.mus), "nll": scores}


def candidates(
    values: float | Sequence[float] | None, name: str, scale: float, decades: Sequence[float]
) -> tuple[float, ...]:
    """Return the values to try, strongest first; by default `scale` times powers of ten."""
    if values is None:
        return tuple(sorted((float(scale * 10.0**power) for power in decades), reverse=True))
    try:
        given = np.unique(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.size == 0 or not (np.isfinite(given).all() and given[0] > 0.0):
        raise InputError(
            "must hold positive numbers", argument=name, came=f"got {values!r}", remedy="A tiny one stands for none"
        )
    return tuple(float(value) for value in given[::-1])


def search(
    features: np.ndarray, labels: Labels, fold: np.ndarray, beta: float, lambdas: Sequence[float], mus: Sequence[float]
) -> Search:
    """Score every pair by the held-out NLL over the folds, following each path from strong to weak lambda."""
    totals = np.zeros((len(lambdas), len(mus)))
    for held in track(range(int(fold.max()) + 1), "searching lambda and mu, fold"):
        rows = fold != held
        problem = LinearMap(features[rows], labels[rows], features.shape[1])
        outside, truth = features[~rows], labels[~rows]
        for column, mu in track(tuple(enumerate(mus)), "mu"):
            theta, least = starting_point(problem.features, problem.labels, beta, mu), np.inf
            for row, lam in enumerate(lambdas):
                penalise(problem, lam, mu, beta)
                theta = problem.solve(theta, tol=_SEARCH_TOL, warn=False).point
                loss = _total_nll(outside, truth, theta)
                totals[row, column] += loss
                least = min(least, loss)
                if loss > _HOPELESS * least:
                    totals[row + 1 :, column] = np.inf
                    break
    return Search(tuple(lambdas), tuple(mus), totals / len(labels))


def fit_map(features: np.ndarray, labels: Labels, beta: float, lam: float, mu: float) -> np.ndarray:
    """Return theta = [W | b], (n_classes, n_classes + 1), at the minimum of the written objective."""
    problem = LinearMap(features, labels, features.shape[1])
    penalise(problem, lam, mu, beta)
    return problem.solve(starting_point(features, labels, beta, mu), max_iter=100).point


def penalise(problem: LinearMap, lam: float, mu: float, beta: float) -> None:
    """Give a problem the objective's penalties."""
    count = problem.n_classes
    ridge = np.full((count, count + 1), lam / (count * (count - 1)))
    np.fill_diagonal(ridge, _TRACE)
    ridge[:, -1] = mu / count
    problem.penalise(ridge, beta * np.eye(count, count + 1))


def starting_point(features: np.ndarray, labels: Labels, beta: float, mu: float) -> np.ndarray:
    """Return where a path starts: the map without off-diagonal weights, which costs little next to any other."""
    count = features.shape[1]
    common = np.array([[beta], [0.0]]) * np.ones(count)
    problem = DiagonalMap(features, labels, ridge=np.array([[_TRACE], [mu / count]]), centre=common)
    scales, shifts = problem.solve(common, tol=_SEARCH_TOL, warn=False).point
    return np.column_stack([np.diag(scales), shifts])


def make_folds(labels: Labels, n_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return the fold of each sample: at most one fold per sample."""
    return stratified_folds(labels, min(n_folds, len(labels)), rng)


def _total_nll(features: np.ndarray, labels: Labels, theta: np.ndarray) -> float:
    logs = log_softmax(linear_scores(features, theta[:, :-1], theta[:, -1]))
    return float(-logs[np.arange(len(labels)), labels].sum())
