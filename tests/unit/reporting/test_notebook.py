"""What notebooks show: one card for each object, without scripts, and no markup from names."""

from xml.etree import ElementTree

import numpy as np
import pytest

from recal import ReCal, TemperatureScaling, decide
from recal.comparison import compare_probs
from recal.decisions import DecisionRule


@pytest.fixture(scope="module")
def fitted(views):
    return TemperatureScaling().fit(views)


def check_card(text):
    """A card is well-formed, brings its colours, runs nothing and loads nothing."""
    ElementTree.fromstring(text.replace("&nbsp;", " "))
    assert text.startswith('<div class="recal">')
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
    assert "http" not in text
    return text


def test_a_fitted_calibrator_shows_its_temperature_and_views(fitted, views):
    text = check_card(fitted._repr_html_())
    assert f"{1 / float(fitted.beta_):.4g}" in text
    assert "700 samples, 4 classes" in text
    fitted = ReCal(max_iter=3).fit(views)
    assert str(fitted.needed_transforms()[0]) in check_card(fitted._repr_html_())


@pytest.mark.parametrize("guarantee", ["confidence", "average"])
def test_a_card_shows_the_promise_that_the_rule_makes(views, guarantee):
    calibrator = TemperatureScaling().fit(views)
    calibrator.decision_ = DecisionRule((0.875,), 0.05, 0.95, guarantee=guarantee)
    text = check_card(calibrator._repr_html_())
    assert calibrator.decision_.promise in text
    assert "0.875" in text


def test_a_decision_shows_rule_and_reliability(views, fitted):
    probs = fitted.predict_proba(views)
    decision = decide(probs, views.labels, risk=0.3)
    assert decision.bins.counts.sum() == 700
    inside = (probs.max(1) > 14 / 15).sum()
    assert decision.bins.counts[-1] == inside
    text = check_card(decision._repr_html_())
    assert f"{decision.threshold:.6g}" in text
    assert "threshold" in text
    assert decision == decide(probs, views.labels, risk=0.3)
    none = check_card(decide(probs[:20], views.labels[:20], risk=0.001)._repr_html_())
    assert ">none<" in none


def test_a_comparison_shows_its_metrics_and_no_markup_of_a_name():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1], 60)
    evil = "<script>alert(1)</script>"
    found = compare_probs({evil: probs, "b": probs[::-1]}, rng.integers(0, 2, 60), bootstrap=0)
    text = check_card(found._repr_html_())
    assert "&lt;script&gt;" in text
    assert f"{found.row('nll', 'b').value:.4f}" in text
