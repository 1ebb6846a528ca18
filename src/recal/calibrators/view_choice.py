"""Choice of the views to stack: forward selection in which samples left out decide about every step.

The whole procedure is cross-fitted. For each fold a path grows on the other folds: the best view first, then the best
one beside it, and so on. The loss of the samples left out at each length, with gate and guard, decides how long the
path on all samples may be. A further view must

- lower the mean loss of the samples left out by more than one standard error of the paired differences. The first view
  needs 1 + 5 / sqrt(n) standard errors, because they are unreliable with few samples; offsets alone, which are many
  parameters, need 2 + 5 / sqrt(n). With clusters, standard errors and n count clusters; and
- add at least a share `worth` of what the views before it gained, and the first one half a per cent of the loss,
  because a view costs a forward pass for every prediction.

Within a step, candidates are screened to second order (slope, curvature and coupling with the weights in use) and the
best few are fitted. A view that loses information must beat one that loses none by more than one standard error.

An accepted fit is shrunk towards the fit without views by the share (standard error / 2 gain)^2. This is Stein's
shrinkage: the gain is quadratic in the weights, so the relative error of a weight is half that of the gain. A view that
was accepted by chance then does less harm, and a clear gain is hardly reduced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.solvers.folds import stratified_folds
from recal.calibrators.solvers.stack import Stack, StackMap, Vector
from recal.checks import Labels
from recal.engine.clusters import cluster_sums, effective_count
from recal.maps.guard import keep_answers
from recal.maps.plan import Answers
from recal.progress import track

# Few samples are split into more folds, so that each fit sees nearly all of them.
N_FOLDS, _MANY_FOLDS, _FEW_SAMPLES = 5, 10, 3000
# With fewer samples no view is chosen: with 50, one fit in forty took one by chance, at up to 25 % more NLL.
LEAST_SAMPLES = 100
# Tolerance of the loss during the search, far below any relevant gain; the chosen stack is fitted exactly.
_SEARCH_TOL = 1e-6
# The share of the loss that the first view must gain.
_LEAST_SHARE = 0.005
# The default share of the gain so far that each further view must add.
WORTH: dict[Answers, float] = {"kept": 0.1, "free": 0.03}
# How many candidates are fitted after the screen, of all and of the lossless ones; the others must come at least this
# near to the expected gain of the best one.
_CONTENDERS, _NEAR = 2, 0.8
# gate="auto" takes the lowest of these that keeps this share of the gain.
_GATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_SHARE_KEPT = 0.95


@dataclass(frozen=True)
class Material:
    """The data of the choice, for n samples."""

    features: NDArray[np.float32]
    """(n_base + n_candidates, n, n_classes): x of the original, of a mixture if there is one, of each candidate."""
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
    """The number of each sample's cluster: folds do not divide clusters, and standard errors count them."""

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_units(self) -> int:
        """How many samples, or clusters, a standard error is estimated from."""
        return self.n_samples if self.clusters is None else len(np.unique(self.clusters))

    def gain(self, before: Vector, after: Vector) -> LossGain:
        """Return how much lower the losses of all samples became."""
        return LossGain.between(before, after, self.weights, self.clusters)

    def problem(self, rows: NDArray[np.bool_] | None = None) -> StackMap:
        """Return the loss of all samples, or of some."""
        counts = np.ones(self.n_samples) if self.weights is None else self.weights
        counts = counts if rows is None else counts * rows
        total = float(counts.sum())
        ridge = self.features.shape[2] / total
        return StackMap(self.features, self.labels, counts / total, offset_penalty=ridge, n_base=self.n_base)


