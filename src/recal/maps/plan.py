"""The plan that a fit produces and every runtime replays: a small immutable value with steps or a
blend.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from recal.engine.grouping import ConfidenceAt, Program, Rule, Ties
from recal.errors import InputError, NotFittedError
from recal.maps.arrays import linear, row_max, row_sum, soft_log_probs, softmax
from recal.maps.base import Array, Map, Views, like, namespace, wide
from recal.maps.guard import answer_views
from recal.maps.scaling import scaled_answers
from recal.maps.steps import compiled_scales, is_small, step_probs
from recal.schema import LARGEST, Instance, Kind, ListOf, NotNegative, Number, Record, Sizes, check
from recal.transforms import Transform, as_transform
from recal.transforms.base import short_spec
from recal.views import Views as ViewSet

__all__ = ["NEUTRAL", "Answers", "Blend", "ConfidenceAt", "Plan", "Rule", "Step", "Ties", "plan_of"]
Answers = Literal["kept", "free"]

NEUTRAL = (1.0, 1.0, 1.0, 1.0)
# How many logits are processed at a time: a few megabytes as float64.
_BLOCK = 1_000_000


_BETA = Number(0.0, ends="()")
_BETA.rule = "a positive finite beta"
_WEIGHT, _NUMBERS = Number(0.0), ListOf(Number(), keep=tuple)
_MATRICES = ListOf(ListOf(_NUMBERS, keep=tuple), keep=tuple)
_MATRICES.rule = "a list of matrices of finite numbers"
Beta = Annotated[float, _BETA]
PerClass = Annotated[tuple[float, ...], _NUMBERS]


class Betas(Kind):
    """One beta for each group."""

    rule = "four positive finite betas, one per group"

    def read(self, value: Any, sizes: Sizes) -> tuple[float, ...]:
        betas: tuple[float, ...] = ListOf(_BETA, keep=tuple).read(value, sizes)
        if len(betas) != 4:
            raise ValueError
        return betas


class OneTransform(Kind):
    """A transformation, or its spec."""

    rule = "a transformation"

    def read(self, value: Any, sizes: Sizes) -> Transform:
        return as_transform(value)


class ViewWeights(Kind):
    """Transformations and their weights."""

    rule = "pairs of a transformation and a number"

    def read(self, value: Any, sizes: Sizes) -> tuple[tuple[Transform, float], ...]:
        if not isinstance(value, list | tuple) or not all(
            isinstance(pair, list | tuple) for pair in value
        ):
            raise ValueError
        if any(len(pair) != 2 for pair in value):
            raise ValueError
        return tuple(
            (as_transform(key), check(weight, _WEIGHT, f"the weight of {key}"))
            for key, weight in value
        )


class Step(Record):
    """One transformation and one beta for each group, by `Group`:

    CHANGED_ROSE, CHANGED_FELL, KEPT_ROSE, KEPT_FELL.
    """

    transform: Annotated[Transform, OneTransform()]
    betas: Annotated[tuple[float, float, float, float], Betas()]

    @property
    def is_neutral(self) -> bool:
        """Whether the step changes nothing, so that a runtime needs no forward pass for it."""
        return self.betas == NEUTRAL


class Blend(Record):
    """A sum of log-probabilities: the original's, those of some views, and one offset per class.

    With x(z) = log((1 - epsilon) softmax(start z) + epsilon / K) a sample's probabilities are

        softmax(own x(original) + sum of weight x(view) + offsets),

    or, if its confidence softmax(start z) reaches `gate`, softmax(gated_own x(original) +
    gated_offsets), which needs no view. If answers are kept, the model's prediction stays the
    likeliest class (`recal.maps.guard`). With `matrices`, M x is added for the original and each
    view below the gate: class-wise weights.

    Parameters
    ----------
    own : float >= 0
        The weight of the original.
    weights : pairs of a transformation and its weight > 0
        Empty for a map that needs no views.
    offsets : one number per class, or ()
    epsilon : float in (0, 1)
        The share of each prediction that is replaced by the uniform distribution, so that every
        logarithm is finite.
    gate : float in (0, 1] or None
        Samples with at least this confidence use no views; with None, all samples use them.
    gated_own, gated_offsets :
        The weight of the original and the offsets at and above the gate.
    answers : {"kept", "free"}
    mixture, gated_mixture : float >= 0
        The weight of log((1 - epsilon) p + epsilon / K) below and above the gate, where p are the
        probabilities of an ensemble's mixture. Such a blend is replayed by its ensemble.
    matrices : one matrix of n_classes rows and columns for the original and each view, or ()
        Entry (i, j) is the weight of the log-probability of class j in the score of class i.

    Examples
    --------
    >>> from recal.maps.plan import Blend, Plan
    >>> plan = Plan(start=0.5, blend=Blend(0.6, (("zoom:0.8", 0.4),), (), 1e-4, gate=0.9, gated_own=1.1))
    >>> plan.needs_views(np.array([[9.0, 0.0], [1.0, 0.0]])).tolist()
    [False, True]
    """

    own: NotNegative
    weights: Annotated[tuple[tuple[Transform, float], ...], ViewWeights()]
    offsets: PerClass
    epsilon: Annotated[float, Number(0.0, 1.0, ends="()")]
    gate: Annotated[float, Number(0.0, 1.0, ends="(]")] | None = None
    gated_own: NotNegative = 1.0
    gated_offsets: PerClass = ()
    answers: Answers = "kept"
    mixture: NotNegative = 0.0
    gated_mixture: NotNegative = 0.0
    matrices: Annotated[tuple[Any, ...], _MATRICES] = ()

    def check(self) -> None:
        size, above = len(self.offsets), len(self.gated_offsets)
        if size and above and size != above:
            raise InputError(
                f"A blend's `offsets` and `gated_offsets` must have one number per class each, got {size} and {above}."
            )
        if self.matrices and len(self.matrices) != 1 + len(self.weights):
            raise InputError(
                "must be one matrix for the original and each view", argument="matrices"
            )
        if any(
            len(matrix) != size or any(len(row) != size for row in matrix)
            for matrix in self.matrices
        ):
            raise InputError(
                "must have a row and a column for each of the `offsets`", argument="matrices"
            )
        useless = [str(transform) for transform, weight in self.weights if weight == 0.0]
        if useless and not self.matrices:
            raise InputError(
                f"A view of weight 0 would cost a forward pass for nothing; leave out {useless[0]}."
            )
        if len({transform for transform, _ in self.weights}) != len(self.weights):
            raise InputError(
                f"A blend names a transformation twice: {', '.join(str(key) for key, _ in self.weights)}."
            )

    @property
    def needs_mixture(self) -> bool:
        """Whether the blend contains an ensemble's mixture."""
        return self.mixture > 0.0 or self.gated_mixture > 0.0

    @property
    def n_classes(self) -> int | None:
        """The number of classes that the offsets are made for; None if there are no offsets."""
        return len(self.offsets) or len(self.gated_offsets) or None

    def lines(self) -> list[str]:
        """Describe the blend in lines of text."""
        parts: list[tuple[Any, float]] = [("mixture", self.mixture)] if self.needs_mixture else []
        parts += [("original", self.own), *self.weights]
        lines = [f"  {name!s:<16} {weight:.4f}" for name, weight in parts]
        if self.offsets:
            lines.append(f"  {'class offsets':<16} {_range(self.offsets)}")
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
    """Scale all logits by `start`, then replay `steps` and scale the original's logits by `finish`,
    or apply `blend`.

    A plan has steps or a blend, never both. Plain temperature scaling is a plan with a start and
    neither.

    Examples
    --------
    >>> from recal import Plan, Step
    >>> plan = Plan(steps=(Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)), Step("zoom:0.7", (1.0, 1.0, 1.0, 1.0))))
    >>> [str(t) for t in plan.transforms]
    ['zoom:0.5']
    """

    steps: Annotated[tuple[Step, ...], ListOf(Instance(Step), keep=tuple)] = ()
    start: Beta = 1.0
    finish: Beta = 1.0
    rule: Rule = Rule()
    blend: Blend | None = None

    def check(self) -> None:
        if self.blend is not None and (self.steps or self.finish != 1.0 or self.rule != Rule()):
            raise InputError(
                "A plan has steps or a blend, not both; a blend has no use for `finish` and `rule`."
            )

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
        """Samples with at least this confidence need no views; None if there is no gate or no view."""
        return None if self.blend is None or not self.blend.weights else self.blend.gate

    def with_gate(self, gate: float | None) -> Plan:
        """Return the same plan with another gate; None computes the views of all samples."""
        return self if self.blend is None else replace(self, blend=replace(self.blend, gate=gate))

    @cached_property
    def program(self) -> Program:
        """The steps that change something, as arrays: each one's index in `transforms`, and its
        four betas.
        """
        index = {transform: number for number, transform in enumerate(self.transforms)}
        steps = [step for step in self.steps if not step.is_neutral]
        views = np.array([index[step.transform] for step in steps], dtype=np.intp)
        return views, np.array([step.betas for step in steps], dtype=np.float64).reshape(-1, 4)

    @property
    def plan(self) -> Plan:
        return self

    def needs_views(self, logits: Array) -> Array:
        """Return for each sample whether its confidence is below the gate, so that it needs its
        views, (n_samples,).

        This depends on the original's logits alone and is computed row by row in float64.
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
        weights = namespace(z).exp((z - row_max(z)) * self.start)
        return (1.0 / row_sum(weights) < gate)[:, 0]

    def probs(self, z: Array, views: Views = ()) -> Array:
        if self.blend is None:
            return step_probs(self.program, self.start, self.finish, self.rule, z, views)
        if self.blend.needs_mixture:
            raise InputError(
                "This plan is part of an ensemble of calibrators", remedy="Use the ensemble itself"
            )
        return self.blended(z, views)

    @property
    def in_parts(self) -> bool:  # type: ignore[override]
        return self.blend is not None or self.rule.floor is not None

    def compiled(self, z: Array, views: Views) -> tuple[Array, Array] | None:
        if self.rule.floor is not None or is_small(self.program, z):
            return None
        return scaled_answers(
            z, compiled_scales(self.program, self.start, self.finish, self.rule, z, views)
        )

    def blended(self, z: Array, views: Views = (), mixed: Array | None = None) -> Array:
        """Return the probabilities of the blend; `mixed` are those of an ensemble's mixture, if the
        blend contains one.

        Without views, all samples are treated as above the gate.
        """
        blend = self.blend
        assert blend is not None
        x = soft_log_probs(z, self.start, blend.epsilon)
        members = None
        if mixed is not None and blend.needs_mixture:
            members = namespace(z).log(mixed * (1.0 - blend.epsilon) + blend.epsilon / z.shape[1])
        if blend.weights and not views:
            return softmax(
                _weighed(x, blend.gated_own, blend.gated_offsets, members, blend.gated_mixture)
            )
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
                [
                    f"{start}, then stacking with {self._views()}. Predictions {changes}.",
                    *self.blend.lines(),
                ]
            )
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        lines = [
            f"{start}, then {steps} with {self._views()}" if self.steps else f"{start}, no steps"
        ]
        lines += [
            f"  {number:>3}  {step.transform!s:<16} "
            + " ".join(f"{beta:.4f}" for beta in step.betas)
            for number, step in enumerate(self.steps, 1)
        ]
        if self.finish != 1.0:
            lines.append(f"  finish temperature {1 / self.finish:.4g}")
        return "\n".join(lines)

    def _views(self) -> str:
        """The number of views to compute, and the names of the first three."""
        count = len(self.transforms)
        named = ", ".join(map(short_spec, self.transforms[:3])) + (", ..." if count > 3 else "")
        return f"{count} view{'' if count == 1 else 's'} ({named})" if count else "no views"


def _weighed(
    x: Array, own: float, offsets: tuple[float, ...], members: Array | None, mixture: float
) -> Array:
    scores = x * own
    scores = scores + like(x, np.array(offsets)) if offsets else scores
    return scores if members is None else scores + members * mixture


def _range(values: tuple[float, ...]) -> str:
    return f"from {min(values):+.4f} to {max(values):+.4f}"


def check_plan(plan: Any, n_classes: int) -> None:
    """Refuse a plan for a different number of classes, and one whose numbers together exceed
    `LARGEST`.
    """
    if not isinstance(plan, Plan):
        raise InputError(f"must be a plan, got {type(plan).__name__}", argument="plan_")
    widest = (
        math.log(plan.start)
        + math.log(plan.finish)
        + sum(math.log(max(step.betas)) for step in plan.steps)
    )
    blend, numbers = plan.blend, [plan.start]
    if blend is not None:
        numbers += [blend.own, blend.gated_own, blend.mixture, blend.gated_mixture]
        numbers += [weight for _, weight in blend.weights] + [*blend.offsets, *blend.gated_offsets]
        numbers += [value for matrix in blend.matrices for row in matrix for value in row]
    if widest > math.log(LARGEST) or any(abs(value) > LARGEST for value in numbers):
        raise InputError(f"holds numbers that together exceed {LARGEST:g}", argument="plan_")
    if blend is not None and blend.n_classes not in (None, n_classes):
        raise InputError(
            f"has offsets for {blend.n_classes} classes, and `classes_` names {n_classes}",
            argument="plan_",
        )


def calibrated_probs(plan: Plan, views: ViewSet) -> np.ndarray:
    """Return the probabilities that the plan gives, (n_samples, n_classes); a row does not depend
    on the others.

    `Plan()` gives the model's own probabilities.
    """
    return answer_views(plan, views, kept=plan.keeps_answers)[0]


def plan_of(source: Any) -> Plan:
    """Return a plan itself, or the plan of a fitted calibrator."""
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
