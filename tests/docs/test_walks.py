"""Every command of the walkthroughs runs as printed, and each ends in automated answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from recal.cli.app import run

PAGE = (Path(__file__).parents[2] / "docs" / "walks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of few samples, and of transformations that do the same
def test_the_walks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known: dict = {}
    decided = 0
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "walks.md", "exec"), known)  # as a reader would: one block after the other
            continue
        for line in text.splitlines():
            _, *arguments = shlex.split(line)
            assert run(arguments) == 0, capsys.readouterr().err
        said = " ".join(capsys.readouterr().out.split())
        assert re.search(r"[\d.]+% of the answers can be automated", said), said[-900:]
        assert re.search(r"[1-9]\d* of \d+ answers \([\d.]+%\) are accepted by the rule", said), said[-300:]
        decided += 1
    assert decided == 5
