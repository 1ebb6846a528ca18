"""Tables: cells stay as written, from the first file to the last, and own columns do not change."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pytest

from recal import SignalCalibration, decide
from recal.errors import FileError, InputError
from recal.files.tables import read_table, write_with_columns
from recal.workflow.scoring import apply_to_table

CELLS = ["007", "7", "1e3", "1000", "12345678901234567", "None", "nan", " x "]


def test_texts_stay_as_written_in_every_format(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.csv").write_text("id\n" + "\n".join(CELLS) + "\n")
    (tmp_path / "a.tsv").write_text("id\ta, b, c\n" + "".join(f"{cell}\t1\n" for cell in CELLS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": cell}) + "\n" for cell in CELLS))
    parquet.write_table(arrow.table({"id": CELLS}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        assert read_table(tmp_path / name)["id"].tolist() == CELLS


def test_ids_that_are_numbers_keep_all_their_digits(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    ids = [1234567890123456789, 1234567890123456788, None]
    parquet.write_table(arrow.table({"id": ids}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    for name in ("a.jsonl", "a.parquet"):
        assert read_table(tmp_path / name)["id"].tolist() == [*map(str, ids[:2]), ""]
    parquet.write_table(arrow.table({"id": [float(ids[0])]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="float"):  # its last digits are lost
        read_table(tmp_path / "a.parquet")["id"]


def test_declared_numbers_are_numbers_and_the_error_names_the_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("score,empty,word\n0.5,,a\n,NA,2\nnull,,3\n")
    table = read_table(path)
    np.testing.assert_array_equal(table.numbers("score"), [0.5, np.nan, np.nan])
    assert np.isnan(table.numbers("empty")).all()
    assert [table.is_numeric(name) for name in table] == [True, False, False]
    with pytest.raises(InputError, match=r"row 1.*'word'.*'a'"):
        table.numbers("word")
    with pytest.raises(InputError, match="'wrod'; it has score, empty, word"):
        table["wrod"]


def graded(n: int, levels: list[str], seed: int) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    level = rng.choice(levels, n)
    stated = rng.uniform(0.3, 1.0, n)
    right = rng.random(n) < stated * np.where(level == "2", 0.5, 1.0)
    shown = [f"{value:.3f}" for value in stated], ["1" if one else "0" for one in right]
    return {"level": level.tolist(), "stated": shown[0], "right": shown[1]}


def write_csv(path, columns) -> None:
    rows = [",".join(row) for row in zip(*columns.values())]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")


def test_the_types_of_the_fit_hold_for_every_later_file(tmp_path):
    """A category in {1, 2, x}, applied to a file that only holds 1 and 2."""
    write_csv(tmp_path / "fit.csv", graded(600, ["1", "2", "x"], 0))
    write_csv(tmp_path / "all.csv", new := graded(100, ["1", "2", "x"], 1))
    some = [row for row, level in enumerate(new["level"]) if level != "x"]
    write_csv(tmp_path / "some.csv", {k: [v[row] for row in some] for k, v in new.items()})
    table = read_table(tmp_path / "fit.csv")
    signals = {"level": table["level"], "stated": table.numbers("stated")}
    right = table.numbers("right") > 0
    calibrator = SignalCalibration().fit(signals, right)
    calibrator.decision_ = decide(calibrator.predict_confidence(signals), right, risk=0.3).rule
    for name in ("all", "some"):
        table, out = tmp_path / f"{name}.csv", tmp_path / f"{name}.out.csv"
        apply_to_table(calibrator, tmp_path, table, out)
    whole = read_table(tmp_path / "all.out.csv").numbers("confidence")
    part = read_table(tmp_path / "some.out.csv").numbers("confidence")
    np.testing.assert_array_equal(whole[some], part)


def test_own_columns_do_not_change(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("time;text;confidence\n1700000000.123;a,b;mine\n07;=1+1;\n")
    names = write_with_columns(read_table(path), tmp_path / "b.csv", {"confidence": [0.5, 1 / 3]})
    assert names == {"confidence": "recal_confidence"}
    lines = (tmp_path / "b.csv").read_text().splitlines()
    assert lines[0] == "time;text;confidence;recal_confidence"
    assert lines[1] == "1700000000.123;a,b;mine;0.5"
    assert lines[2] == f"07;'=1+1;;{1 / 3!r}"  # a spreadsheet must not run it
    write_with_columns(read_table(path), tmp_path / "b.jsonl", {"accepted": [True, False]})
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert rows[1] == {"time": "07", "text": "=1+1", "confidence": "", "accepted": False}


def test_an_earlier_result_is_replaced(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("q,confidence,accepted\n1,0.2,false\n")
    write_with_columns(
        read_table(path), tmp_path / "b.csv", {"confidence": [0.9], "accepted": [True]}
    )
    assert (tmp_path / "b.csv").read_text() == "q,confidence,accepted\n1,0.9,true\n"


def test_own_columns_of_both_names_are_no_earlier_result(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("accepted,q,confidence\nby Ann,1,high\n")
    write_with_columns(
        read_table(path), tmp_path / "b.csv", {"confidence": [0.9], "accepted": [True]}
    )
    assert (tmp_path / "b.csv").read_text().splitlines()[1] == "by Ann,1,high,0.9,true"


def test_a_table_of_one_column_keeps_rows_without_a_value(tmp_path):
    (tmp_path / "a.csv").write_text("score\n0.1\n\n0.3\n\n0.5\n")
    write_with_columns(
        read_table(tmp_path / "a.csv"), tmp_path / "b.csv", {"confidence": np.arange(5) / 10}
    )
    assert read_table(tmp_path / "b.csv")["score"].tolist() == ["0.1", "", "0.3", "", "0.5"]


def test_values_of_parquet_and_json_lines_stay(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    own = {"n": [1, None], "s": ["a", "b"], "f": [0.5, 1e20], "d": [b"x", None]}
    own["t"] = [datetime.datetime(2024, 1, 1), None]
    small = arrow.array([0.1, None], type=arrow.float32())
    when = arrow.array([1700000000123456789, None], type=arrow.timestamp("ns", tz="Europe/Berlin"))
    table = arrow.table(own).append_column("small", small).append_column("when", when)
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("b.parquet", "b.jsonl"):
        write_with_columns(
            read_table(tmp_path / "a.parquet"), tmp_path / name, {"confidence": [0.5, 0.6]}
        )
    written = parquet.read_table(tmp_path / "b.parquet")
    assert written.drop_columns("confidence").equals(table)
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == [1, None]
    assert [line["confidence"] for line in lines] == [0.5, 0.6]


def test_rows_of_parquet_that_share_a_long_text_share_it_when_written(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = arrow.array(["x" * 1000] * 300_000, type=arrow.dictionary(arrow.int32(), "string"))
    parquet.write_table(arrow.table({"t": column.cast("string")}), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    write_with_columns(table, tmp_path / "b.parquet", {"score": np.zeros(300_000)})
    assert parquet.read_schema(tmp_path / "b.parquet").field("t").type.index_type == arrow.int32()


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.txt", "a\n1\n", "a.txt"),
        ("a.csv", "a,a\n1,2\n", "'a'"),
        ("a.csv", "a,b\n1\n", "row 2"),
        ("a.csv", "a\n", "no rows"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.jsonl", "{" * 50_000, "line 1"),
        ("a.parquet", "nonsense", "Parquet"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    with pytest.raises((FileError, InputError), match=named):
        read_table(tmp_path / name)
