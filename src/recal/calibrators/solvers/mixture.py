"""The weights of a mixture: maximum likelihood, with pseudo-counts in favour of simple members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recal.engine.compiled import one_thread

Vector = NDArray[np.float64]

# Likelihoods are clipped here, so that no single sample decides.
_FLOOR = 1e-12
# Members with less weight are dropped: they would cost time and have no effect.
LEAST_WEIGHT = 1e-3
_WARM_UP, _MOST_STEPS, _TOL = 10, 50, 1e-10


@one_thread()
def mixture_weights(likelihoods: Vector, counts: Vector, prior: Vector, start: Vector | None = None) -> Vector:
    """Return the weights, (n_members,), at least 0 and of sum 1.

    They maximise the sum of counts * log(likelihoods @ w) + prior * log w, which is concave; `prior` acts like so many
    samples drawn from each member. The solver takes a few steps of expectation maximisation, then Newton's method. The
    constraint that weights sum to 1 becomes a penalty (total of counts and prior) * sum of w, whose optimum has sum 1.

    Parameters
    ----------
    likelihoods : (n_samples, n_members) cross-fitted probability of the true class under each member
    counts : (n_samples,) how often each sample counts
    prior : (n_members,) pseudo-counts
    start : (n_members,) weights of a similar problem, as a starting point

    Examples
    --------
    >>> from recal.calibrators.solvers.mixture import mixture_weights
    >>> likelihoods = np.array([[0.9, 0.5], [0.1, 0.5]])
    >>> mixture_weights(likelihoods, np.array([3.0, 1.0]), np.zeros(2)).round(3)
    array([0.625, 0.375])
    """
    parts = np.maximum(likelihoods, _FLOOR)
    total = float(counts.sum() + prior.sum())
    weights = np.full(parts.shape[1], 1.0 / parts.shape[1]) if start is None else start
    for _ in range(_WARM_UP if start is None else 0):
        weights = weights * (parts.T @ (counts / (parts @ weights))) / total + prior / total
    loss = _loss(parts, counts, prior, total, weights)
    for _ in range(_MOST_STEPS):
        mixed = parts @ weights
        slope = (
            total - parts.T @ (counts / mixed) - np.divide(prior, weights, where=prior > 0, out=np.zeros_like(prior))
        )
        free = (weights > 0.0) | (slope < 0.0)
        ratio = parts[:, free] * (np.sqrt(counts) / mixed)[:, None]
        curve = ratio.T @ ratio
        anchor = np.divide(prior, weights**2, where=prior > 0, out=np.zeros_like(prior))[free]
        # Two members with equal likelihoods would make the matrix singular.
        curve[np.diag_indices(len(curve))] += anchor + 1e-9 * (total + np.diag(curve).max())
        step = np.zeros_like(weights)
        step[free] = -np.linalg.solve(curve, slope[free])
        moved = _line_search(parts, counts, prior, total, weights, step, float(slope @ step), loss)
        if moved is None:
            break
        gained, (weights, loss) = loss - moved[1], moved
        if gained < _TOL * total:
            break
    shares = weights / weights.sum()
    if prior.any():
        return shares
    # If one member alone is best, the search may stop just short of it.
    corners = [shares, *np.eye(len(shares))]
    return min(corners, key=lambda w: _loss(parts, counts, prior, total, w))


def _loss(parts: Vector, counts: Vector, prior: Vector, total: float, weights: Vector) -> float:
    some = prior > 0
    return float(total * weights.sum() - counts @ np.log(parts @ weights) - prior[some] @ np.log(weights[some]))


def _line_search(
    parts: Vector, counts: Vector, prior: Vector, total: float, weights: Vector, step: Vector, slope: float, loss: float
) -> tuple[Vector, float] | None:
    """Halve the step, projected onto weights >= 0, until the loss falls; None if it does not."""
    size = 1.0
    for _ in range(30):
        trial = np.maximum(weights + size * step, 0.0)
        if trial.sum() > 0.0 and not (trial[prior > 0] <= 0.0).any():
            value = _loss(parts, counts, prior, total, trial)
            if value <= loss + 1e-4 * size * min(slope, 0.0):
                return trial, value
        size *= 0.5
    return None


def without_light_ones(names: tuple[str, ...], weights: Vector) -> dict[str, float]:
    """Return the weights by name, without members of negligible weight."""
    kept = weights >= LEAST_WEIGHT
    shares = weights[kept] / weights[kept].sum()
    return {name: float(share) for name, share in zip((n for n, k in zip(names, kept) if k), shares)}
