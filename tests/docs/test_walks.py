"""Every command of the pages on images, texts, tables and series runs as printed and ends in
automated answers.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from recal.cli.app import run

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("images.md", "texts.md", "tables.md", "sounds-and-series.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # few samples
def test_the_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace: dict = {}
    decisions = 0
    # Blocks marked `bash` show commands for files that the reader has; `sh` and `python` blocks
    # run.
    for language, block in re.findall(
        r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            exec(compile(block, page, "exec"), namespace)
            continue
        for line in block.splitlines():
            _, *arguments = shlex.split(line)
            assert run(arguments) == 0, capsys.readouterr().err
        output = " ".join(capsys.readouterr().out.split())
        assert re.search(r"[\d.]+% of the answers can be automated", output), output[-900:]
        assert re.search(r"[1-9]\d* of \d+ answers \([\d.]+%\) are accepted by the rule", output), (
            output[-300:]
        )
        decisions += 1
    assert decisions == 1
