"""Class-wise weights of views: a matrix for the original and each view, shrunk towards the single
weight of stacking.

A stack gives all classes of a view the same weight. Some views, such as the prompts of a language
model, separate some classes better than other views do. With matrices the scores become

    s = a_mixture x_mixture + sum over the original and the views of (a_g I + M_g) x_g + c.

The weights a_g are those of the stack. The matrices M_g and the change of c minimise the mean NLL
plus strength * K / n times the sum of squares of all M_g, and K / n times the sum of squares of the
change of c.

Samples left out decide, as for views (`view_selection`). Matrices are used if they gain more than one
standard error at some strength. That strength need not be the best one: weak changes have the
smallest errors. The matrices of the best strength are multiplied by the trust in the clearest gain.
If there are few candidates, all of them are tried at once, since matrices can use views that a
single weight cannot. Because each costs a forward pass, they must add a tenth of the whole gain to
that of the chosen views.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.view_selection import (
    LEAST_SAMPLES,
    CrossFit,
    JudgedStack,
    StackData,
    drawn_back,
    pays,
)
from recal.checks import Indices, Matrix, Vector
from recal.maps.arrays import softmax
from recal.progress import track
from recal.solvers.softmax import NEAR_TOL, LinearMap, Stack


def choose_class_weights(
    data: StackData,
    chosen: tuple[int, ...],
    stacked: bool,
    gate: float | None,
    seed: int,
    *,
    max_views: int | None = None,
) -> tuple[tuple[int, ...], JudgedStack] | None:
    """Return the candidates to use with class-wise weights, and their stack; None if matrices have
    no clear gain.

    Parameters
    ----------
    data :
        Contains all candidates after the original and the mixture.
    chosen :
        The candidates that stacking uses or would use, counted from 1.
    stacked :
        Whether their stack without matrices is worth its forward passes. If not, matrices must beat
        the mixture.
    max_views :
        The largest number of candidates to use.
    """
    samples, n_base, count = data.samples, data.n_base, len(data.every) - data.n_base
    sets = [chosen] if chosen else []
    # With few candidates, all of them are tried at once.
    if len(chosen) < count <= min(8, 8 if max_views is None else max_views):
        sets.append(tuple(range(1, count + 1)))
    best: tuple[tuple[int, ...], JudgedStack] | None = None
    reference = data.plain_losses
    for views in sets:
        if not can_fit(data, len(views)):
            break
        places = [*range(n_base), *(n_base + view - 1 for view in views)]
        some = replace(data, features=data.features[places], lossless=())
        without, by_strength = losses_by_strength(some, gate, np.random.default_rng(seed))
        if stacked and views is chosen:
            reference = without
        gains = {s: samples.gain(reference, losses) for s, losses in by_strength.items()}
        clearest = max(gains.values(), key=lambda gain: gain.mean / max(gain.error, 1e-300))
        strength = max(gains, key=lambda one: gains[one].mean)
        losses = by_strength[strength]
        whole = samples.gain(data.plain_losses, losses)
        if not clearest.is_clear or not (stacked or pays(whole, len(views), data)):
            continue
        more = samples.gain(reference if best is None else best[1].losses, losses)
        if views is chosen or more.mean >= 0.1 * whole.mean:
            refined = Refinement(some, np.ones(len(samples), dtype=bool))
            point = clearest.trust * refined.solve(strength, refined.nothing())
            stack = drawn_back(refined.stack, refined.base, whole.trust)
            stack = replace(stack, offsets=stack.offsets + point[:, -1])
            best = views, JudgedStack(refined.base, stack, losses, refined.matrices(point))
    return best


def can_fit(data: StackData, n_views: int) -> bool:
    """Whether there are enough samples for the matrices of the original and this many views.

    With fewer than two samples per entry, no strength gained anything.
    """
    entries = (1 + n_views) * data.n_classes**2
    return data.samples.n_units >= max(LEAST_SAMPLES, 2 * entries)


def losses_by_strength(
    data: StackData, gate: float | None, rng: np.random.Generator
) -> tuple[Vector, dict[float, Vector]]:
    """Return the losses of samples left out under the stack, and with a matrix for the original and
    every view at each strength.
    """
    crossed = CrossFit(data, 5, rng, Refinement)
    above, base = data.above(gate), crossed.losses(Refinement.base_losses)
    without = np.where(above, base, crossed.losses(Refinement.losses))
    found: dict[float, Vector] = {}
    lowest, worse = data.samples.mean(without), 0
    # From nearly fixed to nearly free, in units of n_classes / n_samples.
    strengths = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
    for strength in track(strengths, "class-wise weights, strength"):
        for part, _ in crossed.parts:
            part.point = part.solve(strength, part.point, tol=NEAR_TOL)
        found[strength] = np.where(above, base, crossed.losses(Refinement.losses))
        mean = data.samples.mean(found[strength])
        lowest, worse = (mean, 0) if mean < lowest else (lowest, worse + 1)
        if worse == 2:
            break
    return without, found


class Refinement:
    """The stack of some samples, and the matrices beside it."""

    def __init__(self, data: StackData, rows: NDArray[np.bool_]) -> None:
        self.data, self.rows = data, rows
        problem = data.problem(rows)
        self.base = problem.solve(data.every[: data.n_base])
        self.stack = problem.solve(data.every, self.base)
        self.scores = self._scores(self.stack)
        # Features of a mixture get no matrices, because its members have their own.
        self.places = [0, *data.every[data.n_base :]]
        self.point = self.nothing()

    def solve(self, strength: float, start: Matrix, *, tol: float = 1e-7) -> Matrix:
        """Return the matrices side by side and the change of the offsets, (n_classes, n_matrices *
        n_classes + 1).
        """
        samples, n_classes = self.data.samples, self.data.n_classes
        weights = None if samples.weights is None else samples.weights[self.rows]
        labels = samples.labels[self.rows]
        problem = LinearMap(
            self._columns(self.rows),
            labels,
            n_classes,
            base=self.scores[self.rows],
            weights=weights,
        )
        unit = n_classes / float(len(labels) if weights is None else weights.sum())
        ridge = np.full_like(start, strength * unit)
        ridge[:, -1] = unit
        problem.penalise(ridge)
        return problem.solve(start, tol=tol, warn=False).point

    def nothing(self) -> Matrix:
        """Return matrices of zeros, in the form of `solve`."""
        n_classes = self.data.n_classes
        return np.zeros((n_classes, len(self.places) * n_classes + 1))

    def matrices(self, point: Matrix) -> Matrix:
        """Return one matrix for the original and each view, (n_matrices, n_classes, n_classes)."""
        n_classes = len(point)
        return point[:, :-1].reshape(n_classes, len(self.places), n_classes).transpose(1, 0, 2)

    def base_losses(self, rows: Indices) -> Vector:
        """Return the losses of some samples under the stack without views."""
        return self.data.losses(softmax(self._scores(self.base)[rows]), rows)

    def losses(self, rows: Indices) -> Vector:
        """Return the losses of some samples under the stack and the current matrices."""
        change = self._columns(rows) @ self.point[:, :-1].T + self.point[:, -1]
        return self.data.losses(softmax(self.scores[rows] + change), rows)

    def _scores(self, stack: Stack) -> Matrix:
        features = self.data.features[: len(stack.used)]
        return np.tensordot(stack.weights, features, axes=1) + stack.offsets

    def _columns(self, rows: Indices | NDArray[np.bool_]) -> Matrix:
        columns = [self.data.features[place][rows] for place in self.places]
        return np.concatenate(columns, axis=1).astype(np.float64)
