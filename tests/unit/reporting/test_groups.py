import numpy as np
import pytest

from recal import Views
from recal.errors import InputError
from recal.reporting import group_study


def test_a_study_that_can_be_counted_by_hand():
    # Confidence of each original: softmax(2, 0) = 0.8808; the first class is predicted.
    logits = np.tile([2.0, 0.0], (5, 1))
    copies = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 9.0], [2.0, 0.0]])
    study = group_study(Views(logits, {"zoom:0.5": copies}, [0, 1, 1, 1, 0]))
    # kept and rose: row 0; kept and did not rise: rows 1 and 4; changed, at the original's answer
    # less sure: rows 2, 3.
    assert study.sizes.tolist() == [[0, 2, 1, 2]]
    p = 1 / (1 + np.exp(-2.0))
    assert study.errors[0, 1:] == pytest.approx([p, 1 - p, abs(p - 0.5)])
    assert np.isnan(study.errors[0, 0])


@pytest.mark.parametrize(
    ("times", "ranks"),
    [
        # Three groups: the largest error is the largest.
        (20, [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]),
        # 19 samples kept and rose: not ranked.
        (19, [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]),
        (9, [[0, 0, 0, 0]] * 4),
    ],
)
def test_ranks_leave_out_empty_and_tiny_groups_and_the_largest_error_is_never_third(times, ranks):
    logits = np.tile([2.0, 0.0], (5 * times, 1))
    copies = np.tile([[3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 9.0], [2.0, 0.0]], (times, 1))
    study = group_study(Views(logits, {"zoom:0.5": copies}, [0, 1, 1, 1, 0] * times))
    # Errors: kept rose 0.12, kept fell 0.38, changed fell 0.88.
    assert study.ranks.tolist() == ranks
    assert study.usual_sizes == [0, 2 * times, times, 2 * times]
    assert study.to_dict()["ranked_from"] == 20


def test_scaling_first_changes_confidences_and_not_predictions(views):
    plain, scaled = (group_study(views, scaled=s) for s in (False, True))
    assert scaled.temperature > 1
    assert plain.sizes[:, :2].sum() == scaled.sizes[:, :2].sum()
    assert not np.array_equal(plain.errors, scaled.errors, equal_nan=True)


def test_without_labels_there_are_sizes_and_no_errors():
    study = group_study(Views([[2.0, 0.0]], {"zoom:0.5": [[1.5, 0.0]]}))
    assert study.sizes.tolist() == [[0, 0, 0, 1]]
    assert np.isnan(study.errors).all()
    assert study.to_dict()["groups"]["zoom:0.5"]["kept_fell"] == 1
    assert study.to_dict()["ece"]["zoom:0.5"]["kept_fell"] is None


def test_views_without_transformations_are_refused():
    with pytest.raises(InputError, match="no transformations"):
        group_study(Views([[2.0, 0.0]]))
    with pytest.raises(InputError, match="Labels are needed"):
        group_study(Views([[2.0, 0.0]], {"zoom:0.5": [[1.5, 0.0]]}), scaled=True)
