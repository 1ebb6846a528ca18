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

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.checks import Labels, Vector
from recal.clusters import cluster_sums, effective_count, stratified_folds
from recal.maps.blend import Answers
from recal.maps.guard import keep_answers
from recal.progress import track
from recal.solvers.softmax import Stack, StackedMap

# With fewer samples no view is chosen: with 50, one fit in forty chose a view by chance, which cost
# up to 25 % NLL.
LEAST_SAMPLES = 100
# The share of the loss that the first view must gain.
_LEAST_SHARE = 0.005
# The default share of the gain so far that each further view must add.
WORTH: dict[Answers, float] = {"kept": 0.1, "free": 0.03}


@dataclass(frozen=True)
class StackData:
    """The data of the choice, for n samples."""

    features: NDArray[np.float32]
    """(n_base + n_candidates, n, n_classes): x of the original, of a mixture if there is one, of
    each candidate.
    """
    labels: Labels
    answers: Labels
    """The model's own predictions."""
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
    weights: Vector | None = None
    """How often each sample counts."""
    copies: NDArray[np.intp] | None = None
    """A number that copies of one sample share; see `copies_of`."""
    clusters: NDArray[np.intp] | None = None
    """The number of each sample's cluster: folds do not divide clusters, and standard errors count
    them.
    """

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_units(self) -> int:
        """The number of samples, or of clusters, that standard errors are estimated from."""
        return self.n_samples if self.clusters is None else len(np.unique(self.clusters))

    def gain(self, before: Vector, after: Vector) -> LossGain:
        """Return the decrease of the mean loss over all samples."""
        return LossGain.between(before, after, self.weights, self.clusters)

    def problem(self, rows: NDArray[np.bool_] | None = None) -> StackedMap:
        """Return the loss of all samples, or of some."""
        counts = np.ones(self.n_samples) if self.weights is None else self.weights
        counts = counts if rows is None else counts * rows
        total = float(counts.sum())
        ridge = self.features.shape[2] / total
        return StackedMap(
            self.features, self.labels, counts / total, offset_penalty=ridge, n_base=self.n_base
        )


@dataclass(frozen=True)
class LossGain:
    """The decrease of the mean loss on samples left out, and its standard error."""

    mean: float
    error: float

    @staticmethod
    def between(
        before: Vector,
        after: Vector,
        weights: Vector | None = None,
        clusters: NDArray[np.intp] | None = None,
    ) -> LossGain:
        counts = np.ones(len(before)) if weights is None else weights
        mean = float(np.average(before - after, weights=counts))
        sums = cluster_sums(counts * (before - after - mean), clusters)
        if len(sums) < 2:
            return LossGain(mean, np.inf)
        small_sample = (
            1.0 if weights is not None and clusters is None else len(sums) / (len(sums) - 1)
        )
        return LossGain(mean, float(np.sqrt(small_sample * (sums @ sums)) / counts.sum()))

    @property
    def is_clear(self) -> bool:
        return self.mean > self.error

    def exceeds(self, errors: float, n_samples: int) -> bool:
        """Whether the gain exceeds this many standard errors, or more if few samples make them
        unreliable.
        """
        return self.mean > (errors + 5.0 / np.sqrt(n_samples)) * self.error

    @property
    def trust(self) -> float:
        """The share of the change to keep: 0 if the gain is within one standard error, otherwise
        3/4 or more.
        """
        return 1.0 - (0.5 * self.error / self.mean) ** 2 if self.is_clear else 0.0


