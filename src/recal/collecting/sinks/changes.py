"""Whether inputs and model are still those that the finished blocks of a run were computed from.

Each block has a digest of its inputs. A run that resumes compares it for every block whose files changed since, or that
has no files. Files whose names, sizes and times are the recorded ones are not read again; those times are in a hidden
file, which may be lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.inputs.sources import Batch, IndexedSource, Source, Stamp
from recal.collecting.job import digest_inputs
from recal.errors import FileError
from recal.files.atomic import replacing

NAME = ".stamps.json"
# A file that changes twice within one tick of the clock keeps its time, so files this young are always read again.
_YOUNG = 2_000_000_000
# How far the logits of two machines may differ, in units in the last place of the largest logit. Summing a few thousand
# products in another order causes such differences; two different models differ by more.
_ROUNDING_UNITS = 64


class InputStamps:
    """The names, sizes and times of the input files of each block, taken before anything is read."""

    def __init__(self, source: Source, batch_size: int, folder: Path) -> None:
        self.source, self.batch_size, self.path = source, batch_size, folder / NAME
        self._time = time.time_ns()
        self._stamps: dict[int, Stamp] = {}
        if isinstance(source, IndexedSource) and not source.is_known_whole():
            for index, start in enumerate(range(0, source.n_samples, batch_size)):
                stamp = source.stamp(start, min(start + batch_size, source.n_samples))
                if stamp is not None:
                    self._stamps[index] = stamp

    def first_change(self, records: Mapping[int, Mapping[str, Any]]) -> int | None:
        """Return the first finished block with other inputs than recorded, or None."""
        if not isinstance(self.source, IndexedSource) or self.source.is_known_whole():
            return None  # a loader's batches are compared as they arrive; the other fingerprint covers all bytes
        stored_time, stored = self._read()
        for index, record in sorted(records.items()):
            stamp = self._stamps.get(index)
            moment, digest = record.get("stamp") or (stored_time, stored.get(str(index)))
            if stamp is not None and digest == stamp.digest and stamp.newest < moment - _YOUNG:
                continue
            if index * self.batch_size >= self.source.n_samples:
                return index
            if not same_inputs(self.source.batch(index, self.batch_size), record):
                return index
        return None

    def as_dict(self) -> dict[int, tuple[int, str]]:
        """Return, for each block with a stamp, the time when it was taken and its digest."""
        return {index: (self._time, stamp.digest) for index, stamp in self._stamps.items()}

    def write(self) -> None:
        """Write the stamps for the next run; a folder that cannot be written goes without."""
        if self._stamps:
            content = {"taken": self._time, "stamps": {index: stamp.digest for index, stamp in self._stamps.items()}}
            with suppress(FileError), replacing(self.path) as file:
                file.write(json.dumps(content).encode())

    def _read(self) -> tuple[int, dict[str, str]]:
        try:
            content = json.loads(self.path.read_bytes())
            return int(content["taken"]), dict(content["stamps"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return 0, {}


def same_inputs(batch: Batch, record: Mapping[str, Any]) -> bool:
    """Whether a batch has the inputs and labels of a record."""
    if record.get("inputs") not in (None, digest_inputs(batch)):
        return False
    labels = record.get("labels")
    return labels is None or batch.labels is None or np.asarray(batch.labels).tolist() == labels


def differ_by_rounding(old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether two arrays of logits can come from one model on two machines: they agree except for the last bits."""
    if not old.size:
        return True
    unit = float(np.finfo(old.dtype).eps) * max(float(np.abs(old).max()), float(np.finfo(old.dtype).tiny))
    return bool(np.abs(old.astype(np.float64) - new.astype(np.float64)).max() <= _ROUNDING_UNITS * unit)
