"""A mirror keeps a cat's label and not a digit's: the selection must find that out by itself."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from recal import TemperatureScaling, Views, ViewStacking, collect, metrics


@pytest.fixture(scope="module")
def halves() -> tuple[Views, Views]:
    """Views of scikit-learn's real digits, 8 x 8 pixels, by a small network trained on a third of
    them.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.float32) / 16, digits.target[order]
    network = MLPClassifier((32,), max_iter=60, random_state=0).fit(
        images[:500].reshape(500, -1), labels[:500]
    )
    pool = "flip+shift:1+shift:1:direction=right+zoomin:1.1+brightness:0.7"
    views = collect(
        network, images[500:], pool, labels=labels[500:], outputs="probabilities", progress=False
    )
    return views[:800], views[800:]


@pytest.mark.filterwarnings("ignore")
def test_the_mirror_is_rejected_and_what_is_chosen_does_no_harm(
    halves: tuple[Views, Views],
) -> None:
    fitting, testing = halves
    mirrored = fitting.transformed("flip").argmax(axis=1) == fitting.labels
    assert mirrored.mean() < 0.6, "most mirrored digits are misread"
    stack = ViewStacking().fit(fitting)
    assert "flip" not in [str(transform) for transform in stack.needed_transforms()]
    plain = TemperatureScaling().fit(fitting)
    losses = [
        metrics.nll(fitted.predict_proba(testing), testing.labels) for fitted in (stack, plain)
    ]
    assert losses[0] < 1.02 * losses[1]
