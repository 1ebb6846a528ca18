import numpy as np
import pytest
from scipy import optimize

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


def test_a_fitted_temperature_mends_the_mean_and_changes_no_answer_of_it():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 2000)
    z = 3 * np.eye(4)[y] + rng.normal(0, 2, (2000, 4))
    views = Views(z, {"flip": z + rng.normal(0, 1, z.shape)}, y)
    plain, fitted = ViewAveraging().fit(views), ViewAveraging(temperature=True).fit(views)
    mean = (softmax(z) + softmax(views.transformed("flip"))) / 2

    def loss(beta):
        probs = mean**beta / (mean**beta).sum(axis=1, keepdims=True)
        return -np.log(probs[np.arange(2000), y]).mean()

    best = optimize.minimize_scalar(
        loss, bounds=(0.1, 5), method="bounded", options={"xatol": 1e-9}
    ).x
    assert fitted.beta_ == pytest.approx(best, rel=1e-5)
    assert plain.beta_ == 1.0
    np.testing.assert_array_equal(fitted.predict(views), plain.predict(views))
    assert loss(fitted.beta_) < loss(1.0) - 0.01
