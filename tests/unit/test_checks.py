"""The rules for what comes in: each refusal names the rule and the value that broke it."""

from __future__ import annotations

import numpy as np
import pytest

from recal import SignalCalibration
from recal.checks import check_labels, check_logits, check_matrix
from recal.errors import InputError

LOGITS = np.random.default_rng(0).normal(size=(20, 4))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 2.0], r"got \(2,\)"),
        (np.zeros((2, 3, 4)), r"got \(2, 3, 4\)"),
        (np.zeros((0, 3)), "has no rows"),
        (np.zeros((3, 1)), "has 1 column; at least two"),
        (np.zeros((3, 0)), "has 0 column"),
        ([["a", "b"]], "dtype <U1"),
        (np.zeros((2, 2), dtype=complex), "dtype complex128"),
        (np.zeros((2, 2), dtype=np.longdouble), "float16, float32 or float64"),
        ([[1.0, 2.0], [3.0]], "cannot be read as an array"),
        ([[0.0, np.nan], [0.0, 1.0]], "row 0, column 1 is nan"),
        ([[0.0, 1.0], [-np.inf, 1.0]], "row 1, column 0 is -inf"),
        (np.ma.masked_array(np.zeros((2, 2)), mask=[[0, 1], [0, 0]]), "masked array"),
        (None, "dtype object"),
    ],
)
def test_what_is_no_matrix_is_refused(values, words):
    with pytest.raises(InputError, match=rf"`scores`.*{words}|{words}.*`scores`"):
        check_matrix(values, "scores")


def test_what_numpy_cannot_read_is_refused_with_its_own_advice():
    class Tensor:
        def __array__(self, *args, **kwargs):
            raise RuntimeError("Copy it to the host first.")

    with pytest.raises(InputError, match="Copy it to the host first"):
        check_matrix(Tensor(), "logits")


def test_a_tensor_that_tracks_gradients_is_read():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(
        check_matrix(torch.from_numpy(LOGITS).requires_grad_(), "logits"), LOGITS
    )
    signal, right = torch.arange(20.0).requires_grad_(), torch.arange(20) % 3 == 0
    for signals in ({"a": signal}, signal[:, None]):
        confidence = SignalCalibration().fit(signals, right).predict_confidence(signals)
        assert confidence.shape == (20,)


def test_probabilities_given_as_logits_are_refused():
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    for dtype in (np.float64, np.float32, np.float16):
        with pytest.raises(InputError, match="these are probabilities, and logits are needed"):
            check_logits(probs.astype(dtype))
    with pytest.raises(InputError, match="these are probabilities"):
        check_logits([[0.0, 1.0]])
    check_logits(probs * 1.01)
    check_logits(np.log(probs))
    check_logits([[0.25, 0.7505]])  # one row may come near by chance


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_are_column_indices(dtype):
    labels = check_labels(np.array([0, 2], dtype=dtype), 2, 3)
    assert labels.tolist() == [0, 2]
    assert labels.dtype == np.intp


@pytest.mark.parametrize(
    ("y", "classes", "words"),
    [
        ([0, 3], None, r"0\.\.2, one for each column; row 1 has 3"),
        ([-1, 0], None, "row 0 has -1"),
        ([0.0, 1.0], None, "got dtype float64"),
        ([0.0, np.nan], None, "got 1 missing ones, first in row 1"),
        (["a", "b"], None, "got dtype <U1"),
        ([True, False], None, "got dtype bool"),
        ([[0, 1], [1, 0]], None, r"the shape \(2, 2\)"),
        ([0], None, "2 samples but 1 labels"),
        ([[0], [1, 2]], None, "cannot be read"),
        (["a", "d"], ["a", "b", "c"], "label 'd' in row 1"),
        ([1, 4], [1, 2, 3], "label 4 in row 1"),
        ([0, 3], ["a", "b", "c"], "row 1 has 3"),
        ([None, "a"], ["a", "b", "c"], "label None in row 0"),
        ([0, 1], ["a", "b"], r"3 columns once.*got 2 different names"),
        ([0, 1], ["a", "b", "a"], "3 columns once.*got 2 different names"),
        ([0, 1], [object(), None, 3], "words or numbers"),
    ],
)
def test_labels_that_fit_no_column_are_refused_with_the_value(y, classes, words):
    with pytest.raises(InputError, match=words):
        check_labels(y, 2, 3, classes)


def test_a_class_that_is_missing_never_shifts_a_column():
    assert check_labels(["c", "c"], 2, 3, ["a", "b", "c"]).tolist() == [2, 2]
    assert check_labels([7, 7], 2, 3, [5, 6, 7]).tolist() == [2, 2]
    texts = np.array(["a", "b"], dtype=np.dtypes.StringDType())
    assert check_labels(texts[::-1], 2, 2, texts).tolist() == [1, 0]
    assert check_labels([False, True], 2, 2, [True, False]).tolist() == [1, 0]


def test_logits_whose_differences_overflow_are_refused():
    with pytest.raises(InputError, match=r"go from -1.7e\+308 to 1.7e\+308"):
        check_logits([[1.7e308, -1.7e308]])
    assert check_logits([[8e307, -8e307]]).shape == (1, 2)
