"""An ensemble, with and without views, answers in torch and ONNX as in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recal import AutoCalibration, Views, export_onnx, pool
from recal.calibrators import CalibrationEnsemble
from recal.export import export_calibration

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")


def looks(n_classes=4, n=700, tilt=0.6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    own, view = (3.0 * np.eye(n_classes)[y] + rng.normal(size=(n, n_classes)) * 2 for _ in range(2))
    own[::7] *= 6
    tilted = own + tilt * np.arange(n_classes)
    return Views(tilted.astype(np.float32), {"flip": view.astype(np.float32)}), y


@pytest.fixture(
    scope="module",
    params=[("kept", True), ("free", True), ("kept", False), ("kept", "everywhere")],
    ids=str,
)
def fitted(request):
    answers, with_views = request.param
    views, y = looks()
    ensemble = CalibrationEnsemble(answers=answers, max_views=1 if with_views else 0).fit(views, y)
    assert bool(ensemble.needed_transforms()) == bool(with_views)
    if (
        with_views == "everywhere"
    ):  # every part of a blend above the gate too, as where a member replaces the mixture
        whole = replace(
            ensemble.plan_,
            own=0.2,
            gated_own=0.4,
            gated_mixture=0.5,
            gated_offsets=(0.3, 0, 0, -0.2),
        )
        ensemble.map_ = replace(ensemble.map_, plan=whole)
    return ensemble, looks(seed=1)[0]


def test_torch_operations_and_the_reference_agree(fitted):
    from recal.export.torch_module import CalibrationLayer

    ensemble, views = fitted
    replay = CalibrationLayer(ensemble)
    logits = torch.from_numpy(np.array(views.logits))
    transformed = torch.from_numpy(
        np.array([views.transformed(t) for t in ensemble.needed_transforms()])
    )
    if not len(transformed):
        transformed = torch.zeros(0, *logits.shape)
    expected, confidence = ensemble.predict_both(views)
    for found, sure in (replay.both(logits, transformed), replay.by_torch(logits, transformed)):
        np.testing.assert_allclose(found.softmax(1).numpy(), expected, atol=1e-5)
        np.testing.assert_array_equal(found.argmax(1).numpy(), expected.argmax(axis=1))
        np.testing.assert_allclose(sure.numpy(), confidence, atol=1e-5)


def test_an_exported_program_answers_the_same(fitted):
    from recal import CalibratedModule

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    with torch.no_grad():
        net[1].weight.mul_(8)
        module, images = CalibratedModule(net, fitted[0]), torch.rand(9, 1, 4, 4)
        rows = torch.export.Dim("rows", min=2)
        program = torch.export.export(module, (images,), dynamic_shapes=({0: rows},)).module()
        np.testing.assert_allclose(
            program(images[:4]).numpy(), module(images[:4]).numpy(), atol=1e-6
        )


def test_the_replay_in_onnx_agrees(fitted, tmp_path):
    ensemble, views = fitted
    session = onnxruntime.InferenceSession(export_calibration(ensemble, tmp_path / "replay.onnx"))
    feeds = {"logits": np.array(views.logits)}
    if ensemble.needed_transforms():
        feeds["transformed"] = np.array(
            [views.transformed(t) for t in ensemble.needed_transforms()]
        )
    expected, confidence = ensemble.predict_both(views)
    probs, found = session.run(["probs", "confidence"], feeds)
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    np.testing.assert_array_equal(probs.argmax(axis=1), expected.argmax(axis=1))
    np.testing.assert_allclose(found, confidence, atol=1e-5)


def test_one_onnx_file_asks_for_views_below_the_gate_alone(tmp_path):
    from recal import CalibratedModule

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    images = rng.normal(size=(900, 1, 4, 4)).astype(np.float32) * 0.3
    images[np.arange(900), 0, y, :] += 0.35
    images = np.clip(images + 0.3, 0, 1).astype(np.float32)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    with torch.no_grad():
        net[1].weight[:] = (
            torch.from_numpy(np.repeat(np.eye(4)[:3], 4, axis=1).astype(np.float32)) * 4
        )
        net[1].weight[:, ::2] = 0
        own = net(torch.from_numpy(images)).numpy()
        seen = net(torch.from_numpy(np.ascontiguousarray(images[:, :, :, ::-1]))).numpy()
    flip = pool("flip")[0]
    views = Views(own, {flip: seen})
    ensemble = AutoCalibration().fit(views, y)
    assert ensemble.choice_ == "ensemble"
    assert ensemble.needed_transforms() == (flip,)
    module = CalibratedModule(net, ensemble)
    expected = ensemble.predict_proba(views)
    np.testing.assert_allclose(
        module(torch.from_numpy(images)).detach().softmax(1).numpy(), expected, atol=1e-5
    )
    path = export_onnx(module, torch.from_numpy(images[:1]), tmp_path / "whole.onnx")
    probs, passes = onnxruntime.InferenceSession(path).run(["probs", "passes"], {"inputs": images})
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    np.testing.assert_array_equal(passes, 1 + ensemble.plan_.needs_views(own))
    assert 0 < (passes == 1).sum() < 900
