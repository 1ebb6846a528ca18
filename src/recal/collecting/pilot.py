"""A pilot: every candidate view of a few labelled samples, so that only those that help are computed for the rest.

Its samples are random rows, since folders come sorted by class, and a store of their own: they are computed once more
among all, so that the result has the bytes of a `collect` of the chosen views, and resuming needs nothing new.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.solvers.temperature import fit_beta
from recal.calibrators.stacking import ViewStacking
from recal.collecting.fingerprint import digest
from recal.collecting.inputs.sources import FILE_OPTIONS, Batch, IndexedSource, Stamp
from recal.collecting.local import as_pool, collect, open_source
from recal.collecting.models.base import as_model
from recal.errors import DependentRowsWarning, InputError, Remedy
from recal.files.views import read_views
from recal.maps.arrays import log_softmax
from recal.transforms import Transform
from recal.transforms.base import shown
from recal.views import Views

# The first part of a pilot. If no view comes near paying there, the rest is not computed.
_FIRST = 400
# The share of the loss that a forward pass more per answer must gain, as in `AutoCalibration`.
_GAIN_PER_PASS = 0.005


@dataclass(frozen=True)
class Pilot:
    """What a pilot saw and chose.

    Attributes
    ----------
    n_samples, n_all : int
        Samples in the pilot, and in all.
    candidates, chosen : tuple of transformations
    stacking : ViewStacking
        As fitted on the pilot; `views_report_` says what every candidate would have added.
    views : Views
        All candidates of the pilot's samples.
    n_planned : int
        The samples that the pilot would have had if it had not stopped early.
    n_passes : int
        Forward passes of the pilot. Transformations with the same effect are computed once.
    """

    n_samples: int
    n_all: int
    candidates: tuple[Transform, ...]
    chosen: tuple[Transform, ...]
    stacking: ViewStacking
    views: Views
    n_planned: int
    n_passes: int

    @property
    def passes(self) -> int:
        """Forward passes of the pilot and of the rest together, one for each sample and view."""
        return self.n_passes + self.n_all * (1 + len(self.chosen))

    @property
    def passes_without(self) -> int:
        """Forward passes that all candidates would take for all samples."""
        return self.n_all * (1 + len(self.candidates))

    def __str__(self) -> str:
        names = ", ".join(shown(transform) for transform in self.chosen)
        result = f"chose {names}" if names else "found no view worth a forward pass"
        early = f", and stopped early: {self.n_planned:,} were planned" if self.n_samples < self.n_planned else ""
        return (
            f"A pilot of {len(self.candidates)} views on {self.n_samples:,} samples {result}{early}. "
            f"{self.passes:,} forward passes in all instead of {self.passes_without:,}"
        )


def run_pilot(
    model: Any,
    inputs: Any,
    pool: str | Sequence[Transform | str] | None,
    size: int,
    *,
    labels: Any = None,
    out: Path | None = None,
    seed: int = 0,
    stacking: ViewStacking | None = None,
    reuse: bool = False,
    **how: Any,
) -> Pilot:
    """Collect all views of `size` samples drawn at random, and choose among them as `ViewStacking` does.

    After the first 400 samples the pilot stops if no view comes near paying for its forward pass.

    Parameters
    ----------
    model, inputs, pool, labels, seed, **how
        As in `recal.collect`. Inputs must be readable in any order, and labelled.
    size : int
        How many samples.
    out : path, optional
        Where `collect` will write; the pilot is kept beside it, under the name with `.pilot` before its ending.
    stacking : ViewStacking, optional
        Chooses the views; the default one where not given.
    reuse : bool
        Read what an earlier run of the same model and inputs wrote without running the model to compare.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting import run_pilot
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 900)
    >>> images = rng.normal(0, 1, (900, 6, 6)) + 0.5 * np.where(y == 1, 1, -1)[:, None, None]
    >>> def model(batch):  # it looks at the left half only
    ...     score = batch[:, :, :3].sum((1, 2))
    ...     return np.stack([-score, score], axis=1)
    >>> pilot = run_pilot(model, images, "flip+shift", 300, labels=y, progress=False)
    >>> print(pilot)
    A pilot of 2 views on 300 samples chose flip. 2,700 forward passes in all instead of 2,700
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise InputError("must be a whole number of samples from 1 on", argument="pilot", came=f"got {size!r}")
    files: dict[str, Any] = {name: how.pop(name) for name in FILE_OPTIONS if name in how}
    source = open_source(inputs, labels, files)
    if not isinstance(source, IndexedSource):
        raise InputError(
            "A pilot draws samples at random, so inputs must be readable in any order: an array, a torch dataset, a "
            "file or a folder, not a loader or a generator, which give theirs one after the other."
        )
    if source.batch(0, 1).labels is None:
        raise InputError(
            "A pilot learns from labels which views help",
            remedy=Remedy(
                "Pass `labels`, or inputs that bring them", typed="Add --labels FILE, or use data that bring them"
            ),
        )
    candidates = as_pool(pool, seed)
    model = as_model(model, outputs=how.get("outputs", "logits"), device=how.pop("device", None))
    before = model.n_answered
    rows = np.random.default_rng([seed, 1]).permutation(source.n_samples)[:size]
    stacking = ViewStacking() if stacking is None else stacking
    views: Views | None = None
    seen = np.zeros(0, dtype=np.intp)
    for number, part in enumerate(p for p in (rows[:_FIRST], rows[_FIRST:]) if len(p)):
        target = None if out is None else pilot_path(out, number)
        new = read_finished(target, candidates) if reuse and target is not None else None
        new = collect(model, Picked(source, np.sort(part)), candidates, out=target, **how) if new is None else new
        views = new if views is None else _joined(views, new)
        seen = np.concatenate([seen, np.sort(part)])
        clusters = None if source.clusters is None else source.clusters[seen]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples warns
            stacking.fit(views, clusters=clusters)
        if not _is_near_paying(stacking, views):
            break
    assert views is not None
    named = {str(transform): transform for transform in candidates}  # a store knows one's own by name only
    chosen = tuple(named[str(transform)] for transform in stacking.needed_transforms())
    # Passes of other processes, and of an earlier run, are not counted here.
    passes = model.n_answered - before or views.n_samples * (1 + len(candidates))
    return Pilot(views.n_samples, source.n_samples, candidates, chosen, stacking, views, len(rows), passes)


