"""Every promise of docs/promises.md is held by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"
LINK = re.compile(r"\[([^\]]+)\]\(\.\./(tests/[\w/]+\.py)\)")


def test_every_promise_names_tests_that_exist():
    promises = [
        line for line in PAGE.read_text(encoding="utf-8").split("\n\n") if line.startswith("- ")
    ]
    items = [item for block in promises for item in re.split(r"\n(?=- )", block)]
    assert len(items) > 20
    for item in items:
        links = LINK.findall(item.replace("\n", " "))
        assert links, f"no test is named in: {item}"
        for name, file in links:
            path = ROOT / file
            assert path.is_file(), f"{file} is not there"
            assert f"def {name.strip().strip('`')}(" in path.read_text(encoding="utf-8"), (
                f"{name} is not in {file}"
            )
