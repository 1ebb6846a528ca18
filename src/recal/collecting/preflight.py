"""Checks before a run: labels, classes, columns, shapes, kind of outputs, and whether predictions
match labels.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import refuse_constant
from recal.checks import Floats, Labels
from recal.collecting.blocks import MemorySink
from recal.collecting.forward import Job, Preprocess
from recal.collecting.local import open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.pools import as_pool
from recal.collecting.sources import IndexedSource, Source, Subset
from recal.collecting.tables import TableSource, holds_texts
from recal.errors import InputError, in_both
from recal.maps.arrays import log_softmax
from recal.solvers.temperature import fit_beta
from recal.transforms import Transform
from recal.transforms.preprocessing import Channels, Normalize, Outputs

# Differences must exceed this many standard errors, such as the lower loss of divided pixels.
_CLEARLY = 3.0


def name_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> Source:
    """Return the source with its labels as columns in alphabetical order, if only the labels name
    the classes.

    Most libraries order classes this way. `check_agreement` detects another order.
    """
    values = source.labels
    known = (classes, model.classes, source.classes)
    if values is None or not len(values) or any(names is not None for names in known):
        return source
    if not all(isinstance(value, str) for value in np.asarray(values).ravel().tolist()):
        return source
    named = copy.copy(source)  # the caller's source stays as it was
    names, named.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    named.classes = tuple(names.tolist())
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
    given. 500 to 1,000 samples are enough; an order needs ten for each class.
    """
    names = () if classes is not None or model.classes is not None else _assumed_classes(source)
    if source.labels is None or not (names or preprocess is None):
        return
    size = min(source.n_samples, 1000, max(500, 10 * len(names)))
    rows = np.sort(np.random.default_rng(0).choice(source.n_samples, size, replace=False))
    some = Subset(source, rows)
    batches = list(some.batches(batch_size))
    inputs = batches[0].inputs
    is_pixels = len(getattr(inputs, "shape", ())) >= 3 and str(inputs.dtype).endswith("uint8")
    is_pixels = is_pixels and preprocess is None
    names = names if size >= 10 * len(names) else ()
    if not (names or is_pixels):
        return

    def run(between: Preprocess | None, channels: Channels | None = None) -> _Trial:
        job = Job(model, (), between, model.returns(outputs))
        with model.running():
            logits = np.concatenate([job.run(batch, some.describe).logits for batch in batches])
        truth, _ = MemorySink(job, source, classes).columns(some.labels, logits.shape[1])
        assert truth is not None
        return _in_best_order(logits, truth, names, channels)

    best = plain = run(preprocess)
    for channels in ("first", "keep") if is_pixels else ():
        try:
            divided = run(Normalize(channels=channels), channels)
        except Exception:  # a model may raise anything for a layout that it was not made for
            continue
        gain = plain.losses - divided.losses
        is_clear = gain.mean() > _CLEARLY * gain.std() / np.sqrt(len(gain))
        if divided.accuracy > plain.accuracy and is_clear:
            best = divided
        break
    python, typed, why = [], [], ""
    if best.channels is not None:
        python.append(f"preprocess=Normalize(channels={best.channels!r})")
        typed.append(f"--divide 255 --channels {best.channels}")
        why += " Pixels were passed as they are, from 0 to 255."
    if best.order is not None:
        python.append(f"classes={list(best.order)}")
        typed.append(f"--classes {shlex.quote(','.join(best.order))}")
        swapped = len(names) == 2
        why += (
            " The two columns look swapped."
            if swapped
            else " Classes were taken in alphabetical order."
        )
    if why:
        raise InputError(
            f"Only {plain.as_assumed:.0%} of the predictions of {model.name} match the labels of "
            f"{size} inputs, and {best.accuracy:.0%} match as suggested below.{why}",
            remedy=f"Check this and pass {', '.join(python)} ({' '.join(typed)})",
        )


def _assumed_classes(source: Source) -> tuple[str, ...]:
    """Return the classes if their order is only assumed:

    folders in alphabetical order, or the numbers 0 and 1.
    """
    if source.classes is not None:
        return tuple(source.classes)
    labels = np.asarray([] if source.labels is None else source.labels)
    is_binary = labels.dtype.kind in "iu" and np.array_equal(np.unique(labels), [0, 1])
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
        reordered = accuracy <= share / 2 and share > largest + margin
        if share > 0.5 and (reordered or swapped):
            order, best = tuple(names[place] for place in places), share
            columns = np.argsort(places)[truth]
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

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.preflight import preflight
    >>> preflight(lambda batch: batch, 3 * np.eye(3), labels=["ant", "bee", "ox"], classes=["ant", "bee", "cat"])
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    recal.errors.InputError: ...'ox'...
    """
    adapter = as_model(model, outputs=outputs, device=device)
    source = name_labels(open_source(inputs, labels, files, adapter), adapter, classes)
    transforms = as_pool(pool, seed, source, adapter)
    _check_columns(source, adapter)
    names = adapter.classes if classes is None else classes
    if names is not None and source.labels is not None:
        MemorySink(Job(adapter), source, classes).columns(source.labels, len(names))
    # `collect` refuses the batch size.
    if not isinstance(source, IndexedSource) or not run_model or batch_size < 1:
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


def _check_columns(source: Source, model: Model) -> None:
    """Refuse a table of texts, perhaps with labels, that is read as features."""
    if not isinstance(source, TableSource) or model.features is not None:
        return
    frame = source.values
    texts = [str(name) for name in frame.columns if holds_texts(frame[name])]
    others = [str(name) for name in frame.columns if str(name) not in texts]
    if texts and len(others) <= 1:
        columns = {"text_column": texts[0]}
        if others and source.labels is None:
            columns["label_column"] = others[0]
        raise InputError(
            f"The column {texts[0]!r} holds texts, and the table is read as features",
            remedy=f"To read it as texts pass {in_both(**columns)}",
        )
