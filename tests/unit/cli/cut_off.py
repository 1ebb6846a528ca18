"""Commands that are killed, or meet a full disk, at each thing that they do to the disk in turn;
then run again.

    python tests/unit/cli/cut_off.py FOLDER STRIDE [COMMAND ...]

Each attempt is a process forked from this one, so that a hundred of them cost what a few starts of
Python do. An audit hook counts what is opened for writing, made, renamed and removed below the
folder; at one of them the process ends (as by a kill) or the system says that the disk is full.
Afterwards the same command must finish the work.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

PRELOADED = shlex.split("""
    zarr pyarrow.parquet onnx matplotlib.figure matplotlib.backends.backend_svg recal.cli.calibrate
    recal.cli.apply recal.cli.decide recal.collecting recal.collecting.local recal.collecting.store
    recal.files.saved recal.calibrators.temperature recal.reporting.charts recal.export
""")
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
KILLED = 9
MODEL = """
import numpy as np
def model(batch):
    values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
    return np.stack([values.mean(1), values.std(1), values[:, ::2].mean(1)], axis=1) / 20 - 2
"""
COLLECT = shlex.split(
    "collect --model model:model --data x.npz --batch-size 4 --pool zoom:0.5+flip"
)
COMMANDS = {
    "collect-store": [*COLLECT, "--out", "out.zarr"],
    "collect-file": [*COLLECT, "--out", "out.npz"],
    "apply-model": shlex.split("apply c.recal --model model:model --data x.npz --out out.csv"),
    "apply-table": ["apply", "c.recal", "v.npz", "--out", "out.parquet"],
    "watch-state": ["watch", "v.npz", "v.npz", "--save", "out.recal"],
    "export": ["export", "c.recal", "--classes", "3", "--out", "out.onnx"],
}


def prepare(folder: Path) -> None:
    """Write what the commands read; in a process of its own, so that this one stays as it is."""
    from recal import TemperatureScaling, Views, save

    rng = np.random.default_rng(0)
    y = np.arange(20) % 3
    np.savez(folder / "x.npz", inputs=rng.integers(0, 256, (20, 8, 8), dtype=np.uint8), labels=y)
    logits = rng.normal(0, 2, (300, 3))
    labels = rng.integers(0, 3, 300)
    views = Views(logits, {"flip": logits + rng.normal(0, 1, (300, 3))}, labels)
    views.write(folder / "v.npz")
    save(TemperatureScaling().fit(views), folder / "c.recal")
    (folder / "model.py").write_text(MODEL)


def in_child(work: Callable[[], int]) -> int:
    """Run a function in a forked process and return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def stop_at(number: int, mode: str, root: str) -> None:
    """From now on, end this process at the event of that number, or say that the disk is full from
    there on.
    """
    seen = 0

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if name not in EVENTS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if name == "open" and not (int(str(arguments[2] or 0)) & (os.O_WRONLY | os.O_RDWR)):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(os.path.join(root, "out")) and "/.out" not in path:
            return
        seen += 1
        if seen == number and mode == "kill":
            os._exit(KILLED)
        if seen >= number and mode == "full" and name in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    sys.addaudithook(hook)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what stands under the output's name, and nothing that a cut left beside it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part"]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in found.items() if name.startswith("out")}


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.startswith(("out", ".out")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def attempt(name: str, mode: str, number: int, expected: dict[str, bytes]) -> tuple[str, bool]:
    """Return what went wrong, nothing where it went well, and whether the command was cut off at
    all.
    """
    from recal.cli.app import run

    here = Path.cwd()
    clear(here)

    def cut() -> int:
        stop_at(number, mode, str(here))
        return run(COMMANDS[name])

    code = in_child(cut)
    if mode == "full" and code not in (0, 2):
        return f"a full disk gave the exit code {code}", True
    if code == 0:
        return ("" if contents(here) == expected else "it ended well with other bytes"), False
    left = contents(here)
    resumable = name == "collect-store"
    if not resumable and left and left != expected:
        return f"half a result stands there: {sorted(left)}", True
    # It may have been cut off after the file had its name.
    forced = ["--force"] if left and not resumable else []
    again = in_child(lambda: run([*COMMANDS[name], *forced]))
    if again != 0:
        return f"the same command again gave the exit code {again}", True
    return ("" if contents(here) == expected else "run again, the bytes are others"), True


def main(arguments: list[str]) -> int:
    folder, stride = Path(arguments[0]).resolve(), int(arguments[1])
    names = arguments[2:] or list(COMMANDS)
    in_child(lambda: prepare(folder) or 0)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for module in PRELOADED:  # once, and not again in every child
        import_module(module)
    from recal.cli.app import run

    told = {}
    for name in names:
        clear(folder)
        if (code := in_child(lambda name=name: run(COMMANDS[name]))) != 0:
            told[name] = {"attempts": 0, "faults": [f"it fails by itself: {code}"]}
            continue
        expected, attempts, faults = contents(folder), 0, []
        for mode in ("kill", "full"):
            number, goes_on = 1, True
            while goes_on and number < 400:
                fault, goes_on = attempt(name, mode, number, expected)
                attempts += goes_on
                faults += [f"{mode} at {number}: {fault}"] if fault else []
                number += stride
        told[name] = {"attempts": attempts, "faults": faults}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
