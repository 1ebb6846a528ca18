"""ReCal: confidence corrected by the reaction to a loss of information (Jang et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator, from_fit
from recal.calibrators.samples import Samples
from recal.checks import Labels, Vector
from recal.engine.series import ScaledLogits, ScaledRows
from recal.errors import InputError
from recal.maps.steps import (
    NEUTRAL,
    ConfidenceAt,
    GroupIndex,
    OneTransform,
    Plan,
    Step,
    group_indices,
)
from recal.progress import track
from recal.schema import Count, NotNegative, RandomState, Record, Size
from recal.solvers.temperature import GroupLosses, Separable, fit_losses
from recal.transforms import Transform, as_transform
from recal.views import Views

# A row is read again if its slope may be wrong by more than this; betas are then within 1e-8 of
# those of exact slopes.
_TOLERANCE = 1e-7
FourBetas = tuple[float, float, float, float]


class Iteration(Record):
    """A record of one iteration; groups have the order of `Group`."""

    transform: Annotated[Transform, OneTransform()]
    sizes: tuple[int, int, int, int]
    raw_betas: FourBetas
    betas: FourBetas
    ece_before: float
    ece_after: float
    accepted: bool


class _Fit:
    """The state of a fit: one scale per sample and view. Views are not kept in memory."""

    def __init__(self, views: Views, labels: Labels, method: ReCal) -> None:
        self.views, self.labels, self.method = views, labels, method
        self.original: ScaledRows = ScaledLogits(views.logits, tolerance=_TOLERANCE)
        self.correct = (self.original.columns == labels).astype(np.float64)
        self.drops = self.original.drop_at(labels)
        # Each view that was drawn, and how far the logit whose confidence is read lies below its
        # largest.
        self.tracks: dict[Transform, tuple[ScaledRows, Vector | float]] = {}
        # The solver's last result for each transformation: a good start for the next time.
        self.last_betas: dict[Transform, Vector] = {}
        # Iterations rejected at the current state: the same transformation would give the same
        # result again.
        self.rejected: dict[Transform, Iteration] = {}
        self.start = self.closing_beta() if method.start == "temperature" else 1.0
        self.original.rescale(self.start)
        self._refresh()

    def _refresh(self) -> None:
        self.log_partition = np.logaddexp(0.0, self.original.log_odds(self.method.n_bins))
        self.ece = self._ece(self.log_partition)

    def _ece(
        self, log_partition: Vector, members: NDArray[np.bool_] | slice = slice(None)
    ) -> float:
        """Return the calibration error of the samples that are members."""
        n_bins, correct = self.method.n_bins, self.correct[members]
        confidence = np.exp(-log_partition[members])
        bins = np.searchsorted(np.arange(1, n_bins) / n_bins, confidence)
        gaps = np.bincount(bins, correct - confidence, minlength=n_bins)
        return float(np.abs(gaps).sum() / len(correct))

    def closing_beta(self) -> float:
        """Return the best beta of all samples at the current state."""
        separable: Separable = "bound" if self.method.separable == "bound" else "laplace"
        everyone = np.zeros(len(self.labels), dtype=np.int8)
        losses = GroupLosses(self.original, self.drops, everyone, 1)
        return float(fit_losses(losses, separable=separable).values[0])

    def iterate(self, transform: Transform) -> Iteration:
        if transform in self.rejected:
            return self.rejected[transform]
        view, gaps = self._view(transform)
        groups = group_indices(self.original, view, gaps)
        losses = GroupLosses(self.original, self.drops, groups, 4)
        sizes = losses.sizes
        answer = fit_losses(losses, self.last_betas.get(transform), self.method.separable)
        raw = answer.values.copy()
        # The groups of the next draw may differ; a beta far from 1 is not a good start for them.
        self.last_betas[transform] = np.clip(raw, 0.25, 4.0)
        raw[sizes == 0] = 1.0
        # Shrink each group's value towards 1 by the share of samples outside the group.
        shares = sizes / len(groups)
        if self.method.shrink == "temperature":
            betas = 1.0 / ((1.0 - shares) + shares / raw)
        else:
            betas = (1.0 - shares) + shares * raw
        ece_before = self.ece
        accepted = True
        if self.method.guard == "ece":
            betas, accepted = self._guarded(betas, groups)
        if accepted:
            factors = betas[groups]
            self.original.rescale(factors)
            view.rescale(factors)
            self._refresh()
            self.rejected.clear()
        iteration = Iteration.made(
            transform=transform,
            sizes=tuple(sizes.astype(int).tolist()),
            raw_betas=tuple(raw.tolist()),
            betas=tuple(betas.tolist()),
            ece_before=ece_before,
            ece_after=self.ece,
            accepted=accepted,
        )
        if not accepted:
            self.rejected[transform] = iteration
        return iteration

    def _view(self, transform: Transform) -> tuple[ScaledRows, Vector | float]:
        """Return the rows of a view, which are read when needed, and the gaps to read them at."""
        if transform not in self.tracks:
            views = self.views
            read = partial(views.rows_of, transform)
            view = ScaledRows(read, (views.n_samples, views.n_classes), _TOLERANCE)
            view.rescale(self.start)
            own = self.method.confidence_at == "own"
            self.tracks[transform] = view, 0.0 if own else view.drop_at(self.original.columns)
        return self.tracks[transform]

    def _guarded(self, betas: Vector, groups: GroupIndex) -> tuple[Vector, bool]:
        """Undo the iteration, or one group's part, if it would raise the calibration error."""
        after = self.original.log_partition_at(betas[groups], self.method.n_bins)
        if self._ece(after) > self.ece:
            return np.array(NEUTRAL), False
        kept = betas.copy()
        for k in range(4):
            members = groups == k
            if members.any() and self._ece(after, members) > self._ece(self.log_partition, members):
                kept[k] = 1.0
        return kept, True