def _is_near_paying(stacking: ViewStacking, views: Views) -> bool:
    """Whether the best view gains at least half of what pays for its forward pass, on samples left out."""
    assert views.labels is not None
    beta = fit_beta(views.logits, views.labels)
    logs = log_softmax(beta * np.asarray(views.logits, np.float64))
    loss = float(-logs[np.arange(len(logs)), views.labels].mean())
    gains = [record["added"] for record in stacking.views_report_ if record["order"]]
    return bool(stacking.needed_transforms()) or max(gains, default=0.0) > _GAIN_PER_PASS / 2 * loss


def _joined(first: Views, second: Views) -> Views:
    """Return the rows of two sets of views one after the other, in memory."""
    assert first.labels is not None
    assert second.labels is not None
    transformed: dict[Transform | str, Any] = {
        transform: np.concatenate([first.transformed(transform), second.transformed(transform)])
        for transform in first.transforms
    }
    labels, names = np.concatenate([first.labels, second.labels]), first.classes
    return Views(
        np.concatenate([first.logits, second.logits]),
        transformed,
        labels if names is None else names[labels],
        classes=names,
        preprocessing=first.preprocessing,
        clusters=_both(first.clusters, second.clusters),
        groups=_both(first.groups, second.groups),
    )


def _both(first: NDArray[Any] | None, second: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if first is None or second is None else np.concatenate([first, second])


def read_finished(store: Path, transforms: Sequence[Transform]) -> Views | None:
    """Return the views in a store that an earlier run finished with these transformations; None if it did not."""
    if not store.exists():
        return None
    views = read_views(store)
    return views if set(map(str, transforms)) == set(map(str, views.transforms)) else None


def pilot_path(out: Path, part: int = 0) -> Path:
    """Return where the views of the pilot's first or second part are kept, beside those of all samples."""
    return out.with_name(f"{out.stem}.pilot{part + 1 if part else ''}{out.suffix}")


class Picked(IndexedSource):
    """Some rows of a source, in their order."""

    def __init__(self, source: IndexedSource, rows: NDArray[np.intp]) -> None:
        self.source, self.rows = source, rows
        self.n_samples = len(rows)
        self.labels = None if source.labels is None else np.asarray(source.labels)[rows]
        self.classes, self.skipped = source.classes, source.skipped
        self.clusters = None if source.clusters is None else source.clusters[rows]
        self.groups = None if source.groups is None else source.groups[rows]

    def fingerprint(self) -> str:
        return digest([self.source.fingerprint(), self.rows])

    def names(self) -> list[str] | None:
        found = self.source.names()
        return None if found is None else [found[row] for row in self.rows]

    def is_known_whole(self) -> bool:
        return self.source.is_known_whole()

    def stamp(self, start: int, stop: int) -> Stamp | None:
        stamps = [self.source.stamp(row, row + 1) for row in self.rows[start:stop].tolist()]
        known = [stamp for stamp in stamps if stamp is not None]
        if len(known) < len(stamps):
            return None
        return Stamp(digest([stamp.digest for stamp in known]), max(stamp.newest for stamp in known))

    def describe(self, row: int) -> str:
        return self.source.describe(int(self.rows[row]))

    def reading(self) -> dict[str, Any]:
        return self.source.reading()

    def sample(self) -> tuple[tuple[int, ...], str] | None:
        return self.source.sample()

    def read(self, start: int, stop: int) -> Any:
        return self._read(start, stop)[0]

    def take(self, rows: Sequence[int]) -> tuple[Any, NDArray[Any] | None]:
        return self.source.take(self.rows[list(rows)].tolist())

    def _read(self, start: int, stop: int) -> tuple[Any, NDArray[Any] | None]:
        return self.source.take(self.rows[start:stop].tolist())

    def batch(self, index: int, size: int) -> Batch:
        start = index * size
        return Batch(index, start, *self._read(start, min(start + size, self.n_samples)))