@dataclass(frozen=True)
class ViewChoice:
    """The chosen stack and the evidence.

    `base` is the stack without views, or None for plain temperature scaling; `stack` is the one
    with views, or None if they are not worth their cost. `order` lists the candidates in the order
    of the path on all samples, and `gains` what each added.
    """

    base: Stack | None
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

    def __init__(self, data: StackData, rows: NDArray[np.bool_]) -> None:
        self.data, self.rows = data, rows
        self.map = data.problem(rows)
        self.stacks = [self.map.solve(tuple(range(data.n_base)), tol=self.tol)]

    @property
    def ended(self) -> bool:
        return len(self.stacks) > 1 and self.stacks[-1].used == self.stacks[-2].used

    def extend(self) -> None:
        """Add the best view; if none helps, repeat the last stack."""
        last = self.stacks[-1]
        rest = tuple(
            v for v in range(self.data.n_base, len(self.data.features)) if v not in last.used
        )
        gains = self.map.promised_gains(last, rest) if rest else np.zeros(0)
        contenders = []
        for i in self._contenders(rest, gains):
            contenders.append(
                (self.map.solve((*last.used, rest[i]), last, tol=self.tol), self.map.losses.copy())
            )
        self.stacks.append(self._best(contenders) if contenders else last)

    def _contenders(self, rest: tuple[int, ...], gains: Vector, near: float = 0.8) -> list[int]:
        """Return the two best candidates of all and the two best lossless ones.

        The second best needs at least a share `near` of the expected gain of the best.
        """
        ranked = [int(i) for i in np.argsort(-gains, kind="stable") if gains[i] > 0.0]
        lossless = [i for i in ranked if self.data.lossless[rest[i] - self.data.n_base]]
        chosen = [
            i for few in (ranked, lossless) for i in few[:2] if gains[i] >= near * gains[few[0]]
        ]
        return list(dict.fromkeys(chosen))

    def _best(self, contenders: list[tuple[Stack, Vector]]) -> Stack:
        """Return the contender with the lowest loss; a lossy one only if it is clearly better."""
        contenders = sorted(contenders, key=lambda pair: pair[0].loss)
        gentle = [
            pair for pair in contenders if self.data.lossless[pair[0].used[-1] - self.data.n_base]
        ]
        if not gentle or gentle[0] is contenders[0]:
            return contenders[0][0]
        weights = None if self.data.weights is None else self.data.weights[self.rows]
        clusters = None if self.data.clusters is None else self.data.clusters[self.rows]
        clear = LossGain.between(
            gentle[0][1][self.rows], contenders[0][1][self.rows], weights, clusters
        ).is_clear
        return contenders[0][0] if clear else gentle[0][0]

    def delivered(self, stack: Stack, where: NDArray[np.intp]) -> Vector:
        """Return the losses of some samples under a stack, after the guard."""
        self.map.visit(stack)
        if not self.data.kept:
            return self.map.losses[where]
        return losses_of(self.map.probs[where], self.data.labels[where], self.data.answers[where])


