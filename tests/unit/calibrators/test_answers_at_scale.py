"""Answers of large arrays, by parts or compiled; fits whose cost does not depend on the scale of
the logits.
"""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from recal import TemperatureScaling
from recal.calibrators import HistogramBinning, VectorScaling
from recal.engine import one_thread
from recal.errors import DoubtfulLabelsWarning
from recal.maps.scaling import Temperature
from recal.solvers.temperature import GroupLosses, fit_beta
from tests.problems import logits_and_labels


@pytest.fixture(scope="module", name="problem")
def many_classes():
    return logits_and_labels(4000, 80, scale=1.5, dtype=np.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [VectorScaling, HistogramBinning, TemperatureScaling])
def test_a_large_array_gets_bit_for_bit_what_its_halves_get(method, problem):
    logits, y = problem
    fitted = method().fit(logits[:1500], y[:1500])
    probs, confidence = fitted.predict_both(logits)
    for part in (slice(0, 2000), slice(2000, None)):
        ours, sure = fitted.predict_both(logits[part])
        np.testing.assert_array_equal(probs[part], ours)
        np.testing.assert_array_equal(confidence[part], sure)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("beta", "n_classes"), [(1e-18, 80), (1.0, 80), (1e6, 80), (1.0, 27), (1e-18, 27)]
)
def test_compiled_answers_are_inside_0_and_1_and_keep_the_prediction(beta, n_classes, problem):
    logits = np.ascontiguousarray(problem[0][:, :n_classes])
    y = logits[::-1].argmax(axis=1)
    with pytest.warns(DoubtfulLabelsWarning):
        fitted = TemperatureScaling().fit(logits, y)
    fitted.map_ = Temperature(beta)
    probs, confidence = fitted.predict_both(logits)
    assert 0.0 < probs.min() <= probs.max() < 1.0
    np.testing.assert_array_equal(probs.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_array_equal(confidence, probs.max(axis=1))
    few = fitted.predict_proba(logits[:100])  # by the reference
    np.testing.assert_allclose(probs[:100], few, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 100.0, 1e4])
def test_a_temperature_far_from_1_takes_no_more_passes(factor, problem, monkeypatch):
    logits, y = problem
    passes, derivatives = [], GroupLosses.derivatives

    def counted(self, betas, *rest):
        passes.append(len(self.members))
        return derivatives(self, betas, *rest)

    monkeypatch.setattr(GroupLosses, "derivatives", counted)
    near = fit_beta(logits, y)
    few = passes.count(len(y))
    assert fit_beta(logits * np.float64(factor), y) * factor == pytest.approx(near, rel=1e-8)
    assert passes.count(len(y)) <= 2 * few + 1 <= 7


def test_small_products_take_one_thread_and_large_ones_what_there_are():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    with one_thread():
        assert set(threads()) == {1}
    with one_thread(10**9):
        assert threads() == before
    assert threads() == before
