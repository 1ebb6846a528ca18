"""Whether recal made a file, told by what is in it: only such a file is replaced without asking.

Each kind that recal writes carries its mark where the format has a place for one: the metadata of a calibration, the
comment of an .npz archive, the metadata of a Parquet table, the generator of a page, the producer of an ONNX model, the
software of a figure, the description of a folder of views, a comment in Markdown and TeX. A .csv table has no such
place; one beside a .json file of the same name that recal made is recal's, too.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

MARK = b"recal"
_HEAD_BYTES = 4096


def made_by_recal(path: Path) -> bool:
    """Whether a file or folder was written by recal; what cannot be told is not."""
    try:
        if path.is_dir():
            return _is_manifest(path / "manifest.json") or b'"recal"' in (path / "zarr.json").read_bytes()
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return archive.comment.startswith(MARK)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
            tail = file.read(_HEAD_BYTES)
    except (OSError, zipfile.BadZipFile, ValueError):
        return False
    if path.suffix == ".csv":
        return path.with_suffix(".json").is_file() and made_by_recal(path.with_suffix(".json"))
    marks = {
        ".md": tail.rstrip().endswith(b"<!-- made by recal -->"),
        ".tex": head.startswith(b"% made by recal"),
        ".json": b'"made_by": "recal"' in head,
        ".recal": head[8:].startswith(b"{") and b'"recal"' in head,
        ".parquet": b"recal" in tail and tail.endswith(b"PAR1"),
        ".html": b'<meta name="generator" content="recal' in head,
        ".onnx": b"\x12\x05recal" in head,
        ".png": b"Software\0recal" in head,
        ".svg": b"recal" in head and b"<svg" in head,
        ".pdf": b"/Creator (recal)" in head + tail,
    }
    return marks.get(path.suffix.lower() or ".recal", False)


def _is_manifest(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes()).get("kind") == "recal collect")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
