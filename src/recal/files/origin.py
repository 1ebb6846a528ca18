"""Which folders are stores of views: only such a folder is resumed or replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recal.files.places import is_remote

# A store that `collect` is still writing contains this file.
JOURNAL = "journal.jsonl"
_MOST_JSON_BYTES = 2**26


def is_store(path: Path) -> bool:
    """Whether a folder is a store of views, finished or not."""
    try:
        if (path / "manifest.json").is_file():
            return bool(_json(path / "manifest.json").get("kind") == "recal collect")
        if not (path / "zarr.json").is_file():
            return any(path.iterdir()) and is_beginning(path)
        header = _json(path / "zarr.json")["attributes"]["recal"]
        return bool(header["kind"] == "views" and isinstance(header["transforms"], list) and "generation" in header)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def is_beginning(folder: Path) -> bool:
    """Whether a folder contains only what `collect` leaves when it is stopped before its first file is complete."""
    return all(
        (path.name.startswith(".") and path.name.endswith(".part")) or (path.name == JOURNAL and is_empty_journal(path))
        for path in folder.iterdir()
    )


def is_empty_journal(path: Path) -> bool:
    """Whether no block is finished. In an object store each block has an object of its own below the journal."""
    if is_remote(path):
        return not any(record.suffix == ".json" for record in path.iterdir())
    return not path.stat().st_size


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_JSON_BYTES:
        raise ValueError("too large for a description")
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
