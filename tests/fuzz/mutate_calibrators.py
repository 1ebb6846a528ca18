"""Calibrators' files with values changed at random, for as long as it is given: each is refused, or
answers.

    python tests/fuzz/mutate_calibrators.py --minutes 20 --seed 0

Prints the counts, and every file that failed with anything but recal's own errors, or that answered
with numbers that are no probabilities. A short run of the same is part of the quick tests.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import random
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recal import Views, load, save
from recal.calibrators import CALIBRATORS
from recal.errors import FileError, RecalError

ODD = [None, True, False, 0, -1, 1, 3, 10**400, 1e308, -1e308, 5e-324, "", "x", "zoom:0.5", [], {}, [[]], "\ud800",
       {"$": "float", "value": "nan"}, {"$": "float", "value": "inf"}, {"$": "tuple", "items": []}]  # fmt: skip


def made_views(n: int, seed: int) -> Views:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    logits = 3 * (np.eye(3)[y] + rng.normal(0, 0.7, (n, 3)))
    return Views(
        logits, {f"zoom:0.{i}": logits * 0.5 + rng.normal(0, 1, (n, 3)) for i in (3, 5)}, y
    )


def seeds(folder: Path) -> list[bytes]:
    """Return one valid file for every method."""
    found = []
    for method in CALIBRATORS:
        seeded = {"random_state": 0} if "random_state" in method().get_params() else {}
        found.append(
            save(method(**seeded).fit(made_views(60, 0)), folder / "seed.recal").read_bytes()
        )
    return found


def taken_apart(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + length])
    return outer, json.loads(outer["__metadata__"]["recal"]), content[8 + length :]


def put_together(outer: dict[str, Any], inner: Any, arrays: bytes) -> bytes:
    outer["__metadata__"]["recal"] = json.dumps(inner)
    header = json.dumps(outer).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + arrays


def places(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    if parent is not None:
        yield parent, key
    for inner, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else [])
    ):
        yield from places(item, value, inner)


def mutated(content: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return the file with its bytes, its arrays, or the values of its header changed."""
    kind = rng.random()
    if kind < 0.2:
        changed = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.1 else changed)
    outer, inner, arrays = taken_apart(content)
    if kind < 0.45 and arrays:
        numbers = bytearray(arrays)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(0, max(1, len(numbers) - 7))
            value = rng.choice([0.0, -1.0, np.nan, np.inf, -np.inf, 1e300, 5e-324, rng.gauss(0, 3)])
            numbers[place // 8 * 8 : place // 8 * 8 + 8] = np.float64(value).tobytes()
        return put_together(outer, inner, bytes(numbers[: len(arrays)]))
    donor = taken_apart(rng.choice(others))[1]
    for _ in range(rng.randint(1, 3)):
        target = outer if rng.random() < 0.2 else inner
        parent, key = rng.choice(list(places(target)))
        choice = rng.random()
        if choice < 0.5:
            parent[key] = copy.deepcopy(rng.choice(ODD))
        elif choice < 0.65 and isinstance(parent, dict):
            parent.pop(key)
        elif choice < 0.8:
            parent[key] = copy.deepcopy(rng.choice([p[k] for p, k in places(donor)]))
        elif choice < 0.9 and type(parent[key]) in (int, float) and abs(parent[key]) < 1e300:
            parent[key] = parent[key] * rng.choice([-1, 0, 2, 1e6])
        elif isinstance(parent[key], list):
            parent[key] = parent[key][: rng.randint(0, len(parent[key]))] * rng.randint(1, 2)
        if "__metadata__" not in outer or not isinstance(outer["__metadata__"], dict):
            outer["__metadata__"] = {}
    return put_together(outer, inner, arrays)


def judged(path: Path, new: Views) -> str:
    """Return what became of a file: refused, answered, or the fault that it showed."""
    try:
        loaded = load(path)
    except FileError:
        return "refused"
    if not hasattr(loaded, "predict_proba") or len(loaded.classes_) != 3:
        return "answered"
    try:
        with np.errstate(all="ignore"):
            probs = loaded.predict_proba(new)
    except RecalError:
        return "answered"  # such as a view of another name that is needed
    whole = (
        np.isfinite(probs).all() and np.abs(probs.sum(axis=1) - 1).max() < 1e-6 and probs.min() > 0
    )
    return "answered" if whole else "fault: no probabilities"


def run(seconds: float, seed: int, most: int = 10**9) -> tuple[collections.Counter[str], list[str]]:
    """Return the counts and the faults."""
    rng, started = random.Random(seed), time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        valid, new, path = seeds(Path(folder)), made_views(12, 1), Path(folder) / "mutated.recal"
        while time.monotonic() - started < seconds and sum(counts.values()) < most:
            content = mutated(rng.choice(valid), valid, rng)
            path.write_bytes(content)
            try:
                answer = judged(path, new)
            except Exception:
                answer = "fault: " + traceback.format_exc(limit=-3)
            counts[answer.partition(":")[0]] += 1
            if answer.startswith("fault"):
                faults.append(f"{answer}\n{content[:3000]!r}")
    return counts, faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, faults = run(arguments.minutes * 60, arguments.seed)
    print(json.dumps({"files": sum(counts.values()), **counts}))
    for fault in faults[:20]:
        print(fault)
    raise SystemExit(bool(faults))
