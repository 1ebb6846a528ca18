"""What a refactoring should keep small or equal: size of the code, length of call chains,
predictions of every method.

    python -m benchmarks.refactoring size                    # modules and code lines per package
    python -m benchmarks.refactoring walks                   # calls in five common jobs
    python -m benchmarks.refactoring predictions before.npz  # store, or compare if the file exists

To compare with another revision, check it out in a second folder and put its `src` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tempfile
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import recal
from recal import Views, calibrators
from recal.export import export_calibration

_NO_CODE = ["COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"]
_SLOW = ("gp", "ms-odir", "dir-odir")
# Options that make slow methods fast, and variants whose code differs.
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ms-odir": [{"penalty": [1.0, 10.0], "intercept_penalty": [1.0]}],
    "dir-odir": [{"penalty": [1.0, 10.0], "intercept_penalty": [1.0]}],
    "recal": [
        {"max_iter": 30},
        {"max_iter": 8, "confidence_at": "own"},
        {"max_iter": 8, "start": "temperature", "finish": "temperature"},
    ],
}


def code_lines(path: Path) -> int:
    """Return the number of lines that are not blank, comment or docstring."""
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def print_size() -> None:
    root = Path(recal.__file__).parent
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        package = parts[0] if len(parts) > 1 else "(top)"
        modules[package] += 1
        lines[package] += code_lines(path)
    for package in sorted(modules):
        print(f"{package:14} {modules[package]:4} {lines[package]:6}")
    print(f"{'total':14} {modules.total():4} {lines.total():6}")


def walk(job: Callable[[], Any]) -> tuple[int, int, int]:
    """Return the calls of recal's functions, how many go to another module, and the number of
    modules.
    """
    job()
    calls = switches = 0
    modules: set[str] = set()

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls, switches
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("recal"):
            return
        calls += 1
        modules.add(module)
        caller = frame.f_back
        while caller is not None and not caller.f_globals.get("__name__", "").startswith("recal"):
            caller = caller.f_back
        switches += caller is not None and caller.f_globals["__name__"] != module

    sys.setprofile(count)
    try:
        job()
    finally:
        sys.setprofile(None)
    return calls, switches, len(modules)


def print_walks() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 1000)
    logits = 3 * (np.eye(5)[y] + rng.normal(0, 0.7, (1000, 5)))
    ts = recal.TemperatureScaling().fit(logits, y)
    auto = recal.AutoCalibration().fit(logits, y)
    halves = [Views(logits[half], labels=y[half]) for half in (slice(500), slice(500, None))]
    comparison = recal.compare(["ts", "auto"], *halves, bootstrap=50)
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, Callable[[], Any]] = {
            "fit ts": lambda: recal.TemperatureScaling().fit(logits, y),
            "fit auto": lambda: recal.AutoCalibration().fit(logits, y),
            "predict one row, ts": lambda: ts.predict_proba(logits[:1]),
            "predict one row, auto": lambda: auto.predict_proba(logits[:1]),
            "export auto": lambda: export_calibration(auto, f"{folder}/auto.onnx", n_classes=5),
            "report": lambda: recal.report(comparison, Path(folder) / "report.html"),
        }
        print(f"{'':22} calls switches modules")
        for name, job in jobs.items():
            calls, switches, modules = walk(job)
            print(f"{name:22} {calls:5} {switches:8} {modules:7}")


def cases() -> Iterator[tuple[str, Views, Views]]:
    """Yield a name, views for the fit and views for the predictions."""
    for name, n_fit, n_test, n_classes, n_views, scale in (
        ("k2", 300, 211, 2, 2, 3.0),
        ("k5", 500, 333, 5, 3, 3.0),
        ("long", 400, 12000, 12, 2, 3.0),
        ("few", 40, 50, 3, 1, 3.0),
        ("k40", 800, 300, 40, 1, 6.0),
    ):
        kind = n_classes, n_views, scale
        yield name, _views(n_fit, *kind, seed=0), _views(n_test, *kind, seed=1)


def _views(n: int, n_classes: int, n_views: int, scale: float, seed: int) -> Views:
    rng = np.random.default_rng([seed, n_classes])
    y = rng.integers(0, n_classes, n)
    evidence = 2.0 * np.eye(n_classes)[y] + rng.normal(size=(n, n_classes))
    others = {}
    for i in range(n_views):
        view = (0.9 - 0.1 * i) * evidence + 0.5 * rng.normal(size=evidence.shape)
        others[f"zoom:0.{3 + i}"] = (scale * view).astype(np.float32)
    return Views((scale * evidence).astype(np.float32), others, labels=y)


def predictions() -> dict[str, np.ndarray]:
    """Return probabilities, confidences and predictions of every method on every case, or its
    error.
    """
    arrays = {}
    for case, train, test in cases():
        for name, class_name in calibrators.METHODS.items():
            if name in _SLOW and case in ("long", "k40"):
                continue
            method = getattr(calibrators, class_name)
            chosen = "answers" in method.parameter_names()
            answers = [{"answers": kind} for kind in ("kept", "free")] if chosen else [{}]
            for options in [one | other for one in _OPTIONS.get(name, [{}]) for other in answers]:
                key = f"{case} {name} {sorted(options.items())}"
                try:
                    calibrator = method(**options).fit(train)
                    probs, confidences = calibrator.predict_both(test)
                    arrays |= {f"{key} probabilities": probs, f"{key} confidences": confidences}
                    arrays[f"{key} predictions"] = calibrator.predict(test)
                    arrays[f"{key} one row"] = calibrator.predict_proba(test[:1])
                except recal.errors.RecalError as error:
                    arrays[f"{key} error"] = np.array(str(error))
    return arrays


def store_or_compare(path: Path) -> None:
    now = predictions()
    if not path.exists():
        np.savez_compressed(path, **now)
        print(f"{len(now)} arrays stored in {path}")
        return
    with np.load(path, allow_pickle=False) as before:
        print("Only in one of them:", sorted(set(before.files) ^ set(now)) or "none")
        differences = []
        for key in set(before.files) & set(now):
            if now[key].dtype.kind == "U":
                differences.append((0.0 if before[key] == now[key] else np.inf, key))
            else:
                differences.append((float(np.abs(before[key] - now[key]).max()), key))
    for difference, key in sorted(differences, reverse=True)[:10]:
        print(f"{difference:8.2e}  {key}")
    equal = sum(d <= 1e-12 for d, _ in differences)
    print(f"{equal} of {len(differences)} arrays are equal within 1e-12")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["size", "walks", "predictions"])
    parser.add_argument("file", type=Path, nargs="?")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.what == "predictions":
        if arguments.file is None:
            parser.error("predictions needs a file, such as before.npz")
        store_or_compare(arguments.file)
    else:
        {"size": print_size, "walks": print_walks}[arguments.what]()


if __name__ == "__main__":
    main()
