"""Make each mutation in a copy of the code and run the tests that must notice it; survivors are
printed.

    python -m tests.mutants.run            # all of them, some minutes
    python -m tests.mutants.run search.py  # those whose file contains these words

Each mutation runs in its own process, which starts with the large packages already imported and is
stopped after five minutes; an endless loop counts as noticed. `tests.mutants.generate` makes
mutations of all numbers of a file.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import hypothesis  # noqa: F401
import numba  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import zarr  # noqa: F401

from tests.mutants.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
LONGEST = 300.0


def survives(mutation: Mutation, copy: Path) -> str | None:
    """Return why a mutation was not noticed, or None where the tests failed."""
    target = copy / "recal" / mutation.file
    whole = target.read_text()
    if whole.count(mutation.code) != 1:
        return f"the code stands there {whole.count(mutation.code)} times"
    target.write_text(whole.replace(mutation.code, mutation.wrong))
    try:
        ended = _tested(mutation.tests, copy)
    finally:
        target.write_text(whole)
    return (
        None if ended in (int(pytest.ExitCode.TESTS_FAILED), None) else f"pytest ended with {ended}"
    )


def run_in_child(
    tests: list[str], copy: Path, longest: float = LONGEST, plugins: Sequence[object] = ()
) -> int | None:
    """Run pytest on the changed code in a child process.

    Return its exit code, or None if it took too long.
    """
    child = os.fork()
    if not child:
        os.setsid()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(copy), str(ROOT)]
        )  # for commands that tests start
        sys.path.insert(0, str(copy))
        options = [
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            *([] if plugins else ["-x"]),
        ]
        os._exit(int(pytest.main([*options, *tests], plugins=list(plugins))))
    until = time.monotonic() + longest
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _tested(tests: str, copy: Path) -> int | None:
    return run_in_child([f"tests/{one}" for one in tests.split()], copy)


def main(words: list[str]) -> int:
    sys.dont_write_bytecode = True  # what was compiled of one mutation must not stand for the next
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    chosen = [one for one in MUTATIONS if not words or any(word in one.file for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(
            ROOT / "src" / "recal", copy / "recal", ignore=shutil.ignore_patterns("__pycache__")
        )
        # Compiled once and checked by the source's own hash: only what a mutation changed is
        # compiled again.
        hashed = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(copy / "recal", quiet=1, invalidation_mode=hashed)
        for tests in dict.fromkeys(one.tests for one in chosen):
            if _tested(tests, copy) != 0:
                print(
                    f"{tests} fails, or takes too long, on the code as it is: nothing could be learned from it."
                )
                return 1
        for number, one in enumerate(chosen, 1):
            why = survives(one, copy)
            survivors += why is not None
            state = "noticed" if why is None else f"SURVIVED ({why})"
            print(
                f"{number:3}/{len(chosen)} {one.file}: {one.code[:60]!r} -> {one.wrong[:40]!r}: {state}",
                flush=True,
            )
    print(f"{survivors} of {len(chosen)} mutations survived.")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
