"""Public names that load on first use, listed once, in the stubs of the packages."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from the imports in its
    `__init__.pyi`.

    The stub is the only list of public names: type checkers read it, and so does this function.
    """
    homes: dict[str, tuple[str, bool]] = {}
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        imports = ast.parse(stub.read()).body
    for node in imports:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                is_module = node.module is None
                home = "." * node.level + (node.module or alias.name)
                homes[alias.name] = home, is_module

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, is_module = homes[name]
        module = import_module(home, package)
        return module if is_module else getattr(module, name)

    return load, lambda: list(homes), list(homes)
