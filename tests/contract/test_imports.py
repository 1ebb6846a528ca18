"""The shape of the house: which way imports go, what a plain import costs, and which names are public."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import recal

SOURCE = Path(recal.__file__).parent
# Each layer may import from itself and from those before it.
LAYERS = (
    {"kernels"},
    {"errors", "checks", "atomic", "npz"},
    {"transforms"},
    {
        "views",
        "view_files",
        "view_folders",
        "prob_files",
        "prob_tables",
        "plan",
        "plain_chunks",
        "scaled",
        "tabled",
        "screened",
        "grouping",
        "replay",
        "temperature",
    },
    {"metrics"},
    {"calibrators"},
    {"collect", "runtime"},
    {"comparison"},
    {"report", "experiments"},
    {"cli", "__main__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
HEAVY = [
    "numba",
    "scipy",
    "sklearn",
    "torch",
    "onnx",
    "onnxruntime",
    "ray",
    "matplotlib",
    "pandas",
    "zarr",
    "rich",
    "typer",
    "transformers",
    "plotly",
    "PIL",
]
OPTIONAL = [
    "torch",
    "onnx",
    "onnxruntime",
    "ray",
    "transformers",
    "plotly",
    "matplotlib",
    "pyarrow",
    "pandas",
    "mlxtend",
    "aeon",
]
FORBIDDEN = ["pickle", "cPickle", "dill", "cloudpickle", "joblib", "torchvision"]

DESIGN = [
    "Views",
    "read_views",
    "pool",
    "collect",
    "group",
    "ReCal",
    "TemperatureScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletCalibration",
    "PlattScaling",
    "BetaCalibration",
    "IsotonicCalibration",
    "HistogramBinning",
    "BayesianBinning",
    "MutualInformationBinning",
    "EnsembleTemperatureScaling",
    "IsotonicMulticlass",
    "IsotonicOneVsAll",
    "OrderPreserving",
    "SplineCalibration",
    "GaussianProcessCalibration",
    "StructuredVectorScaling",
    "StructuredMatrixScaling",
    "ViewAveraging",
    "ViewScaling",
    "CalibratedClassifier",
    "Plan",
    "save",
    "load",
    "metrics",
    "evaluate",
    "compare",
]
# Promised and not there yet: a name leaves this line when it lands.
PENDING = {"ViewScaling"}


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
            if module == "recal":  # a public name stands for its home
                found += [(recal._HOME.get(a.name, f"recal.{a.name}"), node.lineno) for a in node.names]
            else:
                found.append((module, node.lineno))
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    if own == "__init__":
        assert not [name for name, _ in imported(path) if name.split(".")[0] == "recal"], "the root loads names lazily"
        return
    assert own in RANK, f"give {own} its place in LAYERS"
    for name, line in imported(path):
        parts = name.split(".")
        if parts[0] != "recal" or parts[1:] in (["__version__"], []):
            continue
        assert parts[1] in RANK, f"{path.name}:{line} imports {name}, which has no place in LAYERS"
        assert RANK[parts[1]] <= RANK[own], f"{path.name}:{line}: {own} must not import {name}"


def test_optional_packages_are_imported_in_two_files_at_most():
    files = defaultdict(set)
    for path in FILES:
        if path.is_relative_to(SOURCE / "experiments"):  # its networks and their training are torch through and through
            continue
        for name, _ in imported(path):
            files[name.split(".")[0]].add(str(path.relative_to(SOURCE)))
    crowded = {name: sorted(files[name]) for name in OPTIONAL if len(files[name]) > 2}
    assert not crowded
    assert not {str(path) for path in FILES for name, _ in imported(path) if name.split(".")[0] in FORBIDDEN}


def test_a_plain_import_is_light():
    code = f"import sys, recal; print([m for m in {HEAVY!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_public_names_resolve():
    assert len(set(recal.__all__)) == len(recal.__all__)
    missing = set()
    for name in recal.__all__:
        try:
            getattr(recal, name)
        except (AttributeError, ImportError):
            missing.add(name)
    assert missing <= PENDING
    assert set(DESIGN) - set(recal.__all__) <= PENDING
    assert sorted(recal.__all__) == dir(recal)


def test_type_checkers_see_the_public_names_and_no_others():
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    homes = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.asname: node.module for alias in node.names if alias.name == alias.asname}
    assert set(homes) == set(recal.__all__) - {"__version__"}
    for name, home in homes.items():
        assert getattr(import_module(home), name) is getattr(recal, name)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'Recall'.*ReCal"):
        _ = recal.Recall


def test_every_module_imports():
    for path in FILES:
        parts = ("recal", *path.relative_to(SOURCE).with_suffix("").parts)
        if parts[-1] != "__main__":
            import_module(".".join(part for part in parts if part != "__init__"))
