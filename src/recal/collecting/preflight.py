"""Checks before a run: labels, classes, columns, shapes, kind of outputs, and whether predictions
match labels.
"""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.sample_checks import refuse_constant
from recal.checks import Floats, Labels
from recal.collecting.job import Job, Preprocess
from recal.collecting.local import open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.pools import as_pool
from recal.collecting.sinks import MemorySink
from recal.collecting.sources import Batch, IndexedSource, Source
from recal.collecting.tables import TableSource, holds_texts
from recal.errors import InputError, in_both
from recal.maps.arrays import log_softmax
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.transforms.preprocessing import Channels, Normalize, Outputs

_FEWEST, _PER_CLASS, _MOST = 500, 10, 1000
# Differences must exceed this many standard errors, such as the lower loss of divided pixels.
_CLEARLY = 3.0
# Another order is suggested if more than this share of the predictions match in it, and if the
# share that matches in the assumed order is at most this fraction of it.
_MOSTLY = 0.5


def name_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> Source:
    """Return the source with its labels as columns in alphabetical order, if only the labels name
    the classes.

    Most libraries order classes this way. `check_agreement` detects another order.
    """
    values = source.labels
    if (
        values is None
        or classes is not None
        or model.classes is not None
        or source.classes is not None
    ):
        return source
    if not len(values) or not all(
        isinstance(value, str) for value in np.asarray(values).ravel().tolist()
    ):
        return source
    named = copy.copy(source)  # the caller's source stays as it was
    names, named.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    named.classes = tuple(names.tolist())
    return named


def name_and_check(
    source: Source, model: Model, classes: Sequence[Any] | None, **how: Any
) -> Source:
    """Return the source of `name_labels`; refuse it if a few hundred predictions show another order
    of columns.
    """
    named = name_labels(source, model, classes)
    if named is not source and isinstance(named, IndexedSource):
        check_agreement(model, named, **how)
    return named


@dataclass(frozen=True)
class _Trial:
    """One way to run the model on a sample, and how many predictions match the labels."""

    as_assumed: float  # the accuracy with the assumed order of classes
    accuracy: float  # in the best order
    losses: NDArray[np.float64]  # negative log-likelihoods at the best temperature
    order: tuple[str, ...] | None = None  # of the classes, if it is not the assumed one
    channels: Channels | None = None  # if pixels are divided by 255


