import numpy as np
import pytest

from recal import Views
from recal.calibrators import ViewAveraging
from recal.maps.arrays import softmax


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
def test_the_answer_is_the_mean_over_the_original_and_the_views():
    rng = np.random.default_rng(0)
    z, a, b = rng.normal(size=(3, 20, 4))
    views = Views(z, {"zoom:0.5": a, "brightness:0.5": b}, rng.integers(0, 4, 20))
    expected = (softmax(z) + softmax(a) + softmax(b)) / 3
    np.testing.assert_allclose(
        ViewAveraging().fit(views).predict_proba(views), expected, rtol=0, atol=1e-15
    )


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_strong_view_may_change_the_prediction():
    views = Views([[2.0, 0.0]], {"zoom:0.5": [[0.0, 5.0]]}, [0])
    assert ViewAveraging().fit(views).predict(views).tolist() == [1]
