"""Change numbers, comparisons and signs, one at a time, and print which changes the tests notice.

    python -m tests.mutants                                        # a sample of the statistics
    python -m tests.mutants --paths src/recal/metrics --sample 0   # every change of a package

Each change runs against those tests that execute the changed line, the fastest first. The mutation
score is the share of changes that made a test fail. Survivors are listed with file and line: each
needs a test, or does not matter.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import json
import os
import py_compile
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Imported once, so that the child processes start fast.
import hypothesis  # noqa: F401
import numba  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import zarr  # noqa: F401

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "recal"
# Tests of each package, if `--tests` does not name others.
TESTS = {
    "metrics": "tests/unit/metrics tests/statistics tests/parity/test_metrics_parity.py",
    "comparison": "tests/unit/comparison tests/statistics",
    "decisions": "tests/unit/decisions tests/statistics tests/parity/test_prediction_sets.py",
    "workflow": "tests/unit/workflow tests/unit/cli/test_audit.py tests/unit/cli/test_panels.py",
    "answers": "tests/unit/answers tests/unit/cli/test_answers.py",
    "calibrators": "tests/unit/calibrators tests/statistics tests/parity",
    "engine": "tests/unit/engine",
    "maps": "tests/unit/engine tests/unit/export/test_guard.py tests/contract/test_runtimes.py",
    "solvers": "tests/unit/calibrators/test_solvers.py tests/unit/engine tests/parity",
}
_OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
# Seeds; and numbers from or up to which constants only limit memory or rounding.
_SEEDS = frozenset({"random_state", "seed"})
_LARGE, _SMALL = 100_000, 1e-6
# Keywords whose numbers choose an axis or the layout of a text, not a statistic.
_LAYOUT = frozenset({"axis", "ndmin", "stacklevel", "indent", "width", "minlength"})


class Change(NamedTuple):
    """One changed node of a file's syntax tree: the place of the node in `ast.walk`."""

    file: Path
    line: int
    place: int
    old: str
    new: str
    lines: tuple[int, ...]  # executing one of them may show the change

    def apply(self, text: str) -> str:
        tree = ast.parse(text)
        _change(list(ast.walk(tree))[self.place])
        return ast.unparse(tree)

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.old} -> {self.new}"


def changes(path: Path) -> list[Change]:
    """All changes of one file: numbers, signs and comparisons outside annotations, indices, texts
    and layout arguments.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    uses = _uses_of_constants(tree)
    places = {node: place for place, node in enumerate(ast.walk(tree))}
    result = []
    for node, owner in list(_relevant(tree)):
        old, lines = ast.unparse(node), (node.lineno, *uses.get(owner, ()))
        other = copy.deepcopy(node)
        _change(other)
        new = ast.unparse(other)
        result.append(Change(path, node.lineno, places[node], old, new, lines))
    return sorted(result, key=lambda one: (one.line, one.place))


def _change(node: ast.AST) -> None:
    """Replace a number by another one, and a comparison or a sign by its neighbour."""
    if isinstance(node, ast.Compare):
        node.ops[0] = _OTHER[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _OTHER[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value = node.value + 1 if node.value < 10 else 2 * node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        node.value = 0.1 if node.value == 0 else 0.5 * node.value


def _relevant(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Yield numbers, comparisons and sums, each with the module's constant, or the function's
    default or class's field, that it defines.
    """
    left_out: set[ast.AST] = set()
    owners: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns", "slice")]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.JoinedStr | ast.Raise):
            parts.append(node)
        if isinstance(node, ast.keyword) and node.arg in _LAYOUT:
            parts.append(node)
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and field.value:
                    owners |= dict.fromkeys(ast.walk(field.value), node.name)
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.posonlyargs, *node.args.args][::-1], node.args.kwonlyargs
            values = node.args.defaults[::-1], node.args.kw_defaults
            for arguments, defaults in zip(given, values):
                for argument, value in zip(arguments, defaults):
                    owners[value] = f"{node.name}()"
                    parts += [value] * (argument.arg in _SEEDS)
        left_out |= {inner for part in parts if part is not None for inner in ast.walk(part)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            name, value = statement.targets[0], statement.value
            several = isinstance(name, ast.Tuple) and isinstance(value, ast.Tuple)
            for one, part in zip(name.elts, value.elts) if several else [(name, value)]:
                owners |= dict.fromkeys(ast.walk(part), getattr(one, "id", ""))
    for node in ast.walk(tree):
        number = isinstance(node, ast.Constant) and _is_statistic(node.value)
        compared = isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER
        if (number or compared or _is_sum(node)) and node not in left_out:
            yield node, owners.get(node, "")


def _is_sum(node: ast.AST) -> bool:
    """Whether this adds or subtracts; sums of texts and lists are left out."""
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OTHER:
        return False
    texts = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    parts = (node.left, node.right)
    words = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)
    return not words and not any(isinstance(part, texts) for part in parts)


def _is_statistic(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or _SMALL < abs(value) < _LARGE


def _uses_of_constants(tree: ast.Module) -> dict[str, tuple[int, ...]]:
    uses = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id].append(node.lineno)
        if isinstance(node, ast.ClassDef):  # a field matters wherever a method runs
            uses[node.name] += [one.lineno for one in ast.walk(node) if isinstance(one, ast.stmt)]
        if isinstance(node, ast.FunctionDef):  # a default matters wherever the function runs
            uses[f"{node.name}()"] += [node.body[-1].lineno, *(one.lineno for one in node.body[1:])]
    return {name: tuple(lines) for name, lines in uses.items()}


