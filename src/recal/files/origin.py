"""Whether recal made a file, told by parsed metadata: only such a file is replaced without asking.

Every format that recal writes carries `MARK` in its own place for metadata, and that place is parsed, so that a column
named `recall` or a chart titled "precision and recall" is never taken for ours:

- .npz: the archive's comment
- .parquet: the schema's metadata, with the columns and the number of rows, so that a table derived from it is not ours
- .html: the page's generator; .svg: its identifier; .png: a text chunk; .pdf: the keywords of its description
- .onnx: the model's metadata; .json: the key `made_by`; .md: the last line; .tex: the first
- .recal and folders of views: what only they hold
- .csv: has no such place; its digest stands in the .json file of the same name
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

from recal.files.places import is_remote

# The last part was drawn at random: nobody writes it by chance.
MARK = "made by recal 5c3f9d1ab7e04d62"
PARQUET_KEY = b"recal"
# A folder that `collect` is still writing holds this file.
JOURNAL = "journal.jsonl"
_HEAD_BYTES = 65_536
_MOST_JSON_BYTES = 2**26


def made_by_recal(path: Path) -> bool:
    """Whether a file or folder was written by recal; False where it is unknown."""
    try:
        if path.is_dir():
            return _is_folder(path)
        look = _LOOKS.get(path.suffix.lower() or ".recal")
        return look is not None and path.is_file() and look(path)
    except Exception:  # a damaged file of any format, which is then nobody's; its parser says so in its own way
        return False


def is_beginning(folder: Path) -> bool:
    """Whether a folder holds only what `collect` leaves when it is stopped before its first file is whole."""
    return all(_is_partial(path.name) or (path.name == JOURNAL and is_empty_journal(path)) for path in folder.iterdir())


def is_empty_journal(path: Path) -> bool:
    """Whether no block is finished; in an object store, where nothing can be appended, each has an object below it."""
    if is_remote(path):
        return not any(record.suffix == ".json" for record in path.iterdir())
    return not path.stat().st_size


def parquet_mark(columns: Sequence[str], rows: int) -> bytes:
    """Return the mark of a table with these columns and rows."""
    told = hashlib.blake2b(json.dumps([list(columns), rows]).encode(), digest_size=8).hexdigest()
    return f"{MARK} {told}".encode()


def digest_of(content: bytes) -> str:
    """Return the digest by which a .json file knows the .csv file beside it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def _is_folder(path: Path) -> bool:
    if (path / "manifest.json").is_file():
        return bool(_json(path / "manifest.json").get("kind") == "recal collect")
    if not (path / "zarr.json").is_file():
        return any(path.iterdir()) and is_beginning(path)
    held = _json(path / "zarr.json")["attributes"]["recal"]
    return bool(held["kind"] == "views" and isinstance(held["transforms"], list) and "generation" in held)


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_JSON_BYTES:
        raise ValueError("too long to be looked at")
    held: dict[str, Any] = json.loads(path.read_bytes())
    return held


def _in_npz(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return archive.comment in (MARK.encode(), b"recal")  # the second of versions before 1.0


def _in_parquet(path: Path) -> bool:
    import pyarrow.parquet as parquet  # recal writes no such table without it

    found = parquet.read_metadata(path)
    held = (found.metadata or {}).get(PARQUET_KEY)
    return bool(held == parquet_mark(found.schema.to_arrow_schema().names, found.num_rows))


def _in_calibration(path: Path) -> bool:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(_MOST_JSON_BYTES, path.stat().st_size):
            return False
        held = json.loads(json.loads(file.read(length))["__metadata__"]["recal"])
    return isinstance(held["version"], int) and str(held["written_by"]).startswith("recal ") and "kind" in held


class _Generator(HTMLParser):
    """Finds a page's generator."""

    found = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.found |= tag == "meta" and named.get("name") == "generator" and named.get("content") == MARK


def _in_html(path: Path) -> bool:
    parser = _Generator()
    parser.feed(_head(path).decode("utf-8", "replace"))
    return parser.found


def _in_svg(path: Path) -> bool:
    parser: Any = ElementTree.XMLPullParser(["end"])
    parser.feed(_head(path))
    name = "{http://purl.org/dc/elements/1.1/}identifier"
    return any(element.tag == name and element.text == MARK for _, element in parser.read_events())


def _in_png(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(8) != b"\x89PNG\r\n\x1a\n":
            return False
        while len(head := file.read(8)) == 8:
            length, kind = int.from_bytes(head[:4], "big"), head[4:]
            if kind == b"tEXt" and length < _HEAD_BYTES and file.read(length) == b"Source\0" + MARK.encode():
                return True
            file.seek((0 if kind == b"tEXt" and length < _HEAD_BYTES else length) + 4, os.SEEK_CUR)
    return False


def _in_pdf(path: Path) -> bool:
    """Whether the description that the file's last table names holds the mark."""
    content = path.read_bytes() if path.stat().st_size <= _MOST_JSON_BYTES else b""
    number = re.search(rb"/Info (\d+) 0 R", content[content.rfind(b"trailer") :])
    described = re.search(rb"\n%s 0 obj\n(.*?)\nendobj" % number[1], content, re.DOTALL) if number else None
    return described is not None and b"/Keywords (%s)" % MARK.encode() in described[1]


def _in_onnx(path: Path) -> bool:
    with path.open("rb") as file:
        for number, value in _fields(file, path.stat().st_size):
            if number == 14 and value == b"\x0a\x07made_by\x12" + bytes([len(MARK)]) + MARK.encode():
                return True
    return False


def _fields(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and values of the short fields at the top of a protobuf file; nothing long is read."""
    while file.tell() < size:
        number, kind = divmod(_varint(file), 8)
        if kind == 0:
            _varint(file)
        elif kind == 2:
            length = _varint(file)
            if length > 1024:
                file.seek(length, os.SEEK_CUR)
            else:
                yield number, file.read(length)
        else:
            file.seek({1: 8, 5: 4}[kind], os.SEEK_CUR)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("it is no protobuf file")


def _in_csv(path: Path) -> bool:
    beside = path.with_suffix(".json")
    return made_by_recal(beside) and _json(beside)["digests"][path.name] == digest_of(path.read_bytes())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


_LOOKS: dict[str, Callable[[Path], bool]] = {
    ".npz": _in_npz,
    ".parquet": _in_parquet,
    ".recal": _in_calibration,
    ".html": _in_html,
    ".svg": _in_svg,
    ".png": _in_png,
    ".pdf": _in_pdf,
    ".onnx": _in_onnx,
    ".csv": _in_csv,
    ".json": lambda path: _json(path).get("made_by") == MARK,
    ".md": lambda path: path.read_bytes()[-_HEAD_BYTES:].rstrip().endswith(f"\n<!-- {MARK} -->".encode()),
    ".tex": lambda path: _head(path).startswith(f"% {MARK}\n".encode()),
}
