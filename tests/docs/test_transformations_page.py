"""The page of transformations says what the classes say, and shows every kind."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from recal.transforms import TRANSFORMS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current_and_shows_every_kind():
    script = DOCS / "make" / "transformations.py"
    spec = importlib.util.spec_from_file_location("transformations_page", script)
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = (DOCS / "transformations.md").read_text(encoding="utf-8")
    assert written == writer.page(), "run python docs/make/transformations.py"
    for kind in TRANSFORMS:
        assert f"### {kind.kind}\n" in written
        if kind.modality not in ("text", "tabular"):
            assert (
                DOCS / "images" / "transformations" / f"{kind.kind}.png"
            ).stat().st_size < 20_000
