"""`make mutants` changes what matters, and the tests notice a sample of its changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import changes

ROOT = Path(__file__).parents[2]


def test_numbers_comparisons_and_signs_are_changed_and_layout_is_not(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(
        "LEVEL, BLOCK = 0.95, 1_000_000\n\n\n"
        "def tail(values, draws: int = 20, random_state=0):\n"
        '    """Doc 3."""\n'
        "    if values.sum(axis=1) <= 5:\n"
        "        return values[2]\n"
        "    return 1 - LEVEL\n"
    )
    found = {one.old: one for one in changes(file)}
    assert {old: one.new for old, one in found.items()} == {
        "0.95": "0.475",
        "20": "40",
        "values.sum(axis=1) <= 5": "values.sum(axis=1) < 5",
        "5": "6",
        "1 - LEVEL": "1 + LEVEL",
        "1": "2",
    }
    assert 8 in found["0.95"].lines, "the line that uses the constant"
    assert {6, 8} <= set(found["20"].lines), "the lines of the function"
    assert "return 2 - LEVEL" in found["1"].apply(file.read_text())


@pytest.mark.slow
def test_the_tests_notice_most_changes_of_the_audit():
    command = [sys.executable, "-m", "tests.mutants", "--paths", "src/recal/decisions/audit.py"]
    command += ["--sample", "12", "--least", "0.5", "--tests", "tests/unit/decisions/test_audit.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
