"""Every mistake of the list is answered in one helpful sentence; no file is written or lost."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from recal.cli.app import COMMANDS, run
from tests.unit.cli import wrong_inputs as wrong


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("wrong")
    wrong.build(place)
    return place


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    """The folder is the current one, and modules found there are forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (folder / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize("case", wrong.CASES, ids=lambda case: case.typed)
def test_a_mistake_is_answered_with_what_to_do(case, folder, capsys):
    before = wrong.contents(folder, case.leaves)
    with wrong.circumstances(case.around):
        code = run(shlex.split(case.typed))
    shown = capsys.readouterr()
    said = shown.err or shown.out
    assert code == case.code, said
    for words in case.said:
        assert words in said
    if code:
        assert shown.out == ""
        assert said.count("\n") == 1
        assert said.startswith("recal: ")
    assert "Traceback" not in said
    assert "bug in recal" not in said
    assert not re.search(r"`\w+_\w+`|\bself\b|\bkwargs\b|<class|\[Errno", said), "words of Python"
    command, *words = shlex.split(case.typed)
    typed = {part for word in words for part in re.split(r"[:=,+/]", word) if len(part) > 1}
    typed |= {Path(part).suffix for part in typed if Path(part).suffix} | {command, "--labels"}
    assert not code or case.around or any(part in said for part in typed), (
        "nothing that was typed is named"
    )
    assert wrong.contents(folder, case.leaves) == before, "something was written or lost"


def test_the_list_is_long_and_reaches_every_command():
    assert len(wrong.CASES) == len({case.typed + case.around for case in wrong.CASES}) >= 60
    commands = {case.typed.split()[0] for case in wrong.CASES}
    assert set(COMMANDS) - commands == {"doctor"}, "doctor takes no input"
