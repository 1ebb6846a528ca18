from __future__ import annotations

import numpy as np
import pytest

from paper.stages import Stages, digest_arrays, fingerprint, read_json, write_json


@pytest.fixture
def stages(tmp_path):
    return Stages(tmp_path, say=lambda _: None)


def counted(calls, text="made"):
    def make(path):
        calls.append(path.name)
        path.write_text(text)

    return make


def test_a_stage_runs_once_while_what_it_was_made_from_is_the_same(stages):
    calls: list[str] = []
    for made_from in ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}):
        stages.run("x.txt", made_from, counted(calls))
    assert calls == ["x.txt", "x.txt"]
    assert (stages.done, stages.kept) == (2, 2)


def test_a_result_that_was_deleted_is_made_again(stages):
    calls: list[str] = []
    stages.run("x.txt", {}, counted(calls))
    (stages.folder / "x.txt").unlink()
    stages.run("x.txt", {}, counted(calls))
    assert len(calls) == 2


def test_a_stage_that_was_killed_is_not_taken_for_done(stages):
    def killed(path):
        path.write_text("half")
        raise KeyboardInterrupt

    stages.run("x.txt", {"a": 1}, counted([]))
    with pytest.raises(KeyboardInterrupt):
        stages.run("x.txt", {"a": 2}, killed)
    calls: list[str] = []
    # Neither the old nor the new: what lies there is half of the new.
    stages.run("x.txt", {"a": 1}, counted(calls))
    assert calls == ["x.txt"]


@pytest.mark.parametrize("note", ["", "[]", "{", '{"fingerprint": 3}'])
def test_a_damaged_note_means_not_done(stages, note):
    calls: list[str] = []
    stages.run("x.txt", {}, counted(calls))
    (stages.folder / "x.txt.made-from.json").write_text(note)
    stages.run("x.txt", {}, counted(calls))
    assert len(calls) == 2


def test_marks_follow_values_types_and_shapes():
    array = np.arange(6)
    marks = [array, array.astype(np.int32), array.reshape(2, 3), array + 1]
    assert len({digest_arrays(a) for a in marks}) == 4
    assert digest_arrays(np.arange(12)[::2]) == digest_arrays(np.arange(0, 12, 2).copy())
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_json_is_written_whole_and_read_back(tmp_path):
    write_json(tmp_path / "deep" / "x.json", {"a": [1.5, None]})
    assert read_json(tmp_path / "deep" / "x.json") == {"a": [1.5, None]}
    with pytest.raises(ValueError, match="nan"):
        write_json(tmp_path / "deep" / "x.json", float("nan"))
    assert read_json(tmp_path / "deep" / "x.json") == {"a": [1.5, None]}
