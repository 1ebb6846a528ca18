"""Checks before a run: labels, classes, shapes, kind of outputs, and whether predictions match
labels.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.samples import refuse_constant
from recal.checks import Floats, Labels
from recal.collecting.blocks import Job, Preprocess, label_columns
from recal.collecting.models.base import Model
from recal.collecting.sources import Source, Subset
from recal.errors import InputError
from recal.schema import Number, check
from recal.transforms import Transform
from recal.transforms.preprocessing import Channels, Normalize, Outputs


def name_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> Source:
    """Return the source with its labels as columns in alphabetical order, if only the labels name
    the classes. Refuse labels that are not among known names.

    Most libraries order classes this way. `check_agreement` detects another order.
    """
    values, names = source.labels, model.classes if classes is None else classes
    if values is None or not len(values):
        return source
    if names is not None:
        label_columns(values, source, model, classes, len(values), len(names))
        return source
    is_named = all(isinstance(value, str) for value in np.asarray(values).ravel().tolist())
    if source.classes is not None or not is_named:
        return source
    named = copy.copy(source)  # the caller's source stays as it was
    labels, named.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    named.classes = tuple(labels.tolist())
    return named


def check_agreement(
    model: Model,
    source: Source,
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

    def run(between: Preprocess | None) -> tuple[Floats, Labels]:
        job = Job(model, (), between, model.returns(outputs))
        with model.running():
            logits = np.concatenate([job.run(batch, some.describe).logits for batch in batches])
        truth, _ = label_columns(some.labels, source, model, classes, *logits.shape)
        assert truth is not None
        return logits, truth

    logits, truth = run(preprocess)
    as_assumed = float((logits.argmax(axis=1) == truth).mean())
    right, order = _in_best_order(logits, truth, names)
    divided: Channels | None = None
    for channels in ("first", "keep") if is_pixels else ():
        try:
            trial = _in_best_order(*run(Normalize(channels=channels)), names)
        except Exception:  # a model may raise anything for a layout that it was not made for
            continue
        gain = trial[0].astype(float) - right
        if gain.mean() > 3 * gain.std() / np.sqrt(len(gain)):
            (right, order), divided = trial, channels
        break
    python, typed, why = [], [], ""
    if divided is not None:
        python.append(f"preprocess=Normalize(channels={divided!r})")
        typed.append(f"--divide 255 --channels {divided}")
        why += " Pixels were passed as they are, from 0 to 255."
    if order is not None:
        python.append(f"classes={order}")
        typed.append(f"--classes {shlex.quote(','.join(order))}")
        assumed = " Classes were taken in alphabetical order."
        why += " The two columns look swapped." if len(names) == 2 else assumed
    if why:
        raise InputError(
            f"Only {as_assumed:.0%} of the predictions of {model.name} match the labels of "
            f"{size} inputs, and {right.mean():.0%} match as suggested below.{why}",
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
    logits: Floats, truth: Labels, names: Sequence[str]
) -> tuple[NDArray[np.bool_], list[str] | None]:
    """Return which predictions match the labels in the order of `names`, and None.

    If another order is clearly better, return the matches in that order, and the order.
    """
    answers = logits.argmax(axis=1)
    right = answers == truth
    if len(names) != logits.shape[1]:
        return right, None
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (answers, truth), 1)
    places = linear_sum_assignment(counts, maximize=True)[1]
    reordered = places[answers] == truth
    # Constant predictions match the largest class in some order.
    largest = np.bincount(truth).max() / len(truth)
    margin = 3 * np.sqrt(largest * (1 - largest) / len(truth))
    if right.mean() <= reordered.mean() / 2 and reordered.mean() > max(0.5, largest + margin):
        return reordered, [names[place] for place in places]
    return right, None


def preflight(
    model: Model,
    source: Source,
    transforms: Sequence[Transform],
    *,
    classes: Sequence[Any] | None = None,
    preprocess: Preprocess | None = None,
    outputs: Outputs = "logits",
    batch_size: int = 256,
) -> None:
    """Refuse, before the run, what `recal.collect` with the same arguments would refuse later.

    The model runs on the first batch, as it is and through one transformation of each kind.
    """
    batch = source.batch(0, check(batch_size, Number(1, whole=True), "batch_size"))
    kinds = {type(transform): transform for transform in reversed(transforms)}
    job = Job(model, tuple(kinds.values()), preprocess, model.returns(outputs))
    with model.running():
        logits = job.run(batch, source.describe).logits
    for values in (source.labels, batch.labels):
        n_samples = 0 if values is None else len(values)
        label_columns(values, source, model, classes, n_samples, logits.shape[1])
    if len(logits) >= 20:
        refuse_constant(logits)
    how: dict[str, Any] = {"preprocess": preprocess, "outputs": outputs, "batch_size": batch_size}
    check_agreement(model, source, classes=classes, **how)
