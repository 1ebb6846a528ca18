"""Prediction sets in torch and ONNX are those of numpy."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
import torch

from recal.decisions import PredictionSets, prediction_sets
from recal.errors import InputError
from recal.export import export_sets, keep_classes

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet([0.4] * 5, size=600).astype(np.float32)
Y = (PROBS.cumsum(axis=1) > RNG.random((600, 1))).argmax(axis=1)
FORMS = [
    ("lac", {}),
    ("lac", {"per_class": True}),
    ("lac", {"at_least_one": True, "coverage": 0.2}),
    ("aps", {"randomised": False}),
    ("raps", {"randomised": False, "penalty": 0.05, "free_ranks": 1, "at_least_one": True}),
]


def made(method, options):
    options = {"coverage": 0.8, **options}
    return prediction_sets(PROBS, Y, options.pop("coverage"), method, **options)


@pytest.mark.parametrize(("method", "options"), FORMS)
def test_onnx_keeps_the_same_classes(method, options, tmp_path):
    sets = made(method, options)
    path = export_sets(sets, tmp_path / "sets.onnx", n_classes=5)
    session = onnxruntime.InferenceSession(str(path))
    wanted = sets.predict(PROBS)
    assert 0 < wanted.mean() < 1
    np.testing.assert_array_equal(session.run(["sets"], {"probs": PROBS})[0], wanted)
    np.testing.assert_array_equal(session.run(["sets"], {"probs": PROBS[:1]})[0], wanted[:1])


@pytest.mark.parametrize(
    ("method", "options"), [*FORMS, ("aps", {}), ("raps", {"per_class": True})]
)
def test_torch_keeps_the_same_classes(method, options):
    sets = made(method, options)
    np.testing.assert_array_equal(
        keep_classes(sets, torch.from_numpy(PROBS)).numpy(), sets.predict(PROBS)
    )


def test_equal_probabilities_are_ranked_alike(tmp_path):
    sets = PredictionSets("aps", 0.9, (0.5,), randomised=False)
    even = np.full((1, 4), 0.25, dtype=np.float32)
    session = onnxruntime.InferenceSession(
        str(export_sets(sets, tmp_path / "sets.onnx", n_classes=4))
    )
    assert session.run(["sets"], {"probs": even})[0].tolist() == sets.predict(even).tolist()
    assert keep_classes(sets, torch.from_numpy(even)).tolist() == sets.predict(even).tolist()


def test_a_limit_without_end_keeps_every_class(tmp_path):
    sets = PredictionSets("lac", 0.9, (math.inf,))
    session = onnxruntime.InferenceSession(
        str(export_sets(sets, tmp_path / "sets.onnx", n_classes=5))
    )
    assert session.run(["sets"], {"probs": PROBS})[0].all()


def test_random_parts_cannot_be_written_and_that_is_said(tmp_path):
    with pytest.raises(InputError, match="randomised=False"):
        export_sets(PredictionSets("aps", 0.9, (0.9,)), tmp_path / "sets.onnx", n_classes=5)
