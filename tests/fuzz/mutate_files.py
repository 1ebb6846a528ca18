"""Specs and files changed at random, for as long as it is given: each is read, or refused.

    python tests/fuzz/mutate_files.py --minutes 20 --seed 1

The readers are those of specs and pools, calibrators' files, .npz files, tables of probabilities,
ledgers of stores, ONNX files, images and sounds. Whatever a reader raises beyond recal's own errors
is a fault, and so is a peak of memory far above what was held before; each is printed once for each
place in the code. A short run of the same is part of the quick tests.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import json
import os
import random
import re
import resource
import tempfile
import time
import traceback
import warnings
import wave
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.mkdtemp())
# A file of some kilobytes that takes more is a fault. The gate lets 256 MiB in, and readers hold a
# copy or two of them.
MOST_MEGABYTES = 1000
# Numbers that a header may claim.
CLAIMS = [0, 1, 10**6, 10**8, 4 * 10**8, 10**12]
CLAIMS += [2**7, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1]


def readers() -> dict[str, Callable[[bytes], object]]:
    """Return what is tried, by name."""
    from recal import Views, load, pool
    from recal.collecting.files import open_path
    from recal.collecting.models.onnx import check_external_data
    from recal.files.probabilities import read_prob_table, read_probs
    from recal.files.views import read_views
    from recal.files.zarr_views import read_ledger
    from recal.transforms import as_transform

    def held(name: str, content: bytes) -> Path:
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_bytes(content)
        return FOLDER / name

    def ledger(content: bytes) -> None:
        with suppress(ValueError):
            read_ledger(held("ledger.txt", content).parent)

    def folder(content: bytes) -> None:
        head, _, tail = content.partition(b"\0")
        held("v.zarr/ledger.txt", tail)
        read_views(held("v.zarr/zarr.json", head).parent)

    def forged(content: bytes) -> None:
        """Views in a folder whose description is the fuzzer's, sealed with its digest."""
        if not (FOLDER / "a.zarr").exists():
            Views([[2.0, 0.5], [0.1, 0.3]]).write(FOLDER / "a.zarr")
        found = read_ledger(FOLDER / "a.zarr")
        found.end = hashlib.blake2b(content, digest_size=16).hexdigest()
        found.write()
        (FOLDER / "a.zarr" / "zarr.json").write_bytes(content)
        _ = read_views(FOLDER / "a.zarr").logits

    def in_folder(name: str, content: bytes, **how: Any) -> None:
        open_path(held(name, content).parent, **how).read(range(1))  # type: ignore[attr-defined]

    return {
        "forged": forged,
        "parquet": lambda content: open_path(held("t.parquet", content)),
        "image": lambda content: in_folder("images/a.png", content, resize=8),
        "sound": lambda content: in_folder("sounds/a.wav", content, seconds=1.0),
        "pool": lambda content: pool(content.decode("utf-8", "replace")),
        "spec": lambda content: str(as_transform(content.decode("utf-8", "surrogateescape"))),
        "calibrator": lambda content: load(held("c.recal", content)),
        "views": lambda content: read_views(held("v.npz", content)),
        "probs": lambda content: read_probs(held("p.npz", content)),
        "table": lambda content: read_prob_table(held("t.csv", content)),
        "ledger": ledger,
        "folder": folder,
        "group": lambda content: read_views(held("g.zarr/logits/zarr.json", content).parents[1]),
        "onnx": lambda content: check_external_data(held("m.onnx", content)),
        "inputs": lambda content: open_path(held("i.npz", content)),
    }


