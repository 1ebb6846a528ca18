"""ViewChoice of the views to stack: forward selection in which samples left out decide about every
step.

The whole procedure is cross-fitted. For each fold a path grows on the other folds: the best view
first, then the best one beside it, and so on. The loss of the samples left out at each length, with
gate and guard, decides how long the path on all samples may be. A further view must

- lower the mean loss of the samples left out by more than one standard error of the paired
  differences. The first view
  needs 1 + 5 / sqrt(n) standard errors, because they are unreliable with few samples; offsets alone
  have many parameters and need 2 + 5 / sqrt(n). With clusters, standard errors and n count
  clusters; and
- add at least a share `worth` of the gain of the views before it, because a view costs a forward
  pass for every
  prediction. The first view must gain half a per cent of the loss.

Within a step, candidates are screened to second order (slope, curvature and coupling with the
weights in use) and the best few are fitted. A view that loses information must beat one that loses
none by more than one standard error.

An accepted fit is shrunk towards the fit without views by the share (standard error / 2 gain)^2.
This is Stein's shrinkage: the gain is quadratic in the weights, so the relative error of a weight
is half that of the gain. A view that was accepted by chance then does less harm, and a clear gain
is hardly reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import LossGain, Samples
from recal.checks import Indices, Vector
from recal.clusters import each_fold, effective_count
from recal.maps.blend import Answers
from recal.progress import track
from recal.solvers.softmax import Stack, StackedMap

Flags = NDArray[np.bool_]

# With fewer samples no view is chosen: with 50, one fit in forty chose a view by chance, which cost
# up to 25 % NLL.
LEAST_SAMPLES = 100
# The share of the loss that the first view must gain.
_LEAST_SHARE = 0.005
# The default share of the gain so far that each further view must add.
WORTH: dict[Answers, float] = {"kept": 0.1, "free": 0.03}


@dataclass(frozen=True)
class StackData:
    """What the choice reads of n samples."""

    samples: Samples
    features: NDArray[np.float32]
    """(n_base + n_candidates, n, n_classes): x of the original, of a mixture if there is one, of
    each candidate.
    """
    confidence: Vector
    """After temperature scaling."""
    plain_losses: Vector
    """Losses of the last feature that is not a view: of temperature scaling, or of the mixture."""
    lossless: tuple[bool, ...]
    """Whether each candidate keeps the information of the input."""
    kept: bool
    """Whether the guard keeps predictions."""
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
        weights = self.samples.weights
        counts = rows * (np.ones(len(self.samples)) if weights is None else weights)
        total = float(counts.sum())
        return StackedMap(
            self.features, self.samples.labels, counts / total,
            offset_penalty=self.n_classes / total, n_base=self.n_base,
        )  # fmt: skip

    def losses(self, probs: Any, rows: Indices) -> Vector:
        """Return the loss of some samples, after the guard if predictions are kept."""
        return self.samples.losses(probs, kept=self.kept, rows=rows)

    def above(self, gate: float | str | None) -> Flags:
        """Return whether each sample is so confident that it needs no views."""
        if isinstance(gate, float):
            return self.confidence >= gate
        return np.zeros(len(self.confidence), dtype=bool)


@dataclass(frozen=True)
class ViewChoice:
    """The chosen stack and the evidence.

    `base` is the stack without views, and `stack` the one with views, or None if they are not worth
    their cost. `order` lists the candidates in the order of the path on all samples, and `gains`
    what each added.
    """

    base: Stack
    base_gain: LossGain
    stack: Stack | None
    gate: float | None
    order: tuple[int, ...]
    gains: tuple[LossGain, ...]
    alone: Vector
    """The gain of each candidate alone over the stack without views, to second order."""


class GrowingStack:
    """A greedy path on part of the samples: it starts with the stack without views and adds one
    view at each step.
    """

    tol: ClassVar[float] = 1e-6
    """Tolerance of the search, far below any relevant gain; the chosen stack is fitted exactly."""

    def __init__(self, data: StackData, rows: Flags) -> None:
        self.data, self.rows = data, rows
        self.map = data.problem(rows)
        self.stacks = [self.map.solve(data.every[: data.n_base], tol=self.tol)]

    @property
    def ended(self) -> bool:
        return len(self.stacks) > 1 and self.stacks[-1].used == self.stacks[-2].used

    def extend(self) -> None:
        """Add the best view; if none helps, repeat the last stack."""
        last = self.stacks[-1]
        rest = tuple(v for v in self.data.every[self.data.n_base :] if v not in last.used)
        contenders = []
        for i in self._contenders(rest, self.map.promised_gains(last, rest)):
            stack = self.map.solve((*last.used, rest[i]), last, tol=self.tol)
            contenders.append((stack, self.map.losses.copy()))
        self.stacks.append(self._best(contenders) if contenders else last)

    def _contenders(self, rest: tuple[int, ...], gains: Vector, near: float = 0.8) -> list[int]:
        """Return the two best candidates of all and the two best lossless ones.

        The second best needs at least a share `near` of the expected gain of the best.
        """
        ranked = [int(i) for i in np.argsort(-gains, kind="stable") if gains[i] > 0.0]
        lossless = [i for i in ranked if self._is_lossless(rest[i])]
        chosen = [
            i for few in (ranked, lossless) for i in few[:2] if gains[i] >= near * gains[few[0]]
        ]
        return list(dict.fromkeys(chosen))

    def _best(self, contenders: list[tuple[Stack, Vector]]) -> Stack:
        """Return the contender with the lowest loss; a lossy one only if it is clearly better."""
        contenders = sorted(contenders, key=lambda pair: pair[0].loss)
        best, losses = contenders[0]
        for gentle, its_losses in contenders:
            if self._is_lossless(gentle.used[-1]):
                gain = self.data.samples.gain(its_losses, losses, self.rows)
                return best if gentle is best or gain.is_clear else gentle
        return best

    def _is_lossless(self, feature: int) -> bool:
        return self.data.lossless[feature - self.data.n_base]

    def losses(self, rows: Indices) -> Vector:
        """Return the losses of some samples at the current length, after the guard."""
        self.map.visit(self.stacks[-1])
        return (
            self.data.losses(self.map.probs[rows], rows)
            if self.data.kept
            else self.map.losses[rows]
        )


class CrossFit:
    """A fit to all folds but one for each fold, and the losses of the samples left out."""

    def __init__(
        self,
        data: StackData,
        n_folds: int,
        rng: np.random.Generator,
        fit: Callable[[StackData, Flags], Any],
    ) -> None:
        folds = data.samples.folds(n_folds, rng)
        self.parts = [(fit(data, rest), left_out) for rest, left_out in each_fold(folds)]

    def losses(self, of: Callable[[Any, Indices], Vector]) -> Vector:
        """Return the loss of every sample under the fit that did not see it."""
        rows = np.concatenate([left_out for _, left_out in self.parts])
        losses = np.empty(len(rows))
        losses[rows] = np.concatenate([of(fit, left_out) for fit, left_out in self.parts])
        return losses


def _paths(data: StackData, rng: np.random.Generator) -> CrossFit:
    # Few samples are split into more folds, so that each fit sees nearly all of them.
    return CrossFit(data, 10 if len(data.samples) < 3000 else 5, rng, GrowingStack)


def choose_views(
    data: StackData,
    rng: np.random.Generator,
    *,
    max_views: int,
    gate: float | str | None,
    no_harm: bool,
    worth: float,
) -> ViewChoice:
    """Return the stack to use, by the rules above."""
    samples = data.samples
    whole = GrowingStack(data, np.ones(len(samples), dtype=bool))
    offsets = whole.stacks[0] = whole.map.solve(whole.stacks[0].used, whole.stacks[0])
    plain = _base_alone(offsets)
    candidates = data.every[data.n_base :]
    alone = whole.map.promised_gains(offsets, candidates)
    if effective_count(data.plain_losses, samples.clusters) < LEAST_SAMPLES:
        return ViewChoice(plain, LossGain(0.0, np.inf), None, None, (), (), alone)
    crossed = _paths(data, rng)
    base_losses = crossed.losses(GrowingStack.losses)
    base_gain = samples.gain(data.plain_losses, base_losses)
    without = base = plain
    if base_gain.exceeds(2.0, samples.n_units) or not no_harm:
        without, base = offsets, drawn_back(offsets, plain, base_gain.trust if no_harm else 1.0)
    else:
        base_losses = data.plain_losses
    confident = data.above(gate)
    gains: list[LossGain] = []
    order: list[int] = []
    losses, chosen, gate_used = base_losses, 0, gate if isinstance(gate, float) else None
    for length in track(range(1, min(max_views, len(candidates)) + 1), "choosing view"):
        for path, _ in track(crossed.parts, "on samples left out, fold"):
            path.extend()
        whole.extend()
        if whole.ended:
            break
        stacked = crossed.losses(GrowingStack.losses)
        new = np.where(confident, base_losses, stacked)
        gains.append(samples.gain(losses, new))
        order.append(whole.stacks[-1].used[-1])
        gained, left = samples.mean(base_losses - losses), samples.mean(losses)
        least = worth * gained if chosen else _LEAST_SHARE * left
        if not (_pays(gains[-1], least, chosen, samples.n_units) or (length == 1 and not no_harm)):
            break
        losses, chosen = new, length
        if gate == "auto":
            gate_used = _lowest_gate(data.confidence, base_losses - stacked)
    stack = None
    if chosen:
        trust = samples.gain(base_losses, losses).trust if no_harm else 1.0
        full = whole.map.solve(whole.stacks[chosen].used, whole.stacks[chosen])
        stack = drawn_back(full, without, trust)
    return ViewChoice(base, base_gain, stack, gate_used, tuple(order), tuple(gains), alone)


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

    base: Stack
    stack: Stack
    losses: Vector
    matrices: NDArray[np.float64] | None = None
    """Class-wise weights, (1 + n_views, n_classes, n_classes); see `class_weights`."""


def judged_stack(
    data: StackData, gate: float | None, rng: np.random.Generator
) -> JudgedStack | None:
    """Return the stack of all features; None if its gain is not worth the forward passes.

    Its views were chosen before; samples above the gate use none of them.
    """
    crossed = _paths(data, rng)
    without = crossed.losses(GrowingStack.losses)
    for path, _ in crossed.parts:
        path.stacks.append(path.map.solve(data.every, path.stacks[-1], tol=path.tol))
    losses = np.where(data.above(gate), without, crossed.losses(GrowingStack.losses))
    gain = data.samples.gain(data.plain_losses, losses)
    problem = data.problem()
    base = problem.solve(data.every[: data.n_base])
    stack = drawn_back(problem.solve(data.every, base), base, gain.trust)
    pays_off = pays(gain, len(data.every) - data.n_base, data) and stack.views
    return JudgedStack(base, stack, losses) if pays_off else None


def pays(gain: LossGain, n_passes: int, data: StackData) -> bool:
    """Whether the gain over the last feature that is not a view is clear and worth this many
    forward passes.
    """
    plain = data.samples.mean(data.plain_losses)
    return _pays(gain, n_passes * _LEAST_SHARE * plain, 0, data.samples.n_units)


def _base_alone(stack: Stack) -> Stack:
    """Return the last feature that is not a view, as a stack: temperature scaling, or the mixture."""
    base = tuple(range(stack.n_base))
    return Stack(base, np.eye(stack.n_base)[-1], np.zeros_like(stack.offsets), np.nan, stack.n_base)


def drawn_back(stack: Stack, base: Stack, trust: float) -> Stack:
    """Shrink a stack towards the one without views: keep a share `trust` of the change."""
    weights = trust * stack.weights
    weights[: stack.n_base] += (1.0 - trust) * base.weights[: stack.n_base]
    offsets = trust * stack.offsets + (1.0 - trust) * base.offsets
    return Stack(stack.used, weights, offsets, stack.loss, stack.n_base)


def _lowest_gate(confidence: Vector, gains: Vector) -> float | None:
    """Return the lowest gate that keeps 95 % of the gain; None if no gate does."""
    for gate in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999):
        if gains[confidence < gate].sum() >= 0.95 * gains.sum():
            return gate
    return None
