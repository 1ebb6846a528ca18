"""What a fit produces and every runtime replays: a small immutable list of steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.errors import InputError, NotFittedError
from recal.transforms import Transform, as_transform

ConfidenceAt = Literal["original", "own"]
Ties = Literal["float32", "exact"]

NEUTRAL = (1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Rule:
    """The readings of the method that a replay needs, so that it groups as the fit did.

    Parameters
    ----------
    confidence_at : {"original", "own"}
        Where a view's confidence is read: at the original's prediction, or at the view's own maximum.
    ties : {"float32", "exact"}
        How confidences are compared: as float32 softmax, where saturated ones are equal, or in log-odds.
    floor : float or None
        The smallest probability before a logarithm is taken; None for no floor.
    """

    confidence_at: ConfidenceAt = "original"
    ties: Ties = "float32"
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.confidence_at not in ("original", "own"):
            raise InputError(f"`confidence_at` must be 'original' or 'own', got {self.confidence_at!r}.")
        if self.ties not in ("float32", "exact"):
            raise InputError(f"`ties` must be 'float32' or 'exact', got {self.ties!r}.")
        if self.floor is not None and not (_is_number(self.floor) and 0.0 < self.floor < 0.5):
            raise InputError(f"`floor` must lie in (0, 0.5) or be None, got {self.floor!r}.")


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
class Plan:
    """Scale all logits by `start`, replay `steps`, scale the original's logits by `finish`.

    Plain temperature scaling is a plan with a start and no steps.

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

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """The distinct transformations that a runtime must compute, in the order of first use."""
        return tuple(dict.fromkeys(step.transform for step in self.steps if not step.is_neutral))

    @cached_property
    def program(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The steps that change something, as arrays: each one's index in `transforms`, and its four betas."""
        index = {transform: number for number, transform in enumerate(self.transforms)}
        steps = [step for step in self.steps if not step.is_neutral]
        views = np.array([index[step.transform] for step in steps], dtype=np.intp)
        return views, np.array([step.betas for step in steps], dtype=np.float64).reshape(-1, 4)

    def __str__(self) -> str:
        views = f"{len(self.transforms)} view{'' if len(self.transforms) == 1 else 's'} to compute"
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}, {views}" if self.steps else "no steps"
        lines = [f"Plan: start temperature {1 / self.start:.4g}, {steps}"]
        lines += [
            f"  {number:>3}  {step.transform!s:<16} " + " ".join(f"{beta:.4f}" for beta in step.betas)
            for number, step in enumerate(self.steps, 1)
        ]
        if self.finish != 1.0:
            lines.append(f"  finish temperature {1 / self.finish:.4g}")
        return "\n".join(lines)


def _is_beta(value: Any) -> bool:
    try:
        return _is_number(value) and 0.0 < float(value) < float("inf")
    except OverflowError:  # an integer beyond all floats
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def plan_of(source: Any) -> Plan:
    """Return the plan, or that of a fitted calibrator."""
    if isinstance(source, Plan):
        return source
    name = type(source).__name__
    plan = getattr(source, "plan_", None)
    if isinstance(plan, Plan):
        return plan
    if hasattr(source, "fit") and not hasattr(source, "classes_"):
        raise NotFittedError(f"This {name} is not fitted yet; call fit(X, y) first.")
    raise InputError(
        f"A Plan is needed, or a fitted calibrator that makes one (ReCal, TemperatureScaling), got {name}. "
        "Other methods run in numpy: predict_proba."
    )