def run_in_child(
    tests: list[str], folder: Path, longest: float = 60.0, plugins: Sequence[object] = ()
) -> int | None:
    """Run pytest on the changed code in a child process.

    Return its exit code, or None if it took too long.
    """
    child = os.fork()
    if not child:
        os.setsid()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(ROOT)
        # For commands that tests start.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        sys.path.insert(0, str(folder))
        options = ["-q", "-n0", "-pno:cacheprovider", "-mnot slow", *([] if plugins else ["-x"])]
        os._exit(int(pytest.main([*options, *tests], plugins=list(plugins))))
    until = time.monotonic() + longest
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class _Trace:
    """A pytest plugin that records which lines of the files each test executes, and how long it
    takes.
    """

    def __init__(self, files: set[str], out: Path) -> None:
        self.files, self.out = files, out
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        seen: set[tuple[str, int]] = set()

        def trace(frame: object, event: str, _: object) -> object:
            name = frame.f_code.co_filename  # type: ignore[attr-defined]
            if name not in self.files:
                return None
            seen.add((name, frame.f_lineno))  # type: ignore[attr-defined]
            return trace

        start = time.perf_counter()
        for tracer in (sys, threading):  # this thread, and those that the test starts
            tracer.settrace(trace)  # type: ignore[arg-type]
        yield
        for tracer in (sys, threading):
            tracer.settrace(None)  # type: ignore[arg-type]
        self.seconds[item.nodeid] = time.perf_counter() - start
        by_file = defaultdict(list)
        for name, line in seen:
            by_file[name].append(line)
        self.lines[item.nodeid] = dict(by_file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(
            json.dumps({"lines": self.lines, "seconds": self.seconds, "failed": self.failed})
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    paths = [
        SOURCE / name for name in ("metrics", "decisions", "comparison", "answers", "workflow")
    ]
    parser.add_argument("--paths", nargs="+", type=Path, default=paths, help="within src/recal")
    parser.add_argument("--tests", nargs="+", help="tests; by default those of the package")
    parser.add_argument("--sample", type=int, default=100, help="how many changes; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--least", type=float, default=0.0, help="fail below this mutation score")
    parser.add_argument("--seconds", type=float, default=60.0, help="delay that counts as noticed")
    options = parser.parse_args(arguments)
    paths = [(ROOT / path).resolve() for path in options.paths]
    files = sorted(
        {file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    )
    chosen = [change for file in files for change in changes(file)]
    if 0 < options.sample < len(chosen):
        rows = sorted(random.Random(options.seed).sample(range(len(chosen)), options.sample))
        chosen = [chosen[row] for row in rows]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    packages = dict.fromkeys(file.relative_to(SOURCE).parts[0] for file in files)
    tests = options.tests or list(
        dict.fromkeys(" ".join(TESTS.get(one, "tests/unit") for one in packages).split())
    )
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as place:
        score = _run(chosen, texts, tests, Path(place), options.seconds)
    return int(score < options.least)


def _run(
    chosen: list[Change], texts: dict[Path, str], tests: list[str], folder: Path, longest: float
) -> float:
    """Print the survivors and the score of each package; return the score of all changes."""
    shutil.copytree(SOURCE, folder / "recal", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(
        folder / "recal", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )
    copies = {file: folder / "recal" / file.relative_to(SOURCE) for file in texts}
    out = folder / "lines.json"
    began = time.monotonic()
    run_in_child(tests, folder, 1800.0, [_Trace({str(one) for one in copies.values()}, out)])
    if not out.exists():
        raise SystemExit("The tests could not be run on the unchanged code.")
    trace = json.loads(out.read_text())
    failed = set(trace["failed"])
    if failed:
        print(f"Left out, because they fail on the unchanged code: {', '.join(sorted(failed))}")
    nodes = [node for node in trace["lines"] if node not in failed]
    nodes.sort(key=trace["seconds"].get)
    print(
        f"{len(nodes)} tests traced in {time.monotonic() - began:.0f} s; {len(chosen)} changes.",
        flush=True,
    )
    total, noticed = Counter[str](), Counter[str]()
    for number, one in enumerate(chosen, 1):
        name = str(copies[one.file])
        covering = [
            node for node in nodes if set(trace["lines"][node].get(name, ())) & set(one.lines)
        ]
        target, text = copies[one.file], texts[one.file]
        caught = False
        if covering:
            target.write_text(one.apply(text), encoding="utf-8")
            usual = sum(trace["seconds"][node] for node in covering)
            code = run_in_child(covering, folder, longest + usual)
            target.write_text(text, encoding="utf-8")
            caught = code != int(pytest.ExitCode.OK)
        group = str(one.file.relative_to(SOURCE).parent)
        total[group] += 1
        noticed[group] += caught
        if not caught:
            why = "" if covering else " (no test executes it)"
            print(f"{number:4}/{len(chosen)} SURVIVED{why} {one}", flush=True)
    for group, count in total.items():
        share = noticed[group] / count
        print(f"{group}: {noticed[group]} of {count} noticed, mutation score {share:.0%}")
    return noticed.total() / max(total.total(), 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
