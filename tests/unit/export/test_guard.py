"""The guard that keeps answers: it keeps them, changes nothing else, and no other way of keeping
them costs less.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from recal import Blend, Plan
from recal.maps.guard import keep_answers, lift_answers


def rows(seed: int, n: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(n_classes, 0.3), n), rng.integers(0, n_classes, n)


@pytest.mark.parametrize("top", [0, 1, 2])
def test_a_tie_is_lifted_by_one_unit_in_the_last_place(top):
    third = 1 / 3
    probs = lift_answers(np.full((1, 3), third), np.array([[top]]))
    assert probs[0].argmax() == top
    assert probs[0, top] <= np.nextafter(third, 1)


def test_values_the_wrong_way_round_are_swapped():
    assert lift_answers(np.array([[0.3, 0.1, 0.6]]), np.array([[0]])).tolist() == [[0.6, 0.1, 0.3]]


def test_an_answer_of_probability_zero_shares_with_its_rival():
    np.testing.assert_allclose(
        keep_answers(np.array([[1.0, 0.0, 0.0]]), np.array([[1]])), [[0.5, 0.5, 0.0]], atol=1e-6
    )


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_no_other_probabilities_that_keep_the_answer_have_a_smaller_expected_score(score):
    probs, answers = rows(2, 12, 4)
    probs = np.maximum(probs, 0.02)
    probs /= probs.sum(1, keepdims=True)

    for belief, answer, kept in zip(probs, answers, keep_answers(probs, answers[:, None])):

        def expected(q, belief=belief):
            if score == "nll":
                return -belief @ np.log(np.maximum(q, 1e-12))
            return np.sum((q - belief) ** 2)

        rules = [{"type": "eq", "fun": lambda q: q.sum() - 1}]
        rules += [
            {"type": "ineq", "fun": lambda q, j=j, a=answer: q[a] - q[j]}
            for j in range(4)
            if j != answer
        ]
        options = {"ftol": 1e-12, "maxiter": 500}
        best = minimize(
            expected, np.full(4, 0.25), bounds=[(1e-4, 1)] * 4, constraints=rules, options=options
        )
        assert best.success
        np.testing.assert_allclose(kept, best.x, atol=2e-3)
        assert expected(kept) <= best.fun + 1e-5


@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan(start=9.0), Blend(1.0, (), (0.5, 0.0, 0.0), 1e-300)],
    ids=["plain", "sharp", "guarded"],
)
def test_an_exported_file_never_answers_with_exactly_0_or_1(plan, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from recal.export import export_calibration

    logits = np.array([[0.0, 600.0, -600.0], [30.0, 0.0, 0.0], [1.0, 0.5, 0.2]], np.float32)
    path = export_calibration(plan, tmp_path / "calibration.onnx", n_classes=3)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    probs, confidence = session.run(["probs", "confidence"], {"logits": logits})
    for values in (probs, confidence):
        assert 0.0 < values.min() <= values.max() < 1.0
    assert (probs.argmax(1) == logits.argmax(1)).all()
