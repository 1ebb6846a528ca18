"""`recal doctor` and `recal transforms`: what is installed here, and which transformations there are."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import re
import shutil
import sys
import textwrap
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.printing import AsJson, print_json, print_table, say, working

if TYPE_CHECKING:
    from recal.transforms import BuiltIn


_WIDEST = 60  # columns for the packages of an extra; with the two columns before them a line stays below 100


def doctor(as_json: AsJson = False) -> None:
    """Show what is installed, which extras work, how many threads there are, and where compiled code is cached.

    Every package is imported, which takes some seconds. Example: [bold]recal doctor --json[/bold]
    """
    import typer

    with working("Importing packages"):
        found = examine()
    broken = [name for name, package in found["packages"].items() if not package["works"]]
    if as_json:
        print_json(found)
    else:
        _show(found)
    if broken:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    say(f"recal {found['recal']}, Python {found['python']}, {found['platform']}")
    packages = [row for item in found["packages"].items() for row in _wrapped(*_row(*item))]
    print_table("Packages", ("name", "version", "works"), packages)
    rows = []
    for extra, state in found["extras"].items():
        told = "; ".join(_tell(*item) for item in state["packages"].items())
        rows += _wrapped(extra, "yes" if state["works"] else "no", told)
    print_table("Extras", ("extra", "works", "packages"), rows)
    missing = [extra for extra, state in found["extras"].items() if not state["works"]]
    if missing:
        from recal.errors import install_command

        say(f"To add one: {install_command(missing[0])}")
    threads = found["threads"]
    pools = ", ".join(f"{name} {count}" for name, count in threads["pools"].items()) or "none"
    say(f"Threads: {threads['cpus']} CPUs, numba {threads['numba']}, {pools}")
    cache = found["numba_cache"]
    state = "" if cache["writable"] else ", NOT writable: set NUMBA_CACHE_DIR, or every start compiles again"
    say(f"Compiled code is cached in {cache['folder']}{state}")


def _wrapped(first: str, second: str, words: str) -> list[tuple[str, str, str]]:
    """The rows of a table in which long words take several lines, so that a pipe or a log stays readable."""
    lines = textwrap.wrap(words, _WIDEST, break_on_hyphens=False) or [""]
    return [(first, second, lines[0]), *(("", "", line) for line in lines[1:])]


def _row(name: str, package: dict[str, Any]) -> tuple[str, str, str]:
    return name, package["version"] or "-", "yes" if package["works"] else str(package["problem"])


def _tell(name: str, package: dict[str, Any]) -> str:
    return f"{name} {package['version']}" if package["works"] else f"{name} {package['problem']}"


_DISTRIBUTION = "recal-calibration"
# Where the import's name is not the distribution's.
_IMPORTS = {"scikit-learn": "sklearn", "pillow": "PIL", "universal-pathlib": "upath", "universal_pathlib": "upath"}
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def examine() -> dict[str, Any]:
    """Return what is installed and works. Every package is really imported, since installed is not yet working.

    Examples
    --------
    >>> from recal.cli.doctor import check_package
    >>> check_package("numpy")["works"]
    True
    """
    required, extras = _requirements()
    checked = {name: check_package(name) for name in dict.fromkeys(chain(required, *extras.values()))}
    return {
        "recal": _version(_DISTRIBUTION),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: checked[name] for name in required},
        "extras": {
            extra: {"works": all(checked[name]["works"] for name in names), "packages": {n: checked[n] for n in names}}
            for extra, names in extras.items()
        },
        "threads": _threads(),
        "numba_cache": numba_cache(),
    }


def check_package(name: str) -> dict[str, Any]:
    """Return a package's version, whether it can be imported, and why not."""
    found = _version(name)
    if found is None:
        return {"version": None, "works": False, "problem": "not installed"}
    try:
        importlib.import_module(_IMPORTS.get(name, name.replace("-", "_")))
    except Exception as error:  # a package may fail in any way when it meets another
        return {"version": found, "works": False, "problem": f"{type(error).__name__}: {error}"}
    return {"version": found, "works": True, "problem": None}


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """What recal's own metadata say it needs: always, and for each extra."""
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return required, extras
    for line in lines:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower()
        found = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name == _DISTRIBUTION:  # the extra `all` names the others
            continue
        (extras.setdefault(found[1], []) if found else required).append(name)
    return required, extras


def _threads() -> dict[str, Any]:
    import numba
    from threadpoolctl import threadpool_info

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pools = {f"{pool['user_api']} ({pool['internal_api']})": pool["num_threads"] for pool in threadpool_info()}
    set_by_hand = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return {"cpus": available, "numba": numba.get_num_threads(), "pools": pools, "environment": set_by_hand}


