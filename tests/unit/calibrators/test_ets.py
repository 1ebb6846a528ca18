"""Mixtures of temperatures and the uniform distribution: as good as a plain search, and bounded."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize

from recal import TemperatureScaling
from recal.calibrators import EnsembleTemperatureScaling
from recal.maps.arrays import softmax
from tests.problems import logits_and_labels

draw = partial(logits_and_labels, n_classes=5, spread=4 / 3)


def guesses(labels, share):
    """Replace a share of the labels by guesses."""
    rng = np.random.default_rng(3)
    return np.where(rng.random(len(labels)) < share, rng.integers(0, 5, len(labels)), labels)


def blunt():
    """Sharp where it knows, blind elsewhere: one temperature suits neither."""
    logits, labels = draw(1500, spread=4.0, scale=1.0)
    return 0.4 * logits, guesses(labels, 0.25)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [draw(2000), (draw(2000)[0], guesses(draw(2000)[1], 0.2)), blunt()],
    ids=["overconfident", "noisy", "blunt"],
)
def test_temperature_and_weights_are_as_good_as_a_plain_search_over_all_four(logits, labels):
    rows, single = np.arange(len(labels)), np.log(TemperatureScaling().fit(logits, labels).beta_)

    def loss_of(log_beta, likelihoods):
        prior = 0.5 * ((log_beta - single) / 0.5) ** 2  # normal, with a deviation of 0.5
        return -np.log(likelihoods).mean() + prior / len(labels)

    def loss_at(point):
        scaled, own = (softmax(logits, beta)[rows, labels] for beta in (np.exp(point[0]), 1.0))
        return loss_of(
            point[0], np.stack([scaled, own, 0.2 + 0 * own], 1) @ softmax(point[None, 1:])[0]
        )

    free = [
        minimize(loss_at, [start, 1, 0, 0], method="Nelder-Mead", options={"maxfev": 900}).fun
        for start in (-1, 0, 1)
    ]
    model = EnsembleTemperatureScaling().fit(logits, labels)
    ours = loss_of(np.log(model.map_.beta), model.predict_proba(logits)[rows, labels])
    assert ours <= min(free) + 1e-5


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("n_mistakes", [1, 2])
def test_one_or_two_mistakes_do_not_let_the_temperature_run_away(n_mistakes):
    logits, _ = draw(300)
    labels = logits.argmax(axis=1)
    margins = np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)[:, 0]
    wrong = np.argsort(margins)[-n_mistakes:]  # only the uniform distribution explains these
    labels[wrong] = (labels[wrong] + 1) % 5
    single = TemperatureScaling().fit(logits, labels).beta_
    assert EnsembleTemperatureScaling().fit(logits, labels).map_.beta < 10 * single


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_where_every_answer_is_right_only_a_temperature_is_fitted():
    logits = 1e6 * draw(2000)[0]
    model = EnsembleTemperatureScaling().fit(logits, logits.argmax(axis=1))
    assert model.map_.weights.tolist() == [1.0, 0.0, 0.0]
    assert model.map_.beta == TemperatureScaling().fit(logits, logits.argmax(axis=1)).beta_
