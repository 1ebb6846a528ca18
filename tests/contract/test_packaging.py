"""What pyproject.toml says about packages holds: everything imported is declared, and everything
has a minimum.
"""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import recal

ROOT = Path(__file__).parents[2]
# Where the import's name is not the distribution's.
IMPORTED = {"sklearn": "scikit-learn", "PIL": "pillow"}
# Part of numba, and of the same release.
WITHIN = {"llvmlite": "numba"}


def declared() -> dict[str, str]:
    spec = spec_from_file_location("oldest", ROOT / "tests" / "install" / "oldest.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.oldest_versions()


def test_every_package_that_is_imported_is_declared_with_a_minimum():
    packages = set()
    for path in Path(recal.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                packages |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                packages.add(str(node.module).split(".")[0])
    outside = packages - set(sys.stdlib_module_names) - {"recal"}
    named = {WITHIN.get(name, IMPORTED.get(name, name.replace("_", "-"))) for name in outside}
    assert named <= set(declared())
