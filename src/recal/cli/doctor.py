"""`recal doctor`: what is installed, and does it work?"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
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
    import numba

    with working("Importing packages"):
        required, extras = _requirements()
        packages = {name: check_package(name) for name in required}
        found = {extra: {name: check_package(name) for name in extras[extra]} for extra in extras}
    works = {extra: all(one["works"] for one in found[extra].values()) for extra in found}
    cpus, cache = os.cpu_count(), numba_cache()
    threads = {"cpus": cpus, "numba": numba.get_num_threads()}
    facts = {"recal": __version__, "python": sys.version.split()[0]}
    facts["platform"] = platform.platform()
    states = {extra: {"works": works[extra], "packages": found[extra]} for extra in found}
    more = {"packages": packages, "extras": states, "threads": threads, "numba_cache": cache}
    print_json({**facts, **more})
    say(f"recal {facts['recal']}, Python {facts['python']}, {facts['platform']}")
    rows = [("", name, one) for name, one in packages.items()]
    rows += [(extra, name, one) for extra in found for name, one in found[extra].items()]
    print_table(
        "Packages",
        ("extra", "package", "version", "works"),
        [
            (extra, name, one["version"] or "-", one["problem"] or "yes")
            for extra, name, one in rows
        ],
    )
    if absent := [extra for extra in works if not works[extra]]:
        say(f"To add the extra {absent[0]}: {install_command(absent[0])}")
    say(f"Threads: {cpus} CPUs, numba {threads['numba']}")
    say(f"Compiled code is cached in {cache['folder']}")
    if not cache["writable"]:
        say("It is NOT writable: set NUMBA_CACHE_DIR, or every start compiles again.")
    if not all(package["works"] for package in packages.values()):
        raise typer.Exit(1)


def check_package(name: str) -> dict[str, Any]:
    """Return a package's version, and whether it can be imported or why not.

    Examples
    --------
    >>> from recal.cli.doctor import check_package
    >>> check_package("numpy")["works"]
    True
    """
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
        if name == distribution or (extra and extra[1] == "all"):  # it names the others
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
    return {"folder": str(folder), "writable": _writable(folder)}


def _writable(folder: Path) -> bool:
    """Whether files can be created in a folder, or in its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
