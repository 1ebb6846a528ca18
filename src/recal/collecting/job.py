"""One collect as a value: what to compute for a batch. Every engine runs the same job, so all give the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recal.checks import Floats
from recal.collecting.fingerprint import digest, digest_array
from recal.collecting.inputs.sources import Batch
from recal.collecting.models.base import Model, as_logits
from recal.errors import InputError, RecalError, blame
from recal.maps.base import Map
from recal.transforms import BuiltIn, Transform
from recal.transforms.base import shown
from recal.transforms.preprocessing import Outputs, Preprocessing


def find_twins(transforms: Sequence[Transform], inputs: Any) -> dict[int, int]:
    """Return, for each transformation that gives what an earlier one gives for all of a batch, the earlier one's place.

    The first sample alone tells which could be twins, at no cost worth speaking of; only those are compared for the
    whole batch. Views are bit for bit what they would be otherwise, since equal inputs have equal answers. Only
    recal's own kinds are asked: a sample alone gets from them what it gets in a batch.
    """
    if len(transforms) < 2 or not isinstance(inputs, list | np.ndarray):
        return {}
    firsts: dict[str, list[int]] = {}
    twins: dict[int, int] = {}
    for place, transform in enumerate(transforms):
        if not isinstance(transform, BuiltIn):
            continue
        alike = firsts.setdefault(digest(transform(inputs[:1])), [])
        for other in alike:
            if _equal(transform(inputs), transforms[other](inputs)):
                twins[place] = other
                break
        else:
            alike.append(place)
    if twins:
        place, other = next(iter(twins.items()))
        warnings.warn(
            f"{len(twins)} of the {len(transforms)} transformations have the same effect as another one on these "
            f"inputs, such as {shown(transforms[place])} and {shown(transforms[other])}. You can drop them.",
            UserWarning,
            stacklevel=2,
        )
    return twins


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(_equal(x, y) if isinstance(x, np.ndarray) else x == y for x, y in zip(a, b))
    if a.dtype == object:
        return _equal(list(a), list(b))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


Preprocess = Callable[[Any], Any]


@dataclass(frozen=True)
class Block:
    """The logits of one batch: (b, K) of the originals and (m, b, K) of the transformed copies."""

    index: int
    start: int
    logits: Floats
    transformed: Floats
    labels: NDArray[Any] | None = None
    inputs: str | None = None  # a digest of what it was made of, where a store wants it

    def __len__(self) -> int:
        return len(self.logits)


class Finisher(Protocol):
    """What is done with a block where it was computed. It may give the block back, for the driver to keep; whatever
    else it gives has as many rows as `len` says."""

    def __call__(self, block: Block) -> Any: ...


@dataclass(frozen=True)
class Job:
    """A model, the transformations it is to be asked through, and what stands between the two."""

    model: Model
    transforms: tuple[Transform, ...] = ()
    preprocess: Preprocess | None = None
    outputs: Outputs = "logits"
    plan: Map | None = None  # a map with a gate: rows of views that confident samples do not need stay 0
    preprocessing: Preprocessing | None = None  # the record of all this that views keep

    def run(self, batch: Batch, describe: Callable[[int], str], *, digests: bool = False) -> Block:
        """Return the logits of one batch, each view that differs from the others in a forward pass of its own."""
        inputs = self.model.prepare(batch.inputs)
        logits = self._view(None, inputs, batch, describe)
        transformed = np.empty((len(self.transforms), *logits.shape), dtype=logits.dtype)
        rows = None if self.plan is None else np.flatnonzero(self.plan.needs_views(logits))
        if rows is not None and len(rows) < len(logits):
            transformed[:] = 0
            inputs = _rows(inputs, rows)
        else:
            rows = np.arange(len(logits))
        twins = find_twins(self.transforms, inputs) if len(rows) else {}
        for place, transform in enumerate(self.transforms if len(rows) else ()):
            if place in twins:
                transformed[place, rows] = transformed[twins[place], rows]
                continue
            view = self._view(transform, inputs, batch, describe, rows)
            if view.shape[1] != logits.shape[1]:
                raise InputError(
                    f"The number of classes changed: {self.model.name} gave {logits.shape[1]} for the originals and "
                    f"{view.shape[1]} through {str(transform)!r}."
                )
            transformed[place, rows] = view
        inputs_digest = digest_inputs(batch) if digests else None
        return Block(batch.index, batch.start, logits, transformed, batch.labels, inputs_digest)

    def _view(
        self,
        transform: Transform | None,
        inputs: Any,
        batch: Batch,
        describe: Callable[[int], str],
        rows: NDArray[np.intp] | None = None,
    ) -> Floats:
        """Return one view's logits, checked; `inputs` are the batch's, or its `rows` alone."""
        places = np.arange(len(batch)) if rows is None else rows
        where = f"while collecting {_call(transform)} of samples {batch.start}..{batch.start + len(batch) - 1}"
        whose = None if transform is None or isinstance(transform, BuiltIn) else f"Your transformation {transform!s}"
        seen = inputs
        try:
            # The inputs are still needed, and may be the caller's own: code that may work in place gets a copy.
            seen = inputs if isinstance(transform, BuiltIn) else _copy(inputs)
            if transform is not None:
                seen = transform(seen)
            if self.preprocess is not None:
                whose = "Your preprocess"
                seen = self.preprocess(seen)
            whose = f"The model {self.model.name}"
            answer = self.model.answer(seen)
            self.model.n_answered += len(places)
            whose = None
            logits = as_logits(answer, self.outputs, self.model)
        except SystemExit as stop:
            raise InputError(f"{whose} ended Python (sys.exit: {stop.code}) {where}; it must return logits.") from stop
        except Exception as error:
            if whose is None or isinstance(error, RecalError):
                error.add_note(where)
            else:
                blame(error, whose, f"{where}, {_form(seen)}")
            raise
        if len(logits) != len(places):
            raise InputError(
                f"{self.model.name} gave {len(logits)} rows for {len(places)} inputs ({_call(transform)}, from "
                f"{describe(batch.start)} on); one row per input is needed."
            )
        if not (np.isfinite(logits.min()) and np.isfinite(logits.max())):
            row, column = np.argwhere(~np.isfinite(logits))[0].tolist()
            raise InputError(
                f"Logits must be finite; {self.model.name} gave {logits[row, column]} for "
                f"{describe(batch.start + int(places[row]))}, class {column}, in {_call(transform)}. "
                "Remove that sample, or fix the model or the preprocessing."
            )
        return logits


def digest_inputs(batch: Batch) -> str:
    """Return a digest of a batch's inputs."""
    inputs = batch.inputs
    return digest_array(np.asarray(inputs.detach().cpu() if hasattr(inputs, "detach") else inputs), whole=True)


def _rows(inputs: Any, rows: NDArray[np.intp]) -> Any:
    """Return some rows of a batch: an array, a tensor, a list or a frame."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[rows]
    return [inputs[row] for row in rows.tolist()] if isinstance(inputs, list) else inputs[rows]


def _call(transform: Transform | None) -> str:
    return "the original" if transform is None else f"the view {str(transform)!r}"


def _form(batch: Any) -> str:
    """How messages call a batch: what most models fail on is a form that they were not trained on."""
    shape = getattr(batch, "shape", None)
    if shape is None or not hasattr(batch, "dtype"):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a batch of {str(batch.dtype).removeprefix('torch.')} of the shape {tuple(shape)}"


def _copy(inputs: Any) -> Any:
    return inputs.clone() if hasattr(inputs, "clone") else inputs.copy()  # lists, arrays and frames
