"""A smooth function that all classes share: the Gaussian process, and the network."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import softmax

from recal import TemperatureScaling
from recal.calibrators import GaussianProcessCalibration, OrderPreserving
from recal.calibrators.order_preserving import OrderNetwork
from recal.maps.arrays import log_softmax
from recal.maps.scaling import GapNetwork, unpack
from tests.problems import logits_and_labels, nll

problem = partial(logits_and_labels, n=600, n_classes=6)
CASES = pytest.mark.parametrize("n_ranks", [9, 3, 2])


def network_at(logits, labels, n_ranks, noise=0.3):
    """Return a network with random parameters."""
    network, rng = OrderNetwork(logits, labels, n_ranks, 5), np.random.default_rng(1)
    start = network.start(0.4, rng)
    return network, start + rng.normal(scale=noise, size=start.shape)


def scores(network, at, logits):
    return GapNetwork(network.inputs, at, network.n_classes).scores(logits)


@CASES
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_the_gradient_is_that_of_finite_differences(n_ranks, penalty):
    network, at = network_at(*problem(n=60), n_ranks)
    loss, slope = (lambda p, part=part: network.loss(p, penalty)[part] for part in (0, 1))
    assert check_grad(loss, slope, at) < 2e-6 * np.linalg.norm(slope(at)) + 1e-6


@CASES
def test_the_objective_is_the_likelihood_of_the_answer(n_ranks):
    logits, labels = problem(n=60)
    network, at = network_at(logits, labels, n_ranks)
    answer = log_softmax(scores(network, at, logits))
    likelihood = answer[np.arange(60), labels].mean()
    assert network.loss(at, 0.0)[0] == pytest.approx(-likelihood, abs=1e-10)


@CASES
def test_the_order_is_kept_and_classes_are_treated_alike_whatever_the_parameters(n_ranks):
    logits, labels = problem(n=200)
    network, at = network_at(logits, labels, n_ranks, noise=2.0)
    found = scores(network, at, logits)
    np.testing.assert_array_equal(np.argsort(found, axis=1), np.argsort(logits, axis=1))
    shuffle = np.random.default_rng(3).permutation(6)
    moved = scores(network, at, logits[:, shuffle])
    np.testing.assert_allclose(moved, found[:, shuffle], rtol=1e-12, atol=1e-12)


def test_it_fits_at_least_as_well_as_temperature_scaling():
    rng = np.random.default_rng(0)
    logits, labels = problem(n=3000)
    # No temperature can describe a share of guesses.
    labels = np.where(rng.random(3000) < 0.2, rng.integers(0, 6, 3000), labels)
    model = OrderPreserving(penalty=1e-3, random_state=0).fit(logits, labels)
    scaled = TemperatureScaling().fit(logits, labels)
    loss, before = (nll(one.predict_proba(logits), labels) for one in (model, scaled))
    assert loss < before - 0.01


def test_a_large_penalty_leaves_temperature_scaling():
    model = OrderPreserving(penalty=1e6, n_ranks=2, random_state=0).fit(*problem())
    weights = unpack(model.map_.parameters, model.map_.shapes)[2]
    np.testing.assert_allclose(weights, 0.0, atol=1e-6)


def bent(n, seed, bend):
    """Logits whose calibrated answer is softmax(x + bend * sin(x)), x being the log-probability."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.5, size=(n, 4))
    x = log_softmax(logits)
    calibrated = x + bend * np.sin(x)
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(axis=1)
    return logits, labels, softmax(calibrated, axis=1)


@pytest.mark.parametrize("bend", [0.9, 0.0])
def test_a_process_learns_a_bend_that_no_temperature_can_correct(bend):
    logits, labels, _ = bent(4000, 0, bend)
    fresh, _, truth = bent(1000, 1, bend)
    model = GaussianProcessCalibration().fit(logits, labels)
    before = np.abs(softmax(model.map_.beta * fresh, axis=1) - truth).mean()
    assert np.abs(model.predict_proba(fresh) - truth).mean() < max(0.4 * before, 0.01)
