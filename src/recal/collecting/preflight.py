"""Checks before the work: labels, classes, columns, shapes, kind of outputs, and whether predictions match labels."""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.collecting.inputs.sources import Batch, IndexedSource, Source
from recal.collecting.inputs.tables import TableSource, holds_texts
from recal.collecting.job import Job, Preprocess
from recal.collecting.local import as_pool, open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.sinks.memory import MemorySink
from recal.errors import InputError, Remedy
from recal.transforms import Transform
from recal.transforms.preprocessing import Channels, Normalize, Outputs

_FEWEST, _PER_CLASS, _MOST = 500, 10, 1000
# By how many standard errors dividing must lower the loss.
_CLEARLY = 3.0
# Another order is meant where most predictions match in it, and at most half as many in the order that was assumed.
_MOSTLY = 0.5


@dataclass(frozen=True)
class _Trial:
    """One way to run the model on a sample: which predictions match the labels, as assumed and in the best order."""

    as_assumed: float
    accuracy: float
    losses: NDArray[np.float64]  # negative log-likelihoods at the temperature that suits the sample
    order: tuple[str, ...] | None = None  # of the classes, where another one than the folders' is meant
    channels: Channels | None = None  # where pixels are divided by 255

    def beats(self, other: _Trial) -> bool:
        """Whether it is clearly better on the same samples."""
        gain = other.losses - self.losses
        return bool(self.accuracy > other.accuracy and gain.mean() > _CLEARLY * gain.std() / np.sqrt(len(gain)))


def name_labels(source: Source, model: Model, classes: Sequence[Any] | None) -> Source:
    """Return the source with its labels as columns in alphabetical order, if labels alone tell the names of classes.

    Most libraries order classes like this. `check_agreement` finds another order.
    """
    values = source.labels
    if values is None or classes is not None or model.classes is not None or source.classes is not None:
        return source
    if not len(values) or not all(isinstance(value, str) for value in np.asarray(values).ravel().tolist()):
        return source
    named = copy.copy(source)  # the caller's source stays as it was
    names, named.labels = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    named.classes = tuple(names.tolist())
    return named


def name_and_check(source: Source, model: Model, classes: Sequence[Any] | None, **how: Any) -> Source:
    """Do what `name_labels` does, and refuse another order of the columns after a few hundred predictions."""
    named = name_labels(source, model, classes)
    if named is not source and isinstance(named, IndexedSource):
        check_agreement(model, named, **how)
    return named


def check_agreement(
    model: Model,
    source: IndexedSource,
    *,
    classes: Sequence[Any] | None = None,
    preprocess: Preprocess | None = None,
    outputs: Outputs = "logits",
    batch_size: int = 256,
) -> None:
    """Refuse inputs whose predictions match the labels only with another order of classes, or with divided pixels.

    Orders are tried if only the labels tell the classes, and divided pixels if no `preprocess` is given.
    """
    names = () if classes is not None or model.classes is not None else _assumed_classes(source)
    assumed = bool(names)
    if source.labels is None or not (assumed or preprocess is None):
        return
    size = min(source.n_samples, _MOST, max(_FEWEST, _PER_CLASS * len(names)))
    rows = np.sort(np.random.default_rng(0).choice(source.n_samples, size, replace=False))
    taken = [source.take(rows[begin : begin + batch_size].tolist()) for begin in range(0, size, batch_size)]
    batches = [Batch(index, index * batch_size, *one) for index, one in enumerate(taken)]
    inputs, labels = batches[0].inputs, np.concatenate([batch.labels for batch in batches if batch.labels is not None])
    is_pixels = len(getattr(inputs, "shape", ())) >= 3 and str(inputs.dtype).endswith("uint8") and preprocess is None
    reorders = assumed and size >= _PER_CLASS * len(names)
    if not (reorders or is_pixels):
        return

    def read(between: Preprocess | None, channels: Channels | None = None) -> _Trial:
        job = Job(model, (), between, model.returns(outputs))
        with model.running():
            logits = np.concatenate([job.run(batch, source.describe).logits for batch in batches])
        truth, _ = MemorySink(job, source, classes)._columns(labels, logits.shape[1])
        assert truth is not None
        return _in_best_order(logits, truth, names if reorders else (), channels)

    found = plain = read(preprocess)
    if is_pixels:
        divided = _divided(read)
        found = divided if divided is not None and divided.beats(plain) else plain
    if found.order is None and found.channels is None:
        return
    parts = {} if found.channels is None else {"divide": "255"}
    parts |= {} if found.channels in (None, "first") else {"channels": str(found.channels)}
    parts |= {} if found.order is None else {"classes": ",".join(found.order)}
    typed = " ".join(f"--{name} {shlex.quote(value)}" for name, value in parts.items())
    python = [] if found.channels is None else [f"preprocess=Normalize(channels={found.channels!r})"]
    python += [] if found.order is None else [f"classes={list(found.order)}"]
    why = "" if found.channels is None else " Pixels were passed as they are, from 0 to 255."
    if found.order is not None:
        why += " The two columns look swapped." if len(names) == 2 else " Classes were taken in alphabetical order."
    raise InputError(
        f"Only {plain.as_assumed:.0%} of the predictions of {model.name} match the labels of {size} inputs, and "
        f"{found.accuracy:.0%} match as suggested below.{why}",
        remedy=Remedy(f"Check this and pass {', '.join(python)}", typed=f"Check this and add: {typed}"),
    )


