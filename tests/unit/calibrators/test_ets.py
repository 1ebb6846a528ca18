import numpy as np
import pytest
from scipy.optimize import minimize

from recal import TemperatureScaling
from recal.calibrators import EnsembleTemperatureScaling
from recal.maps.arrays import softmax


def draw(n=2000, k=5, seed=0, noise=0.0):
    """Three times too sure, and a share of the labels drawn blindly."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=4.0, size=(n, k))
    labels = (logits / 3 + rng.gumbel(size=(n, k))).argmax(axis=1)
    return logits, np.where(rng.random(n) < noise, rng.integers(0, k, n), labels)


def blunt(n=1500, seed=3):
    """Sharp where it knows, blind elsewhere: one temperature suits neither."""
    rng = np.random.default_rng(seed)
    logits, _ = draw(n, seed=seed)
    blind = rng.random(n) < 0.25
    sharp = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return 0.4 * logits, np.where(blind, rng.integers(0, 5, n), sharp)


@pytest.mark.parametrize(
    "problem", [draw, lambda: draw(noise=0.2), blunt], ids=["sure", "noisy", "blunt"]
)
def test_temperature_and_weights_are_as_good_as_a_plain_search_over_all_four(problem):
    logits, labels = problem()
    rows = np.arange(len(labels))
    single = np.log(TemperatureScaling().fit(logits, labels).beta_)

    def prior(log_beta):
        return (
            2.0 * (log_beta - single) ** 2 / len(labels)
        )  # a normal one, of standard deviation 0.5

    def loss_of(point):
        weights = np.exp(point[1:] - point[1:].max())
        parts = [
            softmax(logits, np.exp(point[0]))[rows, labels],
            softmax(logits)[rows, labels],
            0.2,
        ]
        mixed = sum(w * part for w, part in zip(weights / weights.sum(), parts))
        return -np.log(mixed).mean() + prior(point[0])

    free = min(
        (
            minimize(loss_of, [start, 1, 0, 0], method="Nelder-Mead", options={"maxfev": 900})
            for start in (-1, 0, 1)
        ),
        key=lambda answer: answer.fun,
    )
    model = EnsembleTemperatureScaling().fit(logits, labels)
    ours = -np.log(model.predict_proba(logits)[rows, labels]).mean() + prior(
        np.log(model.map_.beta)
    )
    assert ours <= free.fun + 1e-5


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("n_mistakes", [1, 2])
def test_one_or_two_mistakes_do_not_let_the_temperature_run_away(n_mistakes):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=4.0, size=(300, 4))
    labels = logits.argmax(axis=1)
    margin = np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)[:, 0]
    wrong = np.argsort(margin)[
        -n_mistakes:
    ]  # confident mistakes, which only the uniform answer explains
    labels[wrong] = (labels[wrong] + 1) % 4
    single = TemperatureScaling().fit(logits, labels).beta_
    assert EnsembleTemperatureScaling().fit(logits, labels).map_.beta < 10 * single


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_where_every_answer_is_right_only_a_temperature_is_fitted():
    logits, _ = draw()
    model = EnsembleTemperatureScaling().fit(1e6 * logits, logits.argmax(axis=1))
    assert model.map_.weights.tolist() == [1.0, 0.0, 0.0]
    assert model.map_.beta == TemperatureScaling().fit(1e6 * logits, logits.argmax(axis=1)).beta_
