"""The solver's promises at the edges; its agreement with scipy is in tests/parity."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from recal import InputError, ReCal, TemperatureScaling, Views
from recal.engine import temperature
from recal.engine.temperature import LARGEST_BETA, LEAST_BETA, solve_betas
from recal.errors import ConvergenceWarning, FewSamplesWarning


def test_two_groups_are_solved_in_the_same_passes():
    calls = []

    def derivatives(betas):
        calls.append(betas)
        return np.where(betas > 0, betas - [2.0, 0.5], 0.0), np.ones(2)

    answer = solve_betas(derivatives, 2)
    assert answer.values == pytest.approx((2.0, 0.5), abs=1e-8)
    assert answer.converged
    assert answer.passes == len(calls) < 12


def test_a_separable_problem_gets_the_largest_beta():
    scaling = TemperatureScaling().fit([[0.2, 0.0], [0.0, 0.1], [0.3, 0.0]], [0, 1, 0])
    assert scaling.beta_ == pytest.approx(LARGEST_BETA, rel=1e-12)
    assert scaling.converged_


@pytest.mark.parametrize("margin", [7.0, 8.0, 40.0, 300.0])
def test_a_separable_problem_gets_the_largest_beta_also_where_its_loss_underflows(margin):
    logits = [[margin, 0.0, -0.3], [0.0, 2 * margin, 0.1]]
    assert TemperatureScaling().fit(logits, [0, 1]).beta_ == pytest.approx(LARGEST_BETA, rel=1e-12)


def test_a_guess_where_the_loss_underflows_does_not_change_the_answer():
    def derivatives(betas):
        weight = np.where(betas > 0, np.exp(-300.0 * betas), 0.0)
        return -300.0 * weight, 300.0**2 * weight

    answers = [solve_betas(derivatives, 1, start) for start in (None, np.array([4.0]))]
    assert derivatives(np.array([4.0]))[0] == 0
    assert [answer.values for answer in answers] == [(LARGEST_BETA,)] * 2
    assert all(answer.at_bound == (True,) for answer in answers)


def test_a_model_worse_than_chance_gets_the_smallest_beta():
    scaling = TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0]], [1, 0])
    assert scaling.beta_ == pytest.approx(LEAST_BETA, rel=1e-12)


@pytest.mark.parametrize("logits", [[[1.0, 1.0]], [[1e6, -1e6]]])
def test_a_flat_loss_keeps_one(logits):
    assert TemperatureScaling().fit(logits, [0]).beta_ == 1.0


def test_the_closed_form_of_two_classes():
    """Three of four right at one margin: the best confidence is 3/4, whatever the margin."""
    logits = np.tile([5.0, 0.0], (4, 1))
    probs = TemperatureScaling().fit(logits, [0, 0, 0, 1]).predict_proba(logits)
    np.testing.assert_allclose(probs[:, 0], 0.75, atol=1e-9)


def test_a_solver_that_runs_out_of_passes_says_so(monkeypatch):
    monkeypatch.setattr(temperature, "_MOST_PASSES", 2)
    with pytest.warns(ConvergenceWarning, match="within 2 passes"):
        answer = solve_betas(lambda betas: (betas**3 - 5.0, 3 * betas**2), 1)
    assert not answer.converged


def test_an_empty_group_keeps_one_and_a_full_one_is_not_shrunk():
    z = np.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    fit = ReCal(max_iter=1).fit(Views(z, {"zoom:0.5": z * 0.5}, [0, 0, 1, 1]))
    (iteration,) = fit.history_
    assert iteration.sizes == (0, 0, 0, 4)
    assert iteration.raw_betas[:3] == iteration.betas[:3] == (1.0, 1.0, 1.0)
    assert iteration.betas[3] == iteration.raw_betas[3]


def test_endless_separable_iterations_stay_finite_and_keep_the_prediction():
    z = np.array([[0.2, 0.0], [0.0, 0.1], [0.3, 0.0]])
    views = Views(z, {"zoom:0.5": z * 0.5}, [0, 1, 0])
    adverse = Views(z, {"zoom:0.5": z * 0.5}, [1, 0, 1])
    for sample in (views, adverse):
        probs = ReCal(tol=0).fit(sample).predict_proba(sample)
        assert np.isfinite(probs).all()
        np.testing.assert_array_equal(probs.argmax(axis=1), z.argmax(axis=1))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_iter", -1), ("tol", -1e-3), ("guard", "nll"), ("start", "ts"), ("finish", "ts"), ("shrink", "t"),
        ("n_bins", 0), ("floor", 0.7), ("ties", "float64"), ("confidence_at", "view"), ("sequence", [5]),
        ("sequence", ["zoom:0.9"]), ("max_iter", None), ("max_iter", 2.5), ("tol", "small"), ("n_bins", None),
        ("sequence", 5), ("sequence", "zoom:0.5"), ("random_state", "now"), ("random_state", -1),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_refused_with_its_value(option, value):
    z = np.array([[3.0, 0.0], [0.0, 2.0]])
    with pytest.raises(InputError) as refusal:
        ReCal(**{option: value}).fit(Views(z, {"zoom:0.5": z * 0.5}, [0, 1]))
    assert str(value[0] if isinstance(value, list) else value) in str(refusal.value)


def test_rejected_draws_repeat_their_record_without_ending_the_fit():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    z = 3 * (np.eye(3)[y] + rng.normal(0, 0.7, (400, 3)))
    views = Views(z, {"zoom:0.5": z + rng.normal(0, 1, z.shape), "zoom:0.7": z * 0.8}, y)
    fit = ReCal(guard="ece", tol=0, max_iter=60, random_state=0).fit(views)
    rejected = [it for it in fit.history_ if not it.accepted]
    assert fit.n_iter_ == 60
    assert rejected
    assert all(it.betas == (1.0, 1.0, 1.0, 1.0) and it.ece_before == it.ece_after for it in rejected)


def test_the_draws_follow_the_seed():
    z = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    views = Views(z, {f"zoom:0.{i}": z * i / 10 for i in range(1, 9)}, [0, 1, 1])
    runs = [[str(it.transform) for it in ReCal(tol=0, random_state=s).fit(views).history_] for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def sorted_by_a_view(mistakes_when_kept):
    """Return 400 samples of which a view keeps 300 answers; mistakes are among the 100 others, and where asked."""
    z = np.tile([2.0, 0.0, 0.1], (400, 1))
    y = np.zeros(400, dtype=int)
    y[:30] = 1
    y[100 : 100 + mistakes_when_kept] = 1
    view = z * 0.5
    view[:100] = [0.0, 1.0, 0.1]
    return Views(z, {"zoom:0.5": view}, y)


def test_a_large_group_without_a_mistake_is_warned_of():
    with pytest.warns(FewSamplesWarning, match=r"400 samples .* guard=") as caught:
        ReCal(max_iter=1).fit(sorted_by_a_view(0))
    assert caught[0].filename == __file__
    with pytest.warns(FewSamplesWarning, match="or use TemperatureScaling"):
        ReCal(max_iter=1, guard="ece").fit(sorted_by_a_view(0))


def test_groups_with_mistakes_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReCal(max_iter=1).fit(sorted_by_a_view(5))