class ReCal(Calibrator):
    """Correct confidence by how each sample reacts to transformations that keep its label and lose
    information.

    Each iteration draws one transformation, sorts the samples into four groups by their reaction to
    it (`Group`), and scales each group's logits by its own temperature, which is shrunk towards 1
    according to the group's share. Predictions never change.

    Parameters
    ----------
    max_iter : int
        The largest number of iterations.
    tol : float
        Stop when the expected calibration error changes by less than this; 0 never stops early.
    confidence_at : {"original", "own"}
        Read a transformed copy's confidence at the original's prediction, or at the copy's own
        prediction.
    shrink : {"beta", "temperature"}
        Whether 1/T or T is shrunk towards 1.
    guard : {None, "ece"}
        "ece" undoes an iteration, or a group's part in it, that would raise the calibration error.
    start : {"raw", "temperature"}
        Begin with the logits as they are, or after one temperature scaling.
    finish : {None, "temperature"}
        End with one more temperature scaling, or not.
    n_bins : int
        The number of bins of the calibration error that `tol` and `guard` use.
    separable : {"pooled", "bound"}
        The temperature of a group without mistakes, for which no finite one is best. "pooled": the
        best temperature of all samples at that state; if it would raise the group's confidence, it
        is limited to the temperature that one additional wrong sample in the group would give.
        "bound": beta = 100, the end of the solver's range.
    sequence : sequence of transformations, specs or indices, optional
        The transformation of each iteration, instead of random draws. Draws skip views that lose no
        information, such as a mirror (`keeps_information`), unless there are no others.
    random_state : int, Generator or None
        Seed of the draws.

    Attributes
    ----------
    plan_ : Plan
        The fitted map.
    history_ : tuple of Iteration
        For each iteration: transformation, group sizes, raw and shrunk betas, ECE before and after,
        accepted or not.
    n_iter_ : int

    Examples
    --------
    >>> from recal import ReCal, Views
    >>> rng, y = np.random.default_rng(0), np.arange(300) % 3
    >>> logits = 4 * (np.eye(3)[y] + rng.normal(0, 0.6, (300, 3)))
    >>> views = Views(logits, {"zoom:0.5": logits * 0.5 + rng.normal(0, 1, (300, 3))}, y)
    >>> recal = ReCal(random_state=0).fit(views)
    >>> probs = recal.predict_proba(views)
    >>> bool((probs.argmax(1) == logits.argmax(1)).all())
    True
    """

    keeps_accuracy: ClassVar[bool] = True
    needs_views: ClassVar[bool] = True

    max_iter: Size = 200
    tol: NotNegative = 1e-6
    confidence_at: ConfidenceAt = "original"
    shrink: Literal["beta", "temperature"] = "beta"
    guard: Literal["ece"] | None = None
    start: Literal["raw", "temperature"] = "raw"
    finish: Literal["temperature"] | None = None
    n_bins: Count = 15
    separable: Literal["pooled", "bound"] = "pooled"
    sequence: Sequence[Transform | str | int] | NDArray[np.integer[Any]] | None = None
    random_state: RandomState = 0

    map_: Plan = from_fit()
    history_: tuple[Iteration, ...] = from_fit()
    n_iter_: int = from_fit()

    def _fit(self, samples: Samples) -> dict[str, Any]:
        views = samples.views
        fit = _Fit(views, samples.labels, self)
        history: list[Iteration] = []
        for transform in track(self._draws(views), "iteration", self.max_iter):
            previous_ece = fit.ece if history else 1.0
            history.append(fit.iterate(transform))
            if history[-1].accepted and abs(fit.ece - previous_ece) < self.tol:
                break
        finish = fit.closing_beta() if self.finish == "temperature" else 1.0
        steps = tuple(Step.made(transform=it.transform, betas=it.betas) for it in history)
        fitted = Plan.made(
            steps=steps, start=fit.start, finish=finish, confidence_at=self.confidence_at
        )
        return {"map_": fitted, "history_": tuple(history), "n_iter_": len(history)}

    @property
    def plan_(self) -> Plan:
        """The fitted map."""
        return self.map_

    def _draws(self, views: Views) -> Iterator[Transform]:
        """Yield the transformation of each iteration."""
        candidates = views.transforms
        if self.sequence is not None:
            return iter([_find(item, candidates) for item in self.sequence][: self.max_iter])
        # The method measures how a sample reacts to a loss of information, and a mirrored copy
        # loses none.
        lossy = tuple(t for t in candidates if not getattr(t, "keeps_information", False))
        candidates = lossy or candidates
        rng = np.random.default_rng(self.random_state)
        return (candidates[rng.integers(len(candidates))] for _ in range(self.max_iter))


def _find(
    item: Transform | str | int | np.integer[Any], candidates: tuple[Transform, ...]
) -> Transform:
    known: dict[Any, Transform] = dict(enumerate(candidates)) | {one: one for one in candidates}
    wanted = int(item) if isinstance(item, int | np.integer) else as_transform(item)
    if wanted not in known:
        held = ", ".join(map(str, candidates))
        raise InputError(f"names {str(item)!r}, but the views hold {held}", argument="sequence")
    return known[wanted]
