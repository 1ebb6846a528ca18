"""The solver's promises at the edges; its agreement with scipy is in tests/parity."""

from __future__ import annotations

import numpy as np
import pytest

from recal import ReCal, TemperatureScaling, Views
from recal.solvers.temperature import LARGEST_BETA, LEAST_BETA, solve_betas

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

SCALES = pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6, 1e12])


@SCALES
@pytest.mark.parametrize("n_samples", [2, 9, 500])
def test_answers_that_are_all_right_get_what_one_more_wrong_sample_would_give(n_samples, scale):
    """With two classes and one margin the best confidence is the share of right answers: n of n +
    1.
    """
    y = np.arange(n_samples) % 2
    logits = 5.0 * scale * np.eye(2)[y]
    scaling = TemperatureScaling().fit(logits, y)
    confidence = scaling.predict_proba(logits)[np.arange(n_samples), y]
    np.testing.assert_allclose(confidence, n_samples / (n_samples + 1), atol=1e-9)
    assert scaling.converged_


@SCALES
def test_a_temperature_does_not_depend_on_the_scale_of_the_scores(scale):
    logits = np.random.default_rng(0).normal(size=(300, 4))
    y = (logits + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(axis=1)
    usual, scaled = (TemperatureScaling().fit(z, y) for z in (logits, logits * scale))
    assert scaled.beta_ * scale == pytest.approx(usual.beta_, rel=1e-7)


@SCALES
@pytest.mark.parametrize("separable", ["pooled", "bound"])
def test_groups_of_scores_of_any_scale_get_a_temperature(separable, scale):
    views = sorted_by_a_view(5)
    transform = views.transforms[0]
    scaled = Views(
        views.logits * scale, {transform: views.transformed(transform) * scale}, views.labels
    )
    (step,) = ReCal(max_iter=1, start="temperature", separable="pooled").fit(scaled).plan_.steps
    (usual,) = ReCal(max_iter=1, start="temperature", separable=separable).fit(views).plan_.steps
    assert step.betas == pytest.approx(usual.betas, rel=1e-6)


def test_a_guess_where_the_loss_underflows_does_not_change_the_answer():
    def derivatives(betas):
        weight = np.where(betas > 0, np.exp(-300.0 * betas), 0.0)
        return -300.0 * weight, 300.0**2 * weight

    answers = [solve_betas(derivatives, 1, start) for start in (None, np.array([4.0]))]
    assert derivatives(np.array([4.0]))[0] == 0
    assert [answer.values.tolist() for answer in answers] == [[LARGEST_BETA]] * 2
    assert all(answer.at_bound.all() for answer in answers)


def test_a_model_worse_than_chance_gets_the_smallest_beta():
    scaling = TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0]], [1, 0])
    assert scaling.beta_ == pytest.approx(LEAST_BETA, rel=1e-12)


def test_an_empty_group_keeps_one_and_a_full_one_is_not_shrunk():
    z = np.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    fit = ReCal(max_iter=1).fit(Views(z, {"zoom:0.5": z * 0.5}, [0, 0, 1, 1]))
    (iteration,) = fit.history_
    assert iteration.sizes == (0, 0, 0, 4)
    assert iteration.raw_betas[:3] == iteration.betas[:3] == (1.0, 1.0, 1.0)
    assert iteration.betas[3] == iteration.raw_betas[3]


def sorted_by_a_view(mistakes_when_kept):
    """Return 400 samples of which a view keeps 300 answers; mistakes are among the 100 others, and
    where asked.
    """
    z = np.tile([2.0, 0.0, 0.1], (400, 1))
    y = np.zeros(400, dtype=int)
    y[:30] = 1
    y[100 : 100 + mistakes_when_kept] = 1
    view = z * 0.5
    view[:100] = [0.0, 1.0, 0.1]
    # Every second sample is of another class, because constant predictions are refused.
    for one in (z, view):
        one[1::2] = np.roll(one[1::2], 1, axis=1)
    y[1::2] += 1
    return Views(z, {"zoom:0.5": view}, y)


def test_a_group_without_a_mistake_keeps_a_finite_temperature():
    """All mistakes lie in the other group, which is tempered; the common beta then stays above 1
    for ever.
    """
    views = sorted_by_a_view(0)
    transform = views.transforms[0]
    fit = ReCal(sequence=[transform] * 60, max_iter=60, tol=0).fit(views)
    confidence = fit.predict_proba(views)[100:].max()
    assert confidence == pytest.approx(300 / 301, abs=2e-3)
