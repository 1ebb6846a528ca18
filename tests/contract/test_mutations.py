"""The list of `make mutants` fits the code: each change can be made, in one place, and its tests
exist.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutants.generate import changes
from tests.mutants.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


def test_every_mutation_can_be_made_in_one_place():
    sources = {
        one.file: (ROOT / "src" / "recal" / one.file).read_text(encoding="utf-8")
        for one in MUTATIONS
    }
    assert [
        one for one in MUTATIONS if sources[one.file].count(one.code) != 1 or one.code == one.wrong
    ] == []


def test_every_mutation_names_tests_that_exist():
    for one in MUTATIONS:
        for node in one.tests.split():
            path, _, name = node.partition("::")
            assert (ROOT / "tests" / path).exists(), node
            assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text(
                encoding="utf-8"
            ), node


def test_numbers_and_comparisons_are_changed_and_layout_is_not(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(
        "LEVEL = 0.95\nBLOCK = 1_000_000\n\n"
        "def tail(values, draws: int = 20, random_state=0):\n"
        '    """Doc 3."""\n'
        "    if values.sum(axis=1) <= 5:\n"
        "        return values[2]\n"
        "    return 1 - LEVEL\n"
    )
    text = file.read_text()
    pairs = [(text[one.start : one.stop].strip(), one.new.strip()) for one in changes(file)]
    assert pairs == [("0.95", "0.475"), ("20", "40"), ("<=", "<"), ("5", "6"), ("1", "2")]
    level, default = changes(file)[0], changes(file)[1]
    assert 8 in level.lines, "the line that uses the constant"
    assert {6, 8} <= set(default.lines), "the lines of the function"
    assert level.apply(text).startswith("LEVEL = 0.475\n")
