"""Every runtime agrees with the reference on random plans, whatever the rule, the classes or the
saturation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from recal import Blend, Plan, Step, Views
from recal.export import torch_module
from recal.export.calibration import calibration_of
from recal.export.onnx_file import calibration_model
from recal.maps import steps as steps_module
from recal.maps.arrays import top_column
from recal.maps.guard import answer, bounded, keep_answers, lift_answers

Runtime = Callable[[Plan, np.ndarray, np.ndarray], np.ndarray]


def by_torch(plan: Plan, logits: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    tensors = torch.from_numpy(logits), torch.from_numpy(transformed)
    return torch_module.by_torch(calibration_of(plan), *tensors)[0].double().softmax(1).numpy()


def by_torch_on_the_cpu(plan: Plan, logits: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    tensors = torch.from_numpy(logits), torch.from_numpy(transformed)
    return torch_module.calibrated(calibration_of(plan), *tensors)[0].double().softmax(1).numpy()


def by_onnx(plan: Plan, logits: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    model = calibration_model(calibration_of(plan), logits.shape[1])
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    inputs = (
        {"logits": logits, "transformed": transformed} if plan.transforms else {"logits": logits}
    )
    return session.run(["probs"], inputs)[0]


def by_numba(plan: Plan, logits: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    """The compiled loops, whatever the size; they agree with the arrays' function to 1e-12."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_module, "SMALL", 0)
        probs = answer(plan, logits, list(transformed), kept=plan.keeps_answers)[0]
    np.testing.assert_allclose(
        probs, expected_arrays(plan, logits, transformed), rtol=0, atol=1e-12
    )
    return probs


RUNTIMES: tuple[Runtime, ...] = (by_numba, by_torch, by_torch_on_the_cpu, by_onnx)
every_runtime = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.__name__)


def expected_arrays(
    plan: Plan, logits: np.ndarray, transformed: Sequence[np.ndarray] | np.ndarray
) -> np.ndarray:
    """What the plan's function of arrays gives in numpy."""
    z, views = np.float64(logits), [np.float64(view) for view in transformed]
    column = top_column(z)
    own = plan.probs(z, views)
    if plan.keeps_answers:
        own = lift_answers(bounded(keep_answers(own, column)), column)
    return bounded(own)


def expected_probs(plan: Plan, views: Views) -> np.ndarray:
    return expected_arrays(plan, views.logits, [views.transformed(t) for t in plan.transforms])


def random_plan(
    seed: int, n_classes: int, confidence_at: Any = "original"
) -> tuple[Plan, Views, np.ndarray]:
    """Logits of every temper, from flat to saturated, with views from identical to unrelated."""
    rng = np.random.default_rng(seed)
    n, specs = 120, [f"zoom:0.{digit}" for digit in range(3, 3 + int(rng.integers(1, 6)))]
    logits = rng.normal(size=(n, n_classes)) * rng.choice([1, 5, 30], (n, 1))
    logits[np.arange(n), rng.integers(0, n_classes, n)] += rng.choice([0, 18], n)
    logits = logits.astype(np.float32)
    views = {}
    for spec in specs:
        noise = rng.normal(size=logits.shape) * rng.choice([0, 1e-3, 1, 5], (n, 1))
        views[spec] = (logits + noise).astype(np.float32)
    steps = [Step(str(rng.choice(specs)), tuple(rng.uniform(0.5, 1.3, 4))) for _ in range(15)]
    steps.insert(3, Step("zoom:0.99", (1.0, 1.0, 1.0, 1.0)))
    plan = Plan(tuple(steps), rng.uniform(0.3, 1.5), rng.uniform(0.5, 1.5), confidence_at)
    return plan, Views(logits, views), np.stack([views[str(t)] for t in plan.transforms])


