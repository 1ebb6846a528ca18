import numpy as np
import pytest

from recal.calibrators.machinery.probabilities import (
    LARGEST,
    SMALLEST,
    bounded_probs,
    log_odds,
    log_softmax,
    normalise,
    softmax,
)


def test_underflow_and_rounding_to_one_are_mended():
    bounded = bounded_probs(np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]))
    assert bounded[0].tolist() == [LARGEST, SMALLEST, SMALLEST]
    assert bounded[1].tolist() == [0.2, 0.3, 0.5]


@pytest.mark.parametrize("top", [0, 1, 2])
def test_a_tie_is_lifted_by_one_unit_in_the_last_place(top):
    third = 1 / 3
    bounded = bounded_probs(np.full((1, 3), third), np.array([top]))
    assert bounded[0].argmax() == top
    assert bounded[0, top] <= np.nextafter(third, 1)


def test_values_the_wrong_way_round_are_swapped():
    assert bounded_probs(np.array([[0.3, 0.1, 0.6]]), np.array([0])).tolist() == [[0.6, 0.1, 0.3]]


def test_softmax_scales_and_survives_saturation():
    np.testing.assert_allclose(softmax([[2.0, 0.0]], 0.5), [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]])
    np.testing.assert_allclose(np.exp(log_softmax([[2.0, 0.0]], 0.5)), softmax([[2.0, 0.0]], 0.5))
    assert softmax([[1e4, -1e4]]).tolist() == [[1.0, 0.0]]
    assert log_softmax([[1e4, -1e4]]).tolist() == [[0.0, -2e4]]


def test_log_odds_keep_their_digits_near_certainty():
    np.testing.assert_allclose(log_odds(log_softmax([[50.0, 0.0]])), [[50.0, -50.0]], rtol=1e-12)
    np.testing.assert_allclose(log_odds(log_softmax([[60.0, 0.0, 0.0]]))[0, 0], 60 - np.log(2), rtol=1e-12)


def test_a_row_of_zeros_is_uniform():
    assert normalise(np.array([[0.0, 0.0], [1.0, 3.0]])).tolist() == [[0.5, 0.5], [0.25, 0.75]]
