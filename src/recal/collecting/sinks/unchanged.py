"""Whether the inputs of finished blocks are still what the blocks were computed from.

A block's record holds a digest of the inputs themselves, taken while they were read. When a run goes on, or finds all
its work done, that digest is compared: of every block whose files were touched since, or that has no files. Files whose
names, sizes and times are those remembered are not read again. The memory is a hidden file that may be lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from recal.collecting.inputs.sources import Batch, IndexedSource, Source, Stamp
from recal.collecting.job import digest_inputs
from recal.errors import FileError
from recal.files.atomic import replacing

NAME = ".stamps.json"
# A file changed twice within one tick of its system's clock has one time: what was young when it was seen is read.
_YOUNG = 2_000_000_000


class Inputs:
    """The inputs of a run that goes on: which of the finished blocks were made of others?"""

    def __init__(self, source: Source, batch_size: int, folder: Path) -> None:
        self.source, self.batch_size, self.path = source, batch_size, folder / NAME
        self._taken = time.time_ns()
        self._stamps: dict[int, Stamp] = {}
        if isinstance(source, IndexedSource) and not source.is_known_whole():
            starts = range(0, source.n_samples, batch_size)
            found = {
                i: source.stamp(start, min(start + batch_size, source.n_samples)) for i, start in enumerate(starts)
            }
            self._stamps = {index: stamp for index, stamp in found.items() if stamp is not None}

    def changed(self, records: Mapping[int, Mapping[str, Any]]) -> int | None:
        """Return the first finished block whose inputs are others now; None where there is none."""
        if not isinstance(self.source, IndexedSource) or self.source.is_known_whole():
            return None  # a loader's batches are compared as they come, and a fingerprint of all bytes has been
        taken, known = self._read()
        for index, record in sorted(records.items()):
            stamp = self._stamps.get(index)
            moment, seen = record.get("stamp") or (taken, known.get(str(index)))
            if stamp is not None and seen == stamp.digest and stamp.newest < moment - _YOUNG:
                continue
            if index * self.batch_size >= self.source.n_samples:
                return index
            if not same_inputs(self.source.batch(index, self.batch_size), record):
                return index
        return None

    def stamps(self) -> dict[int, tuple[int, str]]:
        """Return when the stamps were taken, before anything was read, and the stamp, of each block that has one."""
        return {index: (self._taken, stamp.digest) for index, stamp in self._stamps.items()}

    def remember(self) -> None:
        """Keep the times as they were before anything was read."""
        if self._stamps:
            held = {"taken": self._taken, "stamps": {index: stamp.digest for index, stamp in self._stamps.items()}}
            with suppress(FileError), replacing(self.path) as file:  # a folder that is only read goes without
                file.write(json.dumps(held).encode())

    def _read(self) -> tuple[int, dict[str, str]]:
        try:
            held = json.loads(self.path.read_bytes())
            return int(held["taken"]), dict(held["stamps"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return 0, {}


def same_inputs(batch: Batch, record: Mapping[str, Any]) -> bool:
    """Whether a batch is the one of a record; one of an older version may hold no digest."""
    if record.get("inputs") not in (None, digest_inputs(batch)):
        return False
    labels = record.get("labels")
    return labels is None or batch.labels is None or np.asarray(batch.labels).tolist() == labels
