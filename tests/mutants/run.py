"""Make each mutation in a copy of the code and run the tests that must notice it; survivors are printed.

python -m tests.mutants.run            # all of them, some minutes
python -m tests.mutants.run search.py  # those whose file contains these words
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


def survives(mutation: Mutation, copy: Path) -> str | None:
    """Return why a mutation was not noticed, or None where the tests failed."""
    target = copy / "recal" / mutation.file
    whole = target.read_text()
    if whole.count(mutation.code) != 1:
        return f"the code stands there {whole.count(mutation.code)} times"
    target.write_text(whole.replace(mutation.code, mutation.wrong))
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                f"tests/{mutation.tests}",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        target.write_text(whole)
    return None if done.returncode == 1 else f"pytest ended with {done.returncode}"


def main(words: list[str]) -> int:
    chosen = [one for one in MUTATIONS if not words or any(word in one.file for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src" / "recal", copy / "recal", ignore=shutil.ignore_patterns("__pycache__"))
        for number, one in enumerate(chosen, 1):
            why = survives(one, copy)
            survivors += why is not None
            state = "noticed" if why is None else f"SURVIVED ({why})"
            print(f"{number:3}/{len(chosen)} {one.file}: {one.code[:60]!r} -> {one.wrong[:40]!r}: {state}", flush=True)
    print(f"{survivors} of {len(chosen)} mutations survived.")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
