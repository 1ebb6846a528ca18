"""Names in tables stay names: no formula for a spreadsheet, no tag for a page."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from recal.comparison import compare_probs
from recal.comparison.results import markdown_table


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "\t=x"])
def test_a_name_that_begins_a_formula_is_quoted_in_csv(name):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0, 1.0], 60)
    text = compare_probs(
        {name: probs, "b": probs[:, ::-1]}, rng.integers(0, 2, 60), bootstrap=20
    ).to_csv()
    assert {row[0] for row in csv.reader(io.StringIO(text))} == {"method", f"'{name}", "b"}


def test_raw_html_does_not_pass_a_markdown_table():
    lines = markdown_table(["method"], [["<script>alert(1)</script>"], ["p < 0.05"]])
    assert lines[2] == "| &lt;script>alert(1)&lt;/script> |"
    assert lines[3].split("|")[1].strip() == "p < 0.05"
