"""What new users type wrongly, and the folder it is typed in.

The list is wrong_inputs.txt: a mistake, what was typed, and words that the answer must hold.
`build` makes the files. Where a mistake needs a circumstance that a folder cannot hold (a full
disk, a missing package), `around` names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

import recal
from recal.collecting import models
from tests.problems import write_graded, write_questions

MODULE = """
import numpy as np

def net(batch):
    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
    return np.stack([values.mean(1), values.std(1), values[:, ::2].mean(1)], axis=1) / 20 - 2

def probabilities(batch):
    scores = np.exp(net(batch))
    return scores / scores.sum(1, keepdims=True)

def classes(batch):
    return net(batch).argmax(1)

def fewer_rows(batch):
    return net(batch)[:-1]

def nans(batch):
    return net(batch) * np.nan

def broken(batch):
    raise KeyError("weights")

def leaves(batch):
    raise SystemExit("no licence")

def stopped(batch):
    raise KeyboardInterrupt

class Net:
    pass
"""


@dataclass(frozen=True)
class Wrong:
    """A mistake, what was typed after `recal`, and words of the answer."""

    typed: str
    said: tuple[str, ...]
    around: str = ""
    code: int = 2

    @property
    def leaves(self) -> str:
        """What may stay behind: a store that can be resumed."""
        return "v.zarr" if self.code == 130 else ""


def _read(lines: list[str]) -> Iterator[Wrong]:
    for line in lines:
        if not line or line.startswith("# "):
            continue
        mistake, typed, *said = line.split(" | ")
        around = mistake.removesuffix("]").partition(" [")[2]
        code = next((int(words[5:]) for words in said if words.startswith("exit ")), 2)
        yield Wrong(typed, tuple(w for w in said if not w.startswith("exit ")), around, code)


CASES = tuple(
    _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()[2:])
)


@contextlib.contextmanager
def circumstances(around: str) -> Iterator[None]:
    """What a folder cannot hold."""
    with contextlib.ExitStack() as stack:
        if around == "with a full disk":
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            stack.enter_context(mock.patch("recal.files.paths.os.fsync", side_effect=full))
        elif around == "without permission":  # a superuser, as in a container, may write everywhere
            stack.enter_context(
                mock.patch("recal.cli.files.os.access", lambda path, mode: not mode & os.W_OK)
            )
        elif around:
            package = around.removeprefix("without ")
            # What is first imported below would be imported a second time later.
            _ = recal.SignalCalibration
            hidden = {name for name in (package, *sys.modules) if name.split(".")[0] == package}
            stack.enter_context(mock.patch.dict(sys.modules, dict.fromkeys(hidden)))
            # Importing anew replaces the package's names, too.
            stack.enter_context(mock.patch.dict(vars(models)))
            for name in list(sys.modules):
                if name.startswith("recal.collecting.models."):
                    del sys.modules[name]  # it has imported the package already
        yield


def contents(folder: Path, leaves: str = "") -> dict[str, tuple[int, int]]:
    """Every file with its size and time, to see that nothing was written and nothing lost."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and not (leaves and leaves in path.parts)
    }


