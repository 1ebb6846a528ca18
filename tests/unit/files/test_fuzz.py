"""Short, seeded runs of the fuzzer in tests/fuzz: nothing but recal's own errors comes out of a
reader.
"""

from __future__ import annotations

import pytest

from tests.fuzz.mutate_files import Trial, run, valid_files

# The files that the fuzzers begin with come from tiny fits.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_specs_and_files_changed_at_random_are_read_or_refused():
    trial = run(300.0, seed=0, most=600)
    assert not trial.faults, next(iter(trial.faults.values()))
    for name in trial.readers:
        assert trial.counts[f"{name} refused"] + trial.counts[f"{name} read"] > 10


def test_every_reader_reads_the_valid_files_that_the_fuzzer_begins_with():
    trial = Trial()
    for name, contents in valid_files().items():
        read = [trial(name, content) for content in contents]
        # One is a folder without its arrays, the other names a file elsewhere.
        assert any(read) or name in ("folder", "onnx"), name
