"""Views on top of a mixture: a stack as in `ViewStacking`, or class-wise weights.

Class-wise weights are a matrix for the original and each view, shrunk towards the single weight
of stacking.

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

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import Samples
from recal.calibrators.stacking import share_of_chance, shortlist, stack_data, stack_plan
from recal.calibrators.view_selection import (
    LEAST_SAMPLES,
    WORTH,
    JudgedStack,
    LossGain,
    StackData,
    ViewChoice,
    above_gate,
    choose_views,
    drawn_back,
    judged_stack,
    losses_of,
    pays,
)
from recal.checks import Matrix, Vector
from recal.clusters import stratified_folds
from recal.maps.arrays import softmax
from recal.maps.blend import Blend
from recal.progress import track
from recal.solvers.softmax import NEAR_TOL, LinearMap
from recal.transforms import Transform


@dataclass
class ViewEvidence:
    """Losses of samples left out under each member and under the mixture, with and without views."""

    samples: Samples
    copies: NDArray[np.intp] | None
    share: float
    """The effective number of samples divided by the number of samples: 1 without clusters."""
    folds: NDArray[np.intp]
    losses: dict[str, Vector] = field(default_factory=dict)
    passes: float = 0.0

    def gain(self) -> LossGain:
        """Return the gain over temperature scaling."""
        mine = self.losses.get("ensemble with views", self.losses["ensemble"])
        return LossGain.between(
            self.losses["ts"], mine, self.samples.weights, self.samples.clusters
        )

    @property
    def many_mistakes(self) -> bool:
        """Whether there are enough mistakes to compare methods with many parameters."""
        return self.share * self.samples.n_mistakes >= 200


def stack_views(
    method: Any,
    evidence: ViewEvidence,
    mixed: NDArray[np.floating],
    beta: float,
    rng: np.random.Generator,
) -> tuple[Blend | None, ViewChoice, tuple[Transform, ...]]:
    """Return the plan of the mixture with views (None if no view is worth it), the choice of views,
    and the candidates. `method` is the ensemble, whose parameters it reads.

    The views are those that `ViewStacking` chooses.
    """
    samples, answers, max_views = evidence.samples, method.answers, method.max_views
    kept = answers == "kept"
    views, labels, epsilon = samples.views, samples.labels, share_of_chance(len(samples.labels))
    candidates, _ = shortlist(samples, views.transforms, beta, epsilon)
    data = stack_data(samples, candidates, beta, epsilon, kept=kept, copies=evidence.copies)
    most = 3 if max_views is None else max_views
    choice = choose_views(
        data, rng, max_views=most, gate=method.gate, no_harm=True, worth=WORTH[answers]
    )
    used = () if choice.stack is None else choice.stack.views
    plain = losses_of(mixed, labels, data.answers if kept else None)
    features = np.concatenate([data.features[[0, 0]], data.features[1:]])
    data = replace(data, features=features, plain_losses=plain, n_base=2)
    features[1] = np.log((1.0 - epsilon) * mixed + epsilon / mixed.shape[1])
    seed, best = int(rng.integers(2**31)), None
    if used:
        chosen = replace(data, features=features[[0, 1, *(1 + view for view in used)]], lossless=())
        judged = judged_stack(chosen, choice.gate, np.random.default_rng(seed))
        best = judged if judged.pays and judged.stack.views else None
    by_class = choose_class_weights(
        data, used, best is not None, choice.gate, seed, max_views=max_views
    )
    if by_class is not None:
        used, best = by_class
    if best is None:
        return None, choice, candidates
    transforms = tuple(candidates[view - 1] for view in used)
    plan = stack_plan(
        best.base, best.stack, transforms, beta, epsilon, answers, choice.gate, best.matrices
    )
    assert isinstance(plan, Blend)
    evidence.losses["ensemble with views"] = best.losses
    evidence.passes = len(plan.transforms) * float(plan.needs_views(views.logits).mean())
    return plan, choice, candidates


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
    n_base, count = data.n_base, len(data.features) - data.n_base
    sets = [chosen] if chosen else []
    # With few candidates, all of them are tried at once.
    if len(chosen) < count <= min(8, 8 if max_views is None else max_views):
        sets.append(tuple(range(1, count + 1)))
    best: tuple[tuple[int, ...], JudgedStack] | None = None
    plain = reference = data.plain_losses
    for views in sets:
        if not can_fit(data, len(views)):
            break
        places = [*range(n_base), *(n_base + view - 1 for view in views)]
        search = Search(replace(data, features=data.features[places], lossless=()), gate, seed)
        if stacked and views is chosen:
            reference = search.without
        judged = search.judged(reference, None if stacked else len(views))
        if judged is None:
            continue
        current = reference if best is None else best[1].losses
        more, whole = (data.gain(before, judged.losses) for before in (current, plain))
        if views is chosen or more.mean >= 0.1 * whole.mean:
            best = views, judged
    return best


def can_fit(data: StackData, n_views: int) -> bool:
    """Whether there are enough samples for the matrices of the original and this many views.

    With fewer than two samples per entry, no strength gained anything.
    """
    entries = (1 + n_views) * data.features.shape[2] ** 2
    return data.n_units >= max(LEAST_SAMPLES, 2 * entries)


class Search:
    """The losses of samples left out at each strength, with a matrix for the original and every
    view.
    """

    def __init__(self, data: StackData, gate: float | None, seed: int) -> None:
        self.data = data
        rng = np.random.default_rng(seed)
        folds = stratified_folds(data.labels, 5, rng, data.copies, data.clusters)
        self.parts = [
            (Refinement(data, folds != f), np.flatnonzero(folds == f))
            for f in range(folds.max() + 1)
        ]
        above = above_gate(gate, data)
        base = self._losses([refinement.base_scores for refinement, _ in self.parts])
        self.without = np.where(
            above, base, self._losses([refinement.scores for refinement, _ in self.parts])
        )
        self.losses: dict[float, Vector] = {}
        points = [part.nothing() for part, _ in self.parts]
        lowest, worse = float(np.average(self.without, weights=data.weights)), 0
        # From nearly fixed to nearly free, in units of n_classes / n_samples.
        strengths = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
        for strength in track(strengths, "class-wise weights, strength"):
            points = [
                part.solve(strength, point, tol=NEAR_TOL)
                for (part, _), point in zip(self.parts, points)
            ]
            losses = self._losses(
                [part.refined(point) for (part, _), point in zip(self.parts, points)]
            )
            self.losses[strength] = np.where(above, base, losses)
            mean = float(np.average(self.losses[strength], weights=data.weights))
            lowest, worse = (mean, 0) if mean < lowest else (lowest, worse + 1)
            if worse == 2:
                break

    def judged(self, reference: Vector, n_passes: int | None) -> JudgedStack | None:
        """Return the stack at the best strength; None if no strength gains more than one standard
        error.

        If `n_passes` is given, the gain over the reference must be worth this many forward passes.
        """
        data = self.data
        gains = {s: data.gain(reference, losses) for s, losses in self.losses.items()}
        clearest = max(gains.values(), key=lambda gain: gain.mean / max(gain.error, 1e-300))
        strength = max(gains, key=lambda one: gains[one].mean)
        if not clearest.is_clear:
            return None
        whole = data.gain(data.plain_losses, self.losses[strength])
        if n_passes is not None and not pays(whole, n_passes, data):
            return None
        fitted = Refinement(data, np.ones(data.n_samples, dtype=bool))
        point = clearest.trust * fitted.solve(strength, fitted.nothing())
        stack = drawn_back(fitted.stack, fitted.base, whole.trust)
        stack = replace(stack, offsets=stack.offsets + point[:, -1])
        return JudgedStack(fitted.base, stack, self.losses[strength], True, fitted.matrices(point))

    def _losses(self, scores: list[Matrix]) -> Vector:
        """Return the loss of each sample under the fit that did not see it, after the guard if
        answers are kept.
        """
        data, losses = self.data, np.empty(self.data.n_samples)
        for (_, left_out), values in zip(self.parts, scores):
            answers = data.answers[left_out] if data.kept else None
            losses[left_out] = losses_of(softmax(values[left_out]), data.labels[left_out], answers)
        return losses


class Refinement:
    """The stack of some samples, and the matrices beside it."""

    def __init__(self, data: StackData, rows: NDArray[np.bool_]) -> None:
        self.data, self.rows = data, rows
        features, n_base = data.features, data.n_base
        problem = data.problem(rows)
        self.base = problem.solve(tuple(range(n_base)))
        self.stack = problem.solve(tuple(range(len(features))), self.base)
        self.base_scores = (
            np.tensordot(self.base.weights, features[:n_base], axes=1) + self.base.offsets
        )
        self.scores = np.tensordot(self.stack.weights, features, axes=1) + self.stack.offsets
        # Features of a mixture get no matrices, because its members have their own.
        self.places = [0, *range(n_base, len(features))]

    def solve(self, strength: float, start: Matrix, *, tol: float = 1e-7) -> Matrix:
        """Return the matrices side by side and the change of the offsets, (n_classes, n_matrices *
        n_classes + 1).
        """
        counts, labels = self.data.weights, self.data.labels[self.rows]
        n_classes = self.data.features.shape[2]
        weights = None if counts is None else counts[self.rows]
        problem = LinearMap(
            self._columns()[self.rows],
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
        n_classes = self.data.features.shape[2]
        return np.zeros((n_classes, len(self.places) * n_classes + 1))

    def refined(self, point: Matrix) -> Matrix:
        """Return the scores of all samples with these matrices."""
        return self.scores + self._columns() @ point[:, :-1].T + point[:, -1]

    def matrices(self, point: Matrix) -> Matrix:
        """Return one matrix for the original and each view, (n_matrices, n_classes, n_classes)."""
        n_classes = len(point)
        return point[:, :-1].reshape(n_classes, len(self.places), n_classes).transpose(1, 0, 2)

    def _columns(self) -> Matrix:
        return np.concatenate([self.data.features[place] for place in self.places], axis=1).astype(
            np.float64
        )
