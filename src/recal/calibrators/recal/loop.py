"""The fit of ReCal: compile views and labels into a plan. One iteration fits on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.machinery.common_scale import Separable, fit_losses
from recal.calibrators.machinery.parameters import check_count, check_flag, check_number
from recal.calibrators.machinery.suspicions import FEWEST_MISTAKES
from recal.checks import Labels
from recal.engine.grouping import GroupIndex, group_indices
from recal.engine.losses import GroupLosses
from recal.engine.scaled import FlooredLogits, ScaledLogits, ScaledRows, Vector
from recal.errors import InputError
from recal.plan import NEUTRAL, Plan, Rule, Step
from recal.transforms import Transform, as_transform
from recal.views import Views

# How far a row's slope may be off before the row is read again; betas are then within 1e-8 of those of exact slopes.
_TOLERANCE = 1e-7
# The group that the next draw forms may be another: beyond this its beta is no help.
_SENSIBLE_START = (0.25, 4.0)
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
    exact: bool
    separable: Literal["pooled", "bound"] = "pooled"

    def __post_init__(self) -> None:
        choices = {
            "shrink": ("beta", "temperature"),
            "guard": (None, "ece"),
            "start": ("raw", "temperature"),
            "finish": (None, "temperature"),
            "separable": ("pooled", "bound"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"must be one of {allowed}", argument=name, came=f"got {getattr(self, name)!r}")
        check_number("tol", self.tol)
        check_count("n_bins", self.n_bins)
        check_flag("exact", self.exact)


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
) -> tuple[Plan, tuple[Iteration, ...], ThinEvidence]:
    """Return the plan, what each iteration saw, and how far groups with few mistakes were trusted."""
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
    return Plan(steps, start, finish, reading.rule), tuple(history), fit.thin


@dataclass
class ThinEvidence:
    """How much more confident groups became that held fewer than ten mistakes, at most, and the largest such group."""

    growth: float = 1.0
    size: int = 0
    mistakes: int = 0

    def add(self, betas: Vector, sizes: Vector, mistakes: Vector) -> None:
        # What holds less than a hundredth of the samples is shrunk to next to nothing and moves nobody.
        grown = (100 * sizes >= sizes.sum()) & (mistakes < FEWEST_MISTAKES) & (betas > 1.0)
        if grown.any():
            self.growth *= float(betas[grown].max())
            largest = int(np.argmax(np.where(grown, sizes, 0)))
            if sizes[largest] > self.size:
                self.size, self.mistakes = int(sizes[largest]), int(mistakes[largest])


class _Fit:
    """The state of a fit: one scale per sample and view, and what is known of rows near it; no view is held."""

    def __init__(self, views: Views, labels: Labels, reading: Reading) -> None:
        self.views, self.labels, self.reading = views, labels, reading
        self.original = self._rows(None)
        self.correct = (self.original.columns == labels).astype(np.float64)
        self.drops = self.original.drop_at(labels)
        self.thin = ThinEvidence()
        # Each view that was drawn, and how far its logit at the original's prediction lies below its largest.
        self.tracks: dict[Transform, ScaledRows] = {}
        self.view_drops: dict[Transform, Vector] = {}
        # Where the solver ended when a transformation was last drawn: a good place to begin the next time.
        self.last_betas: dict[Transform, Vector] = {}
        # What each transformation gave that was rejected at the present state: drawn again, it gives the same.
        self.rejected: dict[Transform, Iteration] = {}

    def _rows(self, transform: Transform | None) -> ScaledRows:
        """Return the originals' rows, or a view's, whose logits are read when they are needed."""
        views, floor = self.views, self.reading.rule.floor
        tolerance = 0.0 if self.reading.exact else _TOLERANCE
        if floor is not None:
            return FlooredLogits(views.logits if transform is None else views.transformed(transform), floor)
        if transform is None:
            return ScaledLogits(views.logits, tolerance=tolerance)
        return ScaledRows(partial(views.rows_of, transform), (views.n_samples, views.n_classes), tolerance)

    def begin(self, start: float) -> None:
        self.start = start
        self.original.rescale(start)
        self._refresh()

    def _refresh(self) -> None:
        if self.reading.rule.floor is not None:  # a floor moves logits, which nothing else does
            self.drops = self.original.drop_at(self.labels)
        self.log_partition = np.logaddexp(0.0, self.original.log_odds(self.reading.n_bins))
        self.ece = self._ece(self.log_partition)

    def _ece(self, log_partition: Vector, members: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the calibration error of the samples that are members."""
        n_bins, correct, confidence = self.reading.n_bins, self.correct[members], np.exp(-log_partition[members])
        inner = np.arange(1, n_bins) / n_bins
        gaps = np.bincount(np.searchsorted(inner, confidence), correct - confidence, minlength=n_bins)
        return float(np.abs(gaps).sum() / len(correct))

    def _losses(self, groups: GroupIndex, n_groups: int) -> GroupLosses:
        return GroupLosses(self.original, self.drops, groups, n_groups)

    def closing_beta(self) -> float:
        separable: Separable = "bound" if self.reading.separable == "bound" else "laplace"
        return fit_losses(self._losses(np.zeros(len(self.labels), dtype=np.int8), 1), separable=separable).values[0]

    def iterate(self, transform: Transform) -> Iteration:
        if transform in self.rejected:
            return self.rejected[transform]
        view = self._view(transform)
        groups = group_indices(self.original, view, self.view_drops[transform], self.reading.rule)
        losses = self._losses(groups, 4)
        sizes = losses.sizes
        answer = fit_losses(losses, self.last_betas.get(transform), self.reading.separable)
        raw: Vector = np.array(answer.values)
        self.last_betas[transform] = np.clip(raw, *_SENSIBLE_START)
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
            self.thin.add(betas, sizes, sizes - losses.by_group(self.correct))
        iteration = Iteration(
            transform, _four(sizes, int), _four(raw, float), _four(betas, float), ece_before, self.ece, accepted
        )
        if not accepted:
            self.rejected[transform] = iteration
        return iteration

    def _view(self, transform: Transform) -> ScaledRows:
        """Return the rows of a view; with a floor, its drops change with every rescaling."""
        if transform not in self.tracks:
            self.tracks[transform] = self._rows(transform)
            self.tracks[transform].rescale(self.start)
        view = self.tracks[transform]
        if transform not in self.view_drops or self.reading.rule.floor is not None:
            self.view_drops[transform] = view.drop_at(self.original.columns)
        return view

    def _guarded(self, betas: Vector, groups: GroupIndex) -> tuple[Vector, bool]:
        """Undo what would raise the calibration error: all of it, or one group's part."""
        after = self.original.log_partition_at(betas[groups], self.reading.n_bins)
        if self._ece(after) > self.ece:
            return np.array(NEUTRAL), False
        kept = betas.copy()
        for k in range(4):
            members = groups == k
            if members.any() and self._ece(after, members) > self._ece(self.log_partition, members):
                kept[k] = 1.0
        return kept, True


def _shrunk(raw: Vector, shares: Vector, shrink: str) -> Vector:
    """Draw each group's value towards 1 by the share of samples outside the group."""
    if shrink == "temperature":
        return 1.0 / ((1.0 - shares) + shares / raw)
    return (1.0 - shares) + shares * raw


def _four(values: NDArray[Any], kind: type) -> Any:
    return tuple(kind(value) for value in values)
