import numpy as np
import pytest

from recal.maps.guard import lift_answers


@pytest.mark.parametrize("top", [0, 1, 2])
def test_a_tie_is_lifted_by_one_unit_in_the_last_place(top):
    third = 1 / 3
    probs = lift_answers(np.full((1, 3), third), np.array([[top]]))
    assert probs[0].argmax() == top
    assert probs[0, top] <= np.nextafter(third, 1)


def test_values_the_wrong_way_round_are_swapped():
    assert lift_answers(np.array([[0.3, 0.1, 0.6]]), np.array([[0]])).tolist() == [[0.6, 0.1, 0.3]]
