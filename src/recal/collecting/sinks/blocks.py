"""The arrays of a store, written block by block by the program with the journal, or by workers that reach them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest_array
from recal.collecting.job import Block
from recal.collecting.sinks.memory import First, check_block
from recal.errors import FileError, Remedy
from recal.files.checksums import checksum
from recal.files.locks import Word


class StoreArrays:
    """The zarr arrays in a store's folder. Another process that is sent these opens them for itself."""

    def __init__(self, target: Path, batch_size: int) -> None:
        self.target, self.batch_size = target, batch_size
        self._arrays: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self.target.absolute(), "batch_size": self.batch_size, "_arrays": {}}

    def __bool__(self) -> bool:
        return bool(self._arrays)

    @property
    def first(self) -> First:
        """The number of classes and the dtype, which every block has."""
        return int(self._arrays["logits"].shape[1]), np.dtype(self._arrays["logits"].dtype)

    def create(self, block: Block, described: dict[str, Any], n_samples: int | None) -> None:
        """Make the arrays for blocks such as this one; `described` is what the folder says of itself."""
        import zarr

        (m, _, k), b, n = block.transformed.shape, self.batch_size, n_samples or 0
        root = zarr.open_group(str(self.target), mode="a", zarr_format=3)
        root.attrs["recal"] = described
        # Logits hardly get smaller by packing, and packing each view by itself took nearly half of the store's time.
        options: dict[str, Any] = {"compressors": None, "fill_value": float("nan"), "overwrite": True}
        options["dtype"] = block.logits.dtype
        self._arrays["logits"] = root.create_array("logits", shape=(n, k), chunks=(b, k), **options)
        if m:  # a batch's views lie in one file, and each can be read by itself
            self._arrays["transformed"] = root.create_array(
                "transformed", shape=(m, n, k), shards=(m, b, k), chunks=(1, b, k), **options
            )

    def open(self) -> None:
        import zarr

        try:
            root: Any = zarr.open_group(str(self.target), mode="r+")
            self._arrays = {name: root[name] for name in ("logits", "transformed") if name in root}
        except Exception as error:
            raise FileError(
                f"{self.target} is damaged: {error}",
                remedy=Remedy("Pass resume=False to start over", typed="Add --again to start over"),
            ) from error

    def forget(self) -> None:
        self._arrays = {}

    def grow(self, block: Block) -> None:
        """Make room, where the number of samples is not known beforehand."""
        end = block.index * self.batch_size + len(block)
        for array in self._arrays.values():
            shape = list(array.shape)
            if shape[-2] < end:
                shape[-2] = end
                array.resize(tuple(shape))

    def write(self, block: Block) -> None:
        if not self._arrays:
            self.open()
        # What a killed or damaged write left goes first: zarr would read it before it writes.
        for place in (f"logits/c/{block.index}/0", f"transformed/c/0/{block.index}/0"):
            (self.target / place).unlink(missing_ok=True)
        rows = slice(block.index * self.batch_size, block.index * self.batch_size + len(block))
        self._arrays["logits"][rows] = block.logits
        if len(block.transformed):
            self._arrays["transformed"][:, rows] = block.transformed

    def read(self, index: int, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a block's logits and views."""
        if not self._arrays:
            self.open()
        where = slice(index * self.batch_size, index * self.batch_size + rows)
        logits = np.asarray(self._arrays["logits"][where])
        if "transformed" not in self._arrays:
            return logits, np.empty((0, *logits.shape), dtype=logits.dtype)
        return logits, np.asarray(self._arrays["transformed"][:, where])


def describe_block(block: Block, with_labels: bool) -> dict[str, Any]:
    """Return the journal's line on a block."""
    return {
        "rows": len(block),
        "inputs": block.inputs,
        "logits": digest_array(block.logits),
        "transformed": digest_array(block.transformed),
        "sums": [checksum(block.logits), *(checksum(view) for view in block.transformed)],
        "labels": block.labels.tolist() if with_labels and block.labels is not None else None,
    }


@dataclass(frozen=True)
class Written:
    """A block that lies in the store, and its line for the journal."""

    index: int
    record: dict[str, Any]

    def __len__(self) -> int:
        return int(self.record["rows"])


class BlockWriter:
    """Lets a worker store its blocks, where it reaches the store; otherwise they go back to the driver."""

    def __init__(self, arrays: StoreArrays, token: Word, with_labels: bool, model: str) -> None:
        self.arrays, self.token, self.with_labels, self.model = arrays, token, with_labels, model
        self.first = arrays.first

    def __call__(self, block: Block) -> Block | Written:
        if not self.token.is_here():
            return block
        check_block(block, self.first, self.model)
        try:
            self.arrays.write(block)
        except OSError as error:
            raise cannot_write(self.arrays.target, error) from error
        return Written(block.index, describe_block(block, self.with_labels))


def cannot_write(target: Path, error: OSError) -> FileError:
    return FileError(
        f"Cannot write {target}: {error.strerror or error}. Finished blocks are kept: "
        "free some space (or fix the cause) and run the same command again to resume."
    )