def _assumed_classes(source: Source) -> tuple[str, ...]:
    """Return the classes whose order nobody gave: folders in alphabetical order, or the numbers 0 and 1."""
    if source.classes is not None:
        return tuple(source.classes)
    labels = None if source.labels is None else np.asarray(source.labels)
    is_binary = labels is not None and labels.dtype.kind in "iu" and np.array_equal(np.unique(labels), [0, 1])
    return ("0", "1") if is_binary else ()


def _divided(read: Any) -> _Trial | None:
    """The reading of pixels from 0 to 1, in a layout that the model takes."""
    for channels in ("first", "keep"):
        try:
            found: _Trial = read(Normalize(channels=channels), channels)
        except Exception:  # whatever a model says to a layout that it was not made for
            continue
        return found
    return None


def _in_best_order(logits: Floats, truth: Labels, names: Sequence[str], channels: Channels | None) -> _Trial:
    """Return how well logits match the labels; also in the order of columns in which most do, where names are given."""
    answers = logits.argmax(axis=1)
    right, order, columns = answers == truth, None, truth
    accuracy = float(right.mean())
    if len(names) == logits.shape[1]:
        from scipy.optimize import linear_sum_assignment

        met = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(met, (answers, truth), 1)
        meant = linear_sum_assignment(met, maximize=True)[1]
        best = float((meant[answers] == truth).mean())
        swapped = len(names) == 2 and _is_below_chance(answers, truth)
        if best > _MOSTLY and (accuracy <= _MOSTLY * best or swapped):
            order, columns, accuracy = tuple(names[place] for place in meant), np.argsort(meant)[truth], best
    return _Trial(float(right.mean()), accuracy, _losses(logits, columns), order, channels)


def _is_below_chance(answers: NDArray[np.intp], truth: Labels) -> bool:
    """Whether fewer answers of a binary model are right than by chance, by more than `_CLEARLY` standard errors."""
    shares = np.array([answers.mean(), truth.mean()])
    chance = max(float(shares.prod() + (1 - shares).prod()), 1e-9)
    spread = np.sqrt(chance * (1 - chance) / len(truth))
    accuracy = float((answers == truth).mean())
    return accuracy < 0.5 and accuracy < chance - _CLEARLY * spread


def _losses(logits: Floats, columns: Labels) -> NDArray[np.float64]:
    """The negative log-likelihood of each row, at the temperature of a coarse grid that lowers their mean most."""
    spread = logits.std(axis=1).mean()
    scaled = logits.astype(np.float64) / (spread if spread > 0 else 1.0)
    tried = [_cross_entropies(scaled * beta, columns) for beta in np.geomspace(0.1, 30.0, 25)]
    return min(tried, key=lambda losses: float(losses.mean()))


def _cross_entropies(logits: NDArray[np.float64], columns: Labels) -> NDArray[np.float64]:
    """Return the negative log-likelihood of each row."""
    top = logits.max(axis=1)
    rows = np.arange(len(logits))
    return np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[rows, columns]


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
    asked: bool = True,
    **files: Any,
) -> None:
    """Refuse, before any work, what `recal.collect` with the same arguments would refuse during it or after it.

    Parameters
    ----------
    model, inputs, pool, labels, classes, preprocess, outputs, batch_size, device, seed, **files
        As in `recal.collect`.
    asked : bool
        Whether the model is asked about the first batch; without it only labels and columns are looked at.

    Warns
    -----
    UserWarning
        Where most rows of logits are constant or all are equal, or a table holds a column of texts.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.preflight import preflight
    >>> preflight(lambda batch: batch, 3 * np.eye(3), labels=["ant", "bee", "ox"], classes=["ant", "bee", "cat"])
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    recal.errors.InputError: `classes` do not name the label 'ox'; they are ant, bee, cat. Pass the names ...
    """
    answering = as_model(model, outputs=outputs, device=device)
    source = name_labels(open_source(inputs, labels, files), answering, classes)
    transforms = as_pool(pool, seed)
    _check_columns(source, answering)
    _check_names(source.labels, answering, source, classes)
    _check_labels_named(source, answering, classes)
    if not isinstance(source, IndexedSource):  # what gives its batches once is not asked for one
        return
    if (source.labels is None and not asked) or batch_size < 1:  # which collect refuses in its own words
        return
    batch = source.batch(0, min(batch_size, source.n_samples))
    _check_names(batch.labels, answering, source, classes)
    if not asked:
        return
    kinds = {type(transform): transform for transform in reversed(transforms)}
    job = Job(answering, tuple(kinds.values()), preprocess, answering.returns(outputs))
    with answering.running():
        block = job.run(batch, source.describe)
    sink = MemorySink(job, source, classes)
    sink._check(block)  # the labels that are known beforehand
    sink._columns(batch.labels, block.logits.shape[1])
    _tell_of_constants(block.logits, answering.name)
    how: dict[str, Any] = {"preprocess": preprocess, "outputs": outputs, "batch_size": batch_size}
    check_agreement(answering, source, classes=classes, **how)


