"""The list of `make mutants` fits the code: each change can be made, in one place, and its tests exist."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


def test_every_mutation_can_be_made_in_one_place():
    sources = {one.file: (ROOT / "src" / "recal" / one.file).read_text(encoding="utf-8") for one in MUTATIONS}
    assert [one for one in MUTATIONS if sources[one.file].count(one.code) != 1 or one.code == one.wrong] == []


def test_every_mutation_names_tests_that_exist():
    for one in MUTATIONS:
        for node in one.tests.split():
            path, _, name = node.partition("::")
            assert (ROOT / "tests" / path).exists(), node
            assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), node
