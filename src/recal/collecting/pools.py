"""Which transformations to compute: the default pools by the kind of the inputs, and pilots.

A pilot computes all candidate views for a few labelled samples, so that only useful views are
computed for all samples. The pilot takes random rows, because folders are sorted by class. It has a
store of its own, and its rows are computed again with all others, so the result has the same bytes
as a `collect` of the chosen views and resumes in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recal.calibrators.stacking import ViewStacking
from recal.collecting.blocks import Job, Preprocess
from recal.collecting.models import as_model
from recal.collecting.models.base import Model, to_numpy
from recal.collecting.sources import FILE_OPTIONS, Source, Subset
from recal.collecting.tables import check_labelled
from recal.errors import DependentRowsWarning, InputError
from recal.files.views import read_views
from recal.maps.arrays import log_softmax
from recal.schema import Number, check
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.transforms import pool as draw_pool
from recal.transforms.base import short_spec
from recal.transforms.pool import NAMED
from recal.views import Views


def as_pool(
    pool: str | Sequence[Transform | str] | None, seed: int, source: Source, model: Model
) -> tuple[Transform, ...]:
    """Return the transformations of a pool; none for None, "none" and an empty sequence.

    "auto" and "damage" mean the pool of that name for the kind of the inputs ("auto:image"). Kinds
    that learn from a table, such as "median", take their numbers from the source.
    """
    if pool is None or pool == "none":
        return ()
    if isinstance(pool, Sized) and not isinstance(pool, str) and not len(pool):
        return ()
    if isinstance(pool, str):
        parts = [part.strip() for part in pool.split("+")]
        bare = any(part in NAMED for part in parts)
        kind = kind_of_inputs(source, model) if bare else ""
        pool = "+".join(f"{part}:{kind}" if part in NAMED else part for part in parts)
    values = getattr(source, "values", None)
    is_table = len(getattr(values, "shape", ())) == 2
    if is_table and hasattr(values, "detach"):
        values = to_numpy(values)
    return draw_pool(pool, seed=seed, data=values if is_table else None)


def kind_of_inputs(source: Source, model: Model) -> str:
    """Return "image", "video", "series", "audio", "text" or "tabular"; ask if it is ambiguous.

    No later step would notice a series that was zoomed like a picture.
    """
    known = source.kind or getattr(model, "takes", None)
    if known is not None:
        return str(known)
    values = to_numpy(source.read(range(min(source.n_samples, 32))))
    is_objects = values.dtype == object and values.ndim == 1
    if values.dtype.kind == "U" or (is_objects and all(isinstance(item, str) for item in values)):
        return "text"
    if values.ndim == 2 and hasattr(model, "estimator") and model.n_features == values.shape[1]:
        return "tabular"
    if values.ndim in (3, 4) and values.dtype == np.uint8:
        return "image"
    if values.ndim == 4 and values.dtype.kind == "f" and 0 <= values.min() <= values.max() <= 1:
        return "image"
    if values.ndim == 5:
        return "video"
    shape = ", ".join(["n", *map(str, values.shape[1:])])
    named = "auto:image, auto:series, auto:audio, auto:text or auto:tabular"
    raise InputError(
        f"Inputs of dtype {values.dtype} and shape ({shape}) do not say what they are. Pixels are "
        "uint8, or floats from 0 to 1 in four axes; normalise them in the preprocessing",
        remedy=f"Say it with pool='auto:KIND' (--pool auto:KIND), one of {named}, or pool=None (--pool none)",
    )


def taken_by(
    model: Model,
    source: Source,
    transforms: Sequence[Transform],
    *,
    preprocess: Preprocess | None = None,
    outputs: str = "logits",
) -> tuple[Transform, ...]:
    """Return the transformations whose results the model accepts, tried on a few inputs.

    Many models refuse a table with missing values.
    """
    batch = source.batch(0, min(16, source.n_samples))
    taken = []
    with model.running():
        for transform in transforms:
            job = Job(model, (transform,), preprocess, model.returns(outputs))
            try:
                job.run(batch, source.describe)
            except Exception:  # a model may raise anything for inputs that it was not made for
                continue
            taken.append(transform)
    return tuple(taken)


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
    """

    n_samples: int
    n_all: int
    candidates: tuple[Transform, ...]
    chosen: tuple[Transform, ...]
    stacking: ViewStacking
    views: Views
    n_planned: int

    @property
    def passes(self) -> int:
        """Forward passes of the pilot and the rest together, one per sample and view."""
        pilot = self.n_samples * (1 + len(self.candidates))
        return pilot + self.n_all * (1 + len(self.chosen))

    @property
    def passes_without(self) -> int:
        """Forward passes that all candidates would take for all samples."""
        return self.n_all * (1 + len(self.candidates))

    def __str__(self) -> str:
        names = ", ".join(short_spec(transform) for transform in self.chosen)
        result = f"chose {names}" if names else "found no view worth a forward pass"
        if self.n_samples < self.n_planned:
            result += f", and stopped early: {self.n_planned:,} were planned"
        return (
            f"A pilot of {len(self.candidates)} views on {self.n_samples:,} samples {result}. "
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
    check_labelled(source)
    candidates = as_pool(pool, seed, source, model)
    rows = np.random.default_rng([seed, 1]).permutation(source.n_samples)[:size]
    stacking = ViewStacking()
    parts: list[Views] = []
    for part in filter(len, (rows[:first], rows[first:])):
        # The views are stored next to those of all samples: name.pilot.zarr and name.pilot2.zarr.
        suffix = ".pilot2" if parts else ".pilot"
        target = None if out is None else out.with_name(f"{out.stem}{suffix}{out.suffix}")
        new = read_finished(target, candidates) if reuse and target is not None else None
        if new is None:
            new = collect(model, Subset(source, np.sort(part)), candidates, out=target, **how)
        parts.append(new)
        views = new if len(parts) == 1 else join_views(parts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples warns
            stacking.fit(views)
        if not _is_near_paying(stacking, views):
            break
    # A store has only names, not the user's code.
    named = {str(transform): transform for transform in candidates}
    chosen = tuple(named[str(transform)] for transform in stacking.needed_transforms())
    return Pilot(views.n_samples, source.n_samples, candidates, chosen, stacking, views, len(rows))


def needs_pilot(source: Source, size: int) -> bool:
    """Whether there are more samples than the pilot takes; otherwise all views are computed anyway."""
    return source.n_samples > size


def _is_near_paying(stacking: ViewStacking, views: Views) -> bool:
    """Whether the best view gains, on held-out samples, at least half of what pays for its forward
    pass: 0.5 % of the loss, as in `AutoCalibration`.
    """
    logits, labels = np.asarray(views.logits, np.float64), views.labels
    assert labels is not None
    loss = -log_softmax(logits, fit_beta(logits, labels))[np.arange(len(labels)), labels].mean()
    gains = [record["added"] for record in stacking.views_report_ if record["order"]]
    return bool(stacking.needed_transforms()) or max(gains, default=0.0) > 0.005 / 2 * loss


def join_views(parts: Sequence[Views]) -> Views:
    """Return the rows of several views of one model as one, with the transformations of all."""
    first = parts[0]
    if len({views.n_classes for views in parts}) > 1:
        counts = " and ".join(str(views.n_classes) for views in parts)
        raise InputError(f"The views are of two models: they have {counts} classes.")
    common = [one for one in first.transforms if all(one in views.transforms for views in parts)]

    def joined(name: str) -> Any:
        columns = [getattr(views, name) for views in parts]
        if all(column is None for column in columns):
            return None
        if any(column is None for column in columns):
            raise InputError(f"Some of the views have {name}, and others have none.")
        return np.concatenate(columns)

    labels = joined("labels")
    return Views(
        np.concatenate([views.logits for views in parts]),
        {str(one): np.concatenate([views.transformed(one) for views in parts]) for one in common},
        labels if labels is None or first.classes is None else first.classes[labels],
        classes=first.classes,
        preprocessing=first.preprocessing,
        clusters=joined("clusters"),
        groups=joined("groups"),
    )


def read_finished(store: Path, transforms: Sequence[Transform]) -> Views | None:
    """Return the views in a store that an earlier run finished with these transformations, or None."""
    if not store.exists():
        return None
    views = read_views(store)
    return views if set(map(str, transforms)) == set(map(str, views.transforms)) else None
