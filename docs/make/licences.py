"""Print the licence of every package that recal installs, for the core and for each extra.

Run it in an environment with `recal-calibration[all]`; nothing is downloaded. The licence is read
from the metadata of each package: its licence expression, its classifiers, or the first line of its
licence field.

    python docs/make/licences.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "recal-calibration"
HEAD = """# Licences of the packages that recal installs

recal itself is under the Apache License 2.0. The tables list the licence that each package declares
on this system. A wheel may contain other libraries with their own licences. For example,
`soundfile` contains libsndfile (LGPL).
"""


def needed(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """The packages that one asks for here, with these of its extras."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield requirement


def closure(name: str, extras: frozenset[str]) -> dict[str, bool]:
    """Every package that an installation brings; True where recal asks for it itself."""
    waiting = list(needed(name, extras))
    direct = {canonicalize_name(requirement.name) for requirement in waiting}
    found: dict[str, bool] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        package, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        try:
            below = list(needed(package, wanted)) if package != PROJECT else []
        except PackageNotFoundError:
            raise SystemExit(
                f"{package} is not installed; run this where recal-calibration[all] is."
            ) from None
        found[package] = package in direct
        waiting += below
    return found


def licence(package: Distribution) -> str:
    """What a package says of its licence, in one line."""
    metadata: Message = package.metadata  # type: ignore[assignment]
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    if named := [line.split(" :: ")[-1] for line in classifiers if line.count(" :: ") > 1]:
        return ", ".join(named)
    text = str(metadata.get("License") or "").strip()
    if not text:  # the file itself then begins with its name
        files = [path for path in package.files or [] if path.name.upper().startswith("LICEN")]
        text = files[0].read_text(encoding="utf-8").strip() if files else "not said"
    return re.sub(r"\s+", " ", text.splitlines()[0])


def table(packages: dict[str, bool]) -> str:
    lines = ["| package | version | licence | asked for by |", "|---|---|---|---|"]
    for name, direct in sorted(packages.items()):
        package = distribution(name)
        cells = (
            f"`{name}`",
            package.version,
            licence(package),
            "recal" if direct else "another package",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    core = closure(PROJECT, frozenset())
    parts = [HEAD, f"## The core\n\n{table(core)}\n"]
    extras = [
        name
        for name in distribution(PROJECT).metadata.get_all("Provides-Extra") or []
        if name != "all"
    ]
    for extra in extras:
        added = {
            name: direct
            for name, direct in closure(PROJECT, frozenset({extra})).items()
            if name not in core
        }
        parts.append(f"## The extra `{extra}`\n\n{table(added)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page())
