"""Group offsets: one number per group, added to the log-odds of the confidence.

Cross-validation chooses the strength of their ridge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.samples import LossGain
from recal.checks import Indices, Vector
from recal.clusters import check_names, each_fold, stratified_folds
from recal.errors import InputError
from recal.maps.arrays import log_odds, sigmoid
from recal.maps.base import Array, like, namespace
from recal.schema import FloatArray, Record, Texts
from recal.solvers.convex import minimise


class GroupOffsets(Record):
    """Shift the log-odds of each confidence by the offset of its group; unknown groups are not
    shifted.

    Parameters
    ----------
    names : tuple of str
    offsets : array of shape (n_groups,)

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators.group_offsets import GroupOffsets
    >>> offsets = GroupOffsets(("law",), np.array([-1.0]))
    >>> offsets.apply(np.array([0.8, 0.8]), ["law", "physics"]).round(3).tolist()
    [0.595, 0.8]
    """

    names: Texts
    offsets: Annotated[Vector, FloatArray("G")]

    def check(self) -> None:
        if len(set(self.names)) != len(self.offsets):
            raise InputError(
                "must name each group once, with one number each in `offsets`", argument="names"
            )

    def apply(self, confidence: Array, groups: ArrayLike) -> Array:
        """Return confidences shifted by the offsets of their groups; those without an offset do not
        change at all.
        """
        names, index = check_names(groups, len(confidence), "groups")
        known = dict(zip(self.names, self.offsets.tolist()))
        shifts = like(confidence, np.array([known.get(name, 0.0) for name in names])[index])
        xp = namespace(confidence)
        return xp.where(shifts == 0.0, confidence, sigmoid(log_odds(confidence) + shifts))


def fit_group_offsets(
    confidence: Vector,
    correct: NDArray[np.bool_],
    groups: ArrayLike,
    sample_weight: Vector | None = None,
    *,
    clusters: Indices | None = None,
    strengths: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
) -> GroupOffsets:
    """Fit one offset per group on the log-odds of the confidence.

    The offsets minimise the NLL of the outcomes right and wrong plus a ridge penalty.
    Cross-validation chooses its strength; if no strength clearly lowers the loss, all offsets are
    0.

    Parameters
    ----------
    confidence : array of shape (n_samples,)
        Calibrated for all samples together.
    correct : array of bool, shape (n_samples,)
    groups : array-like of shape (n_samples,)
    sample_weight : array of shape (n_samples,), optional
    clusters : array of int, shape (n_samples,), optional
        Rows that belong together: folds never divide them, and the standard error of the gain
        counts clusters.
    strengths : the ridges to compare, besides no offsets at all
        A group with this many samples of average information keeps half of its own offset.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.calibrators.group_offsets import fit_group_offsets
    >>> rng = np.random.default_rng(0)
    >>> groups = rng.choice(["law", "physics"], 2000)
    >>> correct = rng.random(2000) < np.where(groups == "law", 0.6, 0.9)
    >>> fitted = fit_group_offsets(np.full(2000, 0.8), correct, groups)
    >>> fitted.apply(np.array([0.8, 0.8]), ["law", "physics"]).round(1).tolist()
    [0.6, 0.9]
    """
    names, index = check_names(groups, len(correct), "groups")
    scores, right = log_odds(confidence), np.asarray(correct, np.float64)
    weights = np.ones(len(right)) if sample_weight is None else sample_weight
    n_folds = min(10, len(right) if clusters is None else len(np.unique(clusters)))
    if n_folds < 2:
        return GroupOffsets(names, np.zeros(len(names)))

    def offsets(strength: float, rows: Any = slice(None)) -> Vector:
        data = scores[rows], right[rows], weights[rows], index[rows]
        ridge = strength * _information(scores[rows], weights[rows])
        return OffsetProblem(*data, len(names), ridge).solve()

    folds = stratified_folds(index, n_folds, np.random.default_rng(0), clusters=clusters)
    losses = np.empty((len(strengths), len(right)))
    for rest, left_out in each_fold(folds):
        for row, strength in enumerate(strengths):
            shifts = offsets(strength, rest)[index[left_out]]
            losses[row, left_out] = _losses(scores[left_out] + shifts, right[left_out])
    best = int(np.argmin(losses @ weights))
    gain = LossGain.between(_losses(scores, right), losses[best], weights, clusters)
    return GroupOffsets(names, offsets(strengths[best]) if gain.is_clear else np.zeros(len(names)))


def _information(scores: Vector, weights: Vector) -> float:
    """Return the mean of p (1 - p); a ridge of this size corresponds to one sample."""
    chance = sigmoid(scores)
    return max(float(np.average(chance * (1 - chance), weights=weights)), 1e-6)


@dataclass
class OffsetProblem:
    """The loss of one offset per group plus ridge / 2 x offset^2; its Hessian is diagonal."""

    scores: Vector
    right: Vector
    weights: Vector
    index: Indices
    n_groups: int
    ridge: float

    def solve(self) -> Vector:
        """Return the best offset of each group, (n_groups,). All take Newton steps together."""
        return minimise(self, np.zeros(self.n_groups), tol=1e-12, warn=False).point

    def evaluate(self, point: Vector) -> float:
        self.point, self.shifted = point, self.scores + point[self.index]
        losses = _losses(self.shifted, self.right)
        return float(self.weights @ losses + 0.5 * self.ridge * point @ point)

    def gradient(self) -> Vector:
        chance = sigmoid(self.shifted)
        bend = self.weights * chance * (1 - chance)
        self.bend = np.bincount(self.index, bend, self.n_groups) + self.ridge
        slope = np.bincount(self.index, self.weights * (chance - self.right), self.n_groups)
        return slope + self.ridge * self.point

    def hessian_times(self, direction: Vector) -> Vector:
        return self.bend * direction

    def precondition(self, residual: Vector) -> Vector:
        return residual / self.bend


def _losses(scores: Vector, right: Vector) -> Vector:
    """Return the negative log-likelihood of each row's outcome, right or wrong."""
    return np.asarray(np.logaddexp(0.0, np.where(right > 0, -scores, scores)))
