"""`recal doctor`: what is installed, and does it work?"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from recal import __version__
from recal.cli import options as opt
from recal.cli.printing import print_json, print_table, say, working
from recal.errors import install_command

_WIDEST = (
    60  # width of the column of packages; with the two columns before it, a line stays below 100
)


def doctor(as_json: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Show what is installed, which extras work, how many threads there are, and where compiled
    code is cached.

    Every package is imported, which takes some seconds. Example: [bold]recal doctor --json[/bold]
    """
    with working("Importing packages"):
        facts = examine()
    packages, extras, threads, cache = (
        facts[name] for name in ("packages", "extras", "threads", "numba_cache")
    )
    print_json(facts)
    say(f"recal {facts['recal']}, Python {facts['python']}, {facts['platform']}")
    rows = []
    for name, one in packages.items():
        rows += _wrap(name, one["version"] or "-", one["problem"] or "yes")
    print_table("Packages", ("name", "version", "works"), rows)
    rows = []
    for extra, state in extras.items():
        parts = (
            f"{name} {one['version' if one['works'] else 'problem']}"
            for name, one in state["packages"].items()
        )
        rows += _wrap(extra, "yes" if state["works"] else "no", "; ".join(parts))
    print_table("Extras", ("extra", "works", "packages"), rows)
    if absent := [extra for extra, state in extras.items() if not state["works"]]:
        say(f"To add one: {install_command(absent[0])}")
    pools = ", ".join(f"{name} {count}" for name, count in threads["pools"].items()) or "none"
    say(f"Threads: {threads['cpus']} CPUs, numba {threads['numba']}, {pools}")
    state = (
        ""
        if cache["writable"]
        else ", NOT writable: set NUMBA_CACHE_DIR, or every start compiles again"
    )
    say(f"Compiled code is cached in {cache['folder']}{state}")
    if not all(package["works"] for package in packages.values()):
        raise typer.Exit(1)


def _wrap(first: str, second: str, text: str) -> list[tuple[str, str, str]]:
    """Return table rows with a long text split over several lines, so that a pipe or a log stays
    readable.
    """
    lines = textwrap.wrap(text, _WIDEST, break_on_hyphens=False) or [""]
    return [(first, second, lines[0]), *(("", "", line) for line in lines[1:])]


_DISTRIBUTION = "recal-calibration"
# Distributions whose import name differs.
_IMPORTS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "universal-pathlib": "upath",
    "universal_pathlib": "upath",
}
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


def examine() -> dict[str, Any]:
    """Return what is installed and works. Every package is imported, because an installed package
    may not work.

    Examples
    --------
    >>> from recal.cli.doctor import check_package
    >>> check_package("numpy")["works"]
    True
    """
    import numba
    from threadpoolctl import threadpool_info

    required, extras = _requirements()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pools = {
        f"{pool['user_api']} ({pool['internal_api']})": pool["num_threads"]
        for pool in threadpool_info()
    }
    variables = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    checked = {
        name: check_package(name) for name in dict.fromkeys(chain(required, *extras.values()))
    }
    return {
        "recal": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: checked[name] for name in required},
        "extras": {
            extra: {
                "works": all(checked[name]["works"] for name in names),
                "packages": {n: checked[n] for n in names},
            }
            for extra, names in extras.items()
        },
        "threads": {
            "cpus": cpus,
            "numba": numba.get_num_threads(),
            "pools": pools,
            "environment": variables,
        },
        "numba_cache": numba_cache(),
    }


def check_package(name: str) -> dict[str, Any]:
    """Return a package's version, and whether it can be imported or why not."""
    number = problem = None
    try:
        number = version(name)
        importlib.import_module(_IMPORTS.get(name, name.replace("-", "_")))
    except Exception as error:  # a conflict between packages may raise anything
        problem = "not installed" if number is None else f"{type(error).__name__}: {error}"
    return {"version": number, "works": problem is None, "problem": problem}


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the requirements in recal's own metadata: those of every installation, and those of
    each extra.
    """
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return required, extras
    for line in lines:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name == _DISTRIBUTION:  # the extra `all` names the others
            continue
        (extras.setdefault(extra[1], []) if extra else required).append(name)
    return required, extras


def numba_cache() -> dict[str, Any]:
    """Return where compiled kernels are cached; if it is not writable, every start compiles them
    again.
    """
    import numba

    from recal import engine

    chosen = numba.config.CACHE_DIR
    folder = Path(chosen) if chosen else Path(engine.__path__[0]) / "__pycache__"
    if not chosen and not _writable(folder):
        folder = Path.home() / ".cache" / "numba"  # numba's own second choice
    return {
        "folder": str(folder),
        "writable": _writable(folder),
        "set_by": "NUMBA_CACHE_DIR" if chosen else None,
    }


def _writable(folder: Path) -> bool:
    """Whether files can be created in a folder, or in its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
