"""The page of wrong inputs shows every mistake of the list, in its order, with the words that the tests ask for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_every_mistake_and_what_is_said():
    spec = importlib.util.spec_from_file_location("wrong_inputs_page", DOCS / "make" / "wrong_inputs.py")
    writer: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    cases = writer.cases().CASES
    text = (DOCS / "wrong-inputs.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "mistake"]
    again = "run python docs/make/wrong_inputs.py"
    assert [row[1] for row in rows] == [f"`recal {writer._cell(case.typed)}`" for case in cases], again
    for case, (_, _, answer) in zip(cases, rows):
        for words in case.said:
            assert writer._cell(words) in answer, again