def random_blend(seed, n_classes, *, gate=0.9, answers="kept", n_views=2, by_class=False):
    """The same logits under a random blend: `random_plan`'s counterpart for the plan's second
    shape.

    With a gate the views' rows of samples that need none hold arbitrary numbers: no runtime may
    read them. Confidences keep clear of the gate, since float32 and float64 may round to different
    sides of it.
    """
    _, views, transformed = random_plan(seed, n_classes)
    rng = np.random.default_rng(seed + 1000)
    names = [str(transform) for transform in views.transforms][:n_views]
    offsets, gated = rng.normal(size=(2, n_classes)) * 0.3
    weights = tuple((name, float(rng.uniform(0.1, 0.6))) for name in names)
    values = 0.7, weights, tuple(offsets), 1 / 501, gate, 1.1, tuple(gated), answers
    matrices = rng.normal(size=(1 + len(weights), n_classes, n_classes)) * 0.2 / n_classes
    blend = Blend(*values, matrices=matrices.tolist() if by_class else [])
    plan = replace(blend, start=float(rng.uniform(0.3, 1.0)))
    if gate is not None:
        wide = plan.start * views.logits.astype(np.float64)
        confidence = 1.0 / np.exp(wide - wide.max(1, keepdims=True)).sum(1)
        views = views[np.abs(confidence - gate) > 1e-4]
    needed = plan.needs_views(views.logits)
    stack = [
        np.where(needed[:, None], views.transformed(name), rng.normal(size=views.logits.shape))
        for name in names
    ]
    transformed = np.array(stack, dtype=np.float32).reshape(-1, *views.logits.shape)
    return plan, Views(views.logits, dict(zip(names, transformed))), transformed


@every_runtime
@pytest.mark.parametrize("confidence_at", ["original", "own"])
def test_agrees_with_numpy(runtime: Runtime, confidence_at: str) -> None:
    for n_classes in (2, 9, 129, 1000):
        plan, views, transformed = random_plan(n_classes, n_classes, confidence_at)
        probs = runtime(plan, views.logits, transformed)
        np.testing.assert_allclose(probs, expected_probs(plan, views), rtol=0, atol=1e-6)
        assert (probs.argmax(1) == views.logits.argmax(1)).all()


@every_runtime
@pytest.mark.parametrize("answers", ["kept", "free"])
@pytest.mark.parametrize("gate", [None, 0.9])
@pytest.mark.parametrize("by_class", [False, True])
def test_blends_agree_with_numpy(
    runtime: Runtime, answers: str, gate: float | None, by_class: bool
) -> None:
    for seed, n_classes in enumerate((2, 3, 10, 150)):
        plan, views, transformed = random_blend(
            seed, n_classes, answers=answers, gate=gate, n_views=1 + seed % 3, by_class=by_class
        )
        probs, expected = runtime(plan, views.logits, transformed), expected_probs(plan, views)
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-6)
        assert (probs.argmax(1) == expected.argmax(1)).all()
        if answers == "kept":
            assert (probs.argmax(1) == views.logits.argmax(1)).all()


@every_runtime
def test_a_blend_reads_no_view_of_samples_above_its_gate(runtime: Runtime) -> None:
    plan, views, transformed = random_blend(3, 10)
    needed = plan.needs_views(views.logits)
    assert 0 < needed.sum() < len(needed)
    other = transformed.copy()
    other[:, ~needed] = 0.0
    np.testing.assert_array_equal(
        runtime(plan, views.logits, other), runtime(plan, views.logits, transformed)
    )


@every_runtime
@pytest.mark.parametrize("n_classes", [10, 100])
@pytest.mark.parametrize("near", [False, True], ids=["views apart", "views that nearly tie"])
def test_long_plans_agree(runtime: Runtime, n_classes: int, near: bool) -> None:
    rng = np.random.default_rng(n_classes)
    specs = [f"zoom:0.{digit}" for digit in range(1, 8)]
    steps = tuple(
        Step(str(rng.choice(specs)), tuple(np.exp(rng.normal(0, 0.1, 4)))) for _ in range(80)
    )  # type: ignore[arg-type]
    plan = Plan(steps)
    logits = (rng.normal(size=(12, n_classes)) * rng.choice([1, 6], (12, 1))).astype(np.float32)
    noise = rng.normal(size=(len(plan.transforms), *logits.shape)) * (1e-6 if near else 1.0)
    transformed = (logits + noise).astype(np.float32)
    expected = expected_arrays(plan, logits, transformed)
    np.testing.assert_allclose(runtime(plan, logits, transformed), expected, rtol=0, atol=1e-6)
