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
from recal.engine.kernels import table
from recal.engine.losses import Losses, ReadLosses, TabledLosses
from recal.engine.scaled import FlooredLogits, ScaledLogits, Vector
from recal.engine.screened import ScreenedView
from recal.engine.tabled import TabledLogits
from recal.errors import InputError
from recal.plan import NEUTRAL, Plan, Rule, Step
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
    """How much surer groups became that held fewer than ten mistakes, at most, and the largest such group."""

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
    """The state of a fit: one scale per sample and view. No view's logits are held longer than an iteration."""

    def __init__(self, views: Views, labels: Labels, reading: Reading) -> None:
        self.views, self.labels, self.reading = views, labels, reading
        if reading.rule.floor is not None:
            self.original: ScaledLogits = FlooredLogits(views.logits, reading.rule.floor)
        elif reading.exact:
            self.original = ScaledLogits(views.logits)
        else:
            self.original = TabledLogits(views.logits, n_bins=reading.n_bins)
        self.correct = (self.original.columns == labels).astype(np.float64)
        # A floor moves logits, which nothing else does.
        self.drops = self.original.drop_at(labels) if reading.rule.floor is None else None
        self.edges = np.arange(reading.n_bins + 1) / reading.n_bins
        self.thin = ThinEvidence()
        self.tracks: dict[Transform, Any] = {}
        # Where the solver ended when a transformation was last drawn: a good place to begin the next time.
        self.last_betas: dict[Transform, Vector] = {}
        # What each transformation gave that was rejected at the present state: drawn again, it gives the same.
        self.rejected: dict[Transform, Iteration] = {}

    def begin(self, start: float) -> None:
        self.start = start
        self.original.rescale(start)
        self._refresh()

    def _refresh(self) -> None:
        self.log_partition = self.original.log_partition()
        self.ece = self._ece(self.log_partition)

    def _ece(self, log_partition: Vector, members: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the calibration error of the samples that are members."""
        gaps = np.zeros(self.reading.n_bins)
        correct = self.correct[members]
        table.sum_bins(log_partition[members], correct, self.edges, gaps)
        return float(np.abs(gaps).sum() / len(correct))

    def _losses(self, groups: GroupIndex, n_groups: int) -> Losses:
        if isinstance(self.original, TabledLogits):
            assert self.drops is not None
            return TabledLosses(self.original, self.drops, groups, n_groups)
        drops = self.original.drop_at(self.labels) if self.drops is None else self.drops
        return ReadLosses(self.original, drops, groups.astype(np.intp), n_groups)

    def closing_beta(self) -> float:
        separable: Separable = "bound" if self.reading.separable == "bound" else "laplace"
        return fit_losses(self._losses(np.zeros(len(self.labels), dtype=np.int8), 1), separable=separable).values[0]

    def iterate(self, transform: Transform) -> Iteration:
        if transform in self.rejected:
            return self.rejected[transform]
        groups = self._group(transform)
        losses = self._losses(groups, 4)
        sizes = losses.sizes
        answer = fit_losses(losses, self.last_betas.get(transform), self.reading.separable)
        raw: Vector = np.array(answer.values)
        self.last_betas[transform] = raw.copy()
        raw[sizes == 0] = 1.0
        betas = _shrunk(raw, sizes / len(groups), self.reading.shrink)
        ece_before = self.ece
        accepted = True
        if self.reading.guard == "ece":
            betas, accepted = self._guarded(betas, groups)
        if accepted:
            factors = betas[groups]
            self.original.rescale(factors)
            self.tracks[transform].rescale(factors)
            self._refresh()
            self.rejected.clear()
            self.thin.add(betas, sizes, sizes - losses.by_group(self.correct))
        iteration = Iteration(
            transform, _four(sizes, int), _four(raw, float), _four(betas, float), ece_before, self.ece, accepted
        )
        if not accepted:
            self.rejected[transform] = iteration
        return iteration

    def _group(self, transform: Transform) -> GroupIndex:
        rule = self.reading.rule
        track = self.tracks.get(transform)
        if rule.floor is not None:
            if track is None:
                track = self.tracks[transform] = FlooredLogits(self.views.transformed(transform), rule.floor)
                track.rescale(self.start)
            return group_indices(self.original, -self.log_partition, track, rule)
        if track is None:
            track = self.tracks[transform] = ScreenedView(self.start, len(self.labels))
        if not isinstance(self.original, TabledLogits):
            view = ScaledLogits(self.views.transformed(transform), track.scales)
            return group_indices(self.original, -self.log_partition, view, rule)
        read = partial(self.views.rows_of, transform)
        groups: GroupIndex = track.groups(self.original, read, rule)
        return groups

    def _guarded(self, betas: Vector, groups: GroupIndex) -> tuple[Vector, bool]:
        """Undo what would raise the calibration error: all of it, or one group's part."""
        after = self._log_partition_at(groups, betas)
        if self._ece(after) > self.ece:
            return np.array(NEUTRAL), False
        kept = betas.copy()
        for k in range(4):
            members = groups == k
            if members.any() and self._ece(after, members) > self._ece(self.log_partition, members):
                kept[k] = 1.0
        return kept, True

    def _log_partition_at(self, groups: GroupIndex, betas: Vector) -> Vector:
        if isinstance(self.original, TabledLogits):
            return self.original.field(self.original.at(groups, betas, near_edges=True), table.VALUE)
        return self.original.log_partition_at(betas[groups])


def _shrunk(raw: Vector, shares: Vector, shrink: str) -> Vector:
    """Draw each group's value towards 1 by the share of samples outside the group."""
    if shrink == "temperature":
        return 1.0 / ((1.0 - shares) + shares / raw)
    return (1.0 - shares) + shares * raw


def _four(values: NDArray[Any], kind: type) -> Any:
    return tuple(kind(value) for value in values)
