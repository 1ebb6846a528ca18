"""The pilot of `recal calibrate`: all candidate views of a few labelled samples, so that only
useful views are computed for the others.

The pilot takes random rows, because folders are sorted by class. It has a store of its own, and its
rows are computed again with all others, so the result has the same bytes as a `collect` of the
chosen views and resumes in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recal.calibrators.stacking import ViewStacking
from recal.collecting.local import collect
from recal.collecting.models.base import Model
from recal.collecting.sources import Source, Subset
from recal.errors import DependentRowsWarning, InputError
from recal.files.views import read_views
from recal.maps.arrays import log_softmax
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.views import Views


class Pilot(NamedTuple):
    """All candidate views of the pilot's samples, and the transformations that `ViewStacking` chose
    among them.
    """

    views: Views
    chosen: tuple[Transform, ...]


def run_pilot(
    model: Model,
    source: Source,
    candidates: Sequence[Transform],
    size: int,
    *,
    out: Path,
    seed: int = 0,
    reuse: bool = False,
    first: int = 400,
    **how: Any,
) -> Pilot:
    """Collect all views of `size` samples drawn at random, and choose among them.

    Parameters
    ----------
    out : path
        Where `collect` will write. The pilot is kept next to it, with `.pilot` before the ending of
        the name.
    reuse : bool
        Read the views of an earlier run of the same model and inputs, without running the model to
        compare.
    first : int
        The pilot stops after this many samples if no view comes close to paying.
    **how
        As in `recal.collect`.
    """
    rows = np.random.default_rng([seed, 1]).permutation(source.n_samples)[:size]
    stacking = ViewStacking()
    parts: list[Views] = []
    for part in filter(len, (rows[:first], rows[first:])):
        # The views are stored next to those of all samples: name.pilot.zarr and name.pilot2.zarr.
        suffix = ".pilot2" if parts else ".pilot"
        target = out.with_name(f"{out.stem}{suffix}{out.suffix}")
        new = read_finished(target, candidates) if reuse else None
        if new is None:
            new = collect(model, Subset(source, np.sort(part)), candidates, out=target, **how)
        parts.append(new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples warns
            stacking.fit(join_views(parts))
        if not _is_near_paying(stacking, join_views(parts)):
            break
    # A store has only names, not the user's code.
    named = {str(transform): transform for transform in candidates}
    chosen = tuple(named[str(transform)] for transform in stacking.needed_transforms())
    return Pilot(join_views(parts), chosen)


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
        ids=joined("ids"),
    )


def read_finished(store: Path, transforms: Sequence[Transform]) -> Views | None:
    """Return the views of a finished store with these transformations, or None."""
    if not store.exists():
        return None
    views = read_views(store)
    return views if set(map(str, transforms)) == set(map(str, views.transforms)) else None
