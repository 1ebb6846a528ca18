"""Short, seeded runs of the fuzzers in tests/fuzz: nothing but recal's own errors comes out of a
reader.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

FUZZ = Path(__file__).parents[2] / "fuzz"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FUZZ / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_specs_and_files_changed_at_random_are_read_or_refused():
    trial = module("guided").smoke(600, seed=0)
    assert not trial.faults, next(iter(trial.faults.values()))
    for name in trial.names:
        assert trial.counts[f"{name} refused"] + trial.counts[f"{name} read"] > 10


def test_every_reader_reads_the_honest_files_that_the_fuzzer_begins_with():
    guided = module("guided")
    trial, begun = guided.Trial(), guided.honest()
    for number, name in enumerate(trial.names):
        for content in begun[name]:
            trial(bytes([number]) + content)
    unread = {name for name in trial.names if not trial.counts[f"{name} read"]}
    assert unread <= {"folder", "onnx"}, (
        "one is a folder without its arrays, the other names a file elsewhere"
    )


def test_calibrators_with_values_changed_at_random_are_refused_or_answer():
    counts, faults = module("mutate_calibrators").run(60.0, seed=1, most=120)
    assert not faults, faults[0]
    assert counts["refused"] > 10
    assert counts["answered"] > 1