def losses_of(probs: NDArray[np.floating], labels: Labels, answers: Labels | None) -> Vector:
    """Return the negative log-likelihood of each sample, after the guard if predictions are kept
    (`answers`).
    """
    wide = probs.astype(np.float64)
    if answers is not None:
        wide = keep_answers(wide, answers[:, None])
    return -np.log(np.maximum(wide[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


class CrossFit:
    """The paths of all folds, grown together, and the losses of the samples left out."""

    def __init__(self, data: StackData, rng: np.random.Generator) -> None:
        self.data = data
        # Few samples are split into more folds, so that each fit sees nearly all of them.
        count = 10 if data.n_samples < 3000 else 5
        folds = stratified_folds(data.labels, count, rng, data.copies, data.clusters)
        numbers = range(int(folds.max()) + 1)
        self.paths = [
            (GrowingStack(data, folds != fold), np.flatnonzero(folds == fold)) for fold in numbers
        ]

    def losses(self) -> Vector:
        """Return the loss of every sample under the path that did not see it, at its current
        length.
        """
        losses = np.empty(self.data.n_samples)
        for path, left_out in self.paths:
            losses[left_out] = path.delivered(path.stacks[-1], left_out)
        return losses


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
    whole = GrowingStack(data, np.ones(data.n_samples, dtype=bool))
    whole.stacks[0] = whole.map.solve(whole.stacks[0].used, whole.stacks[0])
    candidates = tuple(range(data.n_base, len(data.features)))
    alone = whole.map.promised_gains(whole.stacks[0], candidates) if candidates else np.zeros(0)
    if effective_count(data.plain_losses, data.clusters) < LEAST_SAMPLES:
        nothing = LossGain(0.0, np.inf)
        return ViewChoice(None, nothing, None, None, (), (), alone)
    crossed = CrossFit(data, rng)
    offset_losses = crossed.losses()
    counts = data.weights
    base_gain = data.gain(data.plain_losses, offset_losses)
    with_offsets = base_gain.exceeds(2.0, data.n_units) or not no_harm
    base_losses = offset_losses if with_offsets else data.plain_losses
    trust = base_gain.trust if no_harm else 1.0
    base = (
        drawn_back(whole.stacks[0], _base_alone(whole.stacks[0]), trust) if with_offsets else None
    )
    confident = above_gate(gate, data)
    gains: list[LossGain] = []
    order: list[int] = []
    losses, chosen, gate_used = base_losses, 0, gate if isinstance(gate, float) else None
    for length in track(range(1, min(max_views, len(candidates)) + 1), "choosing view"):
        for path, _ in track(crossed.paths, "on samples left out, fold"):
            path.extend()
        whole.extend()
        if whole.ended:
            break
        stacked = crossed.losses()
        new = np.where(confident, base_losses, stacked)
        gains.append(data.gain(losses, new))
        order.append(whole.stacks[-1].used[-1])
        gained, left = np.average([base_losses - losses, losses], axis=1, weights=counts)
        least = worth * float(gained) if chosen else _LEAST_SHARE * float(left)
        if not (_pays(gains[-1], least, chosen, data.n_units) or (length == 1 and not no_harm)):
            break
        losses, chosen = new, length
        if gate == "auto":
            gate_used = _lowest_gate(data.confidence, base_losses - stacked)
    stack = None
    if chosen:
        trust = data.gain(base_losses, losses).trust if no_harm else 1.0
        full = whole.map.solve(whole.stacks[chosen].used, whole.stacks[chosen])
        without = whole.stacks[0] if with_offsets else _base_alone(whole.stacks[0])
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
    pays: bool
    """Whether the gain over the last feature that is not a view is worth the forward passes."""
    matrices: NDArray[np.float64] | None = None
    """Class-wise weights, (1 + n_views, n_classes, n_classes); see `ensemble_views`."""


def judged_stack(data: StackData, gate: float | None, rng: np.random.Generator) -> JudgedStack:
    """Return the stack of all features. Its views were chosen before; samples above the gate use
    none of them.
    """
    every, n_base = tuple(range(len(data.features))), data.n_base
    crossed = CrossFit(data, rng)
    without = crossed.losses()
    for path, _ in crossed.paths:
        path.stacks.append(path.map.solve(every, path.stacks[-1], tol=path.tol))
    losses = np.where(above_gate(gate, data), without, crossed.losses())
    gain = data.gain(data.plain_losses, losses)
    problem = data.problem()
    base = problem.solve(every[:n_base])
    stack = drawn_back(problem.solve(every, base), base, gain.trust)
    return JudgedStack(base, stack, losses, pays(gain, len(every) - n_base, data))


def pays(gain: LossGain, n_passes: int, data: StackData) -> bool:
    """Whether the gain over the last feature that is not a view is clear and worth this many
    forward passes.
    """
    plain = float(np.average(data.plain_losses, weights=data.weights))
    return _pays(gain, n_passes * _LEAST_SHARE * plain, 0, data.n_units)


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


def above_gate(gate: float | str | None, data: StackData) -> NDArray[np.bool_]:
    if isinstance(gate, float):
        return data.confidence >= gate
    return np.zeros(data.n_samples, dtype=bool)


def _lowest_gate(confidence: Vector, gains: Vector) -> float | None:
    """Return the lowest gate that keeps 95 % of the gain; None if no gate does."""
    for gate in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999):
        if gains[confidence < gate].sum() >= 0.95 * gains.sum():
            return gate
    return None
