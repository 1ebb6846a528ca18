import numpy as np
import pytest

from recal import InputError, ViewAveraging, Views
from recal.calibrators.machinery.probabilities import softmax


def test_the_answer_is_the_mean_over_the_original_and_the_views():
    rng = np.random.default_rng(0)
    z, a, b = rng.normal(size=(3, 20, 4))
    views = Views(z, {"zoom:0.5": a, "brightness:0.5": b}, rng.integers(0, 4, 20))
    expected = (softmax(z) + softmax(a) + softmax(b)) / 3
    np.testing.assert_allclose(ViewAveraging().fit(views).predict_proba(views), expected, rtol=0, atol=1e-15)


def test_new_views_must_hold_what_was_fitted_and_may_hold_more():
    z = np.random.default_rng(0).normal(size=(5, 3))
    model = ViewAveraging().fit(Views(z, {"zoom:0.5": z}), [0, 1, 2, 0, 1])
    both = Views(z, {"zoom:0.7": 100 * z, "zoom:0.5": z})
    np.testing.assert_allclose(model.predict_proba(both), softmax(z), rtol=0, atol=1e-15)
    with pytest.raises(InputError, match=r"no 'zoom:0\.5'; they hold: zoom:0\.7"):
        model.predict_proba(Views(z, {"zoom:0.7": z}))


def test_a_strong_view_may_change_the_prediction():
    views = Views([[2.0, 0.0]], {"zoom:0.5": [[0.0, 5.0]]}, [0])
    assert ViewAveraging().fit(views).predict(views).tolist() == [1]
