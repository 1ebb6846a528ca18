"""Choice of the views to stack: forward selection in which samples left out decide about every
step.

The whole procedure is cross-fitted. For each fold a path grows on the other folds: the best view
first, then the best one beside it, and so on. The loss of the samples left out at each length, with
gate and guard, decides how long the path on all samples may be. A further view must

- lower the mean loss of the samples left out by more than one standard error of the paired
  differences. The first view needs 1 + 5 / sqrt(n) standard errors, because they are unreliable
  with few samples; offsets alone have many parameters and need 2 + 5 / sqrt(n). With clusters,
  standard errors and n count clusters; and
- add at least a share `worth` of the gain of the views before it, because a view costs a forward
  pass for every prediction. The first view must gain half a per cent of the loss.

Within a step, candidates are screened to second order (slope, curvature and coupling with the
weights in use) and the best few are fitted. A view that loses information must beat one that loses
none by more than one standard error.

An accepted fit is shrunk towards the fit without views by the share (standard error / 2 gain)^2.
This is Stein's shrinkage: the gain is quadratic in the weights, so the relative error of a weight
is half that of the gain. A view that was accepted by chance then does less harm, and a clear gain
is hardly reduced.

A stack gives all classes of a view the same weight. Some views, such as the prompts of a language
model, separate some classes better than other views do. With a matrix for the original and each
view, shrunk towards the single weight of stacking, the scores become

    s = a_mixture x_mixture + sum over the original and the views of (a_g I + M_g) x_g + c.

The weights a_g are those of the stack. The matrices M_g and the change of c minimise the mean NLL
plus strength * K / n times the sum of squares of all M_g, and K / n times the sum of squares of the
change of c. Matrices are used if they gain more than one standard error on samples left out at some
strength. That strength need not be the best one: weak changes have the smallest errors. The
matrices of the best strength are multiplied by the trust in the clearest gain. If there are few
candidates, all of them are tried at once, since matrices can use views that a single weight cannot.
Because each costs a forward pass, they must add a tenth of the whole gain to that of the chosen
views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import LossGain, Samples
from recal.checks import Flags, Indices, Matrix, Vector
from recal.clusters import each_fold, effective_count
from recal.maps.arrays import softmax
from recal.maps.blend import Answers
from recal.progress import track
from recal.solvers.softmax import NEAR_TOL, LinearMap, Stack, StackedMap
from recal.transforms import Transform

# With fewer samples no view is chosen: with 50, one fit in forty chose a view by chance, which cost
# up to 25 % NLL.
LEAST_SAMPLES = 100
# The share of the loss that the first view must gain.
_LEAST_SHARE = 0.005
# Tolerance of the search, far below any relevant gain; the chosen stack is fitted exactly.
_SEARCH_TOL = 1e-6


@dataclass(frozen=True)
class StackData:
    """What the choice reads of n samples."""

    samples: Samples
    candidates: tuple[Transform, ...]
    features: NDArray[np.float32]
    """(n_base + n_candidates, n, n_classes): x of the original, of a mixture if there is one, of
    each candidate.
    """
    confidence: Vector
    """After temperature scaling."""
    plain_losses: Vector
    """Losses of the last feature that is not a view: of temperature scaling, or of the mixture."""
    beta: float
    """1/T of temperature scaling."""
    epsilon: float
    """The share of the uniform distribution in x."""
    answers: Answers
    gate: float | None
    """Samples with at least this confidence need no views."""
    n_base: int = 1
    """The number of leading features that are not views."""

    @property
    def n_classes(self) -> int:
        return self.features.shape[2]

    @property
    def every(self) -> tuple[int, ...]:
        """The indices of all features."""
        return tuple(range(len(self.features)))

    def problem(self, rows: Flags | float = 1.0) -> StackedMap:
        """Return the loss of all samples, or of some."""
        counts = rows * self.samples.counts
        total = float(counts.sum())
        return StackedMap(
            self.features, self.samples.labels, counts / total,
            offset_penalty=self.n_classes / total, n_base=self.n_base,
        )  # fmt: skip

    def losses(self, probs: Any, rows: Indices) -> Vector:
        """Return the loss of some samples, after the guard if predictions are kept."""
        return self.samples.losses(probs, kept=self.answers == "kept", rows=rows)

    def gated(self, without: Vector, losses: Vector) -> Vector:
        """Return the losses with views, where samples above the gate use none."""
        gate = np.inf if self.gate is None else self.gate
        return np.where(self.confidence >= gate, without, losses)

    def only(self, candidates: tuple[int, ...]) -> StackData:
        """Return the data of some candidates, counted from 1."""
        places = [*range(self.n_base), *(self.n_base + one - 1 for one in candidates)]
        used = tuple(self.candidates[one - 1] for one in candidates)
        return replace(self, candidates=used, features=self.features[places])

    def is_lossless(self, feature: int) -> bool:
        """Whether a view keeps all information, according to the transformation itself or else to
        its name.
        """
        transform = self.candidates[feature - self.n_base]
        by_name = str(transform).split(":")[0] in ("flip", "mirror", "shift", "crop")
        lossless = getattr(transform, "keeps_information", None)
        return by_name if lossless is None else bool(lossless)


@dataclass(frozen=True)
class ViewChoice:
    """The chosen stack and the evidence.

    `base` is the stack without views, and `stack` the one with views, or None if they are not worth
    their cost. `gains` holds what each candidate of the path on all samples added, in their order.
    """

    base: Stack
    stack: Stack | None
    gains: dict[int, LossGain]
    alone: Vector
    """The gain of each candidate alone over the stack without views, to second order."""


class GrowingStack:
    """A greedy path on part of the samples: it starts with the stack without views and adds one
    view at each step.
    """

    def __init__(self, data: StackData, rows: Flags) -> None:
        self.data, self.rows = data, rows
        self.map = data.problem(rows)
        self.stacks = [self.map.solve(data.every[: data.n_base], tol=_SEARCH_TOL)]

    @property
    def ended(self) -> bool:
        return len(self.stacks) > 1 and self.stacks[-1].used == self.stacks[-2].used

    def extend(self) -> None:
        """Add the best view; if none helps, repeat the last stack."""
        last = self.stacks[-1]
        rest = tuple(v for v in self.data.every[self.data.n_base :] if v not in last.used)
        contenders = []
        for i in self._contenders(rest, self.map.promised_gains(last, rest)):
            stack = self.map.solve((*last.used, rest[i]), last, tol=_SEARCH_TOL)
            contenders.append((stack, self.map.losses.copy()))
        self.stacks.append(self._best(contenders) if contenders else last)

    def _contenders(self, rest: tuple[int, ...], gains: Vector, near: float = 0.8) -> list[int]:
        """Return the two best candidates of all and the two best lossless ones.

        The second best needs at least a share `near` of the expected gain of the best.
        """
        ranked = [int(i) for i in np.argsort(-gains, kind="stable") if gains[i] > 0.0]
        lossless = [i for i in ranked if self.data.is_lossless(rest[i])]
        chosen = [
            i for few in (ranked, lossless) for i in few[:2] if gains[i] >= near * gains[few[0]]
        ]
        return list(dict.fromkeys(chosen))

    def _best(self, contenders: list[tuple[Stack, Vector]]) -> Stack:
        """Return the contender with the lowest loss; a lossy one only if it is clearly better."""
        contenders = sorted(contenders, key=lambda pair: pair[0].loss)
        best, losses = contenders[0]
        for gentle, its_losses in contenders:
            if self.data.is_lossless(gentle.used[-1]):
                gain = self.data.samples.gain(its_losses, losses, self.rows)
                return best if gentle is best or gain.is_clear else gentle
        return best

    def losses(self, rows: Indices) -> Vector:
        """Return the losses of some samples at the current length, after the guard."""
        self.map.visit(self.stacks[-1])
        if self.data.answers == "kept":
            return self.data.losses(self.map.probs[rows], rows)
        return self.map.losses[rows]


class CrossFit:
    """A fit to all folds but one for each fold, and the losses of the samples left out."""

    def __init__(self, data: StackData, n_folds: int, rng: np.random.Generator, fit: type) -> None:
        folds = data.samples.folds(n_folds, rng)
        self.parts = [(fit(data, rest), left_out) for rest, left_out in each_fold(folds)]

    def losses(self, of: Callable[[Any, Indices], Vector]) -> Vector:
        """Return the loss of every sample under the fit that did not see it."""
        rows = np.concatenate([left_out for _, left_out in self.parts])
        losses = np.empty(len(rows))
        losses[rows] = np.concatenate([of(fit, left_out) for fit, left_out in self.parts])
        return losses


def _grown(data: StackData, rng: np.random.Generator) -> CrossFit:
    # Few samples are split into more folds, so that each fit sees nearly all of them.
    return CrossFit(data, 10 if len(data.samples) < 3000 else 5, rng, GrowingStack)


def choose_views(
    data: StackData, rng: np.random.Generator, *, max_views: int, no_harm: bool
) -> ViewChoice:
    """Return the stack to use, by the rules above."""
    samples = data.samples
    worth = 0.1 if data.answers == "kept" else 0.03
    whole = GrowingStack(data, np.ones(len(samples), dtype=bool))
    offsets = whole.stacks[0] = whole.map.solve(whole.stacks[0].used, whole.stacks[0])
    plain = Stack(offsets.used, np.ones(1), np.zeros_like(offsets.offsets), np.nan)
    candidates = data.every[data.n_base :]
    alone = whole.map.promised_gains(offsets, candidates)
    if effective_count(data.plain_losses, samples.clusters) < LEAST_SAMPLES:
        return ViewChoice(plain, None, {}, alone)
    crossed = _grown(data, rng)
    base_losses = crossed.losses(GrowingStack.losses)
    base_gain = samples.gain(data.plain_losses, base_losses)
    without = base = plain
    if base_gain.exceeds(2.0, samples.n_units) or not no_harm:
        without, base = offsets, drawn_back(offsets, plain, base_gain.trust if no_harm else 1.0)
    else:
        base_losses = data.plain_losses
    gains: dict[int, LossGain] = {}
    losses, chosen = base_losses, 0
    for length in track(range(1, min(max_views, len(candidates)) + 1), "choosing view"):
        for path, _ in track(crossed.parts, "on samples left out, fold"):
            path.extend()
        whole.extend()
        if whole.ended:
            break
        new = data.gated(base_losses, crossed.losses(GrowingStack.losses))
        gain = gains[whole.stacks[-1].used[-1]] = samples.gain(losses, new)
        gained, left = samples.mean(base_losses - losses), samples.mean(losses)
        least = worth * gained if chosen else _LEAST_SHARE * left
        if not (_pays(gain, least, chosen, samples.n_units) or (length == 1 and not no_harm)):
            break
        losses, chosen = new, length
    stack = None
    if chosen:
        trust = samples.gain(base_losses, losses).trust if no_harm else 1.0
        full = whole.map.solve(whole.stacks[chosen].used, whole.stacks[chosen])
        stack = drawn_back(full, without, trust)
    return ViewChoice(base, stack, gains, alone)


def _pays(gain: LossGain, least: float, chosen: int, n_samples: int) -> bool:
    """Whether another view is worth its forward pass; the first needs a clearer gain if there are
    few samples.
    """
    clear = gain.is_clear if chosen else gain.exceeds(1.0, n_samples)
    return clear and gain.mean >= least


@dataclass(frozen=True)
class JudgedStack:
    """The stack of all features, the one without views, and the losses of the first on samples left
    out.
    """

    data: StackData
    base: Stack
    stack: Stack
    losses: Vector
    matrices: NDArray[np.float64] | None = None
    """Class-wise weights, (1 + n_views, n_classes, n_classes)."""


def judged_stack(data: StackData, rng: np.random.Generator) -> JudgedStack | None:
    """Return the stack of all features; None if its gain is not worth the forward passes.

    Its views were chosen before; samples above the gate use none of them.
    """
    crossed = _grown(data, rng)
    without = crossed.losses(GrowingStack.losses)
    for path, _ in crossed.parts:
        path.stacks.append(path.map.solve(data.every, path.stacks[-1], tol=_SEARCH_TOL))
    losses = data.gated(without, crossed.losses(GrowingStack.losses))
    gain = data.samples.gain(data.plain_losses, losses)
    problem = data.problem()
    base = problem.solve(data.every[: data.n_base])
    stack = drawn_back(problem.solve(data.every, base), base, gain.trust)
    return JudgedStack(data, base, stack, losses) if pays(gain, data) and stack.views else None


def pays(gain: LossGain, data: StackData) -> bool:
    """Whether the gain over the last feature that is not a view is clear and worth a forward pass
    for each candidate.
    """
    plain = data.samples.mean(data.plain_losses)
    return _pays(gain, len(data.candidates) * _LEAST_SHARE * plain, 0, data.samples.n_units)


def drawn_back(stack: Stack, base: Stack, trust: float) -> Stack:
    """Shrink a stack towards the one without views: keep a share `trust` of the change."""
    weights = trust * stack.weights
    weights[: stack.n_base] += (1.0 - trust) * base.weights[: stack.n_base]
    offsets = trust * stack.offsets + (1.0 - trust) * base.offsets
    return Stack(stack.used, weights, offsets, stack.loss, stack.n_base)


def choose_class_weights(
    data: StackData, chosen: tuple[int, ...], stacked: bool, seed: int
) -> JudgedStack | None:
    """Return the stack of some candidates with class-wise weights; None if matrices have no clear
    gain.

    Parameters
    ----------
    data : StackData
        Contains all candidates after the original and the mixture.
    chosen : tuple of int
        The candidates that stacking uses or would use, counted from 1.
    stacked : bool
        Whether their stack without matrices is worth its forward passes. If not, matrices must beat
        the mixture.
    """
    samples, count = data.samples, len(data.candidates)
    sets = [chosen] if chosen else []
    # With few candidates, all of them are tried at once.
    if len(chosen) < count <= 8:
        sets.append(tuple(range(1, count + 1)))
    best: JudgedStack | None = None
    reference = data.plain_losses
    for views in sets:
        if not can_fit(data, len(views)):
            break
        some = data.only(views)
        without, by_strength = losses_by_strength(some, np.random.default_rng(seed))
        if stacked and views is chosen:
            reference = without
        gains = {s: samples.gain(reference, losses) for s, losses in by_strength.items()}
        clearest = max(gains.values(), key=lambda gain: gain.mean / max(gain.error, 1e-300))
        strength = max(gains, key=lambda one: gains[one].mean)
        losses = by_strength[strength]
        whole = samples.gain(data.plain_losses, losses)
        if not clearest.is_clear or not (stacked or pays(whole, some)):
            continue
        more = samples.gain(reference if best is None else best.losses, losses)
        if views is chosen or more.mean >= 0.1 * whole.mean:
            refined = Refinement(some, np.ones(len(samples), dtype=bool))
            point = clearest.trust * refined.solve(strength, refined.nothing())
            stack = drawn_back(refined.stack, refined.base, whole.trust)
            stack = replace(stack, offsets=stack.offsets + point[:, -1])
            best = JudgedStack(some, refined.base, stack, losses, refined.matrices(point))
    return best


def can_fit(data: StackData, n_views: int) -> bool:
    """Whether there are enough samples for the matrices of the original and this many views.

    With fewer than two samples per entry, no strength gained anything.
    """
    entries = (1 + n_views) * data.n_classes**2
    return data.samples.n_units >= max(LEAST_SAMPLES, 2 * entries)


def losses_by_strength(
    data: StackData, rng: np.random.Generator
) -> tuple[Vector, dict[float, Vector]]:
    """Return the losses of samples left out under the stack, and with a matrix for the original and
    every view at each strength.
    """
    crossed = CrossFit(data, 5, rng, Refinement)
    base = crossed.losses(Refinement.base_losses)
    without = data.gated(base, crossed.losses(Refinement.losses))
    found: dict[float, Vector] = {}
    lowest, worse = data.samples.mean(without), 0
    # From nearly fixed to nearly free, in units of n_classes / n_samples.
    strengths = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
    for strength in track(strengths, "class-wise weights, strength"):
        for part, _ in crossed.parts:
            part.point = part.solve(strength, part.point, tol=NEAR_TOL)
        found[strength] = data.gated(base, crossed.losses(Refinement.losses))
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
        features, base = self._columns(self.rows), self.scores[self.rows]
        problem = LinearMap(features, labels, n_classes, base=base, weights=weights)
        unit = n_classes / float(samples.counts[self.rows].sum())
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
