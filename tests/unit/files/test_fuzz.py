"""Short, seeded runs of the fuzzers in tests/fuzz: nothing but recal's own errors comes out of a
reader.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

# The files that the fuzzers begin with come from tiny fits.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FUZZ = Path(__file__).parents[2] / "fuzz"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FUZZ / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_specs_and_files_changed_at_random_are_read_or_refused():
    trial = module("mutate_files").run(300.0, seed=0, most=600)
    assert not trial.faults, next(iter(trial.faults.values()))
    for name in trial.readers:
        assert trial.counts[f"{name} refused"] + trial.counts[f"{name} read"] > 10


def test_every_reader_reads_the_valid_files_that_the_fuzzer_begins_with():
    files = module("mutate_files")
    trial = files.Trial()
    for name, contents in files.valid_files().items():
        read = [trial(name, content) for content in contents]
        # One is a folder without its arrays, the other names a file elsewhere.
        assert any(read) or name in ("folder", "onnx"), name


def test_calibrators_with_values_changed_at_random_are_refused_or_answer():
    counts, faults = module("mutate_calibrators").run(60.0, seed=1, most=120)
    assert not faults, faults[0]
    assert counts["refused"] > 10
    assert counts["answered"] > 1
