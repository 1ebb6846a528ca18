"""What a fit produces and every runtime replays: a small immutable value, of steps or of a blend."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np

from recal.engine.grouping import ConfidenceAt, Program, Rule, Ties
from recal.errors import InputError, NotFittedError
from recal.maps.arrays import linear, soft_log_probs, softmax
from recal.maps.base import Array, Map, Views, like, namespace, wide
from recal.maps.guard import answer_views
from recal.maps.scaling import scaled_answers
from recal.maps.steps import compiled_scales, is_small, step_probs
from recal.schema import LARGEST
from recal.transforms import Transform, as_transform
from recal.transforms.base import shown
from recal.views import Views as ViewSet

__all__ = ["NEUTRAL", "Answers", "Blend", "ConfidenceAt", "Plan", "Rule", "Step", "Ties", "plan_of"]
Answers = Literal["kept", "free"]

NEUTRAL = (1.0, 1.0, 1.0, 1.0)
# How many logits are looked at together: some megabytes as float64.
_BLOCK = 1_000_000


@dataclass(frozen=True)
class Step:
    """One transformation and one beta for each group, by `Group`: CHANGED_ROSE, CHANGED_FELL, KEPT_ROSE, KEPT_FELL."""

    transform: Transform
    betas: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transform", as_transform(self.transform))
        betas = tuple(self.betas) if isinstance(self.betas, Iterable) else ()
        if len(betas) != 4 or not all(_is_beta(beta) for beta in betas):
            raise InputError(f"A step needs four positive finite betas, one per group, got {self.betas!r}.")
        object.__setattr__(self, "betas", tuple(float(beta) for beta in betas))

    @property
    def is_neutral(self) -> bool:
        """Whether the step changes nothing, so that a runtime needs no forward pass for it."""
        return self.betas == NEUTRAL


@dataclass(frozen=True)
class Blend:
    """A sum of log-probabilities: the original's, those of some views, and one offset per class.

    With x(z) = log((1 - epsilon) softmax(start z) + epsilon / K) a sample's probabilities are

        softmax(own x(original) + sum of weight x(view) + offsets),

    or, where its confidence softmax(start z) reaches `gate`, softmax(gated_own x(original) + gated_offsets), which
    needs no view. With answers kept the model's own answer stays the likeliest (`recal.maps.guard`). Where there are
    `matrices`, M x is added for the original and each view below the gate: class-wise weights.

    Parameters
    ----------
    own : float >= 0
        The weight of the original.
    weights : pairs of a transformation and its weight > 0
        None at all for a map that needs no views.
    offsets : one number per class, or ()
    epsilon : float in (0, 1)
        How much of each prediction is replaced by chance, so that every logarithm is finite.
    gate : float in (0, 1] or None
        The confidence from which on no view is used; None uses them always.
    gated_own, gated_offsets :
        What acts at and above the gate.
    answers : {"kept", "free"}
    mixture, gated_mixture : float >= 0
        The weight of log((1 - epsilon) p + epsilon / K) below and above the gate, p being what an ensemble's mixture
        gives; such a blend is replayed by its ensemble.
    matrices : one matrix of n_classes rows and columns for the original and each view, or ()
        Entry (i, j) is what the log-probability of class j adds to the score of class i.

    Examples
    --------
    >>> from recal.maps.plan import Blend, Plan
    >>> plan = Plan(start=0.5, blend=Blend(0.6, (("zoom:0.8", 0.4),), (), 1e-4, gate=0.9, gated_own=1.1))
    >>> plan.needs_views(np.array([[9.0, 0.0], [1.0, 0.0]])).tolist()
    [False, True]
    """

    own: float
    weights: tuple[tuple[Transform, float], ...]
    offsets: tuple[float, ...]
    epsilon: float
    gate: float | None = None
    gated_own: float = 1.0
    gated_offsets: tuple[float, ...] = ()
    answers: Answers = "kept"
    mixture: float = 0.0
    gated_mixture: float = 0.0
    matrices: tuple[tuple[tuple[float, ...], ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("own", "gated_own", "mixture", "gated_mixture"):
            object.__setattr__(self, name, _number(getattr(self, name), f"`{name}`", least=0.0))
        for name in ("offsets", "gated_offsets"):
            given = getattr(self, name)
            values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
            object.__setattr__(self, name, tuple(_number(value, f"each of `{name}`") for value in values))
        if self.offsets and self.gated_offsets and len(self.offsets) != len(self.gated_offsets):
            raise InputError(
                "A blend's `offsets` and `gated_offsets` must have one number per class each, got "
                f"{len(self.offsets)} and {len(self.gated_offsets)}."
            )
        if not (_is_number(self.epsilon) and 0.0 < self.epsilon < 1.0):
            raise InputError(f"A blend's `epsilon` must lie in (0, 1), got {self.epsilon!r}.")
        if self.gate is not None and not (_is_number(self.gate) and 0.0 < self.gate <= 1.0):
            raise InputError(f"A blend's `gate` must lie in (0, 1] or be None, got {self.gate!r}.")
        if self.answers not in ("kept", "free"):
            raise InputError("must be 'kept' or 'free'", argument="answers", came=f"got {self.answers!r}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "gate", None if self.gate is None else float(self.gate))
        object.__setattr__(self, "matrices", self._read_matrices())
        object.__setattr__(self, "weights", self._read_weights())

    def _read_matrices(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        try:
            made = tuple(
                tuple(tuple(_number(value, "each entry of `matrices`") for value in row) for row in matrix)
                for matrix in self.matrices
            )
        except TypeError:
            raise InputError("must be a list of matrices", argument="matrices") from None
        size = len(self.offsets)
        if made and len(made) != 1 + len(self.weights):
            raise InputError("must be one matrix for the original and each view", argument="matrices")
        if any(len(matrix) != size or any(len(row) != size for row in matrix) for matrix in made):
            raise InputError("must have a row and a column for each of the `offsets`", argument="matrices")
        return made

    def _read_weights(self) -> tuple[tuple[Transform, float], ...]:
        pairs = [pair if isinstance(pair, tuple | list) else () for pair in self.weights or ()]
        if not all(len(pair) == 2 for pair in pairs):
            raise InputError(
                f"A blend's `weights` must be pairs of a transformation and a number, got {self.weights!r}."
            )
        made = tuple((as_transform(key), _number(weight, f"the weight of {key}", least=0.0)) for key, weight in pairs)
        useless = [str(transform) for transform, weight in made if weight == 0.0]
        if useless and not self.matrices:
            raise InputError(f"A view of weight 0 would cost a forward pass for nothing; leave out {useless[0]}.")
        if len({transform for transform, _ in made}) != len(made):
            raise InputError(f"A blend names a transformation twice: {', '.join(str(key) for key, _ in made)}.")
        return made

    @property
    def needs_mixture(self) -> bool:
        """Whether an ensemble's mixture is part of it."""
        return self.mixture > 0.0 or self.gated_mixture > 0.0

    @property
    def n_classes(self) -> int | None:
        """How many classes the offsets speak of; None where there are no offsets."""
        return len(self.offsets) or len(self.gated_offsets) or None

    def lines(self) -> list[str]:
        """Return what a person wants to know of it, line by line."""
        parts: list[tuple[Any, float]] = [("mixture", self.mixture)] if self.needs_mixture else []
        parts += [("original", self.own), *self.weights]
        lines = [f"  {name!s:<16} {weight:.4f}" for name, weight in parts]
        lines += [f"  {name:<16} {_range(values)}" for name, values in (("class offsets", self.offsets),) if values]
        if self.matrices:
            entries = tuple(value for matrix in self.matrices for row in matrix for value in row)
            lines.append(f"  {'class weights':<16} {_range(entries)}, added to the weights above")
        if self.gate is not None and self.weights:
            alone = f"mixture {self.gated_mixture:.4f}, " if self.needs_mixture else ""
            alone += f"original {self.gated_own:.4f}"
            alone += f", class offsets {_range(self.gated_offsets)}" if self.gated_offsets else ""
            lines.append(f"  no view at a confidence of {self.gate:g} or more: {alone}")
        return lines


