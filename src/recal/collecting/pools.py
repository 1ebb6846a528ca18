"""Which transformations suit some inputs: the default pools, by the kind of the inputs."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from recal.collecting.forward import Job, Preprocess
from recal.collecting.models.base import Model, as_array
from recal.collecting.sources import IndexedSource, Source
from recal.errors import InputError
from recal.transforms import Transform
from recal.transforms import pool as draw_pool
from recal.transforms.pool import NAMED


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
        values = as_array(values)
    return draw_pool(pool, seed=seed, data=values if is_table else None)


def kind_of_inputs(source: Source, model: Model) -> str:
    """Return "image", "video", "series", "audio", "text" or "tabular"; ask if it is ambiguous.

    No later step would notice a series that was zoomed like a picture.
    """
    known = source.kind or getattr(model, "takes", None)
    if known is not None:
        return str(known)
    values = as_array(_first(source))
    is_objects = values.dtype == object and values.ndim == 1
    if values.dtype.kind in "US" or (
        is_objects and all(isinstance(item, str | bytes) for item in values)
    ):
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


def _first(source: Source, count: int = 32) -> Any:
    """Return a few inputs, without using up a source that can be read only once."""
    if isinstance(source, IndexedSource):
        return source.read(range(min(source.n_samples, count)))
    loader = getattr(source, "loader", None)
    if loader is None or iter(loader) is loader:
        raise InputError(
            "A generator can be read only once, so its inputs cannot be looked at to choose a pool",
            remedy="Name it, such as pool='auto:image'; `recal transforms` lists what there is",
        )
    return next(iter(source.batches(count))).inputs


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
    if not isinstance(source, IndexedSource):
        return tuple(transforms)
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
