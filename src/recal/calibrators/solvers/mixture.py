"""The weights of a mixture: maximum likelihood, with pseudo-counts in favour of simple members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Likelihoods are clipped at this value, so that no single sample decides.
_FLOOR = 1e-12
# Members with less weight are dropped: they would cost time and have no effect.
LEAST_WEIGHT = 1e-3
_WARM_UP, _MOST_STEPS, _TOL = 10, 50, 1e-10


def mixture_weights(
    likelihoods: Vector, counts: Vector, prior: Vector, start: Vector | None = None
) -> Vector:
    """Return the weights, (n_members,), at least 0 and of sum 1.

    They maximise the sum of counts * log(likelihoods @ w) + prior * log w, which is concave;
    `prior` acts like this many samples drawn from each member. The solver takes a few steps of
    expectation maximisation, then uses Newton's method. The constraint that weights sum to 1
    becomes a penalty (total of counts and prior) * sum of w, whose optimum has sum 1.

    Parameters
    ----------
    likelihoods : (n_samples, n_members) cross-fitted probability of the true class under each
    member counts : (n_samples,) how often each sample counts prior : (n_members,) pseudo-counts
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
    preferred = prior > 0.0
    weights = np.full(parts.shape[1], 1.0 / parts.shape[1]) if start is None else start
    for _ in range(_WARM_UP if start is None else 0):
        weights = weights * (parts.T @ (counts / (parts @ weights))) / total + prior / total
    mixed, pull = parts @ weights, np.zeros_like(prior)
    loss = (
        total * weights.sum()
        - counts @ np.log(mixed)
        - prior[preferred] @ np.log(weights[preferred])
    )
    for _ in range(_MOST_STEPS):
        np.divide(prior, weights, where=preferred, out=pull)
        slope = total - parts.T @ (counts / mixed) - pull
        free = (weights > 0.0) | (slope < 0.0)
        ratio = parts[:, free] * (np.sqrt(counts) / mixed)[:, None]
        curve = ratio.T @ ratio
        anchor = np.divide(prior, weights**2, where=preferred, out=np.zeros_like(prior))[free]
        # Two members with equal likelihoods would make the matrix singular.
        curve[np.diag_indices(len(curve))] += anchor + 1e-9 * (total + np.diag(curve).max())
        step = np.zeros_like(weights)
        step[free] = -np.linalg.solve(curve, slope[free])
        decrease = min(float(slope @ step), 0.0)
        # Halve the step, projected onto weights >= 0, until the loss falls.
        for size in 0.5 ** np.arange(30):
            trial = np.maximum(weights + size * step, 0.0)
            if trial.sum() > 0.0 and (trial[preferred] > 0.0).all():
                mixed = parts @ trial
                value = (
                    total * trial.sum()
                    - counts @ np.log(mixed)
                    - prior[preferred] @ np.log(trial[preferred])
                )
                if value <= loss + 1e-4 * size * decrease:
                    break
        else:
            break
        gain, weights, loss = loss - value, trial, value
        if gain < _TOL * total:
            break
    shares = weights / weights.sum()
    if preferred.any():
        return shares
    # If one member alone is best, the search may stop just short of it.
    alone = total - counts @ np.log(parts)
    best = int(np.argmin(alone))
    mixture = total * shares.sum() - counts @ np.log(parts @ shares)
    return np.eye(len(shares))[best] if alone[best] < mixture else shares


def without_light_ones(names: tuple[str, ...], weights: Vector) -> dict[str, float]:
    """Return the weights by name, without members of negligible weight."""
    kept = weights >= LEAST_WEIGHT
    shares = weights[kept] / weights[kept].sum()
    return {
        name: float(share) for name, share in zip((n for n, k in zip(names, kept) if k), shares)
    }
