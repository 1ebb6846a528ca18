"""Exported files: pixels, gates, dtypes, outputs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from recal import Blend, CalibratedModule, DecisionRule, Plan, TemperatureScaling, Views
from recal.errors import InputError
from recal.export import export_onnx
from recal.maps.steps import calibrated_probs
from tests.unit.export.onnx_zoo import linear, outputs_of

BLEND = Blend(0.6, (("zoom:0.5", 0.5), ("flip", 0.4)), (), 1e-4, gate=0.9, gated_own=1.2, start=0.5)


def expected(weights: np.ndarray, images: np.ndarray, plan: Plan) -> np.ndarray:
    def logits(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float32).reshape(len(x), -1) @ weights

    return calibrated_probs(
        plan, Views(logits(images), {t: logits(t(images)) for t in plan.transforms})
    )


def images(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 1, 6, 6), dtype=np.float32)


def test_old_runtimes_can_read_the_file_and_nothing_is_in_it_twice(tmp_path: Path) -> None:
    model, _ = linear(tmp_path / "linear.onnx", domain="ai.onnx")
    gated = onnx.load(export_onnx(model, path=tmp_path / "gated.onnx", plan=BLEND))
    assert [(entry.domain, entry.version) for entry in gated.opset_import] == [("", 18)]
    assert gated.ir_version <= 9
    assert sum(constant.name.endswith("_w") for constant in gated.graph.initializer) == 1


def test_a_softmax_at_the_end_is_refused_or_said(tmp_path: Path) -> None:
    model, weights = linear(tmp_path / "soft.onnx", softmax=True)
    plan = Plan(start=0.5)
    with pytest.raises(InputError, match=r"ends in a softmax.*outputs='probabilities'"):
        export_onnx(model, path=tmp_path / "x.onnx", plan=plan)
    path = export_onnx(model, path=tmp_path / "x.onnx", plan=plan, outputs="probabilities")
    np.testing.assert_allclose(
        outputs_of(path, images(4))["probs"], expected(weights, images(4), plan), atol=1e-5
    )
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 5), torch.nn.Softmax(1))
    with pytest.raises(InputError, match=r"ends in a softmax"):
        export_onnx(network, images(1), tmp_path / "x.onnx", plan=plan)
    with pytest.raises(InputError, match="got 'scores'"):
        export_onnx(model, path=tmp_path / "x.onnx", plan=plan, outputs="scores")


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8"])
def test_inputs_of_another_dtype_than_the_models(tmp_path: Path, dtype: str) -> None:
    model, weights = linear(tmp_path / "linear.onnx")
    batch = (images(6) * (3 if dtype == "uint8" else 1)).astype(dtype)
    plan = BLEND if dtype == "uint8" else Plan(start=0.7)
    path = export_onnx(model, np.zeros((1, 1, 6, 6), dtype), tmp_path / "x.onnx", plan=plan)
    np.testing.assert_allclose(
        outputs_of(path, batch)["probs"], expected(weights, batch, plan), atol=1e-5
    )


@pytest.mark.parametrize("thresholds", [(0.5,), (0.9, 0.2, 0.5, 0.7, 0.4)])
def test_accept_by_the_rule_of_the_calibrator_or_another(
    tmp_path: Path, thresholds: tuple[float, ...]
) -> None:
    model, _ = linear(tmp_path / "linear.onnx")
    labels = np.arange(400) % 5
    logits = 6 * np.eye(5)[labels] + np.random.default_rng(0).normal(0, 2, (400, 5))
    calibrator = TemperatureScaling().fit(logits, labels)
    calibrator.decision_ = rule = DecisionRule(thresholds, 0.01, 0.95)
    path = export_onnx(model, path=tmp_path / "x.onnx", plan=calibrator)
    found = outputs_of(path, images(40) * 0.2)
    np.testing.assert_array_equal(found["accept"], rule.accept(found["probs"]))
    assert 0 < found["accept"].sum() < 40
    facts = {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}
    assert facts["recal_thresholds"] == list(thresholds)
    again = export_onnx(model, path=tmp_path / "y.onnx", plan=calibrator, accept=rule)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "accept",
    [
        0.5,
        DecisionRule((0.1, 0.2, 0.3), 0.01, 0.95),
        DecisionRule((0.9, 0.2, 0.5, 0.7, 0.4), 0.01, 0.95, groups=("a", "b", "c", "d", "e")),
    ],
)
def test_rules_that_no_file_can_hold_are_refused(tmp_path: Path, accept: Any) -> None:
    model, _ = linear(tmp_path / "linear.onnx")
    with pytest.raises(InputError, match="one threshold or one for each of 5 classes"):
        export_onnx(model, path=tmp_path / "x.onnx", plan=Plan(), accept=accept)
    assert not (tmp_path / "x.onnx").exists()


def test_a_torch_model_with_a_gate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 5)
    )
    with torch.no_grad():
        network[-1].weight.mul_(90)  # type: ignore[union-attr, operator]
    module = CalibratedModule(network, BLEND, preprocess=lambda rows: (rows - 0.01) / 0.98)
    path = export_onnx(module, images(1), tmp_path / "net.onnx")
    batch = images(30)
    with torch.no_grad():
        probs = module(torch.from_numpy(batch)).softmax(1).numpy()
    found = outputs_of(path, batch)
    np.testing.assert_allclose(found["probs"], probs, atol=1e-5)
    assert set(found["passes"]) == {1, 3}
    np.testing.assert_allclose(outputs_of(path, batch[:1])["probs"], probs[:1], atol=1e-5)