def check_agreement(
    model: Model,
    source: IndexedSource,
    *,
    classes: Sequence[Any] | None = None,
    preprocess: Preprocess | None = None,
    outputs: Outputs = "logits",
    batch_size: int = 256,
) -> None:
    """Refuse inputs whose predictions match the labels only with another order of classes, or with
    divided pixels.

    Orders are tried if only the labels name the classes, and divided pixels if no `preprocess` is
    given.
    """
    names = () if classes is not None or model.classes is not None else _assumed_classes(source)
    if source.labels is None or not (names or preprocess is None):
        return
    size = min(source.n_samples, _MOST, max(_FEWEST, _PER_CLASS * len(names)))
    rows = np.sort(np.random.default_rng(0).choice(source.n_samples, size, replace=False))
    starts = range(0, size, batch_size)
    batches = [
        Batch(start // batch_size, start, *source.take(rows[start : start + batch_size].tolist()))
        for start in starts
    ]
    inputs, labels = (
        batches[0].inputs,
        np.concatenate([batch.labels for batch in batches if batch.labels is not None]),
    )
    is_pixels = (
        len(getattr(inputs, "shape", ())) >= 3
        and str(inputs.dtype).endswith("uint8")
        and preprocess is None
    )
    names = names if size >= _PER_CLASS * len(names) else ()
    if not (names or is_pixels):
        return

    def run(between: Preprocess | None, channels: Channels | None = None) -> _Trial:
        job = Job(model, (), between, model.returns(outputs))
        with model.running():
            logits = np.concatenate([job.run(batch, source.describe).logits for batch in batches])
        truth, _ = MemorySink(job, source, classes).columns(labels, logits.shape[1])
        assert truth is not None
        return _in_best_order(logits, truth, names, channels)

    best = plain = run(preprocess)
    for channels in ("first", "keep") if is_pixels else ():
        try:
            divided = run(Normalize(channels=channels), channels)
        except Exception:  # a model may raise anything for a layout that it was not made for
            continue
        gain = plain.losses - divided.losses
        if divided.accuracy > plain.accuracy and gain.mean() > _CLEARLY * gain.std() / np.sqrt(
            len(gain)
        ):
            best = divided
        break
    python, typed, why = [], [], ""
    if best.channels is not None:
        python.append(f"preprocess=Normalize(channels={best.channels!r})")
        typed += (
            ["--divide 255"]
            if best.channels == "first"
            else ["--divide 255", f"--channels {best.channels}"]
        )
        why += " Pixels were passed as they are, from 0 to 255."
    if best.order is not None:
        python.append(f"classes={list(best.order)}")
        typed.append(f"--classes {shlex.quote(','.join(best.order))}")
        why += (
            " The two columns look swapped."
            if len(names) == 2
            else " Classes were taken in alphabetical order."
        )
    if why:
        raise InputError(
            f"Only {plain.as_assumed:.0%} of the predictions of {model.name} match the labels of {size} inputs, and "
            f"{best.accuracy:.0%} match as suggested below.{why}",
            remedy=f"Check this and pass {', '.join(python)} ({' '.join(typed)})",
        )


def _assumed_classes(source: Source) -> tuple[str, ...]:
    """Return the classes if their order is only assumed: folders in alphabetical order, or the
    numbers 0 and 1.
    """
    if source.classes is not None:
        return tuple(source.classes)
    labels = None if source.labels is None else np.asarray(source.labels)
    is_binary = (
        labels is not None
        and labels.dtype.kind in "iu"
        and np.array_equal(np.unique(labels), [0, 1])
    )
    return ("0", "1") if is_binary else ()


def _in_best_order(
    logits: Floats, truth: Labels, names: Sequence[str], channels: Channels | None
) -> _Trial:
    """Return how well logits match the labels, in the order of `names` or, if clearly better, in
    another one.
    """
    answers = logits.argmax(axis=1)
    accuracy = best = float((answers == truth).mean())
    order, columns = None, truth
    if len(names) == logits.shape[1]:
        from scipy.optimize import linear_sum_assignment

        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, (answers, truth), 1)
        places = linear_sum_assignment(counts, maximize=True)[1]
        share = float((places[answers] == truth).mean())
        swapped = len(names) == 2 and _is_below_chance(answers, truth)
        # Constant predictions match the largest class in some order.
        largest = np.bincount(truth).max() / len(truth)
        margin = _CLEARLY * np.sqrt(largest * (1 - largest) / len(truth))
        reordered = accuracy <= _MOSTLY * share and share > largest + margin
        if share > _MOSTLY and (reordered or swapped):
            order, columns, best = (
                tuple(names[place] for place in places),
                np.argsort(places)[truth],
                share,
            )
    scaled = logits.astype(np.float64) / (logits.std(axis=1).mean() or 1.0)
    losses = -log_softmax(scaled, fit_beta(scaled, columns))[np.arange(len(columns)), columns]
    return _Trial(accuracy, best, losses, order, channels)


def _is_below_chance(answers: NDArray[np.intp], truth: Labels) -> bool:
    """Whether the accuracy of a binary model is more than `_CLEARLY` standard errors below chance."""
    shares = np.array([answers.mean(), truth.mean()])
    chance = max(float(shares.prod() + (1 - shares).prod()), 1e-9)
    spread = np.sqrt(chance * (1 - chance) / len(truth))
    accuracy = float((answers == truth).mean())
    return accuracy < 0.5 and accuracy < chance - _CLEARLY * spread


