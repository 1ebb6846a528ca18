"""Small files that would take gigabytes are refused before they do, in a process that may hold
little.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from safetensors.numpy import save

from recal import TemperatureScaling
from recal import save as save_file
from recal.errors import InputError
from recal.files.paths import LIMIT, allowance


def padded_text(folder):
    held = save_file(
        TemperatureScaling().fit([[3.0, 0], [0, 3.0], [3.0, 0]], [0, 1, 1]), folder / "c.recal"
    )
    content = held.read_bytes()
    length = int.from_bytes(content[:8], "little")
    inner = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["recal"])
    words = [str(number) for number in range(40_000)]
    text = {"$": "text", "shape": [len(words)], "values": words, "width": 10_000}
    inner["state"]["classes_"] = text
    (folder / "c.recal").write_bytes(save({}, metadata={"recal": json.dumps(inner)}))
    return "c.recal"


def constant_rows(folder):
    rows = pyarrow.array(np.full(10**6, 0.5))
    schema = pyarrow.schema([("a", pyarrow.float64()), ("b", pyarrow.float64())])
    with pyarrow.parquet.ParquetWriter(folder / "t.parquet", schema) as writer:
        for _ in range(20):
            writer.write_table(pyarrow.table([rows, rows], schema=schema))
    return "t.parquet"


def one_long_text(folder):
    words = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(3000, np.int32)), ["x" * 500_000]
    )
    pyarrow.parquet.write_table(pyarrow.table({"a": words}), folder / "t.parquet")
    return "t.parquet"


def zeros(megabytes):
    """Packed zeros: the members of a gzip file follow each other."""
    return gzip.compress(bytes(10**7), 9) * (megabytes // 10)


def png(width, height, content=b""):
    def part(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", content) + part(b"IEND", b"")


def large_image(folder):
    (folder / "images").mkdir()
    rows = zlib.compress(bytes((3 * 9_000 + 1) * 9_000), 1)
    (folder / "images" / "a.png").write_bytes(png(9_000, 9_000, rows))
    return "images"


def fast_sound(folder):
    """A header that claims four thousand million samples in a second."""
    (folder / "sounds").mkdir()
    rate = 2**31 - 1
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 44, b"WAVE", b"fmt ", 16, 1, 1, rate, rate, 1, 8, b"data", 8
    )
    (folder / "sounds" / "a.wav").write_bytes(head + bytes(8))
    return "sounds"


def packed_npz(folder):
    head = io.BytesIO()
    shape = (250 * 10**6,)
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(folder / "i.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("inputs.npy", head.getvalue() + bytes(250 * 10**6))
    return "i.npz"


OPEN = "from pathlib import Path\nfrom recal.collecting.files import open_path\n"
HOSTILE = {
    "calibration": (padded_text, "import recal\nrecal.load({!r})"),
    "parquet-probs": (
        constant_rows,
        "from recal.files.probabilities import read_prob_table\nread_prob_table({!r})",
    ),
    "parquet-inputs": (constant_rows, OPEN + "open_path(Path({!r}))"),
    "image": (large_image, OPEN + "open_path(Path({!r})).read(range(1))"),
    "sound": (fast_sound, OPEN + "open_path(Path({!r}), seconds=2.0).read(range(1))"),
    "npz": (packed_npz, OPEN + "open_path(Path({!r}))"),
}

# One process for all of them, which imports once; its limit is lowered so that half a gigabyte is
# far too much.
MEASURED = """
import json, resource, sys
import numpy, recal, recal.errors, recal.files.paths
import pyarrow.parquet, pandas, zarr, PIL.Image, soundfile, recal.calibrators.temperature
recal.files.paths._SMALL, recal.files.paths._LARGE = 2**25, 2**26
def peak():
    lines = open("/proc/self/status")
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
for code in json.loads(sys.argv[1]):
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    try:
        exec(code)
        print("read", end=" ")
    except recal.errors.RecalError as error:
        print("refused", str(error).replace("\\n", " "), end=" ")
    print(round((peak() - before) / 1000))
"""


def measured(codes):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(codes)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc"
)
def test_a_small_file_that_would_take_gigabytes_is_refused(tmp_path):
    codes = []
    for name, (make, code) in HOSTILE.items():
        (tmp_path / name).mkdir()
        path = tmp_path / name / make(tmp_path / name)
        size = sum(part.stat().st_size for part in [path, *path.rglob("*")] if part.is_file())
        assert size < 5_000_000, f"{name}, or it is not small"
        codes.append(code.format(str(path)))
    for name, told in zip(HOSTILE, measured(codes), strict=True):
        assert told.startswith("refused"), f"{name}: {told}"
        assert int(told.split()[-1]) < 200, f"{name}, in megabytes: {told}"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc"
)
def test_a_text_in_every_row_is_held_once(tmp_path):
    code = "from recal.files.tables import read_table\nassert len(read_table({!r})['a']) == 3000"
    (told,) = measured([code.format(str(tmp_path / one_long_text(tmp_path)))])
    assert told.startswith("read"), told
    assert int(told.split()[-1]) < 300, "megabytes; spelled out it would be 1,500"


def test_the_limit_is_raised_by_name(monkeypatch, tmp_path):
    from recal.collecting.files import open_path

    np.savez_compressed(tmp_path / "x.npz", inputs=np.zeros((30, 1_000, 1_000), np.uint8))
    monkeypatch.setattr("recal.files.paths._SMALL", 10**7)
    monkeypatch.setattr("recal.files.paths._RATIO", 2)
    with pytest.raises(Exception, match=f"set {LIMIT}=") as refusal:
        open_path(tmp_path / "x.npz")
    monkeypatch.setenv(LIMIT, str(refusal.value).split(f"{LIMIT}=")[1].split()[0].rstrip("."))
    assert open_path(tmp_path / "x.npz").n_samples == 30


@pytest.mark.parametrize(
    ("text", "bytes_"), [("16GB", 16 * 10**9), ("1.5 g", 15 * 10**8), ("300", 300)]
)
def test_the_limit_is_written_as_people_write_it(monkeypatch, text, bytes_):
    monkeypatch.setenv(LIMIT, text)
    assert allowance(0) == bytes_


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(LIMIT, "lots")
    with pytest.raises(InputError, match="got 'lots'"):
        allowance(0)