class Plan(Map):
    """Scale all logits by `start`, then replay `steps` and scale the original's logits by `finish`, or apply `blend`.

    A plan has steps or a blend, never both. Plain temperature scaling is a plan with a start and neither.

    Examples
    --------
    >>> from recal import Plan, Step
    >>> plan = Plan(steps=(Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)), Step("zoom:0.7", (1.0, 1.0, 1.0, 1.0))))
    >>> [str(t) for t in plan.transforms]
    ['zoom:0.5']
    """

    steps: tuple[Step, ...] = ()
    start: float = 1.0
    finish: float = 1.0
    rule: Rule = Rule()
    blend: Blend | None = None

    def __post_init__(self) -> None:
        steps = tuple(self.steps) if isinstance(self.steps, Iterable) else (self.steps,)
        if not all(isinstance(step, Step) for step in steps):
            raise InputError(f"A plan's `steps` must be Step(transform, betas), got {self.steps!r}.")
        object.__setattr__(self, "steps", steps)
        for name in ("start", "finish"):
            value = getattr(self, name)
            if not _is_beta(value):
                raise InputError(f"A plan's `{name}` must be a positive finite beta, got {value!r}.")
            object.__setattr__(self, name, float(value))
        if not isinstance(self.rule, Rule):
            raise InputError(f"A plan's `rule` must be a Rule, got {self.rule!r}.")
        if self.blend is None:
            return
        if not isinstance(self.blend, Blend):
            raise InputError(f"A plan's `blend` must be a Blend or None, got {self.blend!r}.")
        if self.steps or self.finish != 1.0 or self.rule != Rule():
            raise InputError("A plan has steps or a blend, not both; a blend has no use for `finish` and `rule`.")

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """The distinct transformations that a runtime must compute, in the order of first use."""
        if self.blend is not None:
            return tuple(transform for transform, _ in self.blend.weights)
        return tuple(dict.fromkeys(step.transform for step in self.steps if not step.is_neutral))

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        return self.blend is None

    @property
    def keeps_answers(self) -> bool:
        """Whether predictions never change."""
        return self.blend is None or self.blend.answers == "kept"

    @property
    def n_classes(self) -> int | None:
        return None if self.blend is None else self.blend.n_classes

    @property
    def gate(self) -> float | None:
        """The confidence from which on no view is computed; None if there is no gate, or no view."""
        return None if self.blend is None or not self.blend.weights else self.blend.gate

    def with_gate(self, gate: float | None) -> Plan:
        """Return the same plan with another gate; None computes the views of all samples."""
        return self if self.blend is None else replace(self, blend=replace(self.blend, gate=gate))

    @cached_property
    def program(self) -> Program:
        """The steps that change something, as arrays: each one's index in `transforms`, and its four betas."""
        index = {transform: number for number, transform in enumerate(self.transforms)}
        steps = [step for step in self.steps if not step.is_neutral]
        views = np.array([index[step.transform] for step in steps], dtype=np.intp)
        return views, np.array([step.betas for step in steps], dtype=np.float64).reshape(-1, 4)

    @property
    def plan(self) -> Plan:
        return self

    def needs_views(self, logits: Array) -> Array:
        """Return for each sample whether its views must be computed, (n_samples,): its confidence is below the gate.

        Decided from the original's logits alone, row by row, in float64.
        """
        gate = None if self.blend is None else self.blend.gate
        if gate is None or not self.transforms:
            return super().needs_views(logits)
        if not isinstance(logits, np.ndarray):
            return self._is_below(wide(logits), gate)
        needed = np.empty(len(logits), dtype=bool)
        size = max(1, _BLOCK // logits.shape[1])
        for begin in range(0, len(logits), size):
            block = np.ascontiguousarray(logits[begin : begin + size], dtype=np.float64)
            needed[begin : begin + size] = self._is_below(block, gate)
        return needed

    def _is_below(self, z: Array, gate: float) -> Array:
        xp = namespace(z)
        weights = xp.exp((z - xp.max(z, axis=1, keepdims=True)) * self.start)
        return 1.0 / xp.sum(weights, axis=1) < gate

    def probs(self, z: Array, views: Views = ()) -> Array:
        if self.blend is None:
            return step_probs(self.program, self.start, self.finish, self.rule, z, views)
        if self.blend.needs_mixture:
            raise InputError("This plan is part of an ensemble of calibrators", remedy="Use the ensemble itself")
        return self.blended(z, views)

    def compiled(self, z: Array, views: Views) -> tuple[Array, Array] | None:
        if self.rule.floor is not None or is_small(self.program, z):
            return None
        return scaled_answers(z, compiled_scales(self.program, self.start, self.finish, self.rule, z, views))

    def blended(self, z: Array, views: Views = (), mixed: Array | None = None) -> Array:
        """Return the probabilities of the blend; `mixed` is what an ensemble's mixture gives, where that is part of it.

        Without views, all samples are taken to be above the gate.
        """
        blend = self.blend
        assert blend is not None
        x = soft_log_probs(z, self.start, blend.epsilon)
        members = None
        if mixed is not None and blend.needs_mixture:
            members = namespace(z).log(mixed * (1.0 - blend.epsilon) + blend.epsilon / z.shape[1])
        if blend.weights and not views:
            return softmax(_weighed(x, blend.gated_own, blend.gated_offsets, members, blend.gated_mixture))
        scores = _weighed(x, blend.own, blend.offsets, members, blend.mixture)
        parts = [soft_log_probs(view, self.start, blend.epsilon) for view in views]
        for (_, weight), part in zip(blend.weights, parts):
            scores = scores + part * weight
        for matrix, part in zip(blend.matrices, [x, *parts]):
            scores = scores + linear(part, np.array(matrix))
        if blend.weights and blend.gate is not None:
            above = _weighed(x, blend.gated_own, blend.gated_offsets, members, blend.gated_mixture)
            xp = namespace(z)
            scores = xp.where(xp.expand_dims(self.needs_views(z), axis=1), scores, above)
        return softmax(scores)

    def __str__(self) -> str:
        start = f"Plan: temperature {1 / self.start:.4g}"
        if self.blend is not None:
            changes = "never change" if self.blend.answers == "kept" else "may change"
            return "\n".join(
                [f"{start}, then stacking with {self._views()}. Predictions {changes}.", *self.blend.lines()]
            )
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        lines = [f"{start}, then {steps} with {self._views()}" if self.steps else f"{start}, no steps"]
        lines += [
            f"  {number:>3}  {step.transform!s:<16} " + " ".join(f"{beta:.4f}" for beta in step.betas)
            for number, step in enumerate(self.steps, 1)
        ]
        if self.finish != 1.0:
            lines.append(f"  finish temperature {1 / self.finish:.4g}")
        return "\n".join(lines)

    def _views(self) -> str:
        """How many views there are to compute, and the first of them by name."""
        count = len(self.transforms)
        named = ", ".join(map(shown, self.transforms[:3])) + (", ..." if count > 3 else "")
        return f"{count} view{'' if count == 1 else 's'} ({named})" if count else "no views"


def _weighed(x: Array, own: float, offsets: tuple[float, ...], members: Array | None, mixture: float) -> Array:
    scores = x * own
    scores = scores + like(x, np.array(offsets)) if offsets else scores
    return scores if members is None else scores + members * mixture


def _range(values: tuple[float, ...]) -> str:
    return f"from {min(values):+.4f} to {max(values):+.4f}"


def _number(value: Any, name: str, least: float = -np.inf) -> float:
    """Return a finite number, no less than `least`."""
    try:
        number = float(value) if _is_number(value) else np.nan
    except OverflowError:  # an integer beyond all floats
        number = np.inf
    if not (np.isfinite(number) and number >= least):
        rule = "a finite number" if least < 0.0 else "a finite number of at least 0"
        raise InputError(f"In a blend {name} must be {rule}, got {value!r}.")
    return number


def _is_beta(value: Any) -> bool:
    try:
        return _is_number(value) and 0.0 < float(value) < float("inf")
    except OverflowError:  # an integer beyond all floats
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_plan(plan: Any, n_classes: int) -> None:
    """Refuse a plan for other classes, and one whose numbers together are beyond any float."""
    if not isinstance(plan, Plan):
        raise InputError("must be a plan", argument="plan_", came=f"got {type(plan).__name__}")
    widest = math.log(plan.start) + math.log(plan.finish) + sum(math.log(max(step.betas)) for step in plan.steps)
    blend, numbers = plan.blend, [plan.start]
    if blend is not None:
        numbers += [blend.own, blend.gated_own, blend.mixture, blend.gated_mixture]
        numbers += [weight for _, weight in blend.weights] + [*blend.offsets, *blend.gated_offsets]
        numbers += [value for matrix in blend.matrices for row in matrix for value in row]
    if widest > math.log(LARGEST) or any(abs(value) > LARGEST for value in numbers):
        raise InputError(f"holds numbers that together exceed {LARGEST:g}", argument="plan_")
    if blend is not None and blend.n_classes not in (None, n_classes):
        raise InputError(
            f"has offsets for {blend.n_classes} classes, and `classes_` names {n_classes}", argument="plan_"
        )


def calibrated_probs(plan: Plan, views: ViewSet) -> np.ndarray:
    """Return the probabilities that the plan gives, (n_samples, n_classes); a row does not depend on the others.

    `Plan()` gives the model's own probabilities.
    """
    return answer_views(plan, views, kept=plan.keeps_answers)[0]


def plan_of(source: Any) -> Plan:
    """Return the plan, or that of a fitted calibrator."""
    if isinstance(source, Plan):
        return source
    name = type(source).__name__
    fitted = getattr(source, "map_", None)
    if isinstance(fitted, Map) and fitted.plan is not None:
        return fitted.plan
    if hasattr(source, "fit") and not hasattr(source, "classes_"):
        raise NotFittedError(f"This {name} is not fitted yet; call fit(X, y) first.")
    raise InputError(
        f"A Plan is needed, or a fitted calibrator that makes one (ViewStacking, ReCal, TemperatureScaling), "
        f"got {name}. Other methods run in numpy: predict_proba."
    )
