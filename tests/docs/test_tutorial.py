"""The tutorial shows what its commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.fixture(scope="module")
def printed() -> str:
    spec = importlib.util.spec_from_file_location(
        "tutorial_page", PAGE.parent / "make" / "tutorial.py"
    )
    writer: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    return writer.rewrite(writer.without_output(PAGE.read_text(encoding="utf-8")))


def test_every_command_of_the_tutorial_does_what_it_is_there_for(printed):
    said = [line for line in printed.splitlines() if line.startswith("recal: ")]
    assert sum("Warning" not in line for line in said) == 2, "the two mistakes at the end"
    for said in (
        "Next: recal apply calibrated --model digits:model --data NEW --out answers.csv",
        "input,answer,confidence,accepted",
        "10 transformations, labelled. Written to fit-views.npz",
        "Chosen: ",
        "Written to digits.recal",
        "Accept ",
    ):
        assert said in printed


@pytest.mark.slow  # if a method prints something new: python docs/make/tutorial.py
def test_the_tutorial_prints_what_it_shows(printed):
    pages = PAGE.read_text(encoding="utf-8"), printed
    words = [" ".join(re.sub(r"\d[\d,.]*", "#", page).split()) for page in pages]
    assert words[1] == words[0], "run python docs/make/tutorial.py"
