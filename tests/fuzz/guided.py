"""Specs and files made by a coverage-guided fuzzer (atheris), for as long as it is given.

    pip install atheris
    python tests/fuzz/guided.py --minutes 20 --seed 1

The first byte says which reader gets the rest: specs and pools, calibrators' files, .npz files, tables of
probabilities, manifests and journals of stores, `.pt2` archives, ONNX files, IDX files. Whatever a reader raises beyond
recal's own errors is a fault, printed once for each place in the code.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import pkgutil
import random
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp())


def readers() -> dict[str, Callable[[bytes], object]]:
    """Return what is tried, by name."""
    from recal import load, pool
    from recal.collecting.inputs.files import open_path
    from recal.collecting.models.onnx_weights import check_external_data
    from recal.collecting.models.pt2 import checked_archive
    from recal.collecting.sinks.journal import Journal
    from recal.files.prob_tables import read_prob_table
    from recal.files.probs import probs_of_file
    from recal.files.views import read_views
    from recal.transforms import as_transform

    def held(name: str, content: bytes) -> Path:
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_bytes(content)
        return FOLDER / name

    def journal(content: bytes) -> None:
        Journal(held("journal.jsonl", content)).close()

    def folder(content: bytes) -> None:
        head, _, tail = content.partition(b"\0")
        held("v.zarr/manifest.json", tail)
        read_views(held("v.zarr/zarr.json", head).parent)

    return {
        "pool": lambda content: pool(content.decode("utf-8", "replace")),
        "spec": lambda content: str(as_transform(content.decode("utf-8", "surrogateescape"))),
        "calibrator": lambda content: load(held("c.recal", content)),
        "views": lambda content: read_views(held("v.npz", content)),
        "probs": lambda content: probs_of_file(held("p.npz", content)),
        "table": lambda content: read_prob_table(held("t.csv", content)),
        "journal": journal,
        "folder": folder,
        "pt2": lambda content: checked_archive(held("m.pt2", content)),
        "onnx": lambda content: check_external_data(held("m.onnx", content)),
        "idx": lambda content: open_path(held("x-idx3-ubyte", content)),
        "inputs": lambda content: open_path(held("i.npz", content)),
        "cifar": lambda content: open_path(held("c.bin", content)),
    }


def honest() -> dict[str, list[bytes]]:
    """Return small files as they should be, from which the fuzzer begins."""
    import numpy as np

    from recal import Plan, Step, TemperatureScaling, Views, save
    from recal.files.probs import write_probs

    views = Views([[2.0, 0.5], [0.1, 0.3]], {"zoom:0.5": [[1.0, 0.5], [0.2, 0.3]]}, labels=[0, 1])
    views.write(FOLDER / "v.npz")
    views.write(FOLDER / "seed.zarr")
    write_probs(FOLDER / "p.npz", [[0.25, 0.75]], np.array([1]))
    np.savez(FOLDER / "i.npz", inputs=np.zeros((2, 3), np.uint8), labels=np.arange(2))
    plan = save(Plan((Step("zoom:0.5", (1.0, 0.9, 0.8, 1.0)),)), FOLDER / "plan.recal").read_bytes()
    fitted = save(TemperatureScaling().fit([[3.0, 0], [0, 3.0], [3.0, 0]], [0, 1, 1]), FOLDER / "ts.recal").read_bytes()
    with zipfile.ZipFile(FOLDER / "m.pt2", "w") as archive:
        config = {"config": {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": None}}}
        archive.writestr("m/data/weights/model_weights_config.json", json.dumps(config))
        archive.writestr("m/data/weights/weight_0", bytes(8))
        archive.writestr("m/data/constants/model_constants_config.json", '{"config": {}}')
        graph = {"nodes": [{"target": "torch.ops.aten.add.Tensor", "metadata": {}}]}
        size = {"as_expr": {"expr_str": "2*Symbol('s3', integer=True) + s1"}}
        program = {"graph_module": {"graph": graph, "module_call_graph": [], "sizes": [size]}}
        archive.writestr("m/models/model.json", json.dumps(program))
    return {
        "pool": [b"zoom:0.1-0.9:20+brightness:0.5", b"zoom", b"median:0.5:medians=1;2", b"blur:0.1-3:5:layout=NHWC"],
        "spec": [b"zoom:0.37", b"pixels:0.1:seed=3", b"rotated by 90"],
        "calibrator": [plan, fitted],
        "views": [(FOLDER / "v.npz").read_bytes()],
        "probs": [(FOLDER / "p.npz").read_bytes()],
        "table": [b"a,b,label\n0.25,0.75,b\n0.5,0.5,a\n", b"prediction,confidence,p_0,p_1\n1,0.75,0.25,0.75\n"],
        "journal": [b'{"chunk": 0, "rows": 4, "inputs": null, "logits": "a", "transformed": "b", "labels": null}\n'],
        "folder": [(FOLDER / "seed.zarr" / "zarr.json").read_bytes() + b'\0{"kind": "recal collect", "version": 1}'],
        "pt2": [(FOLDER / "m.pt2").read_bytes()],
        "onnx": [b"\x08\x0a\x3a\x1a\x2a\x18\x6a\x14\x0a\x08location\x12\x08/etc/abc\x70\x01"],
        "idx": [b"\0\0\x08\x03" + (1).to_bytes(4, "big") * 3 + b"\x07"],
        "inputs": [(FOLDER / "i.npz").read_bytes()],
        "cifar": [bytes(3073)],
    }


class Trial:
    """Gives one input to the reader that its first byte names, and keeps what should not have happened."""

    def __init__(self) -> None:
        self.readers, self.names = readers(), list(readers())
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, str] = {}

    def __call__(self, content: bytes) -> None:
        from recal.errors import RecalError

        if not content:
            return
        name = self.names[content[0] % len(self.names)]
        started = time.monotonic()
        try:
            self.readers[name](content[1:])
            self.counts[f"{name} read"] += 1
        except RecalError:
            self.counts[f"{name} refused"] += 1
        except Exception as error:
            self._keep(f"{name}: {traceback.format_exc(limit=-2)}", type(error).__name__, error, content)
        if time.monotonic() - started > 10:
            self._keep(f"{name}: took {time.monotonic() - started:.0f} s", "slow", None, content)

    def _keep(self, words: str, kind: str, error: BaseException | None, content: bytes) -> None:
        trace = error.__traceback__ if error else None
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{kind} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else words[:40]
        self.counts["faults"] += 1
        self.faults.setdefault(where, f"{words}\n{content[:400]!r}")


def smoke(count: int, seed: int) -> Trial:
    """A run without the fuzzer: honest files with bytes changed, cut and joined."""
    rng, trial, begun = random.Random(seed), Trial(), honest()
    for _ in range(count):
        number = rng.randrange(len(trial.names))
        content = bytearray(rng.choice(begun[trial.names[number]]))
        for _ in range(rng.randint(0, 6)):
            place = rng.randrange(len(content) + 1)
            content[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        trial(bytes([number]) + bytes(content))
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    import atheris

    import recal.engine

    warnings.simplefilter("ignore")
    # numba compiles the engine's kernels itself, and cannot compile what has been instrumented.
    for module in pkgutil.walk_packages(recal.engine.__path__, "recal.engine."):
        importlib.import_module(module.name)
    with atheris.instrument_imports(include=["recal"]):
        trial = Trial()
        begun = honest()
        for name in trial.names:  # what is imported on the way is instrumented, too
            for content in begun[name]:
                trial(bytes([trial.names.index(name)]) + content)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for name, contents in begun.items():
        for number, content in enumerate(contents):
            (corpus / f"{name}-{number}").write_bytes(bytes([trial.names.index(name)]) + content)
    started, last = time.monotonic(), [0.0]

    def once(content: bytes) -> None:
        trial(content)
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            report(trial, time.monotonic() - started)

    options = [f"-max_total_time={arguments.minutes * 60:.0f}", f"-seed={arguments.seed}", "-max_len=4096"]
    atheris.Setup([sys.argv[0], str(corpus), *options, "-timeout=60", "-rss_limit_mb=2500", "-verbosity=0"], once)
    atheris.Fuzz()  # ends the process itself
    return 0


def report(trial: Trial, seconds: float) -> None:
    """Print the counts so far; the last such line is the result, since the fuzzer ends the process."""
    total = sum(count for name, count in trial.counts.items() if name != "faults")
    line = {"seconds": round(seconds), "inputs": total, "places with faults": len(trial.faults), **trial.counts}
    print(json.dumps(line), flush=True)
    (FOLDER / "faults.txt").write_text("\n\n".join(trial.faults.values()))
    if trial.faults:
        print(f"see {FOLDER / 'faults.txt'}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
