"""Tables: columns by name, categories, missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from recal import pool
from recal.errors import InputError
from recal.transforms import MedianFill, Missing, as_transform

FRAME = pd.DataFrame(
    {
        "age": [20, 30, 40, 50],
        "height": [1.5, np.nan, 1.7, 1.9],
        "town": pd.Categorical(["Bonn", "Rome", "Rome", None], categories=["Bonn", "Oslo", "Rome"]),
        "member": [True, False, True, True],
    }
)


def test_medians_of_a_frame_and_the_most_frequent_category():
    assert MedianFill.options_from(FRAME)["medians"] == (35, 1.7, 2, 1)


@pytest.mark.parametrize("spec", ["median:0.5", "permute:0.5", "missing:0.5"])
def test_frames_keep_names_and_what_was_not_chosen(spec):
    (transform,) = pool(spec, data=FRAME)
    before = FRAME.copy()
    changed = transform(FRAME)
    pd.testing.assert_frame_equal(FRAME, before)
    assert list(changed.columns) == list(FRAME.columns)
    assert changed["town"].dtype == FRAME["town"].dtype
    cells, own = changed.astype(object), FRAME.astype(object)
    same = (cells.isna() & own.isna()) | (cells == own)
    assert (same.sum(axis=1) >= 2).all()  # two of four features were chosen
    for row in range(4):  # a row alone gets what it gets in a frame
        alone = transform(FRAME.iloc[row : row + 1])
        pd.testing.assert_frame_equal(alone.astype(object), cells.iloc[row : row + 1])


def test_missing_needs_floats_and_gives_nan():
    with pytest.raises(InputError, match="int64 has no missing value"):
        Missing(0.5)(np.ones((2, 4), dtype=np.int64))
    assert np.isnan(Missing(0.5)(np.ones((3, 4)))).sum(axis=1).tolist() == [2, 2, 2]


def test_words_without_categories_are_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"column 'name' holds .*astype\('category'\)"):
        pool("median:0.5", data=pd.DataFrame({"name": ["a", "b"]}))


def test_permuted_values_come_from_the_data():
    X = np.random.default_rng(0).normal(size=(200, 5))
    (transform,) = pool("permute:0.4", data=X)
    changed = transform(X)
    assert ((changed != X).sum(axis=1) <= 2).all()
    levels = np.array(transform.levels).reshape(5, 11)
    for column in range(5):
        moved = changed[:, column] != X[:, column]
        assert np.isin(changed[moved, column], levels[column]).all()
    with pytest.raises(InputError, match="knows 5 features; these rows have 4"):
        transform(X[:, :4])


def test_rescale_multiplies_numbers_and_leaves_categories():
    frame = pd.DataFrame({"a": [2.0], "b": pd.Categorical(["x"]), "c": [5.0]})
    for seed in range(4):
        changed = as_transform(f"rescale:0.7:factor=10:seed={seed}")(frame)
        assert changed["b"].tolist() == ["x"]
        assert set(changed["a"]) | set(changed["c"]) <= {2.0, 20.0, 5.0, 50.0}
        assert not changed.equals(frame)
