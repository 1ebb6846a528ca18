"""`recal doctor`: what is installed and works here."""

from __future__ import annotations

from typing import Any

from recal.cli.printing import AsJson, print_json, print_table, say, working

NEEDS_ARGUMENTS = False


def doctor(as_json: AsJson = False) -> None:
    """Tell what is installed, which extras work, how many threads there are, and where compiled code is kept.

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
    print_table("Packages", ("name", "version", "works"), [_row(*item) for item in found["packages"].items()])
    rows = [
        (extra, "yes" if state["works"] else "no", "; ".join(_tell(*item) for item in state["packages"].items()))
        for extra, state in found["extras"].items()
    ]
    print_table("Extras", ("extra", "works", "packages"), rows)
    missing = [extra for extra, state in found["extras"].items() if not state["works"]]
    if missing:
        say(f"To add one: pip install 'recal-calibration[{missing[0]}]'")
    threads = found["threads"]
    pools = ", ".join(f"{name} {count}" for name, count in threads["pools"].items()) or "none"
    say(f"Threads: {threads['cpus']} CPUs, numba {threads['numba']}, {pools}")
    cache = found["numba_cache"]
    state = "" if cache["writable"] else ", NOT writable: set NUMBA_CACHE_DIR, or every start compiles anew"
    say(f"Compiled code is kept in {cache['folder']}{state}")


def _row(name: str, package: dict[str, Any]) -> tuple[str, str, str]:
    return name, package["version"] or "-", "yes" if package["works"] else str(package["problem"])


def _tell(name: str, package: dict[str, Any]) -> str:
    return f"{name} {package['version']}" if package["works"] else f"{name} {package['problem']}"
