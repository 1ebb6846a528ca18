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
from recal.cli.printing import print_json, print_table, say, working
from recal.errors import install_command


def doctor() -> None:
    """Show what is installed, which extras work, how many threads there are, and where compiled
    code is cached.

    Every package is imported, which takes some seconds. Example: [bold]recal doctor --json[/bold]
    """
    with working("Importing packages"):
        facts = examine()
    packages, extras = facts["packages"], facts["extras"]
    threads, cache = facts["threads"], facts["numba_cache"]
    print_json(facts)
    say(f"recal {facts['recal']}, Python {facts['python']}, {facts['platform']}")
    rows = []
    for name, one in packages.items():
        rows += _wrap(name, one["version"] or "-", one["problem"] or "yes")
    print_table("Packages", ("name", "version", "works"), rows)
    rows = []
    for extra, state in extras.items():
        found = state["packages"].items()
        parts = (f"{name} {one['problem'] or one['version']}" for name, one in found)
        rows += _wrap(extra, "yes" if state["works"] else "no", "; ".join(parts))
    print_table("Extras", ("extra", "works", "packages"), rows)
    if absent := [extra for extra, state in extras.items() if not state["works"]]:
        say(f"To add one: {install_command(absent[0])}")
    pools = ", ".join(f"{name} {count}" for name, count in threads["pools"].items()) or "none"
    say(f"Threads: {threads['cpus']} CPUs, numba {threads['numba']}, {pools}")
    say(f"Compiled code is cached in {cache['folder']}")
    if not cache["writable"]:
        say("It is NOT writable: set NUMBA_CACHE_DIR, or every start compiles again.")
    if not all(package["works"] for package in packages.values()):
        raise typer.Exit(1)


def _wrap(first: str, second: str, text: str) -> list[tuple[str, str, str]]:
    """Return table rows with a long text split over several lines, each below 100 characters."""
    lines = textwrap.wrap(text, 60, break_on_hyphens=False) or [""]
    return [(first, second, lines[0]), *(("", "", line) for line in lines[1:])]


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
    variables = {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}
    checked = {name: check_package(name) for name in chain(required, *extras.values())}
    groups = {}
    for extra, names in extras.items():
        packages = {name: checked[name] for name in names}
        works = all(one["works"] for one in packages.values())
        groups[extra] = {"works": works, "packages": packages}
    threads = {"cpus": cpus, "numba": numba.get_num_threads(), "pools": pools}
    return {
        "recal": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: checked[name] for name in required},
        "extras": groups,
        "threads": {**threads, "environment": variables},
        "numba_cache": numba_cache(),
    }


def check_package(name: str) -> dict[str, Any]:
    """Return a package's version, and whether it can be imported or why not."""
    number = problem = None
    module = name.replace("-", "_")
    differing = {"scikit_learn": "sklearn", "pillow": "PIL"}
    try:
        number = version(name)
        importlib.import_module(differing.get(module, module))
    except Exception as error:  # a conflict between packages may raise anything
        problem = "not installed" if number is None else f"{type(error).__name__}: {error}"
    return {"version": number, "works": problem is None, "problem": problem}


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the requirements in recal's own metadata: those of every installation, and those of
    each extra.
    """
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    distribution = "recal-calibration"
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return required, extras
    for line in lines:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name == distribution:  # the extra `all` names the others
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
