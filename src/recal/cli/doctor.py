"""`recal doctor` and `recal transforms`: what is installed, and which transformations exist."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import re
import shutil
import sys
import textwrap
from dataclasses import fields
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from recal import __version__
from recal.cli.options import argument, option
from recal.cli.printing import print_json, print_table, say, working
from recal.errors import InputError, install_command

if TYPE_CHECKING:
    from recal.transforms import BuiltIn


_WIDEST = (
    60  # width of the column of packages; with the two columns before it, a line stays below 100
)


def doctor() -> None:
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


def transforms(
    *,
    kind: str | None = argument("A transformation to explain, such as zoom."),
    made_for: str | None = option(
        "Only transformations for image, video, series, audio, text or tabular.", flag="--for"
    ),
) -> None:
    """List the transformations, or explain one: what it does, how strong it can be, how it is
    written.

    A pool is written as parts joined by +. A part is a strength (zoom:0.8), a range from which
    strengths are drawn (zoom:0.5-0.9:10 draws ten), or a kind alone (zoom draws ten from its useful
    range). Options come last (zoom:0.8:layout=NHWC).

    Example: [bold]recal transforms zoom[/bold]

    Example: [bold]recal transforms --for text[/bold]
    """
    from recal.transforms.pool import KINDS, pool

    if kind is not None:
        name = kind.partition(":")[0]  # zoom:0.5 is a zoom
        if name not in KINDS:
            pool(kind)  # its error names the kinds and the closest match
        _explain(KINDS[name])
        return
    modalities = sorted({one.modality for one in KINDS.values()})
    if made_for not in (None, *modalities):
        near = get_close_matches(made_for or "", modalities, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"--for takes one of {', '.join(modalities)}, got {made_for!r}.{hint}")
    kinds = [one for one in KINDS.values() if made_for in (None, one.modality)]
    print_json([_facts(one) for one in kinds])
    width = max(60, shutil.get_terminal_size().columns)
    for modality in dict.fromkeys(one.modality for one in kinds):
        say(modality)
        for one in kinds:
            if one.modality == modality:
                head = f"  {one.kind:<11} {_range(one):<9} "
                text = _summary(one).replace("``", "`")
                say(
                    textwrap.fill(
                        text, width, initial_indent=head, subsequent_indent=" " * len(head)
                    )
                )
    say(f"Next: recal transforms {kinds[0].kind}")


def _explain(kind: type[BuiltIn]) -> None:
    facts = _facts(kind)
    print_json(facts)
    strengths = kind.strengths
    middle = round((strengths.weak + strengths.strong) / 2 / strengths.step) * strengths.step
    options = ", ".join(f"{name}={default}" for name, default in facts["options"].items())
    say(f"{kind.kind} ({kind.modality})")
    say((inspect.getdoc(kind) or "").partition("Examples\n")[0].strip())
    say("")
    bounds = (
        f"{'above ' if strengths.ends[0] == '(' else ''}{strengths.low:g} to {strengths.high:g}"
    )
    say(
        f"Strengths   {_range(kind)} are useful, {bounds} are accepted, {strengths.identity:g} changes nothing."
    )
    say(f"Options     {options or 'none'}")
    if facts["assumes"]:
        say(f"Assumes     {facts['assumes']}")
    say(f"Write       {kind.kind}:{middle:.4g}  or a range, {kind.kind}:{_range(kind)}:5")


def _facts(kind: type[BuiltIn]) -> dict[str, Any]:
    return {
        "kind": kind.kind,
        "for": kind.modality,
        "what": _summary(kind),
        "keeps_information": getattr(kind, "keeps_information", False),
        "assumes": getattr(kind, "assumes", ""),
        "useful": sorted((kind.strengths.weak, kind.strengths.strong)),
        "accepted": (kind.strengths.low, kind.strengths.high),
        "changes_nothing": kind.strengths.identity,
        "options": {field.name: field.default for field in fields(kind)[1:]},  # type: ignore[arg-type]
    }


def _summary(kind: type[BuiltIn]) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _range(kind: type[BuiltIn]) -> str:
    low, high = sorted((kind.strengths.weak, kind.strengths.strong))
    return f"{low:g}-{high:g}"
