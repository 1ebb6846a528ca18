import numpy as np
import pytest

from recal.errors import FileError, InputError
from recal.files.probabilities import read_prob_table, write_prob_file
from recal.files.tables import read_table


def write(path, text):
    path.write_text(text)
    return path


def test_labels_may_be_the_names_of_the_columns(tmp_path):
    found = read_prob_table(write(tmp_path / "a.csv", "cat,label,dog\n0.9,dog,0.1\n0.2,cat,0.8\n"))
    assert found.probs.tolist() == [[0.9, 0.1], [0.2, 0.8]]
    assert found.labels.tolist() == [1, 0]
    assert found.classes.tolist() == ["cat", "dog"]


def test_labels_may_be_the_numbers_of_the_columns(tmp_path):
    found = read_prob_table(
        write(tmp_path / "a.csv", "truth,cat,dog\n1,0.9,0.1\n0,0.2,0.8\n"), "truth"
    )
    assert found.labels.tolist() == [1, 0]


def test_labels_may_be_missing(tmp_path):
    assert read_prob_table(write(tmp_path / "a.csv", "cat,dog\n0.9,0.1\n")).labels is None


def test_a_parquet_table_reads_as_its_csv(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"cat": [0.9, 0.2], "dog": [0.1, 0.8], "label": ["dog", "cat"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    found = read_prob_table(tmp_path / "a.parquet")
    assert np.allclose(found.probs, [[0.9, 0.1], [0.2, 0.8]])
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cat,dog\n0.9,0.1\n0.5\n", "row 3 has 1"),
        ("cat,dog\n", "no rows"),
        ("", "no rows"),
        ("cat,cat\n0.9,0.1\n", "twice"),
        ("label\n1\n", "no columns beside 'label'"),
        ("cat,dog,truth\n0.9,0.1,dog\n", "'truth' must hold probabilities"),
        ("cat,dog\n0.9,0.1\n0.9,x\n", "row 1 holds 'x'"),
        ("cat,dog\n0.9,0.3\n", "sums to 1.2"),
        ("cat,dog,share\n0.9,0.1,0.5\n0.2,0.8,0.3\n", "sums to 1.5"),
        ("cat,dog,label\n0.9,0.1,owl\n", "'owl'"),
        ("cat,dog,label\n0.9,0.1,7\n", "7"),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path, text, words):
    with pytest.raises((InputError, FileError), match=words):
        read_prob_table(write(tmp_path / "a.csv", text))


def test_a_class_that_looks_like_a_formula_is_kept_from_running(tmp_path):
    probs, classes = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array(["=cmd()", "-1"])
    write_prob_file(tmp_path / "a.csv", probs, classes=classes, inputs=["x", "@y"])
    table = read_table(tmp_path / "a.csv")
    assert table["input"].tolist() == ["x", "'@y"]
    assert table["answer"].tolist() == ["'=cmd()", "-1"]
