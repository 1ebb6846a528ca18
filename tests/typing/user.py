"""A program as users write it, for type checkers: `make check` runs mypy on it, `make test-extras`
also pyright.

It is never run. Every `assert_type` says what an editor must know about a public name; `Any` would
fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import recal
from recal import calibrators, collecting, decisions, metrics, transforms
from recal.comparison import Comparison
from recal.errors import InputError, MissingExtraError

Floats = NDArray[np.floating]


def views_of_a_model(
    images: NDArray[np.uint8], labels: NDArray[np.int64], folder: Path
) -> recal.Views:
    def network(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        return batch.reshape(len(batch), -1)[:, :10]

    chosen = recal.pool("zoom:0.1-0.9:20+brightness:0.1-0.9:10", seed=0)
    assert_type(chosen, tuple[transforms.Transform, ...])
    views = recal.collect(
        network,
        images,
        chosen,
        labels=labels,
        preprocess=collecting.Normalize(),
        out=folder / "views.zarr",
    )
    assert_type(views, recal.Views)
    assert_type(views[:100], recal.Views)
    assert_type(views.transforms, tuple[transforms.Transform, ...])
    views.write(folder / "copy.npz")
    return recal.read_views(folder / "copy.npz")


def fit_and_use(views: recal.Views, y: NDArray[np.int64], path: Path) -> Floats:
    calibrator = recal.ReCal(max_iter=50, guard="ece", random_state=0).fit(views, y)
    assert_type(calibrator, recal.ReCal)
    assert_type(calibrator.plan_, recal.Plan)
    for step in calibrator.plan_.steps:
        assert_type(step, recal.Step)
        assert_type(step.transform, transforms.Transform)
        assert_type(step.betas, tuple[float, float, float, float])
    others: list[calibrators.Calibrator] = [
        recal.TemperatureScaling().fit(views, y),
        calibrators.VectorScaling().fit(views.logits, y),
        calibrators.IsotonicCalibration().fit(views.logits, y),
        calibrators.EnsembleTemperatureScaling().fit(views.logits, y),
        calibrators.StructuredMatrixScaling().fit(views.logits, y),
        calibrators.ViewAveraging().fit(views, y),
        recal.ViewStacking(answers="free", max_views=1, gate=None).fit(views, y),
        recal.AutoCalibration().fit(views, y),
    ]
    probs = [other.predict_proba(views) for other in others]
    recal.save(calibrator, path)
    again = recal.load(path)
    if isinstance(again, calibrators.Calibrator):
        assert_type(again.predict(views).ndim, int)
    assert_type([known.short_name for known in calibrators.CALIBRATORS], list[str])
    return probs[0]


def judge_and_decide(views: recal.Views, probs: Floats, y: NDArray[np.int64]) -> bool:
    assert_type(metrics.ece(probs, y), float)
    assert_type(metrics.brier(probs, y), float)
    judged = recal.evaluate(probs, y, bootstrap=200)
    assert_type(judged, metrics.Evaluation)
    assert_type(metrics.calibration_test(probs, y).p_value, float)
    table = recal.compare([recal.TemperatureScaling(), recal.ReCal()], views[:100], views[100:])
    assert_type(table, Comparison)
    decision = recal.decide(probs, y, risk=0.01, confidence=0.95)
    assert_type(decision, decisions.Decision)
    assert_type(recal.prediction_sets(probs, y, coverage=0.9), decisions.PredictionSets)
    groups = recal.group(views.logits, views.transformed("zoom:0.5"))
    return bool(np.any(groups == recal.Group.CHANGED_ROSE))


def accept(rule: recal.DecisionRule, probs: Floats) -> NDArray[np.bool_]:
    return rule.accept(probs)


def watch_new_inputs(views: recal.Views, new: recal.Views) -> bool:
    known = decisions.profile(views)
    return bool(decisions.watch(known, new).alarm)


def wrap_models(images: NDArray[np.uint8], y: NDArray[np.int64], path: Path) -> Floats:
    classifier = recal.CalibratedClassifier(collecting.OnnxModel(path), pool="zoom:0.5-0.9:10").fit(
        images, y
    )
    assert_type(classifier, recal.CalibratedClassifier)
    collecting.as_model(path)
    assert_type(collecting.ImageFolder(path), collecting.ImageFolder)
    assert_type(collecting.RayEngine(), collecting.RayEngine)
    return classifier.predict_proba(images)


class Halve:
    """A transformation of one's own."""

    spec = "halve"

    def __call__(self, batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return batch // 2


def refusals() -> str:
    try:
        transforms.ZoomOut(scale=2.0)
    except InputError as error:
        return str(error)
    except (MissingExtraError, recal.errors.FileError) as error:
        return str(error)
    assert_type(transforms.as_transform("zoom:0.5"), transforms.Transform)
    assert_type(recal.__version__, str)
    return str([recal.Blend, recal.CalibratedModule])
