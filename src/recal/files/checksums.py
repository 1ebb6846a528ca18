"""What a folder of views held when it was finished: a checksum of every block of rows, and one number for the whole.

    name.zarr/checksums.json    blocks of `rows` rows: a CRC-32C of each, for the logits and for every view

Blocks are compared when they are first read, at ten gigabytes a second. `generation` is a digest of all the others and
stands in the folder's description, too: views that were opened remember it, and refuse to go on when the folder was
written again. It follows from the contents alone, so equal views are equal files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError
from recal.files.atomic import replacing
from recal.files.places import sign_of

NAME = "checksums.json"
# The key of the originals' logits among the layers; views follow from 0 on.
Layer = int | None


def checksum(values: NDArray[Any]) -> int:
    """Return the CRC-32C of an array's bytes, the least byte first."""
    import google_crc32c  # comes with zarr; four times as fast as zlib's

    return int(google_crc32c.value(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()))


@dataclass
class Checksums:
    """The checksums of a folder of views.

    Attributes
    ----------
    rows : int
        The number of rows in a block; the last one may be shorter.
    logits : list of int
        One per block.
    transformed : list of lists of int
        For every view, one per block.
    labels : int or None
    described : str
        A digest of what the folder says about its arrays: transformations, classes, shapes.
    """

    rows: int
    described: str = ""
    logits: list[int] = field(default_factory=list)
    transformed: list[list[int]] = field(default_factory=list)
    labels: int | None = None

    @property
    def generation(self) -> str:
        return hashlib.blake2b(json.dumps(self._parts()).encode(), digest_size=16).hexdigest()

    def _parts(self) -> list[Any]:
        return [self.rows, self.described, self.labels, self.logits, self.transformed]

    def of(self, layer: Layer) -> list[int]:
        return self.logits if layer is None else self.transformed[layer]

    def write(self, folder: Path) -> None:
        keys = ("rows", "described", "labels", "logits", "transformed")
        content = {"version": 1, "generation": self.generation, **dict(zip(keys, self._parts()))}
        with replacing(folder / NAME) as file:
            file.write(json.dumps(content).encode())


def describe(
    specs: list[str], classes: list[Any] | None, shape: tuple[int, ...], preprocessing: Any | None = None
) -> str:
    """Return a digest of what a folder says about its arrays."""
    told = [specs, classes, list(shape)] + ([] if preprocessing is None else [preprocessing])
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_checksums(folder: Path) -> Checksums:
    """Return the checksums of a folder; refuse a list that is not whole."""
    path = folder / NAME
    try:
        if not path.is_file():
            raise ValueError("it is missing")
        held = json.loads(path.read_bytes())
        found = Checksums(held["rows"], held["described"], held["logits"], held["transformed"], held["labels"])
        whole = (
            held["version"] == 1
            and type(found.rows) is int
            and found.rows > 0
            and held["generation"] == found.generation
        )
        lists = [found.logits, *found.transformed]
        whole = whole and all(isinstance(part, list) and all(type(n) is int for n in part) for part in lists)
        if not whole:
            raise ValueError("it is not as it was written")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(
            f"{folder} is damaged: its {NAME} cannot be used ({error}). Collect again to repair it, or open it with "
            "verify=False."
        ) from error
    return found


class Pinned:
    """One folder as it was when it was opened: tells when it was written again, and checks its blocks once each."""

    def __init__(self, folder: Path, generation: str, checksums: Checksums | None) -> None:
        self.folder, self.generation, self.checksums = folder, generation, checksums
        self._seen = self._sign()
        self._fine: set[tuple[Layer, int]] = set()

    def _sign(self) -> tuple[Any, ...] | None:
        return sign_of(self.folder / "zarr.json")

    def check_unchanged(self) -> None:
        """Refuse to go on when the folder is another than the one that was opened."""
        sign = self._sign()
        if sign == self._seen and sign is not None:
            return
        if sign is None or self._generation_now() != self.generation:
            raise FileError(
                f"{self.folder} was written again, or removed, since it was opened, so these views no longer belong to "
                "it. Open it again with read_views."
            )
        self._seen = sign

    def _generation_now(self) -> Any:
        try:
            return json.loads((self.folder / "zarr.json").read_bytes())["attributes"]["recal"]["generation"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def unchecked(self, layer: Layer, first: int, last: int) -> list[int]:
        """Return those of the blocks first..last that have not been compared yet."""
        if self.checksums is None:
            return []
        return [block for block in range(first, last + 1) if (layer, block) not in self._fine]

    def compare(self, layer: Layer, block: int, values: NDArray[Any]) -> None:
        """Compare the rows of one block with what was written."""
        assert self.checksums is not None
        known = self.checksums.of(layer)
        if block >= len(known) or checksum(values) != known[block]:
            what = "the logits" if layer is None else f"view {layer}"
            raise FileError(
                f"{self.folder} is damaged: rows {block * self.checksums.rows} and on of {what} are not what was "
                "written. Collect again to repair it, or open it with verify=False."
            )
        self._fine.add((layer, block))
