"""The scripts in examples/ run as they are and end in a decision."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "serve")


def run(name: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder, env=environment
    ).stdout


def test_make_examples_runs_every_script():
    named = re.search(r"^EXAMPLES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    assert sorted(named[1].split()) == EXAMPLES
    for name in EXAMPLES:
        assert "\n# %% " in (ROOT / "examples" / f"{name}.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_ends_in_a_decision(name, tmp_path):
    if name == "series":
        pytest.importorskip("aeon")
    shown = run(name, tmp_path)
    decided = r"^Accept [\d.]+% of the answers|^ +cascade: [\d.]+% automated"
    assert re.search(decided, shown, re.MULTILINE)
    if name == "language_models":
        assert "Views: 2,000 samples, 4 classes, 1 transformation, labelled" in shown
        assert "can be automated with at most 5% errors (none before calibration)" in shown
