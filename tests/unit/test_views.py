"""Views: rows are selected as numpy does, and nothing is copied or read that was not asked for."""

from __future__ import annotations

import numpy as np
import pytest

from recal import Views, read_views
from recal.errors import InputError
from recal.transforms.image import ZoomOut

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(7, 3))
ZOOMED = RNG.normal(size=(7, 3))
LABELS = [0, 1, 2, 0, 1, 2, 0]


@pytest.fixture(name="views", params=["memory", "npz", "zarr"])
def stored_views(request, tmp_path) -> Views:
    made = Views(LOGITS, {"zoom:0.5": ZOOMED}, LABELS)
    if request.param == "memory":
        return made
    return read_views(made.write(tmp_path / f"views.{request.param}"))


SELECTIONS = [
    slice(None, None, 2),
    slice(5, 1, -2),
    slice(-3, 100),
    [2, 2, -1, 2],
    np.array([1, 2], dtype=np.uint8),
    [True, False, True, False, False, True, False],
    np.arange(7) > 3,
    (4, 1),
]


@pytest.mark.parametrize("rows", SELECTIONS, ids=repr)
def test_rows_are_selected_as_numpy_does(views, rows):
    index = rows if isinstance(rows, slice) else np.asarray(rows)
    picked = views[rows]
    np.testing.assert_array_equal(picked.logits, LOGITS[index])
    np.testing.assert_array_equal(picked.transformed("zoom:0.5"), ZOOMED[index])
    np.testing.assert_array_equal(picked.labels, np.array(LABELS)[index])
    array, where = picked.rows_of(ZoomOut(0.5), np.arange(len(picked))[::-1])
    np.testing.assert_array_equal(array[where], ZOOMED[index][::-1])
    assert len(picked) == picked.n_samples == len(LOGITS[index])


@pytest.mark.parametrize("first", SELECTIONS, ids=repr)
@pytest.mark.parametrize(
    "second", [slice(None, None, -1), slice(0, 1), [0, -1, 0], 0, -1], ids=repr
)
def test_a_selection_of_a_selection(views, first, second):
    index = first if isinstance(first, slice) else np.asarray(first)
    rows = np.arange(7)[index]
    expected = np.atleast_1d(rows[second])
    np.testing.assert_array_equal(views[first][second].logits, LOGITS[expected])
    np.testing.assert_array_equal(views[first][second].labels, np.array(LABELS)[expected])


@pytest.mark.parametrize(
    "rows", [[], slice(3, 3), slice(100, None), np.zeros(7, bool), np.array([], int)], ids=repr
)
def test_an_empty_selection_is_refused(views, rows):
    with pytest.raises(InputError, match="holds no rows"):
        views[rows]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([7], "7 samples"),
        (-8, "7 samples"),
        ([True, False], "7 samples"),
        (True, "got True"),
        ([0.5], r"got \[0.5\]"),
        ("abc", "'abc'"),
        ([[0, 1], [1, 2]], r"\[\[0, 1\]"),
        (None, "None"),
    ],
)
def test_rows_that_select_nothing_sensible_are_refused(views, rows, words):
    with pytest.raises(InputError, match=words):
        views[rows]


def test_slices_share_memory_and_nothing_is_copied():
    views = Views(LOGITS, {"zoom:0.5": ZOOMED})
    assert views.logits is LOGITS
    assert np.shares_memory(views[1:5][::2].logits, LOGITS)
    assert np.shares_memory(views[::-1].transformed("zoom:0.5"), ZOOMED)


def test_views_are_found_by_spec_or_by_value():
    views = Views(LOGITS, {ZoomOut(0.5): ZOOMED})
    assert views.transforms == (ZoomOut(0.5),)
    assert views.transformed("zoom:0.50") is ZOOMED
    with pytest.raises(InputError, match=r"no 'zoom:0\.6'; they hold: zoom:0\.5"):
        views.transformed("zoom:0.6")


@pytest.mark.parametrize(
    ("transformed", "words"),
    [
        ([ZOOMED], "got a list"),
        ("zoom:0.5", "got a str"),
        ({"zoom:0.5": ZOOMED, "zoom:0.50": ZOOMED}, r"'zoom:0\.5' is given twice"),
        ({"zoom:0.5": ZOOMED[:6]}, r"'zoom:0\.5'.*\(7, 3\), got \(6, 3\)"),
    ],
)
def test_transformed_logits_of_another_form_are_refused(transformed, words):
    with pytest.raises(InputError, match=words):
        Views(LOGITS, transformed)


@pytest.mark.parametrize("name", ["views.npz", "views.zarr"])
def test_clusters_and_groups_are_selected_with_rows_and_kept_in_files(tmp_path, name):
    logits = np.random.default_rng(0).normal(size=(6, 3))
    views = Views(logits, clusters=[1.0, 1.0, 2.0, 2.0, 3.0, 3.0], groups=list("aabbcc"))
    again = read_views(views[[5, 0, 2]].write(tmp_path / name))
    assert again.clusters.tolist() == ["3", "1", "2"]
    assert again.groups.tolist() == ["c", "a", "b"]
    assert repr(views).endswith("3 clusters, 3 groups")
    assert read_views(Views(logits).write(tmp_path / f"plain-{name}")).clusters is None
    with pytest.raises(InputError, match="`groups` must have one value per sample"):
        Views(logits, groups=["a"])


def test_clusters_and_groups_can_be_assigned_later():
    views = Views(3 * np.eye(4), groups=list("aabb"))[1:]
    named = views.assign(clusters=[7, 7, 8])
    assert (named.clusters.tolist(), named.groups.tolist()) == (["7", "7", "8"], ["a", "b", "b"])
    assert views.clusters is None
    assert named[::-1].clusters.tolist() == ["8", "7", "7"]
