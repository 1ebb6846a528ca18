"""Splits and folds that keep clusters whole, and near-copies that nobody declared."""

from __future__ import annotations

import numpy as np
import pytest

from recal.clusters import check_clusters, check_names, cluster_folds, split_by_cluster
from recal.copies import near_duplicates
from recal.errors import InputError


def test_clusters_may_be_words_or_numbers() -> None:
    assert check_clusters(["b", "a", "b"], 3).tolist() == [1, 0, 1]
    assert check_clusters([7.0, 3.0, 7.0], 3).tolist() == [1, 0, 1]
    names, rows = check_names(np.array(["x", 3, "x"], dtype=object), 3, "groups")
    assert (names, rows.tolist()) == (("3", "x"), [1, 0, 1])


@pytest.mark.parametrize(
    "clusters",
    [
        [1, 2],
        [[1], [2], [3]],
        [1.0, np.nan, 2.0],
        [0.5, 1.0, 2.0],
        ["a", None, "b"],
        ["a", "", "b"],
        np.array(["a", np.nan, "b"], dtype=object),
    ],
)
def test_clusters_are_one_whole_name_per_row(clusters: list[float]) -> None:
    with pytest.raises(InputError, match="clusters"):
        check_clusters(clusters, 3)


def test_numbers_are_named_alike_whatever_their_type() -> None:
    for values in ([1, 2, 1], [1.0, 2.0, 1.0], np.array([1.0, 2, 1], dtype=object)):
        assert check_names(values, 3, "groups")[0] == ("1", "2")
    with pytest.raises(InputError, match="float"):
        check_names(np.array([1234567890123456789, 1, 1]).astype(float), 3, "groups")


def test_parts_and_folds_never_divide_a_cluster() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 60, 1000)
    labels = rng.integers(0, 3, 1000)
    parts = split_by_cluster(clusters, (0.5, 0.3, 0.2), rng)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert [len(part) for part in parts] == pytest.approx([500, 300, 200], abs=15)
    fold = cluster_folds(clusters, labels, 5, rng)
    assert np.bincount(fold) == pytest.approx(np.full(5, 200), abs=10)
    for cluster in range(60):
        assert len(set(fold[clusters == cluster].tolist())) == 1
        assert sum(bool((clusters[part] == cluster).any()) for part in parts) == 1


def test_too_few_clusters_for_the_folds_are_refused() -> None:
    with pytest.raises(InputError, match="2 clusters"):
        cluster_folds([0, 0, 1, 1], np.array([0, 1, 0, 1]), 3, np.random.default_rng(0))


def _rows(n: int, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, k, n)
    logits = 2 * np.eye(k)[y] + rng.normal(size=(n, k))
    return logits, logits.argmax(axis=1) != y


@pytest.mark.parametrize("k", [2, 10, 200])
@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_near_copies_are_counted(k: int, noise: float) -> None:
    rng = np.random.default_rng(2)
    logits, wrong = _rows(200, k, rng)
    copies = np.repeat(logits, 10, axis=0) + noise * rng.normal(size=(2000, k))
    assert near_duplicates(copies, np.repeat(wrong, 10)) > 1500


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("digits", [8, 1, 0])
def test_independent_rows_are_no_copies(k: int, digits: int) -> None:
    """Rounded logits stand for models that give few different outputs."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        logits, wrong = _rows(2000, k, rng)
        assert near_duplicates(logits.round(digits), wrong) == 0
