from __future__ import annotations

import pytest

from paper.stages import Stages


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
