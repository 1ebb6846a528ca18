"""A pilot: try all views on a few samples, and compute only those that help for all of them.

A pilot computes all candidate views for a few labelled samples, so that only useful views are
computed for all samples. The pilot takes random rows, because folders are sorted by class. It has a
store of its own, and its rows are computed again with all others, so the result has the same bytes
as a `collect` of the chosen views and resumes in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.stacking import ViewStacking
from recal.collecting.models.base import as_model
from recal.collecting.pools import as_pool
from recal.collecting.sources import FILE_OPTIONS, IndexedSource, Source, Subset
from recal.collecting.tables import check_labelled
from recal.errors import DependentRowsWarning, InputError
from recal.files.views import read_views
from recal.maps.arrays import log_softmax
from recal.schema import Number, check
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.transforms.base import short_spec
from recal.views import Views


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot.

    Attributes
    ----------
    n_samples, n_all : int
        The number of samples in the pilot, and of all samples.
    candidates, chosen : tuple of transformations
    stacking : ViewStacking
        Fitted on the pilot; `views_report_` says what every candidate would have added.
    views : Views
        All candidate views of the pilot's samples.
    n_planned : int
        The number of samples that the pilot would have if it had not stopped early.
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
        """Forward passes of the pilot and the rest together, one per sample and view."""
        return self.n_passes + self.n_all * (1 + len(self.chosen))

    @property
    def passes_without(self) -> int:
        """Forward passes that all candidates would take for all samples."""
        return self.n_all * (1 + len(self.candidates))

    def __str__(self) -> str:
        names = ", ".join(short_spec(transform) for transform in self.chosen)
        result = f"chose {names}" if names else "found no view worth a forward pass"
        early = ""
        if self.n_samples < self.n_planned:
            early = f", and stopped early: {self.n_planned:,} were planned"
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
    reuse: bool = False,
    first: int = 400,
    gain_per_pass: float = 0.005,
    **how: Any,
) -> Pilot:
    """Collect all views of `size` samples drawn at random, and choose among them as `ViewStacking`
    does.

    Parameters
    ----------
    model, inputs, pool, labels, seed, **how
        As in `recal.collect`. Inputs must be readable in any order, and labelled.
    size : int
        The number of samples.
    out : path, optional
        Where `collect` will write. The pilot is kept next to it, with `.pilot` before the ending of
        the name.
    reuse : bool
        Read the views of an earlier run of the same model and inputs, without running the model to
        compare.
    first : int
        The pilot stops after this many samples if no view comes close to paying.
    gain_per_pass : float
        The relative gain in loss that one more forward pass must bring per answer, as in
        `AutoCalibration`.

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
    from recal.collecting.local import collect, open_source  # it imports this module

    size = check(size, Number(1, whole=True), "pilot")
    files: dict[str, Any] = {name: how.pop(name) for name in FILE_OPTIONS if name in how}
    model = as_model(model, outputs=how.get("outputs", "logits"), device=how.pop("device", None))
    source = open_source(inputs, labels, files, model)
    if not isinstance(source, IndexedSource):
        raise InputError(
            "A pilot draws samples at random, so inputs must be readable in any order: an array, a torch dataset, a "
            "file or a folder, not a loader or a generator, which give theirs one after the other."
        )
    check_labelled(source)
    candidates = as_pool(pool, seed, source, model)
    before = model.n_answered
    rows = np.random.default_rng([seed, 1]).permutation(source.n_samples)[:size]
    stacking = ViewStacking()
    views: Views | None = None
    parts = [np.sort(part) for part in (rows[:first], rows[first:]) if len(part)]
    for number, part in enumerate(parts):
        # The views are stored next to those of all samples: name.pilot.zarr and name.pilot2.zarr.
        suffix = f".pilot{number + 1 if number else ''}"
        target = None if out is None else out.with_name(f"{out.stem}{suffix}{out.suffix}")
        new = read_finished(target, candidates) if reuse and target is not None else None
        if new is None:
            new = collect(model, Subset(source, part), candidates, out=target, **how)
        views = new if views is None else _join(views, new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples warns
            stacking.fit(views)
        if not _is_near_paying(stacking, views, gain_per_pass):
            break
    assert views is not None
    # A store has only names, not the user's code.
    named = {str(transform): transform for transform in candidates}
    chosen = tuple(named[str(transform)] for transform in stacking.needed_transforms())
    # Passes of other processes, and of an earlier run, are not counted here.
    passes = model.n_answered - before or views.n_samples * (1 + len(candidates))
    return Pilot(
        views.n_samples, source.n_samples, candidates, chosen, stacking, views, len(rows), passes
    )


def needs_pilot(source: Source, size: int) -> bool:
    """Whether there are more samples than the pilot takes; otherwise all views are computed anyway."""
    return source.n_samples is None or source.n_samples > size


def _is_near_paying(stacking: ViewStacking, views: Views, gain_per_pass: float) -> bool:
    """Whether the best view gains, on held-out samples, at least half of what pays for its forward
    pass.
    """
    logits, labels = np.asarray(views.logits, np.float64), views.labels
    assert labels is not None
    loss = -log_softmax(logits, fit_beta(logits, labels))[np.arange(len(labels)), labels].mean()
    gains = [record["added"] for record in stacking.views_report_ if record["order"]]
    return bool(stacking.needed_transforms()) or max(gains, default=0.0) > gain_per_pass / 2 * loss


def _join(first: Views, second: Views) -> Views:
    """Return the rows of two sets of views one after the other, in memory."""

    def both(a: NDArray[Any] | None, b: NDArray[Any] | None) -> Any:
        return None if a is None or b is None else np.concatenate([a, b])

    transforms = first.transforms
    transformed: dict[Transform | str, Any] = {
        t: both(first.transformed(t), second.transformed(t)) for t in transforms
    }
    labels, names = both(first.labels, second.labels), first.classes
    return Views(
        both(first.logits, second.logits),
        transformed,
        labels if names is None else names[labels],
        classes=names,
        preprocessing=first.preprocessing,
        clusters=both(first.clusters, second.clusters),
        groups=both(first.groups, second.groups),
        ids=both(first.ids, second.ids),
    )


def read_finished(store: Path, transforms: Sequence[Transform]) -> Views | None:
    """Return the views in a store that an earlier run finished with these transformations, or None."""
    if not store.exists():
        return None
    views = read_views(store)
    return views if set(map(str, transforms)) == set(map(str, views.transforms)) else None
