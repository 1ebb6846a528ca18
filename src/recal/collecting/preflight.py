"""What is settled and checked before a run: the pool, the names of the classes, and whether the
predictions of a few inputs match their labels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import is_constant, refuse_constant
from recal.collecting.blocks import Job, Sink, label_columns
from recal.collecting.models.base import Model, to_numpy
from recal.collecting.sources import Source, Subset
from recal.errors import InputError, in_both
from recal.schema import Number, check
from recal.transforms import Transform
from recal.transforms import pool as draw_pool
from recal.transforms.pools import NAMED

Runner = Callable[[Job, Source, int, Sink, bool], None]


def as_pool(
    pool: str | Sequence[Transform | str] | None, seed: int, source: Source, model: Model
) -> tuple[Transform, ...]:
    """Return the transformations of a pool; none for None, "none" and an empty sequence.

    "auto" and "damage" mean the pool of that name for the kind of the inputs ("auto:image"). Kinds
    that learn from a table, such as "median", take their numbers from the source.
    """
    if pool is None or pool == "none" or (isinstance(pool, list | tuple) and not pool):
        return ()
    if isinstance(pool, str):
        if not pool.strip():
            remedy = "Pass none, auto, or transformations such as zoom:0.5-0.9:10"
            raise InputError("is empty", argument="pool", remedy=remedy)
        parts = [part.strip() for part in pool.split("+")]
        bare = any(part in NAMED for part in parts)
        kind = kind_of_inputs(source, model) if bare else ""
        pool = "+".join(f"{part}:{kind}" if part in NAMED else part for part in parts)
    values = getattr(source, "values", None)
    if len(getattr(values, "shape", ())) != 2:
        values = None
    elif hasattr(values, "detach"):
        values = to_numpy(values)
    return draw_pool(pool, seed=seed, data=values)


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
    is_share = values.dtype.kind == "f" and 0 <= values.min() <= values.max() <= 1
    if values.ndim in (3, 4) and (values.dtype == np.uint8 or (is_share and values.ndim == 4)):
        return "image"
    if values.ndim == 5:
        return "video"
    shape = ", ".join(["n", *map(str, values.shape[1:])])
    named = "auto:image, auto:series, auto:audio, auto:text or auto:tabular"
    raise InputError(
        f"Inputs of dtype {values.dtype} and shape ({shape}) do not say what they are. Pixels are "
        "uint8, or floats from 0 to 1 in four axes; normalise them in the preprocessing",
        remedy=f"Pass pool='auto:KIND' (--pool auto:KIND), one of {named}, or None (--pool none)",
    )


def taken_by(job: Job, source: Source) -> tuple[Transform, ...]:
    """Return the transformations whose results the model accepts, tried on a few inputs.

    Many models refuse a table with missing values.
    """
    batch = source.batch(0, 16)
    taken = []
    with job.model.running():
        for transform in job.transforms:
            try:
                replace(job, transforms=(transform,)).run(batch, source.describe)
            except Exception:  # a model may raise anything for inputs that it was not made for
                continue
            taken.append(transform)
    return tuple(taken)


def name_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> Source:
    """Return the source with its labels as columns in alphabetical order, if only the labels name
    the classes. Refuse labels that are not among known names.

    Most libraries order classes this way. `check_agreement` detects another order.
    """
    values, names = source.labels, model.classes if classes is None else classes
    if values is None or not len(values):
        return source
    if names is not None:
        label_columns(values, source, model, classes, len(names))
        return source
    is_named = all(isinstance(value, str) for value in np.asarray(values).ravel().tolist())
    if source.classes is not None or not is_named:
        return source
    named = copy.copy(source)  # the caller's source stays as it was
    labels, named.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    named.classes = tuple(labels.tolist())
    return named


def check_agreement(
    job: Job, source: Source, run: Runner, *, classes: Sequence[Any] | None, batch_size: int
) -> None:
    """Refuse inputs whose predictions match the labels only with another order of classes.

    Orders are tried if only the labels name the classes. 500 to 1,000 samples are enough, and at
    least ten for each class.
    """
    model = job.model
    names = () if classes is not None or model.classes is not None else _assumed_classes(source)
    size = min(source.n_samples, 1000, max(500, 10 * len(names)))
    if not names or size < 10 * len(names):
        return
    from scipy.optimize import linear_sum_assignment

    rows = np.sort(np.random.default_rng(0).choice(source.n_samples, size, replace=False))
    some = Subset(source, rows)
    logits = _logits_of(job, some, run, batch_size)
    truth, _ = label_columns(some.labels, source, model, classes, logits.shape[1])
    if truth is None or len(names) != logits.shape[1]:
        return
    answers = logits.argmax(axis=1)
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (answers, truth), 1)
    places = linear_sum_assignment(counts, maximize=True)[1]
    right, reordered = (answers == truth).mean(), (places[answers] == truth).mean()
    # Constant predictions match the largest class in some order.
    largest = np.bincount(truth).max() / size
    margin = 3 * np.sqrt(largest * (1 - largest) / size)
    if right <= reordered / 2 and reordered > max(0.5, largest + margin):
        order = [names[place] for place in places]
        why = "Classes were taken in alphabetical order"
        if len(names) == 2:
            why = "The two columns look swapped"
        raise InputError(
            f"Only {right:.0%} of the predictions of {model.name} match the labels of {size} "
            f"inputs, and {reordered:.0%} match in another order of the classes. {why}",
            remedy=f"Check this and pass {in_both(classes=order)}",
        )


def _assumed_classes(source: Source) -> tuple[str, ...]:
    """Return the classes if their order is only assumed: folders in alphabetical order, or the
    numbers 0 and 1.
    """
    if source.classes is not None:
        return tuple(source.classes)
    labels = np.asarray([] if source.labels is None else source.labels)
    is_binary = labels.dtype.kind in "iu" and np.array_equal(np.unique(labels), [0, 1])
    return ("0", "1") if is_binary else ()


def check_job(
    job: Job, source: Source, run: Runner, *, classes: Sequence[Any] | None, batch_size: int
) -> None:
    """Refuse, before the run, what the job would refuse later.

    The model runs on 32 inputs from all over the source, as they are and through one transformation
    of each kind.
    """
    batch_size = check(batch_size, Number(1, whole=True), "batch_size")
    kinds = {type(transform): transform for transform in reversed(job.transforms)}
    trial, sink = replace(job, transforms=tuple(kinds.values())), Sink("Checking")
    run(trial, _spread(source, min(batch_size, 32)), batch_size, sink, False)
    [block] = sink.in_order()
    for values in (source.labels, block.labels):
        label_columns(values, source, job.model, classes, block.logits.shape[1])
    if source.n_samples >= 20 and is_constant(block.logits):
        # A tree may give most inputs the same logits if one class is rare.
        refuse_constant(_logits_of(job, _spread(source, 1000), run, batch_size))
    check_agreement(job, source, run, classes=classes, batch_size=batch_size)


def _spread(source: Source, most: int) -> Subset:
    """Return at most this many inputs, evenly spaced; files are often sorted by class."""
    count = min(most, source.n_samples)
    return Subset(source, np.arange(count) * source.n_samples // count)


def _logits_of(job: Job, source: Source, run: Runner, batch_size: int) -> NDArray[Any]:
    sink = Sink("Checking")
    run(replace(job, transforms=()), source, batch_size, sink, False)
    return np.concatenate([block.logits for block in sink.in_order()])
