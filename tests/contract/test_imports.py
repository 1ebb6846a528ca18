"""The structure of the package: the direction of imports, the cost of a plain import, and the
public names.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import recal

SOURCE = Path(recal.__file__).parent
# Layers; a package may import from its own layer and from those before it.
ROOMS = """errors checks lazy progress schema; engine; clusters copies; transforms; views; maps;
solvers; files; metrics; calibrators; decisions; collecting answers export; comparison; reporting;
demo; workflow; serving; cli __main__"""
RANK = {room: rank for rank, line in enumerate(ROOMS.split(";")) for room in line.split()}
# Allowed: users expect this as a method, although a lower layer in the list does the work.
UPWARD = {("views", "files"): "Views.write"}
HEAVY = """numba scipy sklearn torch onnx onnxruntime ray matplotlib pandas zarr rich typer
transformers plotly PIL"""
OPTIONAL = """torch onnx onnxruntime ray transformers plotly matplotlib pyarrow pandas mlxtend
aeon"""
FORBIDDEN = ["pickle", "cPickle", "dill", "cloudpickle", "joblib", "torchvision"]

# The public names that are frozen for 1.0.
FROZEN = """Views read_views pool collect Group group Plan Step Blend Audit AutoCalibration
TemperatureScaling ReCal PanelCalibration SignalCalibration ViewStacking CalibratedClassifier
CalibratedModule evaluate compare report reliability_diagram decide plan_cascade prediction_sets
DecisionRule profile watch export_onnx save load docs_dir answers calibrators metrics transforms
collecting decisions errors"""
LISTED = tuple(
    ".".join(("recal", *stub.relative_to(SOURCE).parts[:-1]))
    for stub in sorted(SOURCE.rglob("__init__.pyi"))
)


@cache
def imported(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, at the top or inside a function, with the line."""
    found = []
    package = ("recal", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module in (
                "recal",
                "recal.engine",
                "recal.maps",
            ):  # count a public name under its defining module
                found += [
                    (public_homes().get(a.name, f"{module}.{a.name}"), node.lineno)
                    for a in node.names
                ]
            else:
                found.append((module, node.lineno))
    return found


@cache
def public_homes(package: str = "recal") -> dict[str, str]:
    """Each name that a stub lists with the module that defines it."""
    folder = SOURCE.joinpath(*package.split(".")[1:])
    homes = {}
    for node in ast.parse((folder / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, "type checkers export only what is repeated"
                base = package if node.level == 1 else package.rpartition(".")[0]
                homes[alias.name] = ".".join((base, node.module or alias.name))
    return homes


def room_of(module: str) -> str:
    """The room of a module such as recal.engine.rows."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in RANK else parts[0]


FILES = sorted(SOURCE.rglob("*.py"))


def test_imports_go_one_way():
    wrong = []
    for path in FILES:
        module = ".".join(("recal", *path.relative_to(SOURCE).with_suffix("").parts))
        own = room_of(module)
        names = [
            (name, line)
            for name, line in imported(path)
            if name.startswith("recal.") and name != "recal.__version__"
        ]
        if module == "recal.__init__":
            wrong += [
                f"__init__.py:{line} imports {name}; the root loads names lazily"
                for name, line in names
                if name != "recal.lazy"
            ]
            continue
        assert own in RANK, f"give {own} its place in ROOMS"
        for name, line in names:
            room = room_of(name)
            assert room in RANK, f"{path.name}:{line} imports {name}, which has no place in ROOMS"
            if RANK[room] > RANK[own] and (own, room) not in UPWARD:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {own} must not import {name}")
    assert not wrong


def test_optional_packages_are_imported_in_two_files_at_most():
    files = defaultdict(set)
    for path in FILES:
        for name, _ in imported(path):
            files[name.split(".")[0]].add(str(path.relative_to(SOURCE)))
    crowded = {name: sorted(files[name]) for name in OPTIONAL.split() if len(files[name]) > 2}
    assert not crowded
    assert not {
        str(path) for path in FILES for name, _ in imported(path) if name.split(".")[0] in FORBIDDEN
    }


def test_a_plain_import_is_light():
    code = f"import sys, recal; print([m for m in {HEAVY.split()!r} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_the_public_names_are_those_that_are_frozen():
    assert sorted(recal.__all__) == sorted(FROZEN.split())


@pytest.mark.parametrize("package", LISTED)
def test_the_stub_says_what_the_list_says(package):
    module = import_module(package)
    homes = public_homes(package)
    assert set(homes) == set(module.__all__) == set(dir(module))
    for name, home in homes.items():
        defining = import_module(home)
        assert getattr(module, name) is (
            defining if home == f"recal.{name}" else getattr(defining, name)
        )


def test_adding_a_method_is_one_file_and_one_line(tmp_path):
    """A copy of the tree gets a method: the command line, the loader and the contract's family know
    it.
    """
    tree = shutil.copytree(SOURCE, tmp_path / "recal", ignore=shutil.ignore_patterns("__pycache__"))
    method = (tree / "calibrators/temperature.py").read_text()
    (tree / "calibrators/newcomer.py").write_text(method.replace("TemperatureScaling", "Newcomer"))
    listing = tree / "calibrators/__init__.py"
    listing.write_text(
        listing.read_text().replace("METHODS = {", 'METHODS = {"newcomer": "Newcomer",', 1)
    )
    with open(tree / "calibrators/__init__.pyi", "a") as stub:
        stub.write("from .newcomer import Newcomer as Newcomer\n")
    code = (
        "import recal, sys\n"
        "from recal.calibrators import CALIBRATORS, Newcomer\n"
        "from recal.cli.fit import new_calibrator\n"
        "assert recal.__file__.startswith(sys.argv[1]) and Newcomer in CALIBRATORS\n"
        "assert type(new_calibrator('newcomer', {})) is Newcomer\n"
        "fitted = Newcomer().fit([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [0, 1, 1])\n"
        "print(type(recal.load(recal.save(fitted, sys.argv[1] + '/saved.recal'))).__name__)"
    )
    assert run_in(tmp_path, code).strip() == "Newcomer"


def run_in(folder: Path, code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