@dataclass(frozen=True)
class LossGain:
    """The decrease of the mean loss on samples left out, and its standard error."""

    mean: float
    error: float

    @staticmethod
    def between(
        before: Vector, after: Vector, weights: Vector | None = None, clusters: NDArray[np.intp] | None = None
    ) -> LossGain:
        difference = before - after
        if len(difference) < 2:
            return LossGain(float(difference.mean()), np.inf)
        if clusters is not None:
            mean = float(np.average(difference, weights=weights))
            residuals = difference - mean if weights is None else weights * (difference - mean)
            sums, total = cluster_sums(residuals, clusters), len(difference) if weights is None else weights.sum()
            if len(sums) < 2:
                return LossGain(mean, np.inf)
            return LossGain(mean, float(np.sqrt(len(sums) / (len(sums) - 1) * (sums @ sums)) / total))
        if weights is None:
            return LossGain(float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference))))
        shares = weights / weights.sum()
        mean = float(shares @ difference)
        return LossGain(mean, float(np.sqrt(np.square(shares) @ np.square(difference - mean))))

    @property
    def is_clear(self) -> bool:
        return self.mean > self.error

    def exceeds(self, errors: float, n_samples: int) -> bool:
        """Whether it is larger than so many standard errors; more when there are too few samples to estimate them."""
        return self.mean > (errors + 5.0 / np.sqrt(n_samples)) * self.error

    @property
    def trust(self) -> float:
        """The share of the change to keep: 0 if the gain is within one standard error, otherwise 3/4 or more."""
        return 1.0 - (0.5 * self.error / self.mean) ** 2 if self.is_clear else 0.0


@dataclass(frozen=True)
class Choice:
    """The chosen stack and the evidence.

    `base` is the stack without views, or None for plain temperature scaling; `stack` the one with views, or None if
    they are not worth their cost. `order` holds the candidates in the order of the path on all samples, `gains` what
    each added.
    """

    base: Stack | None
    base_gain: LossGain
    base_losses: Vector
    stack: Stack | None
    gate: float | None
    order: tuple[int, ...]
    gains: tuple[LossGain, ...]
    alone: Vector
    """The gain of each candidate alone over the stack without views, to second order."""
    losses: Vector
    """Losses of the samples left out under the chosen stack."""


class GrowingStack:
    """A greedy path on part of the samples: the stack without views, then with one view more at each step."""

    def __init__(self, material: Material, rows: NDArray[np.bool_]) -> None:
        self.material, self.rows = material, rows
        self.map = material.problem(rows)
        self.stacks = [self.map.solve(tuple(range(material.n_base)), tol=_SEARCH_TOL)]

    @property
    def ended(self) -> bool:
        return len(self.stacks) > 1 and self.stacks[-1].used == self.stacks[-2].used

    def extend(self) -> None:
        """Add the best view; if none helps, repeat the last stack."""
        last = self.stacks[-1]
        rest = tuple(v for v in range(self.material.n_base, len(self.material.features)) if v not in last.used)
        self.map.evaluate(last)
        gains = self.map.promised_gains(last, rest) if rest else np.zeros(0)
        tried = [self._try(last, rest[i]) for i in self._contenders(rest, gains)]
        self.stacks.append(self._best(tried) if tried else last)

    def _contenders(self, rest: tuple[int, ...], gains: Vector) -> list[int]:
        ranked = [int(i) for i in np.argsort(-gains, kind="stable") if gains[i] > 0.0]
        lossless = [i for i in ranked if self.material.lossless[rest[i] - self.material.n_base]]
        chosen = [i for few in (ranked, lossless) for i in few[:_CONTENDERS] if gains[i] >= _NEAR * gains[few[0]]]
        return list(dict.fromkeys(chosen))

    def _try(self, last: Stack, view: int) -> tuple[Stack, Vector]:
        stack = self.map.solve((*last.used, view), last, tol=_SEARCH_TOL)
        return stack, self.map.losses.copy()

    def _best(self, tried: list[tuple[Stack, Vector]]) -> Stack:
        """Return the contender with the least loss; a lossy one only if it is clearly better."""
        tried = sorted(tried, key=lambda pair: pair[0].loss)
        gentle = [pair for pair in tried if self.material.lossless[pair[0].used[-1] - self.material.n_base]]
        if not gentle or gentle[0] is tried[0]:
            return tried[0][0]
        rows = self.rows
        weights = None if self.material.weights is None else self.material.weights[rows]
        clusters = None if self.material.clusters is None else self.material.clusters[rows]
        clear = LossGain.between(gentle[0][1][rows], tried[0][1][rows], weights, clusters).is_clear
        return tried[0][0] if clear else gentle[0][0]

    def delivered(self, stack: Stack, where: NDArray[np.intp]) -> Vector:
        """Return the losses of some samples under a stack, after the guard."""
        self.map.evaluate(stack)
        if not self.material.kept:
            return self.map.losses[where]
        labels = self.material.labels[where]
        probs = keep_answers(self.map.probs[where].astype(np.float64), self.material.answers[where, None])
        picked = probs[np.arange(len(where)), labels]
        return -np.log(np.maximum(picked, np.finfo(np.float64).tiny))