def build(folder: Path) -> None:
    """Write the files that the cases name."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    y[0] = 2
    logits = (3 * (np.eye(3)[y] + rng.normal(0, 0.7, (120, 3)))).astype(np.float32)
    probs = np.exp(logits.astype(float))
    probs /= probs.sum(1, keepdims=True)
    _write_views(folder, logits, y)
    _write_probs(folder, probs, y)
    _write_arrays(folder, logits, probs, y)
    _write_labels(folder, y)
    _write_calibrations(folder, logits, y)
    _write_tables(folder, probs, y)
    _write_inputs(folder, rng, y)
    (folder / "mymodel.py").write_text(MODULE)
    (folder / "bad_syntax.py").write_text("def net(batch)\n    return batch\n")
    (folder / "script.py").write_text("import sys\nsys.exit('usage: script.py --epochs N')\n")
    (folder / "notes.md").write_text("# my notes\n")
    (folder / "log.jsonl").write_text('{"A": 0.7, "B": 0.3, "label": "A"}\n')
    (folder / "prompt.txt").write_text("{stated}?\n")
    write_questions(folder / "questions.csv", 300, 0)
    (folder / "net.pt").write_bytes(b"PK\x03\x04 a state dict")
    (folder / "cut.onnx").write_bytes(b"\x08\x07\x12\x05torch" + bytes(30))
    (folder / "model.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    (folder / "empty-folder").mkdir()
    (folder / "a-folder").mkdir()
    (folder / "a-folder" / "notes.txt").write_text("mine")


def _write_views(folder: Path, logits: np.ndarray, y: np.ndarray) -> None:
    from recal import Views

    noise = np.random.default_rng(1).normal(0, 0.5, logits.shape)
    zoomed = (0.8 * logits + noise).astype(np.float32)
    views = Views(logits, {"zoom:0.5": zoomed, "zoom:0.7": 0.9 * zoomed}, y)
    views.write(folder / "views.npz")
    views.write(folder / "views.zarr")
    Views(logits, labels=y).write(folder / "plain.npz")
    Views(logits).write(folder / "unlabelled.npz")
    Views(np.pad(logits, ((0, 0), (0, 1))), labels=y).write(folder / "four.npz")
    (folder / "empty.npz").write_bytes(b"")
    (folder / "cut.npz").write_bytes((folder / "views.npz").read_bytes()[:900])


def _write_probs(folder: Path, probs: np.ndarray, y: np.ndarray) -> None:
    from recal.files.probabilities import write_prob_file

    write_prob_file(folder / "probs.npz", probs, y)
    write_prob_file(folder / "bare-probs.npz", probs)
    write_prob_file(folder / "hundred.npz", probs[:100], y[:100])


def _write_arrays(folder: Path, logits: np.ndarray, probs: np.ndarray, y: np.ndarray) -> None:
    seventh = np.arange(120)[:, None] == 7
    for name, arrays in {
        "nan": {"logits": np.where(seventh, np.nan, logits), "labels": y},
        "inf": {"logits": np.where(seventh, np.inf, logits), "labels": y},
        "softmax": {"logits": probs, "labels": y},
        "logits-as-probs": {"probs": logits, "labels": y},
        "one-based": {"logits": logits, "labels": y + 1},
        "words": {"logits": logits, "labels": np.array(["cat", "dog", "owl"])[y]},
        "objects": {"logits": logits.astype(object), "labels": y},
        "layout": {"logits": logits, "transforms": ["zoom:0.5"], "transformed": logits[None, :50]},
    }.items():
        np.savez(folder / f"{name}.npz", **arrays)
    np.save(folder / "pickled.npy", np.array([{"a": 1}], dtype=object))


def _write_labels(folder: Path, y: np.ndarray) -> None:
    words = np.array(["cat", "dog", "owl"])[y].tolist()
    np.save(folder / "labels.npy", y)
    np.save(folder / "short.npy", y[:100])
    (folder / "labels.txt").write_text("\n".join(words) + "\n")
    gaps = [word if row % 10 != 7 else "" for row, word in enumerate(words)]
    (folder / "with-gaps.txt").write_text("\n".join(gaps))
    (folder / "probs.xlsx").write_bytes(b"PK\x03\x04 a spreadsheet")


def _write_calibrations(folder: Path, logits: np.ndarray, y: np.ndarray) -> None:
    from recal import (
        DecisionRule,
        Plan,
        ReCal,
        SignalCalibration,
        Step,
        TemperatureScaling,
        read_views,
        save,
    )
    from recal.files.tables import read_table

    save(TemperatureScaling().fit(logits, y), folder / "ts.recal")
    fitted = ReCal(random_state=0, max_iter=1).fit(read_views(folder / "views.npz"))
    fitted.map_ = Plan(tuple(Step(spec, (1.0, 0.9, 0.8, 1.0)) for spec in ("zoom:0.7", "zoom:0.5")))
    save(fitted, folder / "recal.recal")
    table = read_table(write_graded(folder / "graded.csv", 300))
    signals = SignalCalibration().fit(
        {"stated": table.numbers("stated")}, table.numbers("right") > 0
    )
    signals.decision_ = DecisionRule((0.8,), risk=0.2, confidence=0.95)
    save(signals, folder / "graded.recal")
    whole = (folder / "ts.recal").read_bytes()
    (folder / "cut.recal").write_bytes(whole[: len(whole) // 2])
    (folder / "pickled.recal").write_bytes(pickle.dumps({"beta": 1.0}))
    (folder / "mine.recal").write_text("mine")


def _write_tables(folder: Path, probs: np.ndarray, y: np.ndarray) -> None:
    header, names = "cat,dog,owl,label", ("cat", "dog", "owl")
    cells = [[*(f"{value:.6f}" for value in row), names[label]] for row, label in zip(probs, y)]
    rows = [",".join(row) for row in cells]
    text = "\n".join([header, *rows]) + "\n"
    for name, shown in {
        "probs": text,
        "no-header": "\n".join(rows),
        "truth": text.replace("label", "truth"),
        "ragged": text.rstrip("\n").rsplit(",", 1)[0],
        "header-only": header,
        "gap": text.replace(rows[4], f",{rows[4].partition(',')[2]}"),
        "unknown-label": text.replace(",owl\n", ",bird\n"),
    }.items():
        (folder / f"{name}.csv").write_text(shown)


def _write_inputs(folder: Path, rng: np.random.Generator, y: np.ndarray) -> None:
    from PIL import Image

    inputs = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    np.savez(folder / "data.npz", inputs=inputs, labels=y[:30])
    np.save(folder / "flat.npy", rng.normal(size=(30, 5)).astype(np.float32))
    for name, grows in (("images", 0), ("broken-images", 0), ("sizes", 1)):
        for row in range(6):
            path = folder / name / "abc"[row % 3] / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12 + grows * row, 12, 3), dtype=np.uint8)).save(
                path
            )
    (folder / "broken-images" / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
