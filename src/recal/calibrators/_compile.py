"""The fit of ReCal: compile views and labels into a plan. One iteration fits on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.calibrators._temperature import fit_betas
from recal.checks import Labels
from recal.errors import InputError
from recal.grouping import GroupIndex, group_indices
from recal.plan import NEUTRAL, Plan, Rule, Step
from recal.replay import scaled
from recal.scaled import ScaledLogits, Vector
from recal.transforms import Transform, as_transform
from recal.views import Views

FourBetas = tuple[float, float, float, float]


@dataclass(frozen=True)
class Reading:
    """How the method is read where its description leaves a choice; see `ReCal` for each."""

    rule: Rule
    shrink: Literal["beta", "temperature"]
    guard: Literal["ece"] | None
    start: Literal["raw", "temperature"]
    finish: Literal["temperature"] | None
    tol: float
    n_bins: int

    def __post_init__(self) -> None:
        choices = {
            "shrink": ("beta", "temperature"),
            "guard": (None, "ece"),
            "start": ("raw", "temperature"),
            "finish": (None, "temperature"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"`{name}` must be one of {allowed}, got {getattr(self, name)!r}.")
        if not self.tol >= 0:
            raise InputError(f"`tol` must be at least 0, got {self.tol!r}; 0 never stops early.")
        if self.n_bins < 1 or int(self.n_bins) != self.n_bins:
            raise InputError(f"`n_bins` must be a whole number of at least 1, got {self.n_bins!r}.")


@dataclass(frozen=True)
class Iteration:
    """What one iteration saw and did; groups in the order of `Group`."""

    transform: Transform
    sizes: tuple[int, int, int, int]
    raw_betas: FourBetas
    betas: FourBetas
    ece_before: float
    ece_after: float
    accepted: bool

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "transform": str(self.transform)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Iteration:
        lists = {name: tuple(record[name]) for name in ("sizes", "raw_betas", "betas")}
        return cls(**{**record, **lists, "transform": as_transform(record["transform"])})


def compile_plan(
    views: Views, labels: Labels, reading: Reading, draws: Iterator[Transform]
) -> tuple[Plan, tuple[Iteration, ...]]:
    """Return the plan, and what each iteration saw."""
    fit = _Fit(views, labels, reading)
    start = fit.closing_beta() if reading.start == "temperature" else 1.0
    fit.begin(start)
    history: list[Iteration] = []
    for transform in draws:
        previous_ece = fit.ece if history else 1.0
        history.append(fit.iterate(transform))
        if history[-1].accepted and abs(fit.ece - previous_ece) < reading.tol:
            break
    finish = fit.closing_beta() if reading.finish == "temperature" else 1.0
    steps = tuple(Step(iteration.transform, iteration.betas) for iteration in history)
    return Plan(steps, start, finish, reading.rule), tuple(history)


class _Fit:
    """The state of a fit: one scale per sample and view."""

    def __init__(self, views: Views, labels: Labels, reading: Reading) -> None:
        self.views, self.labels, self.reading = views, labels, reading
        self.original = scaled(views.logits, Plan(rule=reading.rule))
        self.correct = (self.original.columns == labels).astype(np.float64)
        self.tracks: dict[Transform, ScaledLogits] = {}
        # What each transformation gave that was rejected at the present state: drawn again, it gives the same.
        self.rejected: dict[Transform, Iteration] = {}

    def begin(self, start: float) -> None:
        self.plan_so_far = Plan(start=start, rule=self.reading.rule)
        self.original.rescale(start)
        self._refresh()

    def _refresh(self) -> None:
        self.log_confidence = -self.original.log_partition()
        self.ece = _ece(np.exp(self.log_confidence), self.correct, self.reading.n_bins)

    def closing_beta(self) -> float:
        return fit_betas(self.original, self.labels).values[0]

    def iterate(self, transform: Transform) -> Iteration:
        if transform in self.rejected:
            return self.rejected[transform]
        view = self._track(transform)
        groups = group_indices(self.original, self.log_confidence, view, self.reading.rule)
        sizes = np.bincount(groups, minlength=4)
        raw = np.asarray(fit_betas(self.original, self.labels, groups, 4).values)
        raw[sizes == 0] = 1.0
        betas = _shrunk(raw, sizes / len(groups), self.reading.shrink)
        ece_before = self.ece
        accepted = True
        if self.reading.guard == "ece":
            betas, accepted = self._guarded(betas, groups)
        if accepted:
            factors = betas[groups]
            self.original.rescale(factors)
            view.rescale(factors)
            self._refresh()
            self.rejected.clear()
        iteration = Iteration(
            transform, _four(sizes, int), _four(raw, float), _four(betas, float), ece_before, self.ece, accepted
        )
        if not accepted:
            self.rejected[transform] = iteration
        return iteration

    def _track(self, transform: Transform) -> ScaledLogits:
        if transform not in self.tracks:
            self.tracks[transform] = scaled(self.views.transformed(transform), self.plan_so_far)
        return self.tracks[transform]

    def _guarded(self, betas: Vector, groups: GroupIndex) -> tuple[Vector, bool]:
        """Undo what would raise the calibration error: all of it, or one group's part."""
        bins = self.reading.n_bins
        before = np.exp(self.log_confidence)
        after = np.exp(-self.original.log_partition_at(betas[groups]))
        if _ece(after, self.correct, bins) > self.ece:
            return np.array(NEUTRAL), False
        kept = betas.copy()
        for k in range(4):
            members = groups == k
            if members.any() and _ece(after[members], self.correct[members], bins) > _ece(
                before[members], self.correct[members], bins
            ):
                kept[k] = 1.0
        return kept, True


def _shrunk(raw: Vector, shares: Vector, shrink: str) -> Vector:
    """Draw each group's value towards 1 by the share of samples outside the group."""
    if shrink == "temperature":
        return 1.0 / ((1.0 - shares) + shares / raw)
    return (1.0 - shares) + shares * raw


def _four(values: NDArray, kind: type) -> Any:
    return tuple(kind(value) for value in values)


def _ece(confidence: Vector, correct: Vector, n_bins: int) -> float:
    edges = np.arange(n_bins + 1) / n_bins
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    return float(np.abs(np.bincount(bins, weights=correct - confidence)).sum() / len(confidence))