@dataclass
class CrossFit:
    """The paths of all folds, grown together, and the losses of the samples left out."""

    material: Material
    rng: np.random.Generator
    paths: list[tuple[GrowingStack, NDArray[np.intp]]] = field(init=False)

    def __post_init__(self) -> None:
        count = _MANY_FOLDS if self.material.n_samples < _FEW_SAMPLES else N_FOLDS
        material = self.material
        folds = stratified_folds(material.labels, count, self.rng, material.copies, material.clusters)
        numbers = range(int(folds.max()) + 1)
        self.paths = [(GrowingStack(material, folds != fold), np.flatnonzero(folds == fold)) for fold in numbers]

    def extend(self) -> None:
        for path, _ in track(self.paths, "on samples left out, fold"):
            path.extend()

    def losses(self) -> Vector:
        """Return the loss of every sample under the path that did not see it, at its current length."""
        losses = np.empty(self.material.n_samples)
        for path, left_out in self.paths:
            losses[left_out] = path.delivered(path.stacks[-1], left_out)
        return losses


def choose_views(
    material: Material,
    rng: np.random.Generator,
    *,
    max_views: int,
    gate: float | str | None,
    no_harm: bool,
    worth: float,
) -> Choice:
    """Return the stack to use, by the rules above."""
    whole = GrowingStack(material, np.ones(material.n_samples, dtype=bool))
    whole.stacks[0] = whole.map.solve(whole.stacks[0].used, whole.stacks[0])
    candidates = tuple(range(material.n_base, len(material.features)))
    alone = whole.map.promised_gains(whole.stacks[0], candidates) if candidates else np.zeros(0)
    if effective_count(material.plain_losses, material.clusters) < LEAST_SAMPLES:
        nothing = LossGain(0.0, np.inf)
        return Choice(None, nothing, material.plain_losses, None, None, (), (), alone, material.plain_losses)
    crossed = CrossFit(material, rng)
    offset_losses = crossed.losses()
    counts = material.weights
    base_gain = material.gain(material.plain_losses, offset_losses)
    with_offsets = base_gain.exceeds(2.0, material.n_units) or not no_harm
    base_losses = offset_losses if with_offsets else material.plain_losses
    trust = base_gain.trust if no_harm else 1.0
    base = drawn_back(whole.stacks[0], _plain(whole.stacks[0]), trust) if with_offsets else None
    confident = above_gate(gate, material)
    gains: list[LossGain] = []
    order: list[int] = []
    losses, chosen, gate_used = base_losses, 0, gate if isinstance(gate, float) else None
    for length in track(range(1, min(max_views, len(candidates)) + 1), "choosing view"):
        crossed.extend()
        whole.extend()
        if whole.ended:
            break
        stacked = crossed.losses()
        new = np.where(confident, base_losses, stacked)
        gains.append(material.gain(losses, new))
        order.append(whole.stacks[-1].used[-1])
        gained, left = np.average([base_losses - losses, losses], axis=1, weights=counts)
        least = worth * float(gained) if chosen else _LEAST_SHARE * float(left)
        if not (_pays(gains[-1], least, chosen, material.n_units) or (length == 1 and not no_harm)):
            break
        losses, chosen = new, length
        if gate == "auto":
            gate_used = _lowest_gate(material.confidence, base_losses - stacked)
    stack = None
    if chosen:
        trust = material.gain(base_losses, losses).trust if no_harm else 1.0
        full = whole.map.solve(whole.stacks[chosen].used, whole.stacks[chosen])
        without = whole.stacks[0] if with_offsets else _plain(whole.stacks[0])
        stack = drawn_back(full, without, trust)
    return Choice(
        base, base_gain, base_losses, stack, gate_used, tuple(order), tuple(gains), alone, losses
    )  # fmt: skip