def _check_names(values: Any, model: Model, source: Source, classes: Sequence[Any] | None) -> None:
    known = classes is not None or model.classes is not None or source.classes is not None
    if values is None or known or not len(values) or np.asarray(values).dtype.kind in "iub":
        return
    first = np.asarray(values).ravel()[0]
    if isinstance(first, str | bytes):
        raise InputError(
            "that are names need the names of the model's columns",
            argument=("labels", "classes"),
            subject="Labels",
            came=f"got {str(first)!r}",
            remedy=Remedy(
                "Pass classes=[...], the names of the columns in order.",
                typed="Give --classes A,B,C, the names of the columns in order.",
            ),
        )


def _check_labels_named(source: Source, model: Model, classes: Sequence[Any] | None) -> None:
    """Refuse classes that do not name every label, before the model runs."""
    names = model.classes if classes is None else classes
    values = source.labels
    if names is None or values is None or np.asarray(names).dtype.kind not in "UO":
        return
    if source.classes is not None:
        values = np.asarray(source.classes)[np.unique(values)]
    elif np.asarray(values).dtype.kind not in "UO":
        return
    labels = sorted({str(value) for value in values})
    named = [str(name) for name in names]
    absent = [label for label in labels if label not in named]
    if absent:
        which = "The model's classes" if classes is None else "`classes`"
        order = labels if len(labels) == len(named) else named
        raise InputError(
            f"{which} do not name the label {absent[0]!r}; they are {', '.join(named[:8])}",
            remedy=Remedy(
                f"Pass the names of the labels in the order of the model's columns, such as classes={order[:8]}",
                typed=f"Name the labels in the order of the model's columns, such as --classes {','.join(order[:8])}",
            ),
        )


def _check_columns(source: Source, model: Model) -> None:
    """Refuse a table of texts that is read as features; warn of texts beside features."""
    if not isinstance(source, TableSource) or hasattr(getattr(model, "estimator", None), "feature_names_in_"):
        return
    frame = source.values
    texts = [str(name) for name in frame.columns if holds_texts(frame[name])]
    if not texts:
        return
    others = [str(name) for name in frame.columns if str(name) not in texts]
    numbers = [name for name in others if getattr(frame[name].dtype, "kind", "O") in "iuf"]
    said = f"The column {texts[0]!r} holds texts, and the table is read as features"
    if len(others) <= 1 and len(numbers) < len(frame.columns) and len(frame.columns) <= 2:
        label = others[0] if others and source.labels is None else None
        python = f"text_column={texts[0]!r}" + (f", label_column={label!r}" if label else "")
        typed = f"--text-column {shlex.quote(texts[0])}" + (f" --label-column {shlex.quote(label)}" if label else "")
        raise InputError(
            f"{said}.", remedy=Remedy(f"To read it as texts pass {python}.", f"To read it as texts add {typed}.")
        )
    warnings.warn(f"{said}. If the model takes texts, say text_column={texts[0]!r}.", UserWarning, stacklevel=3)


def _tell_of_constants(logits: Floats, name: str) -> None:
    """Warn where the model does not tell its classes, or its inputs, apart."""
    flat = int((logits == logits[:, :1]).all(axis=1).sum())
    why = "Check how inputs are prepared: --divide, --mean, --std, --channels."
    if flat > len(logits) / 2:
        warnings.warn(
            f"{name} gives all classes the same logit for {flat} of the first {len(logits)} inputs. {why}",
            UserWarning,
            stacklevel=3,
        )
    elif len(logits) > 1 and (logits == logits[0]).all():
        warnings.warn(
            f"{name} gives the same logits for all of the first {len(logits)} inputs. {why}", UserWarning, stacklevel=3
        )
