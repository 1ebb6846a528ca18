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
from recal import (
    AutoCalibration,
    Blend,
    CalibratedClassifier,
    CalibratedModule,
    DecisionRule,
    Group,
    Plan,
    ReCal,
    Step,
    TemperatureScaling,
    Views,
    ViewStacking,
    collect,
    compare,
    decide,
    evaluate,
    group,
    load,
    metrics,
    pool,
    prediction_sets,
    read_views,
    save,
)
from recal.calibrators import (
    CALIBRATORS,
    Calibrator,
    EnsembleTemperatureScaling,
    IsotonicCalibration,
    StructuredMatrixScaling,
    VectorScaling,
    ViewAveraging,
)
from recal.collecting import (
    ImageFolder,
    Normalize,
    OnnxModel,
    RayEngine,
    apply_distributed,
    as_model,
)
from recal.comparison import Comparison
from recal.decisions import (
    Decision,
    Decisions,
    PredictionSets,
    StreamWatch,
    decide_each,
    profile,
    watch,
)
from recal.errors import InputError, MissingExtraError
from recal.metrics import Evaluation, calibration_test
from recal.transforms import Transform, ZoomOut, as_transform

Floats = NDArray[np.floating]


def views_of_a_model(images: NDArray[np.uint8], labels: NDArray[np.int64], folder: Path) -> Views:
    def network(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        return batch.reshape(len(batch), -1)[:, :10]

    transforms = pool("zoom:0.1-0.9:20+brightness:0.1-0.9:10", seed=0)
    assert_type(transforms, tuple[Transform, ...])
    views = collect(
        network,
        images,
        transforms,
        labels=labels,
        preprocess=Normalize(),
        out=folder / "views.zarr",
    )
    assert_type(views, Views)
    assert_type(views[:100], Views)
    assert_type(views.transforms, tuple[Transform, ...])
    views.write(folder / "copy.npz")
    return read_views(folder / "copy.npz")


def fit_and_use(views: Views, y: NDArray[np.int64], path: Path) -> Floats:
    calibrator = ReCal(max_iter=50, guard="ece", random_state=0).fit(views, y)
    assert_type(calibrator, ReCal)
    assert_type(calibrator.plan_, Plan)
    for step in calibrator.plan_.steps:
        assert_type(step, Step)
        assert_type(step.transform, Transform)
        assert_type(step.betas, tuple[float, float, float, float])
    others: list[Calibrator] = [
        TemperatureScaling().fit(views, y),
        VectorScaling().fit(views.logits, y),
        IsotonicCalibration().fit(views.logits, y),
        EnsembleTemperatureScaling().fit(views.logits, y),
        StructuredMatrixScaling().fit(views.logits, y),
        ViewAveraging().fit(views, y),
        ViewStacking(answers="free", max_views=1, gate=None).fit(views, y),
        AutoCalibration().fit(views, y),
    ]
    probs = [other.predict_proba(views) for other in others]
    save(calibrator, path)
    again = load(path)
    if isinstance(again, Calibrator):
        assert_type(again.predict(views).ndim, int)
    assert_type([known.short_name for known in CALIBRATORS], list[str])
    return probs[0]


def judge_and_decide(views: Views, probs: Floats, y: NDArray[np.int64]) -> bool:
    assert_type(metrics.ece(probs, y), float)
    assert_type(metrics.brier(probs, y), float)
    judged = evaluate(probs, y, bootstrap=200)
    assert_type(judged, Evaluation)
    assert_type(calibration_test(probs, y).p_value, float)
    table = compare([TemperatureScaling(), ReCal()], views[:100], views[100:])
    assert_type(table, Comparison)
    decision = decide(probs, y, risk=0.01, confidence=0.95)
    assert_type(decision, Decision)
    assert_type(decide_each({"ts": probs}, y, risk=0.05), Decisions)
    assert_type(prediction_sets(probs, y, coverage=0.9), PredictionSets)
    groups = group(views.logits, views.transformed("zoom:0.5"))
    return bool(np.any(groups == Group.CHANGED_ROSE))


def accept(rule: DecisionRule, probs: Floats) -> NDArray[np.bool_]:
    return rule.accept(probs)


def watch_new_inputs(views: Views, new: Views) -> bool:
    known = profile(views)
    stream = StreamWatch(known)
    assert_type(stream, StreamWatch)
    return bool(watch(known, new).alarm)


def wrap_models(images: NDArray[np.uint8], y: NDArray[np.int64], path: Path) -> Floats:
    classifier = CalibratedClassifier(OnnxModel(path), pool="zoom:0.5-0.9:10").fit(images, y)
    assert_type(classifier, CalibratedClassifier)
    as_model(path)
    assert_type(ImageFolder(path), ImageFolder)
    assert_type(RayEngine(), RayEngine)
    apply_distributed(classifier.calibrator_, OnnxModel(path), images, path / "probs.zarr")
    return classifier.predict_proba(images)


class Halve:
    """A transformation of one's own."""

    spec = "halve"

    def __call__(self, batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return batch // 2


def refusals() -> str:
    try:
        ZoomOut(scale=2.0)
    except InputError as error:
        return str(error)
    except (MissingExtraError, recal.errors.FileError) as error:
        return str(error)
    assert_type(as_transform("zoom:0.5"), Transform)
    assert_type(recal.__version__, str)
    return str([Blend, CalibratedModule])
