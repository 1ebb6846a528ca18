from functools import partial

import numpy as np
import pytest
from scipy.optimize import check_grad

from recal import TemperatureScaling
from recal.calibrators import OrderPreserving
from recal.calibrators.order_preserving import IncreasingCurve, OrderNetwork
from recal.maps.arrays import log_softmax
from recal.maps.scaling import unpack
from tests.problems import logits_and_labels

problem = partial(logits_and_labels, n=600, n_classes=6)

VARIANTS = ["order-invariant", "diagonal"]


def network(logits, labels, n_ranks):
    return OrderNetwork.for_logits(logits, n_ranks, 5)


def curve(logits, labels, n_ranks):
    return IncreasingCurve.for_logits(logits, labels, 7)


CASES = pytest.mark.parametrize(
    ("build", "n_ranks"),
    [(network, 9), (network, 3), (network, 2), (curve, 0)],
    ids=["all", "three", "two", "curve"],
)


def parameters_of(function, beta=0.4):
    rng = np.random.default_rng(1)
    start = function.start(beta, rng)
    return start + rng.normal(scale=0.3, size=start.shape)


@CASES
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_the_gradient_is_that_of_finite_differences(build, n_ranks, penalty):
    logits, labels = problem(n=60)
    function = build(logits, labels, n_ranks)
    objective = function.objective(logits, labels, penalty)
    at = parameters_of(function)
    error = check_grad(lambda p: objective(p)[0], lambda p: objective(p)[1], at)
    assert error < 2e-6 * np.linalg.norm(objective(at)[1]) + 1e-6


@CASES
def test_the_objective_is_the_likelihood_of_the_answer(build, n_ranks):
    logits, labels = problem(n=60)
    function = build(logits, labels, n_ranks)
    at = parameters_of(function)
    answer = log_softmax(function.map(at).scores(logits))
    assert function.objective(logits, labels, 0.0)(at)[0] == pytest.approx(
        -answer[np.arange(60), labels].mean(), abs=1e-10
    )


@CASES
def test_the_order_of_all_classes_is_kept_whatever_the_parameters(build, n_ranks):
    logits, labels = problem(n=200)
    function = build(logits, labels, n_ranks)
    at = np.random.default_rng(2).normal(scale=2.0, size=parameters_of(function).shape)
    np.testing.assert_array_equal(
        np.argsort(function.map(at).scores(logits), axis=1), np.argsort(logits, axis=1)
    )


@CASES
def test_permuting_the_logits_permutes_the_answer(build, n_ranks):
    logits, labels = problem(n=100)
    function = build(logits, labels, n_ranks)
    at = parameters_of(function)
    shuffle = np.random.default_rng(3).permutation(6)
    np.testing.assert_allclose(
        function.map(at).scores(logits[:, shuffle]),
        function.map(at).scores(logits)[:, shuffle],
        atol=1e-12,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_fits_at_least_as_well_as_temperature_scaling(variant):
    rng = np.random.default_rng(0)
    logits, labels = problem(n=3000)
    labels = np.where(
        rng.random(3000) < 0.2, rng.integers(0, 6, 3000), labels
    )  # a temperature cannot say this
    model = OrderPreserving(variant=variant, penalty=1e-3, random_state=0).fit(logits, labels)
    scaled = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    assert model.loss_ < -np.log(scaled[np.arange(3000), labels]).mean() - 0.01
    probs = model.predict_proba(logits)
    assert model.loss_ == pytest.approx(-np.log(probs[np.arange(3000), labels]).mean(), abs=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_large_penalty_leaves_temperature_scaling(variant):
    logits, labels = problem()
    model = OrderPreserving(variant=variant, penalty=1e6, n_ranks=2, random_state=0).fit(
        logits, labels
    )
    if variant == "diagonal":
        slopes = np.exp(model.parameters_)
        np.testing.assert_allclose(
            slopes, TemperatureScaling().fit(logits, labels).beta_, rtol=1e-3
        )
    else:
        weights = unpack(model.map_.parameters, model.map_.shapes)[2]
        np.testing.assert_allclose(weights, 0.0, atol=1e-6)
