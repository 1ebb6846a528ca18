"""Do the model's predictions agree with the labels? If not, the order of the classes or the pixels may be to blame.

A folder of images tells neither in which order the model's columns stand nor whether it was trained on pixels from 0 to
1. Both mistakes give a calibration that fits nothing, and both show in a few hundred predictions.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats, Labels
from recal.collecting.inputs.sources import Batch, IndexedSource
from recal.collecting.job import Job, Preprocess
from recal.collecting.models.base import Model
from recal.collecting.sinks.memory import MemorySink
from recal.errors import InputError, Remedy
from recal.transforms.preprocessing import Channels, Normalize, Outputs

_FEWEST, _PER_CLASS, _MOST = 500, 10, 1000
# By how many standard errors dividing must lower the loss.
_CLEARLY = 3.0
# Another order is meant where most predictions match in it, and at most half as many in the order that was assumed.
_MOSTLY = 0.5


@dataclass(frozen=True)
class _Reading:
    """One way to give a sample to the model: which predictions match the labels, as assumed and in the best order."""

    as_assumed: float
    accuracy: float
    losses: NDArray[np.float64]  # negative log-likelihoods at the temperature that suits the sample
    order: tuple[str, ...] | None = None  # of the classes, where another one than the folders' is meant
    channels: Channels | None = None  # where pixels are divided by 255

    def beats(self, other: _Reading) -> bool:
        """Whether it is clearly better on the same samples."""
        gain = other.losses - self.losses
        return bool(self.accuracy > other.accuracy and gain.mean() > _CLEARLY * gain.std() / np.sqrt(len(gain)))


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

    Orders are tried where the classes are known from folders alone, and divided pixels where no `preprocess` is given.
    """
    assumed = classes is None and model.classes is None and source.classes is not None
    if source.labels is None or not (assumed or preprocess is None):
        return
    names = source.classes or ()
    size = min(source.n_samples, _MOST, max(_FEWEST, _PER_CLASS * len(names)))
    rows = np.sort(np.random.default_rng(0).choice(source.n_samples, size, replace=False))
    taken = [source.take(rows[begin : begin + batch_size].tolist()) for begin in range(0, size, batch_size)]
    batches = [Batch(index, index * batch_size, *one) for index, one in enumerate(taken)]
    inputs, labels = batches[0].inputs, np.concatenate([batch.labels for batch in batches if batch.labels is not None])
    is_pixels = len(getattr(inputs, "shape", ())) >= 3 and str(inputs.dtype).endswith("uint8") and preprocess is None
    reorders = assumed and size >= _PER_CLASS * len(names)
    if not (reorders or is_pixels):
        return

    def read(between: Preprocess | None, channels: Channels | None = None) -> _Reading:
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
    why += "" if found.order is None else " Classes were taken in alphabetical order."
    raise InputError(
        f"Only {plain.as_assumed:.0%} of the predictions of {model.name} match the labels of {size} inputs, and "
        f"{found.accuracy:.0%} match as suggested below.{why}",
        remedy=Remedy(f"Check this and pass {', '.join(python)}", typed=f"Check this and add: {typed}"),
    )


def _divided(read: Any) -> _Reading | None:
    """The reading of pixels from 0 to 1, in a layout that the model takes."""
    for channels in ("first", "keep"):
        try:
            found: _Reading = read(Normalize(channels=channels), channels)
        except Exception:  # whatever a model says to a layout that it was not made for
            continue
        return found
    return None


def _in_best_order(logits: Floats, truth: Labels, names: Sequence[str], channels: Channels | None) -> _Reading:
    """Return how well logits match the labels; also in the order of columns in which most do, where names are given."""
    answers = logits.argmax(axis=1)
    right, order, columns = answers == truth, None, truth
    accuracy = float(right.mean())
    if len(names):
        from scipy.optimize import linear_sum_assignment

        met = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(met, (answers, truth), 1)
        meant = linear_sum_assignment(met, maximize=True)[1]
        best = float((meant[answers] == truth).mean())
        if best > _MOSTLY and accuracy <= _MOSTLY * best:
            order, columns, accuracy = tuple(names[place] for place in meant), np.argsort(meant)[truth], best
    return _Reading(float(right.mean()), accuracy, _losses(logits, columns), order, channels)


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