def _pays(gain: LossGain, least: float, chosen: int, n_samples: int) -> bool:
    """Whether another view is worth its forward pass; the first needs a clearer gain if there are few samples."""
    clear = gain.is_clear if chosen else gain.exceeds(1.0, n_samples)
    return clear and gain.mean >= least


@dataclass(frozen=True)
class JudgedStack:
    """The stack of all features, the one without views, and how the first does on samples left out."""

    base: Stack
    stack: Stack
    losses: Vector
    gain: LossGain
    pays: bool
    """Whether the gain over the last feature that is not a view is worth the forward passes."""
    matrices: NDArray[np.float64] | None = None
    """Class-wise weights, (1 + n_views, n_classes, n_classes); see `class_weights`."""


def judged_stack(material: Material, gate: float | None, rng: np.random.Generator) -> JudgedStack:
    """Return the stack of all features. Its views were chosen before; samples above the gate use none of them."""
    every, n_base = tuple(range(len(material.features))), material.n_base
    crossed = CrossFit(material, rng)
    without = crossed.losses()
    for path, _ in crossed.paths:
        path.stacks.append(path.map.solve(every, path.stacks[-1], tol=_SEARCH_TOL))
    losses = np.where(above_gate(gate, material), without, crossed.losses())
    gain = material.gain(material.plain_losses, losses)
    problem = material.problem()
    base = problem.solve(every[:n_base])
    stack = drawn_back(problem.solve(every, base), base, gain.trust)
    return JudgedStack(base, stack, losses, gain, pays(gain, len(every) - n_base, material))


def pays(gain: LossGain, n_passes: int, material: Material) -> bool:
    """Whether the gain over the last feature that is not a view is clear and worth so many forward passes."""
    plain = float(np.average(material.plain_losses, weights=material.weights))
    return _pays(gain, n_passes * _LEAST_SHARE * plain, 0, material.n_units)


def _plain(stack: Stack) -> Stack:
    """Return the last feature that is not a view, as a stack: temperature scaling, or the mixture."""
    base = tuple(range(stack.n_base))
    return Stack(base, np.eye(stack.n_base)[-1], np.zeros_like(stack.offsets), np.nan, stack.n_base)


def drawn_back(stack: Stack, base: Stack, trust: float) -> Stack:
    """Shrink a stack towards the one without views: keep a share `trust` of the change."""
    weights = trust * stack.weights
    weights[: stack.n_base] += (1.0 - trust) * base.weights[: stack.n_base]
    offsets = trust * stack.offsets + (1.0 - trust) * base.offsets
    return Stack(stack.used, weights, offsets, stack.loss, stack.n_base)


def above_gate(gate: float | str | None, material: Material) -> NDArray[np.bool_]:
    if isinstance(gate, float):
        return material.confidence >= gate
    return np.zeros(material.n_samples, dtype=bool)


def _lowest_gate(confidence: Vector, gains: Vector) -> float | None:
    """Return the lowest gate that keeps nearly all of the gain; None if no gate does."""
    total = gains.sum()
    for gate in _GATES:
        if gains[confidence < gate].sum() >= _SHARE_KEPT * total:
            return gate
    return None
