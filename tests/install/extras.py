"""Build the package, look into it, and try it in empty environments: its types, alone, then with
each extra alone.

`make test-extras` runs it with nothing but Python, pip and what they download; names of extras
choose some of them:

    python tests/install/extras.py            # everything
    python tests/install/extras.py core onnx  # those two
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from oldest import PYPROJECT, tested_torch

ROOT = PYPROJECT.parent
FEATURES = Path(__file__).with_name("features.py")
# Bytes: 0.7 MB of code, and the pages with their figures. A larger wheel holds something else.
LARGEST_WHEEL = 1_500_000
WANTED = (
    "recal/py.typed",
    "recal/__init__.pyi",
    "recal/calibrators/__init__.pyi",
    "recal/cli/app.py",
)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def environment(folder: Path, *packages: str) -> Path:
    """Make an environment with these packages, and return its Python."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    if packages:
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", *packages)
    return python


def build(folder: Path) -> Path:
    """Build from the tree as it is and from an unpacked sdist without git; both must give the same
    wheel.
    """
    python = environment(folder / "builder", "build")
    run(python, "-m", "build", "--wheel", "--outdir", folder / "from-tree", ROOT)
    run(python, "-m", "build", "--sdist", "--outdir", folder / "sdist", ROOT)
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(python, "-m", "build", "--wheel", "--outdir", folder / "from-sdist", unpacked)
    (first,), (second,) = (
        list((folder / name).glob("*.whl")) for name in ("from-tree", "from-sdist")
    )
    if contents(first) != contents(second):
        raise SystemExit("The wheels from the tree and from the sdist differ.")
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB; its wheel is that of the tree")
    return first


def contents(wheel: Path) -> dict[str, int]:
    """The names in a wheel, each with its checksum."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that lacks its types or holds anything else than the package."""
    names, size = list(contents(wheel)), wheel.stat().st_size
    lacking = [name for name in WANTED if name not in names]
    strange = [name for name in names if not name.startswith(("recal/", "recal_calibration-"))]
    strange += [name for name in names if {"test", "tests"} & set(re.split(r"[/_.]", name))]
    print(f"{wheel.name}: {len(names)} files, {size / 1e6:.2f} MB")
    if lacking or strange or size > LARGEST_WHEEL:
        raise SystemExit(
            f"Lacking: {lacking}; strange: {strange}; at most {LARGEST_WHEEL:,} bytes."
        )


def try_out(name: str, wheel: Path, folder: Path) -> bool:
    """Install the wheel with one extra, or none, and run what it must do."""
    needed = "" if name == "core" else f"[{name}]"
    python = environment(folder)
    run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
    if name in ("torch", "huggingface"):
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", tested_torch())
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}{needed}")
    run(python, "-m", "pip", "check")
    installed = len(run(python, "-m", "pip", "list", "--format", "freeze").splitlines())
    print(f"{name}: {installed} packages", flush=True)
    command = [str(python), str(FEATURES), *(["core"] if name == "core" else [])]
    quiet = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=quiet)
    shutil.rmtree(folder)
    return done.returncode == 0


def try_types(wheel: Path, folder: Path) -> bool:
    """Check a user's program against the installed wheel with mypy and pyright, both strict."""
    python = environment(folder, str(wheel), "mypy", "pyright")
    shutil.copy(ROOT / "tests" / "typing" / "user.py", folder)
    (folder / "pyrightconfig.json").write_text(
        '{"include": ["user.py"], "typeCheckingMode": "strict"}'
    )
    checkers = {"mypy": ["--strict", "user.py"], "pyright": ["--pythonpath", str(python)]}
    right = True
    for name, arguments in checkers.items():
        done = subprocess.run(
            [python, "-m", name, *arguments], cwd=folder, capture_output=True, text=True
        )
        if name == "pyright" and "0 errors" not in done.stdout and " error: " not in done.stdout:
            why = (done.stderr or done.stdout).strip()[-200:]
            print(f"types: pyright could not be started, left out: {why}")
            continue
        right &= done.returncode == 0
        print(f"types: {name}: {done.stdout.strip()}", flush=True)
    return right


def main(names: Sequence[str]) -> int:
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    known = ["types", "core", *(name for name in extras if name != "all")]
    if unknown := set(names) - set(known):
        raise SystemExit(f"No such extra: {', '.join(unknown)}; there are {', '.join(known)}.")
    with tempfile.TemporaryDirectory() as place:
        wheel = build(Path(place))
        check_wheel(wheel)
        wrong = []
        for name in names or known:
            folder = Path(place) / name
            right = try_types(wheel, folder) if name == "types" else try_out(name, wheel, folder)
            wrong += [] if right else [name]
    print(f"WRONG: {', '.join(wrong)}" if wrong else "Every installation does what it should.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