def valid_files() -> dict[str, list[bytes]]:
    """Return small valid files of each kind, from which the fuzzer begins."""
    import numpy as np

    from recal import Plan, Step, TemperatureScaling, Views, save
    from recal.files.probabilities import write_prob_file

    views = Views([[2.0, 0.5], [0.1, 0.3]], {"zoom:0.5": [[1.0, 0.5], [0.2, 0.3]]}, labels=[0, 1])
    views.write(FOLDER / "v.npz")
    views.write(FOLDER / "seed.zarr")
    write_prob_file(FOLDER / "p.npz", np.array([[0.25, 0.75]]), np.array([1]))
    np.savez(FOLDER / "i.npz", inputs=np.zeros((2, 3), np.uint8), labels=np.arange(2))
    plan = save(Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)),)), FOLDER / "plan.recal").read_bytes()
    fitted = save(
        TemperatureScaling().fit([[3.0, 0], [0, 3.0], [3.0, 0]], [0, 1, 1]), FOLDER / "ts.recal"
    ).read_bytes()
    import pyarrow
    import pyarrow.parquet
    import zarr
    from PIL import Image

    group = zarr.open_group(FOLDER / "g.zarr", mode="w")
    group.create_array("logits", data=np.eye(2, 3) - 2, compressors=None)
    columns = {"a": [0.25] * 50, "b": [0.75] * 50, "label": ["a"] * 50}
    pyarrow.parquet.write_table(pyarrow.table(columns), FOLDER / "seed.parquet")
    pictures = []
    for kind in ("PNG", "BMP", "GIF", "TIFF", "JPEG"):
        Image.new("RGB", (9, 7), "red").save(drawn := io.BytesIO(), kind)
        pictures.append(drawn.getvalue())
    with wave.open(str(FOLDER / "seed.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", "none"))
        file.writeframes(bytes(16))
    return {
        "forged": [
            Views([[1.0, 0.5], [0.2, 0.3]], labels=[0, 1])
            .write(FOLDER / "bare.zarr")
            .joinpath("zarr.json")
            .read_bytes()
        ],
        "parquet": [(FOLDER / "seed.parquet").read_bytes()],
        "image": pictures,
        "sound": [(FOLDER / "seed.wav").read_bytes()],
        "pool": [
            b"zoom:0.1-0.9:20+brightness:0.5",
            b"zoom",
            b"median:0.5:medians=1;2",
            b"blur:0.1-3:5:layout=NHWC",
        ],
        "spec": [b"zoom:0.37", b"pixels:0.1:seed=3", b"rotated by 90"],
        "calibrator": [plan, fitted],
        "views": [(FOLDER / "v.npz").read_bytes()],
        "probs": [(FOLDER / "p.npz").read_bytes()],
        "table": [
            b"a,b,label\n0.25,0.75,b\n0.5,0.5,a\n",
            b"answer,confidence,p_0,p_1\n1,0.75,0.25,0.75\n",
        ],
        "ledger": [(FOLDER / "seed.zarr" / "ledger.txt").read_bytes()],
        "folder": [
            (FOLDER / "seed.zarr" / "zarr.json").read_bytes()
            + b"\0"
            + (FOLDER / "seed.zarr" / "ledger.txt").read_bytes()
        ],
        "group": [(FOLDER / "g.zarr" / "logits" / "zarr.json").read_bytes()],
        "onnx": [b"\x08\x0a\x3a\x1a\x2a\x18\x6a\x14\x0a\x08location\x12\x08/etc/abc\x70\x01"],
        "inputs": [(FOLDER / "i.npz").read_bytes()],
    }


class Trial:
    """Gives contents to readers, and keeps what should not have happened."""

    def __init__(self) -> None:
        self.readers = readers()
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, str] = {}

    def __call__(self, name: str, content: bytes) -> bool:
        """Return whether the content was read."""
        from recal.errors import RecalError

        started, held, peak = time.monotonic(), _resident(), _peak()
        outcome = "refused"
        try:
            self.readers[name](content)
            outcome = "read"
        except RecalError:
            pass
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._keep(f"{place.filename}:{place.lineno}", traceback.format_exc(limit=-2), content)
        if _peak() > peak and _peak() - held > MOST_MEGABYTES:
            self._keep(f"{name}: memory", f"{_peak() - held} MB at the peak", content)
        if time.monotonic() - started > 10:
            self._keep(f"{name}: slow", f"{time.monotonic() - started:.0f} s", content)
        self.counts[f"{name} {outcome}"] += 1
        return outcome == "read"

    def _keep(self, where: str, words: str, content: bytes) -> None:
        self.faults.setdefault(where, f"{where}\n{words}\n{content[:400]!r}")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 10**6


def changed(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some replaced, cut, put in, or made a number that claims much."""
    held = bytearray(content)
    for _ in range(rng.randint(0, 6)):
        place = rng.randrange(len(held) + 1)
        how = rng.random()
        if how < 0.6:
            held[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        elif how < 0.8:
            width = rng.choice((2, 4, 8))
            claim = rng.choice(CLAIMS) % 2 ** (8 * width)
            held[place : place + width] = claim.to_bytes(width, rng.choice(("little", "big")))
        elif numbers := list(re.finditer(rb"\d+", bytes(held))):
            found = rng.choice(numbers)
            held[found.start() : found.end()] = str(rng.choice(CLAIMS)).encode()
    return bytes(held)


def run(seconds: float, seed: int, most: int = 10**9) -> Trial:
    """Change valid files at random; what was read is changed further."""
    rng, trial, known = random.Random(seed), Trial(), valid_files()
    names = list(trial.readers)
    started = time.monotonic()
    while time.monotonic() - started < seconds and trial.counts.total() < most:
        name = rng.choice(names)
        content = changed(rng.choice(known[name]), rng)
        if trial(name, content) and len(content) < 20_000:
            known[name].append(content)
            del known[name][40:-40]
    return trial


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    trial = run(60 * arguments.minutes, arguments.seed)
    print(json.dumps({"inputs": trial.counts.total(), "peak MB": _peak(), **trial.counts}))
    print(*trial.faults.values(), sep="\n\n")
    raise SystemExit(len(trial.faults))
