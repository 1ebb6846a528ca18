"""Tables as people have them: written by spreadsheets of another country, with labels missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from recal.collecting.tables import column_names, open_table
from recal.errors import InputError

pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize(
    "text",
    [
        "a,b,label\n0.5,1.5,0\n2.5,-1.0,1\n",
        "\ufeffa,b,label\n0.5,1.5,0\n2.5,-1.0,1\n",
        "a;b;label\n0.5;1.5;0\n2.5;-1.0;1\n",
        "\ufeffa;b;label\n0,5;1,5;0\n2,5;-1,0;1\n",
        "a\tb\tlabel\n0.5\t1.5\t0\n2.5\t-1.0\t1\n",
    ],
    ids=["commas", "byte order mark", "semicolons", "decimal commas", "tabs"],
)
def test_a_table_is_read_whatever_stands_between_its_columns(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8")
    source = open_table(path)
    assert source.read(range(2)).to_numpy().tolist() == [[0.5, 1.5], [2.5, -1.0]]
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1]
    assert column_names(path) == ["a", "b", "label"]


def test_commas_within_texts_are_no_decimals_and_separate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text;label\nfirst, second;0\n1,2 or 3;1\n", encoding="utf-8")
    texts = open_table(path, text_column="text").read(range(2))
    assert list(texts) == ["first, second", "1,2 or 3"]


def test_labels_that_are_missing_in_some_rows_are_named_and_an_empty_column_holds_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,label\n1,0\n2,\n3,1\n4,\n")
    with pytest.raises(InputError, match="'label' is empty in 2 of 4 rows, first in row 2"):
        open_table(path)
    path.write_text("a,label\n1,\n2,\n")
    assert open_table(path).labels is None


def test_texts_are_read_as_written_and_rows_share_equal_ones(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n007,a\n1.50,b\n,a\n")
    assert list(open_table(path, text_column="text").read(range(3))) == ["007", "1.50", ""]
    frame = pandas.DataFrame({"text": pandas.Categorical(["long " * 50_000] * 1000)})
    frame.to_parquet(tmp_path / "texts.parquet")
    texts = open_table(tmp_path / "texts.parquet", text_column="text").read(range(1000))
    assert len({id(text) for text in texts}) == 1
