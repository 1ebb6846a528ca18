"""Which views to compute: the default pool for the type of the inputs, and a pilot that chooses
among candidates.

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

from recal.calibrators.solvers.temperature import fit_beta
from recal.calibrators.stacking import ViewStacking
from recal.collecting.files import TableSource
from recal.collecting.folders import SoundFolder
from recal.collecting.models.base import Model, as_array, as_model
from recal.collecting.sources import FILE_OPTIONS, ArraySource, IndexedSource, Source, Subset
from recal.errors import DependentRowsWarning, InputError, Remedy
from recal.files.views import read_views
from recal.maps.arrays import log_softmax
from recal.schema import Number, check
from recal.transforms import Transform, pool
from recal.transforms.base import short_spec
from recal.transforms.pool import DAMAGE
from recal.transforms.resampling import image_layout
from recal.transforms.tabular import is_frame
from recal.views import Views

AUTO = "auto"

# Some views keep all information, for stacking; others lose more and more, for ReCal. About ten
# passes in all.
USUAL: dict[str, str] = {
    "image": "flip+shift+shift:direction=right+zoomin:1.1+zoom:0.9+zoom:0.8+zoom:0.7+zoom:0.55"
    "+brightness:0.7+brightness:0.5",
    "video": "flip+shift+zoom:0.5-0.9:3+frames:0.1-0.6:5",
    "series": "timeshift:0.02+timeshift:0.05+coarse:0.3-0.9:3+drop:0.1-0.6:5",
    "audio": "timeshift:0.02+timeshift:0.05+lowpass:0.2-0.8:3+noise:10-40:3+quieter:0.3+timemask:0.1",
    "text": "cut:0.1+cut:0.2+cut:0.2:side=start+tokendrop:0.05-0.5:6",
    "tabular": "median:0.1-0.6:8",
}
_SMALLEST_SIDE = 8  # of a picture; a shorter axis holds channels or features
_LOOK_AT = 32  # samples
# Pools that depend on the type of the inputs.
NAMED: dict[str, dict[str, str]] = {AUTO: USUAL, "damage": DAMAGE}
# The first samples of a pilot. If no view comes close to paying there, the rest is not computed.
_FIRST = 400
# The relative gain in loss that pays for one more forward pass per answer, as in `AutoCalibration`.
_GAIN_PER_PASS = 0.005


def usual_pool(
    source: Source, model: Model, seed: int = 0, name: str = AUTO
) -> tuple[Transform, ...]:
    """Return the pool of this name, "auto" or "damage", for inputs of unknown type.

    Folders of images and texts are recognised; arrays are recognised by their axes and dtype (see
    `modality`). If that is ambiguous, an error asks which: no later step would notice a series that
    was zoomed like a picture.
    """
    is_audio = isinstance(source, SoundFolder) or getattr(model, "takes", None) == "audio"
    kind = "audio" if is_audio else modality(_first(source), model)
    data = (
        source.values
        if kind == "tabular" and isinstance(source, ArraySource | TableSource)
        else None
    )
    if kind == "tabular" and data is None:
        table = "recal.pool('median:0.1-0.6:8', data=X_train)"
        raise InputError(
            "The default pool for tables fills in medians, which are taken from an array",
            remedy=Remedy(
                f"Pass an array, or pool={table}",
                typed=f"Give the table as an .npy or .npz file, or make the pool in Python: {table}",
            ),
        )
    return pool(NAMED[name][kind], seed=seed, data=data)


def modality(batch: Any, model: Model | None = None) -> str:
    """Return the type of a batch: image, video, series, text or tabular; raise an error if it is
    ambiguous.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.pools import modality
    >>> modality(np.zeros((2, 32, 32, 3), np.uint8)), modality(np.zeros((2, 3, 50))), modality(["a text"])
    ('image', 'series', 'text')
    """
    is_sequence = isinstance(batch, list | tuple) or (
        isinstance(batch, np.ndarray) and batch.dtype == object
    )
    if is_sequence and len(batch) and all(isinstance(item, str | bytes) for item in batch):
        return "text"
    if is_frame(batch):
        return "tabular"
    values = as_array(batch)
    kind, shape = values.dtype.kind, values.shape[1:]
    is_brightness = kind in "iu" or (
        kind == "f" and values.size and values.min() >= 0 and values.max() <= 1
    )
    question = "no modality has this number of axes"
    if kind in "US":
        return "text"
    if kind == "O":  # samples of different lengths: series, or token ids
        items = [np.asarray(item) for item in values[:_LOOK_AT]] if values.ndim == 1 else []
        if items and all(item.ndim in (1, 2) and item.dtype.kind == "f" for item in items):
            return "series"
        if items and all(item.ndim == 1 and item.dtype.kind in "iu" for item in items):
            return "text"
        question = "an array of Python objects may hold anything"
    elif kind not in "iuf":
        question = "recal has no default pool for this dtype"
    elif values.ndim == 2:
        # A classifier with scikit-learn's methods that was fitted on rows takes rows of features.
        if getattr(getattr(model, "estimator", None), "n_features_in_", None) == shape[0]:
            return "tabular"
        question = "are these features of a table, series, sounds, or flattened images?"
        if kind in "iu":
            question = "are these token ids, features, or a series?"
    elif values.ndim == 3 and min(shape) >= _SMALLEST_SIDE:
        if values.dtype == np.uint8 or (shape[0] == shape[1] and is_brightness):
            return "image"
        question = "are these grey pictures, or series of several channels?"
    elif values.ndim == 3:
        if shape[0] < shape[1]:
            return "series"
        question = (
            "is time the last axis, (n, channels, time), or the middle one, (n, time, channels)?"
        )
    elif values.ndim == 4:
        image_layout(values.shape)  # refuses ambiguous channels
        if is_brightness and sorted(shape)[1] >= _SMALLEST_SIDE:
            return "image"
        question = f"pictures of less than {_SMALLEST_SIDE} pixels a side are unusual"
        if sorted(shape)[1] >= _SMALLEST_SIDE:
            question = (
                f"values from {values.min():.3g} to {values.max():.3g} look normalised already: pass pictures as they "
                "are (uint8, or floats from 0 to 1) and normalise in the preprocessing, since transformations act on "
                "pixels"
            )
    elif values.ndim == 5:
        return "video"
    pools = {
        2: "'drop:0.1-0.6:5+coarse:0.3-0.9:5' for series, 'lowpass:0.1-0.9:5' for sounds, 'tokendrop:0.05-0.5:6' for "
        "token ids",
        3: "'zoom:0.5-0.9:10' for pictures, 'drop:0.1-0.6:5+coarse:0.3-0.9:5' for (n, channels, time), "
        "'drop:0.1-0.6:5:axis=1' for (n, time, channels)",
    }.get(values.ndim, "'zoom:0.5-0.9:10' for pictures; `recal transforms` lists what there is")
    table = "recal.pool('median:0.1-0.6:8', data=X_train)"
    flat = values.ndim == 2
    more = "; reshape flat pictures to (n, height, width)" if flat else ""
    raise InputError(
        f"Inputs of dtype {values.dtype} and shape (n, {', '.join(map(str, values.shape[1:]))}) do not say which pool "
        f"suits them: {question}{'' if question.endswith('?') else '.'}",
        remedy=Remedy(
            f"Answer with pool={f'{table} for a table, ' if flat else ''}{pools}{more}",
            typed=f"Answer with --pool none for no views, or --pool {pools}{more}"
            f"{f'. For a table, in Python: {table}' if flat else ''}",
        ),
    )


def _first(source: Source) -> Any:
    """Return a few inputs, without using up a source that can be read only once."""
    if isinstance(source, IndexedSource):
        return source.read(range(min(source.n_samples, _LOOK_AT)))
    loader = getattr(source, "loader", None)
    if loader is None or iter(loader) is loader:
        raise InputError(
            "A generator can be read only once, so its inputs cannot be looked at to choose a pool",
            remedy="Name one, such as pool='zoom:0.5-0.9:10'; `recal transforms` lists what there is",
        )
    return next(iter(source.batches(_LOOK_AT))).inputs


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
        early = (
            f", and stopped early: {self.n_planned:,} were planned"
            if self.n_samples < self.n_planned
            else ""
        )
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
    **how: Any,
) -> Pilot:
    """Collect all views of `size` samples drawn at random, and choose among them as `ViewStacking`
    does.

    After the first 400 samples, the pilot stops if no view comes close to paying for its forward
    pass.

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
    from recal.collecting.local import as_pool, collect, open_source  # it imports this module

    size = check(size, Number(1, whole=True), "pilot")
    files: dict[str, Any] = {name: how.pop(name) for name in FILE_OPTIONS if name in how}
    source = open_source(inputs, labels, files)
    if not isinstance(source, IndexedSource):
        raise InputError(
            "A pilot draws samples at random, so inputs must be readable in any order: an array, a torch dataset, a "
            "file or a folder, not a loader or a generator, which give theirs one after the other."
        )
    if source.batch(0, 1).labels is None:
        remedy = Remedy(
            "Pass `labels`, or inputs with labels",
            typed="Add --labels FILE, or use data with labels",
        )
        raise InputError("A pilot learns from labels which views help", remedy=remedy)
    candidates = as_pool(pool, seed)
    model = as_model(model, outputs=how.get("outputs", "logits"), device=how.pop("device", None))
    before = model.n_answered
    rows = np.random.default_rng([seed, 1]).permutation(source.n_samples)[:size]
    stacking = ViewStacking()
    views: Views | None = None
    parts = [np.sort(part) for part in (rows[:_FIRST], rows[_FIRST:]) if len(part)]
    for number, part in enumerate(parts):
        # The views are stored next to those of all samples: name.pilot.zarr and name.pilot2.zarr.
        suffix = f".pilot{number + 1 if number else ''}"
        target = None if out is None else out.with_name(f"{out.stem}{suffix}{out.suffix}")
        new = read_finished(target, candidates) if reuse and target is not None else None
        new = (
            collect(model, Subset(source, part), candidates, out=target, **how)
            if new is None
            else new
        )
        views = new if views is None else _join(views, new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DependentRowsWarning)  # the fit on all samples warns
            stacking.fit(views)
        if not _is_near_paying(stacking, views):
            break
    assert views is not None
    named = {
        str(transform): transform for transform in candidates
    }  # a store has only names, not the user's code
    chosen = tuple(named[str(transform)] for transform in stacking.needed_transforms())
    # Passes of other processes, and of an earlier run, are not counted here.
    passes = model.n_answered - before or views.n_samples * (1 + len(candidates))
    return Pilot(
        views.n_samples, source.n_samples, candidates, chosen, stacking, views, len(rows), passes
    )


def _is_near_paying(stacking: ViewStacking, views: Views) -> bool:
    """Whether the best view gains, on held-out samples, at least half of what pays for its forward
    pass.
    """
    logits, labels = np.asarray(views.logits, np.float64), views.labels
    assert labels is not None
    loss = -log_softmax(logits, fit_beta(logits, labels))[np.arange(len(labels)), labels].mean()
    gains = [record["added"] for record in stacking.views_report_ if record["order"]]
    return bool(stacking.needed_transforms()) or max(gains, default=0.0) > _GAIN_PER_PASS / 2 * loss


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
    )


def read_finished(store: Path, transforms: Sequence[Transform]) -> Views | None:
    """Return the views in a store that an earlier run finished with these transformations, or None."""
    if not store.exists():
        return None
    views = read_views(store)
    return views if set(map(str, transforms)) == set(map(str, views.transforms)) else None
