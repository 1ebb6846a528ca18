"""The replay of a blend against the formula written out, sample by sample."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from recal import Blend, Views
from recal.errors import InputError
from recal.maps.guard import keep_answers
from recal.maps.steps import calibrated_probs


def random_blend(
    seed=0, n=60, n_classes=4, gate=0.9, answers="kept", dtype=np.float32, by_class=False
):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n, n_classes)) * rng.choice([1, 4, 300], (n, 1))).astype(dtype)
    noise = rng.normal(size=(2, n, n_classes))
    views = {spec: (logits + one).astype(dtype) for spec, one in zip(("zoom:0.5", "mine"), noise)}
    offsets, gated = rng.normal(size=(2, n_classes)) * 0.5
    weights = ("mine", 0.5), ("zoom:0.5", 0.2)
    blend = Blend(0.7, weights, tuple(offsets), 1e-3, gate, 1.1, tuple(gated), answers)
    if by_class:
        matrices = rng.normal(size=(3, n_classes, n_classes)).tolist()
        blend = dataclasses.replace(blend, matrices=matrices)
    return dataclasses.replace(blend, start=0.6), Views(logits, views)


def by_the_formula(plan, views, row):
    blend, n_classes = plan, views.n_classes

    def softmax(values):
        top = max(values)
        weights = [math.exp(v - top) for v in values]
        return [w / sum(weights) for w in weights]

    def x(logits):
        probs = softmax([plan.start * float(z) for z in logits])
        return [math.log((1 - blend.epsilon) * p + blend.epsilon / n_classes) for p in probs]

    own = views.logits[row]
    sure = (
        blend.gate is not None and max(softmax([plan.start * float(z) for z in own])) >= blend.gate
    )
    scores = [(blend.gated_own if sure else blend.own) * value for value in x(own)]
    scores = [s + c for s, c in zip(scores, blend.gated_offsets if sure else blend.offsets)]
    if not sure:
        for transform, weight in blend.weights:
            scores = [s + weight * v for s, v in zip(scores, x(views.transformed(transform)[row]))]
        for matrix, z in zip(
            blend.matrices, [own, *(views.transformed(t)[row] for t in plan.transforms)]
        ):
            scores = [s + sum(m * v for m, v in zip(line, x(z))) for s, line in zip(scores, matrix)]
    return softmax(scores)


@pytest.mark.parametrize("n_classes", [2, 4, 33])
@pytest.mark.parametrize("gate", [None, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("by_class", [False, True])
def test_agrees_with_the_formula(n_classes, gate, dtype, by_class):
    plan, views = random_blend(
        n_classes, n_classes=n_classes, gate=gate, answers="free", dtype=dtype, by_class=by_class
    )
    expected = np.array([by_the_formula(plan, views, row) for row in range(len(views))])
    np.testing.assert_allclose(calibrated_probs(plan, views), expected, rtol=0, atol=1e-12)
    kept = dataclasses.replace(plan, answers="kept")
    expected = keep_answers(expected, views.logits.argmax(1)[:, None])
    np.testing.assert_allclose(calibrated_probs(kept, views), expected, rtol=0, atol=1e-12)


def test_samples_that_need_no_views_are_answered_without_any():
    plan, views = random_blend(n=200)
    sure = np.flatnonzero(~plan.needs_views(views.logits))
    alone = calibrated_probs(plan, Views(views.logits[sure]))
    np.testing.assert_array_equal(alone, calibrated_probs(plan, views)[sure])
    with pytest.raises(InputError, match=r"needs logits of mine, zoom:0\.5"):
        calibrated_probs(plan, Views(views.logits))
