"""Smooth calibration error: residuals blurred along confidence, no bins (Blasiok and Nakkiran, 2023)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.metrics import passes
from recal.metrics.rows import Classes, ranked

Vector = NDArray[np.float64]

# Confidences are shared between neighbours of a grid this fine; against exact sums the error moves by less than 1e-6.
_GRID = 4096
# The bandwidth is bisected until it is known to this.
_BANDWIDTH_TOLERANCE = 1e-9


def smooth_ece(
    probs: ArrayLike, y: ArrayLike, *, classes: Classes = None, sample_weight: ArrayLike | None = None
) -> float:
    """Smooth ECE of the top class's confidence, with the bandwidth that equals the error itself.

    The residuals, confidence minus outcome, are blurred over [0, 1] by a Gaussian that is reflected at both ends;
    the error at bandwidth s is the integral of the absolute value. It falls as s grows, so there is one s at which
    both are equal, and that is the answer: no bins, no setting, and continuous in the probabilities.

    Examples
    --------
    >>> from recal.metrics import smooth_ece
    >>> round(smooth_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 3)
    0.35
    """
    confidence, correct, weights = ranked(probs, y, classes, sample_weight)
    shares = 1.0 / len(confidence) if weights is None else weights / weights.sum()
    return fixed_point(cosine_coefficients(confidence, (confidence - correct) * shares))


def cosine_coefficients(confidence: Vector, weights: Vector) -> Vector:
    """Put weighted points on a grid and take its cosine transform, in which a reflected Gaussian is diagonal."""
    grid = np.zeros(_GRID + 1)
    passes.spread_on_grid(confidence, weights, grid)
    return transform_grid(grid)


def transform_grid(grid: Vector) -> Vector:
    mirrored = grid.copy()
    # A point on the border coincides with its own mirror image.
    mirrored[..., 0] *= 2
    mirrored[..., -1] *= 2
    return _cosines(mirrored)


def _cosines(values: Vector) -> Vector:
    """The cosine transform of type 1: x_0 + (-1)^k x_N + 2 sum x_j cos(pi j k / N), by numpy, which is there anyway."""
    return np.fft.rfft(np.concatenate([values, values[..., -2:0:-1]], axis=-1), axis=-1).real


def blur(coefficients: Vector, bandwidth: float) -> Vector:
    """The blurred residuals at the grid's points, times their spacing."""
    size = coefficients.shape[-1] - 1
    waves = np.pi * np.arange(size + 1)
    return _cosines(coefficients * np.exp(-0.5 * (bandwidth * waves) ** 2)) / (2 * size)


def error_at(coefficients: Vector, bandwidth: float) -> float:
    """The smooth error at a bandwidth: the integral of the absolute blurred residuals."""
    field = np.abs(blur(coefficients, bandwidth))
    return float(field.sum() - 0.5 * (field[0] + field[-1]))


def fixed_point(coefficients: Vector) -> float:
    """The bandwidth that equals the error at that bandwidth."""
    low, high = 0.0, 1.0
    while high - low > _BANDWIDTH_TOLERANCE:
        middle = 0.5 * (low + high)
        if error_at(coefficients, middle) > middle:
            low = middle
        else:
            high = middle
    return high if low > 0.0 else 0.0
