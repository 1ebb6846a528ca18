"""Stacking, a weighted sum of the log-probabilities of the original and of a few views; and plain
averaging over views.

Views are chosen by forward selection, in which samples left out decide about every step.

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
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import GuardedCalibrator, from_fit
from recal.calibrators.samples import LossGain, Samples
from recal.checks import Flags, Floats, Indices, Matrix, Vector
from recal.clusters import each_fold, effective_count
from recal.engine.series import ScaledLogits
from recal.maps.arrays import softmax
from recal.maps.blend import Answers, Blend, ViewMean
from recal.maps.steps import Plan
from recal.progress import track
from recal.schema import Number, RandomState, Size
from recal.solvers.softmax import NEAR_TOL, LinearMap, Stack, StackedMap
from recal.transforms import Transform

# The most values in memory, as float32: 200 MB. With more, candidates are shortlisted and samples
# drawn at random.
_MOST_VALUES = 50_000_000
_SHORTLIST = 8
# With fewer samples no view is chosen: with 50, one fit in forty chose a view by chance, which cost
# up to 25 % NLL.
LEAST_SAMPLES = 100
# The share of the loss that the first view must gain.
_LEAST_SHARE = 0.005
# Tolerance of the search, far below any relevant gain; the chosen stack is fitted exactly.
_SEARCH_TOL = 1e-6


class ViewStacking(GuardedCalibrator):
    """Combine the log-probabilities of the input and of a few transformed copies, usually one or
    two.

    With b the beta of temperature scaling and x(z) = log((1 - e) softmax(b z) + e/K), minimise over
    weights a >= 0 and offsets c the mean NLL of softmax(a_0 x(z) + c + sum of a_g x(view g)) plus
    K/n times the sum of c^2 and 5e-5 times the sum of a_g^2. Samples left out decide which views
    are used, so `fit` may get many candidates. Each further view must add a tenth of the gain so far,
    because it costs a forward pass (3 % if predictions may change). If no view helps, the result is temperature scaling,
    at no cost. Samples more confident than `gate` need no view.

    Parameters
    ----------
    max_views : int
        The most views that may be used. 0 fits offsets alone.
    gate : float in (0, 1] or None
        Samples with at least this confidence (after temperature scaling) need no views; None
        computes the views of all samples.
    no_harm : bool
        Use views and offsets only if the gain on samples left out clearly exceeds its standard
        error.
    random_state : int, Generator or None
        Seed of the folds.

    Attributes
    ----------
    plan_ : Blend, or Plan if neither views nor offsets help
        A blend, or plain temperature scaling.
    views_report_ : list of dict
        For each candidate: `view`; `alone`, its gain in mean NLL without other views (to second
        order, on the samples of the fit); `order`, its position in the search; `added` and
        `standard_error`, its gain on samples left out; `weight`, 0 if it is not used.

    Notes
    -----
    If the views exceed 50 million values, eight candidates are shortlisted by the gain that each
    has by itself, and a random subset of the samples is used. Views on disk are read one candidate
    at a time.

    Examples
    --------
    >>> from recal import Views, ViewStacking
    >>> rng, y = np.random.default_rng(0), np.arange(600) % 3
    >>> first, second = (3.0 * np.eye(3)[y] + 2.0 * rng.normal(size=(600, 3)) for _ in range(2))
    >>> stack = ViewStacking().fit(Views(first, {"flip": second}), y)
    >>> [str(transform) for transform in stack.plan_.transforms]
    ['flip']
    """

    short_name: ClassVar[str] = "stack"
    reads_views: ClassVar[bool] = True

    answers: Answers = "kept"
    max_views: Size = 3
    gate: Annotated[float, Number(0.0, 1.0, ends="(]")] | None = 0.99
    no_harm: bool = True
    random_state: RandomState = 0

    map_: Plan | Blend = from_fit()
    views_report_: list[dict[str, Any]] = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views, rng, beta = samples.views, np.random.default_rng(self.random_state), samples.beta
        candidates = views.transforms if self.max_views else ()
        epsilon = share_of_chance(len(samples))
        # What fits into memory.
        most = _MOST_VALUES // ((1 + min(len(candidates), _SHORTLIST)) * views.n_classes)
        samples = samples.drawn(most, rng)
        data = stack_data(samples, candidates, beta, epsilon, self.answers, self.gate)
        choice = choose_views(data, rng, max_views=self.max_views, no_harm=self.no_harm)
        plan = stack_plan(data, choice.base, choice.stack)
        return {"map_": plan, "views_report_": report_of(data, choice, plan)}


def share_of_chance(n_samples: int) -> float:
    """Return the share of the uniform distribution in probabilities before their logarithm is
    taken.
    """
    # A larger share than 1e-4 would compress the highest confidences, and predictions that views
    # have raised would then rank above them.
    return min(1e-4, 1.0 / (n_samples + 1.0))


def fill_log_probs(out: NDArray[np.float32], logits: Floats, beta: float, epsilon: float) -> None:
    """Write the values of `maps.arrays.soft_log_probs` into `out` in float32, in a third of the
    time.
    """
    size, n_classes = max(1, 200_000 // logits.shape[1]), logits.shape[1]
    for begin in range(0, len(logits), size):
        part = logits[begin : begin + size]
        x = out[begin : begin + size]
        x[:] = part - part.max(axis=1, keepdims=True)
        x *= np.float32(beta)
        np.exp(x, out=x)
        x *= np.float32(1.0 - epsilon) / x.sum(axis=1, keepdims=True)
        x += np.float32(epsilon / n_classes)
        np.log(x, out=x)


def stack_data(
    samples: Samples,
    candidates: tuple[Transform, ...],
    beta: float,
    epsilon: float,
    answers: Answers,
    gate: float | None,
) -> StackData:
    """Return the data of the choice: the original and each candidate, scaled by the temperature of
    the original.
    """
    candidates = _shortlist(samples, candidates, beta, epsilon)
    views, logits = samples.views, samples.logits
    features = np.empty((1 + len(candidates), *logits.shape), dtype=np.float32)
    fill_log_probs(features[0], logits, beta, epsilon)
    for place, transform in enumerate(candidates, 1):
        fill_log_probs(features[place], views.transformed(transform), beta, epsilon)
    state = ScaledLogits(logits)
    state.rescale(beta)
    log_partition = state.log_partition()
    confidence = np.exp(-log_partition)
    plain = log_partition - beta * state.drop_at(samples.labels)
    return StackData(samples, candidates, features, confidence, plain, beta, epsilon, answers, gate)


def _shortlist(
    samples: Samples, candidates: tuple[Transform, ...], beta: float, epsilon: float
) -> tuple[Transform, ...]:
    """Return the candidates, or those with the largest gain by themselves if they do not all fit
    into memory; one candidate is in memory at a time.
    """
    views, labels = samples.views, samples.labels
    size = labels.size * views.n_classes
    if (1 + len(candidates)) * size <= _MOST_VALUES or len(candidates) <= _SHORTLIST:
        return candidates
    pair = np.empty((2, len(labels), views.n_classes), dtype=np.float32)
    fill_log_probs(pair[0], views.logits, beta, epsilon)
    shares = np.full(len(labels), 1.0 / len(labels))
    problem = StackedMap(pair, labels, shares, offset_penalty=views.n_classes / len(labels))
    base = problem.solve((0,))
    gains = {}
    for transform in candidates:
        fill_log_probs(pair[1], views.transformed(transform), beta, epsilon)
        gains[transform] = float(problem.promised_gains(base, (1,))[0])
    best = sorted(candidates, key=lambda transform: -gains[transform])[:_SHORTLIST]
    return tuple(transform for transform in candidates if transform in best)


def stack_plan(
    data: StackData, base: Stack, stack: Stack | None, matrices: NDArray[np.float64] | None = None
) -> Plan | Blend:
    """Return the plan of a stack, which is `base` above the gate; without a stack, that of `base`."""

    def numbers(one: Stack) -> tuple[float, float, tuple[float, ...]]:
        offsets = tuple(one.offsets.tolist()) if one.offsets.any() else ()
        return float(one.weights[0]), float(one.weights[1 : one.n_base].sum()), offsets

    own, mixture, offsets = numbers(base if stack is None else stack)
    how: dict[str, Any] = {"answers": data.answers, "start": data.beta}
    if stack is None:
        no_views = Blend(own, (), offsets, data.epsilon, **how)
        return no_views if offsets else Plan(start=data.beta)
    how["gated_own"], how["gated_mixture"], how["gated_offsets"] = numbers(base)
    weights = tuple(
        (data.candidates[view - stack.n_base], float(weight))
        for view, weight in zip(stack.used, stack.weights)
        if view >= stack.n_base and (weight > 0.0 or matrices is not None)
    )
    if matrices is not None:
        how["matrices"] = matrices.tolist()
    return Blend(own, weights, offsets, data.epsilon, data.gate, mixture=mixture, **how)


def report_of(data: StackData, choice: ViewChoice, plan: Plan | Blend) -> list[dict[str, Any]]:
    """Return a record of each candidate, in the order of the search."""
    weights = dict(plan.weights) if isinstance(plan, Blend) else {}
    records = []
    for view, (transform, alone) in enumerate(zip(data.candidates, choice.alone.tolist()), 1):
        added = choice.gains.get(view)
        records.append(
            {
                "view": str(transform),
                "alone": alone,
                "order": None if added is None else list(choice.gains).index(view) + 1,
                "added": None if added is None else added.mean,
                "standard_error": None if added is None else added.error,
                "weight": weights.get(transform, 0.0),
            }
        )
    return sorted(records, key=lambda record: (record["order"] or np.inf, -record["alone"]))


class ViewAveraging(GuardedCalibrator):
    """Average the softmax over the original and all its views, as in test-time augmentation.

    It learns nothing: `fit` only stores which transformations to use. The
    average may predict another class than the model, and transformations that lose much information
    make it worse than no calibration: it suits mild views only. Reference: Bahat and Shakhnarovich,
    *Classification confidence estimation with test-time data-augmentation* (2020).

    Examples
    --------
    >>> from recal import Views
    >>> views = Views([[2.0, 0.0], [0.0, 1.0]], {"zoom:0.5": [[0.0, 0.0], [0.0, 3.0]]}, labels=[0, 1])
    >>> ViewAveraging().fit(views).predict_proba(views).round(3).tolist()
    [[0.69, 0.31], [0.158, 0.842]]
    """

    short_name = "tta"
    needs_views = True

    map_: ViewMean = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        return {"map_": ViewMean(samples.views.transforms, 1.0)}


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
    data :
        Contains all candidates after the original and the mixture.
    chosen :
        The candidates that stacking uses or would use, counted from 1.
    stacked :
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