def preflight(
    model: Any,
    inputs: Any,
    pool: str | Sequence[Transform | str] | None = None,
    *,
    labels: Any = None,
    classes: Sequence[Any] | None = None,
    preprocess: Preprocess | None = None,
    outputs: Outputs = "logits",
    batch_size: int = 256,
    device: Any = None,
    seed: int = 0,
    run_model: bool = True,
    **files: Any,
) -> None:
    """Refuse, before the run, what `recal.collect` with the same arguments would refuse later.

    Parameters
    ----------
    model, inputs, pool, labels, classes, preprocess, outputs, batch_size, device, seed, **files
        As in `recal.collect`.
    run_model : bool
        Whether the model runs on the first batch; otherwise only labels and columns are checked.

    Warns
    -----
    UserWarning
        If a table has a column of texts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.preflight import preflight
    >>> preflight(lambda batch: batch, 3 * np.eye(3), labels=["ant", "bee", "ox"], classes=["ant", "bee", "cat"])
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    recal.errors.InputError: `classes` do not name the label 'ox'; they are ant, bee, cat. Pass the
    names ...
    """
    adapter = as_model(model, outputs=outputs, device=device)
    source = name_labels(open_source(inputs, labels, files, adapter), adapter, classes)
    transforms = as_pool(pool, seed, source, adapter)
    _check_columns(source, adapter)
    _check_labels(source, adapter, classes)
    if (
        not isinstance(source, IndexedSource) or not run_model or batch_size < 1
    ):  # `collect` refuses the batch size
        return
    batch = source.batch(0, batch_size)
    kinds = {type(transform): transform for transform in reversed(transforms)}
    job = Job(adapter, tuple(kinds.values()), preprocess, adapter.returns(outputs))
    with adapter.running():
        logits = job.run(batch, source.describe).logits
    sink = MemorySink(job, source, classes)
    for values in (source.labels, batch.labels):
        sink.columns(values, logits.shape[1])
    if len(logits) >= 20:
        refuse_constant(logits)
    how: dict[str, Any] = {"preprocess": preprocess, "outputs": outputs, "batch_size": batch_size}
    check_agreement(adapter, source, classes=classes, **how)


def _check_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> None:
    """Refuse, before the model runs, classes that do not name every label."""
    names = model.classes if classes is None else classes
    values = source.labels
    if names is None or values is None or np.asarray(names).dtype.kind not in "UO":
        return
    if source.classes is not None:
        values = np.asarray(source.classes)[np.unique(values)]
    elif np.asarray(values).dtype.kind not in "UO":
        return
    labels, columns = sorted({str(value) for value in values}), [str(name) for name in names]
    if absent := [label for label in labels if label not in columns]:
        which = "The model's classes" if classes is None else "`classes`"
        raise InputError(
            f"{which} do not name the label {absent[0]!r}; they are {', '.join(columns[:8])}",
            remedy="Pass the names of the labels in the order of the model's columns, such as "
            + in_both(classes=(labels if len(labels) == len(columns) else columns)[:8]),
        )


def _check_columns(source: Source, model: Model) -> None:
    """Refuse a table of texts that is read as features; warn about a column of texts among
    features.
    """
    if not isinstance(source, TableSource) or model.features is not None:
        return
    frame = source.values
    texts = [str(name) for name in frame.columns if holds_texts(frame[name])]
    if not texts:
        return
    others = [str(name) for name in frame.columns if str(name) not in texts]
    numbers = [name for name in others if getattr(frame[name].dtype, "kind", "O") in "iuf"]
    problem = f"The column {texts[0]!r} holds texts, and the table is read as features"
    if len(others) <= 1 and len(numbers) < len(frame.columns) <= 2:
        columns = {"text_column": texts[0]}
        columns |= {"label_column": others[0]} if others and source.labels is None else {}
        words = ", ".join(in_both(**{name: value}) for name, value in columns.items())
        raise InputError(f"{problem}.", remedy=f"To read it as texts pass {words}")
    warnings.warn(
        f"{problem}. If the model takes texts, say text_column={texts[0]!r}.",
        UserWarning,
        stacklevel=3,
    )
