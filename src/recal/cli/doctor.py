"""`recal doctor`: what is installed and works here."""

from __future__ import annotations

import textwrap
from typing import Any

from recal.cli.printing import AsJson, print_json, print_table, say, working

NEEDS_ARGUMENTS = False
_WIDEST = 60  # columns for the packages of an extra; with the two columns before them a line stays below 100


def doctor(as_json: AsJson = False) -> None:
    """Show what is installed, which extras work, how many threads there are, and where compiled code is cached.

    Every package is imported, which takes some seconds. Example: [bold]recal doctor --json[/bold]
    """
    import typer

    from recal.runtime.doctor import examine

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
        say(f"To add one: pip install 'recal-calibration[{missing[0]}]'")
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
