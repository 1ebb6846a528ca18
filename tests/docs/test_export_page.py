"""The page on exports says what the classes say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from recal.calibrators import CALIBRATORS
from recal.transforms import TRANSFORMS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_current_and_name_every_method_and_kind():
    spec = importlib.util.spec_from_file_location("export_page", DOCS / "make" / "export.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = (DOCS / "export.md").read_text(encoding="utf-8")
    assert written == writer.page(written), "run python docs/make/export.py"
    for named in (*(method.short_name for method in CALIBRATORS), *(kind.kind for kind in TRANSFORMS)):
        assert f"`{named}`" in written
