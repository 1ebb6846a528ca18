"""A job: what to compute for a batch. All engines run the same job, so all give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.collecting.models.base import Model, as_logits
from recal.collecting.sources import Batch, digest_inputs
from recal.errors import InputError, RecalError, blame
from recal.maps.base import Map
from recal.transforms import BuiltIn, Transform
from recal.transforms.preprocessing import Outputs, Preprocessing

Preprocess = Callable[[Any], Any]


@dataclass(frozen=True)
class Block:
    """The logits of one batch: (b, K) for the originals and (m, b, K) for the transformed copies."""

    index: int
    start: int
    logits: Floats
    transformed: Floats
    labels: NDArray[Any] | None = None
    inputs: str | None = None  # a digest of its inputs, for a store

    def __len__(self) -> int:
        return len(self.logits)


# What a worker does with a block before it sends the result. It may return the block itself, for
# the driver to keep.
Finisher = Callable[[Block], Any]


@dataclass(frozen=True)
class Job:
    """A model, the transformations of its inputs, and the preprocessing between the two."""

    model: Model
    transforms: tuple[Transform, ...] = ()
    preprocess: Preprocess | None = None
    outputs: Outputs = "logits"
    # A map with a gate: rows of views that confident samples do not need stay 0.
    plan: Map | None = None
    # The record of these settings, stored with the views.
    preprocessing: Preprocessing | None = None

    def run(self, batch: Batch, describe: Callable[[int], str], *, digests: bool = False) -> Block:
        """Return the logits of one batch, with one forward pass per view."""
        inputs, rows = self.model.prepare(batch.inputs), np.arange(len(batch))
        logits = self._logits(_copy(inputs), None, batch, describe, rows)
        transformed = np.zeros((len(self.transforms), *logits.shape), dtype=logits.dtype)
        if self.plan is not None:
            rows = np.flatnonzero(self.plan.needs_views(logits))
            inputs = inputs if len(rows) == len(logits) else _rows(inputs, rows)
        for place, transform in enumerate(self.transforms if len(rows) else ()):
            is_own = isinstance(transform, BuiltIn)
            # The inputs are needed again and may be the caller's, so code that may work in place
            # gets a copy.
            values = inputs if is_own else _copy(inputs)
            whose = "" if is_own else f"Your transformation {transform!s}"
            values = _call(transform, values, whose, _where(transform, batch))
            view = self._logits(values, transform, batch, describe, rows)
            if view.shape[1] != logits.shape[1]:
                raise InputError(
                    f"The number of classes changed: {self.model.name} gave {logits.shape[1]} for the originals and "
                    f"{view.shape[1]} through {str(transform)!r}."
                )
            transformed[place, rows] = view
        inputs_digest = digest_inputs(batch) if digests else None
        return Block(batch.index, batch.start, logits, transformed, batch.labels, inputs_digest)

    def _logits(
        self,
        values: Any,
        transform: Transform | None,
        batch: Batch,
        describe: Callable[[int], str],
        rows: NDArray[np.intp],
    ) -> Floats:
        """Return the logits of one view, checked; `rows` are the rows of the batch that `values`
        belong to.
        """
        where = _where(transform, batch)
        if self.preprocess is not None:
            values = _call(self.preprocess, values, "Your preprocess", where)
        outputs = _call(self.model.answer, values, f"The model {self.model.name}", where)
        self.model.n_answered += len(rows)
        logits = _call(lambda raw: as_logits(raw, self.outputs, self.model), outputs, "", where)
        if len(logits) != len(rows):
            raise InputError(
                f"{self.model.name} gave {len(logits)} rows for {len(rows)} inputs ({_name(transform)}, from "
                f"{describe(batch.start)} on); one row per input is needed."
            )
        if not (np.isfinite(logits.min()) and np.isfinite(logits.max())):
            row, column = np.argwhere(~np.isfinite(logits))[0].tolist()
            raise InputError(
                f"Logits must be finite; {self.model.name} gave {logits[row, column]} for "
                f"{describe(batch.start + int(rows[row]))}, class {column}, in {_name(transform)}. "
                "Remove that sample, or fix the model or the preprocessing."
            )
        return logits


def _call(function: Callable[[Any], Any], batch: Any, whose: str, where: str) -> Any:
    """Call a function of the user; if it fails, say whose it is and where.

    An empty `whose` means recal itself.
    """
    try:
        return function(batch)
    except SystemExit as stop:
        raise InputError(
            f"{whose} ended Python (sys.exit: {stop.code}) {where}; it must return logits."
        ) from stop
    except Exception as error:
        if not whose or isinstance(error, RecalError):
            error.add_note(where)
        else:
            blame(error, whose, f"{where}, {_form(batch)}")
        raise


def _rows(inputs: Any, rows: NDArray[np.intp]) -> Any:
    """Return some rows of a batch: an array, a tensor, a list or a frame."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    return [inputs[row] for row in rows.tolist()] if isinstance(inputs, list) else inputs[rows]


def _name(transform: Transform | None) -> str:
    return "the original" if transform is None else f"the view {str(transform)!r}"


def _where(transform: Transform | None, batch: Batch) -> str:
    return f"while collecting {_name(transform)} of samples {batch.start}..{batch.start + len(batch) - 1}"


def _form(batch: Any) -> str:
    """Describe the form of a batch for messages: most models fail on a form that they were not
    trained on.
    """
    shape = getattr(batch, "shape", None)
    if shape is None or not hasattr(batch, "dtype"):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a batch of {str(batch.dtype).removeprefix('torch.')} of the shape {tuple(shape)}"


def _copy(inputs: Any) -> Any:
    return inputs.clone() if hasattr(inputs, "clone") else inputs.copy()  # lists, arrays and frames