def numba_cache() -> dict[str, Any]:
    """Return where compiled kernels are kept; where nothing is writable, every start compiles them anew."""
    import numba

    from recal import engine

    chosen = numba.config.CACHE_DIR
    folder = Path(chosen) if chosen else Path(engine.__path__[0]) / "__pycache__"
    if not chosen and not _writable(folder):
        folder = Path.home() / ".cache" / "numba"  # numba's own second choice
    return {"folder": str(folder), "writable": _writable(folder), "set_by": "NUMBA_CACHE_DIR" if chosen else None}


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def transforms(
    kind: Annotated[str | None, typer.Argument(help="A transformation to explain, such as zoom.")] = None,
    made_for: Annotated[
        str | None, typer.Option("--for", help="Only transformations for image, video, series, audio, text or tabular.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the transformations, or explain one: what it does, how strong it can be, how it is written.

    A pool is written as parts joined by +. A part is a strength (zoom:0.8), a range from which strengths are drawn
    (zoom:0.5-0.9:10 draws ten), or a kind alone (zoom draws ten from its useful range). Options come last
    (zoom:0.8:layout=NHWC).

    Example: [bold]recal transforms zoom[/bold]

    Example: [bold]recal transforms --for text[/bold]
    """
    from recal.errors import InputError
    from recal.transforms.pool import KINDS

    if kind is not None:
        from recal.transforms import pool

        name = kind.partition(":")[0]  # zoom:0.5 is a zoom
        if name not in KINDS:
            pool(kind)  # its own error names the kinds, and the nearest
        _explain(KINDS[name], as_json)
        return
    modalities = sorted({found.modality for found in KINDS.values()})
    if made_for not in (None, *modalities):
        near = get_close_matches(made_for or "", modalities, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"--for takes one of {', '.join(modalities)}, got {made_for!r}.{hint}")
    shown = [found for found in KINDS.values() if made_for in (None, found.modality)]
    if as_json:
        print_json([_facts(found) for found in shown])
        return
    for modality in dict.fromkeys(found.modality for found in shown):
        say(modality)
        for found in shown:
            if found.modality == modality:
                say(_line(found))
    say(f"Next: recal transforms {shown[0].kind}")


def _explain(found: type[BuiltIn], as_json: bool) -> None:
    if as_json:
        print_json(_facts(found))
        return
    facts = _facts(found)
    say(f"{found.kind} ({found.modality})")
    text = inspect.getdoc(found) or ""
    say(text.partition("Examples\n")[0].strip())
    say("")
    say(f"Strengths   {_range(found)} are useful, {_bounds(found)} are accepted, {found.identity:g} changes nothing.")
    options = ", ".join(f"{name}={default}" for name, default in facts["options"].items())
    say(f"Options     {options or 'none'}")
    if facts["assumes"]:
        say(f"Assumes     {facts['assumes']}")
    say(f"Write       {_example(found)}  or a range, {_example(found, ranged=True)}")


def _line(found: type[BuiltIn]) -> str:
    """Return kind, useful strengths and what it does, broken to the terminal's width."""
    head = f"  {found.kind:<11} {_range(found):<9} "
    width = max(60, shutil.get_terminal_size().columns)
    return textwrap.fill(_what(found).replace("``", "`"), width, initial_indent=head, subsequent_indent=" " * len(head))


def _facts(found: type[BuiltIn]) -> dict[str, Any]:
    from dataclasses import fields

    return {
        "kind": found.kind,
        "for": found.modality,
        "what": _what(found),
        "keeps_information": getattr(found, "keeps_information", False),
        "assumes": getattr(found, "assumes", ""),
        "useful": sorted(found.strengths),
        "accepted": found.domain,
        "changes_nothing": found.identity,
        "options": {field.name: field.default for field in fields(found)[1:]},  # type: ignore[arg-type]
    }


def _what(found: type[BuiltIn]) -> str:
    return " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())


def _range(found: type[BuiltIn]) -> str:
    low, high = sorted(found.strengths)
    return f"{low:g}-{high:g}"


def _bounds(found: type[BuiltIn]) -> str:
    low, high = found.domain
    return f"{'above ' if found.positive else ''}{low:g} to {high:g}"


def _example(found: type[BuiltIn], ranged: bool = False) -> str:
    low, high = sorted(found.strengths)
    if ranged:
        return f"{found.kind}:{low:g}-{high:g}:5"
    middle = round((low + high) / 2 / found.step) * found.step
    return f"{found.kind}:{middle:.4g}"
