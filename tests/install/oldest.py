"""Print constraints for pip: the oldest versions that pyproject.toml admits, or none for the
newest.

`make test-oldest` and `make test-newest` install with them. Both name torch as the tests'
dependency group does: its other versions are large, and answers of its networks differ between
them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_BOUND = re.compile(r"([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def oldest_versions() -> dict[str, str]:
    """Return the minimum of every package that users install, for the core and for all extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [
        *project["dependencies"],
        *(line for name in extras if name != "all" for line in extras[name]),
    ]
    versions: dict[str, str] = {}
    for line in listed:
        found = _BOUND.match(line)
        if found is None:
            raise ValueError(f"every package has a minimum version, and {line!r} has none")
        name, version = found.groups()
        if versions.setdefault(name, version) != version:
            raise ValueError(f"{name} has two minima: {versions[name]} and {version}")
    return versions


def tested_torch() -> str:
    """Return the requirement by which the tests' group names torch."""
    groups = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    return next(
        line for line in groups["test"] if isinstance(line, str) and line.startswith("torch==")
    )


if __name__ == "__main__":
    print(tested_torch())
    if sys.argv[1:] == ["oldest"]:
        for package, version in oldest_versions().items():
            if package != "torch":
                print(f"{package}=={version}")
