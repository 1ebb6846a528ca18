"""Every method that can be written as ONNX operations answers as in numpy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from recal import AutoCalibration, TemperatureScaling, Views
from recal.calibrators import CALIBRATORS, Calibrator, EnsembleTemperatureScaling, OrderPreserving, VectorScaling
from recal.errors import InputError
from recal.export.aggregations import AGGREGATIONS
from recal.export.heads import Head, head_model, head_of
from recal.export.methods import METHODS

_SEARCH = {"penalty": (1.0, 10.0), "intercept_penalty": 1.0, "random_state": 0}
SETTINGS: dict[str, dict[str, Any]] = dict.fromkeys(("MatrixScaling", "DirichletCalibration"), _SEARCH)
SETTINGS["GaussianProcessCalibration"] = {"n_points": 6, "n_draws": 4, "max_search": 500, "random_state": 0}
SETTINGS["OrderPreserving"] = {"max_iter": 30, "random_state": 0}


def problem(n_classes: int, n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits, some of them saturated, and their labels."""
    rng = np.random.default_rng(n_classes)
    honest = rng.normal(size=(n, n_classes)) * 1.5
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(1)
    return (honest * rng.choice([1, 3, 12], (n, 1))).astype(np.float32), labels


def by_onnx(calibrator: Calibrator, logits: np.ndarray, output: str = "probs") -> np.ndarray:
    model = head_model(head_of(calibrator), logits.shape[1])
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([output], {"logits": logits})[0]


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_agrees_with_numpy(method: type[Any], n_classes: int) -> None:
    logits, labels = problem(n_classes)
    for answers in ("free", "kept") if "answers" in method().get_params() else (None,):
        options = SETTINGS.get(method.__name__, {}) | ({} if answers is None else {"answers": answers})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = method(**options).fit(logits[:400], labels[:400])
        expected, found = calibrator.predict_proba(logits), by_onnx(calibrator, logits)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        sure = by_onnx(calibrator, logits, "confidence")
        np.testing.assert_allclose(sure, calibrator.predict_confidence(logits), rtol=0, atol=1e-6)
        clear = np.sort(expected, axis=1)[:, -1] - np.sort(expected, axis=1)[:, -2] > 1e-6
        assert (found.argmax(1) == expected.argmax(1))[clear].all()


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("method", AGGREGATIONS, ids=lambda method: method.__name__)
def test_aggregations_of_views_agree_with_numpy(method: type[Any], n_classes: int) -> None:
    logits, labels = problem(n_classes, 300)
    noise = np.random.default_rng(0).normal(size=(2, *logits.shape)).astype(np.float32)
    views = Views(logits, dict(zip(("flip", "zoom:0.5"), logits + noise)), labels)
    for answers in ("free", "kept") if "answers" in method().get_params() else (None,):
        options = {} if answers is None else {"answers": answers}
        options |= {"epochs": 3} if "epochs" in method().get_params() else {}
        options |= {"draws": 20} if "draws" in method().get_params() else {}
        options |= {"temperature": True} if "temperature" in method().get_params() else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = method(**options).fit(views)
        model = head_model(head_of(calibrator), n_classes)
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        transformed = np.stack([views.transformed(t) for t in calibrator.needed_transforms()])
        found = session.run(["probs", "confidence"], {"logits": logits, "transformed": transformed})
        for values, expected in zip(found, calibrator.predict_both(views)):
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)


def test_the_curve_of_order_preserving_functions_too() -> None:
    logits, labels = problem(10)
    calibrator = OrderPreserving(variant="diagonal", random_state=0).fit(logits[:400], labels[:400])
    np.testing.assert_allclose(by_onnx(calibrator, logits), calibrator.predict_proba(logits), rtol=0, atol=1e-6)
    few = OrderPreserving(n_ranks=3, max_iter=20, random_state=0).fit(logits[:400], labels[:400])
    np.testing.assert_allclose(by_onnx(few, logits), few.predict_proba(logits), rtol=0, atol=1e-6)


def test_every_method_is_written_or_makes_a_plan() -> None:
    """A new method must be written for ONNX, or make a plan, or choose one that does."""
    with_plan = {"AutoCalibration", "ReCal", "ViewStacking"}
    assert {c.__name__ for c in CALIBRATORS} - with_plan == {method.__name__ for method in (*METHODS, *AGGREGATIONS)}


def test_of_a_choice_what_was_chosen_is_written() -> None:
    logits, labels = problem(3)
    auto = AutoCalibration(random_state=0).fit(logits, labels)
    for chosen in (EnsembleTemperatureScaling(), VectorScaling(), TemperatureScaling()):
        auto.calibrator_, auto.choice_ = chosen.fit(logits, labels), chosen.short_name
        auto.__dict__.pop("plan_", None)
        np.testing.assert_allclose(by_onnx(auto, logits), chosen.predict_proba(logits), rtol=0, atol=1e-6)


def test_what_cannot_be_written_is_refused_by_name() -> None:
    class Mine(VectorScaling):
        """Somebody's own."""

    logits, labels = problem(3, 60)
    with pytest.raises(InputError, match="Mine is not one of recal's own methods"):
        head_of(Mine().fit(logits, labels))
    with pytest.raises(InputError, match="fitted on 3 classes, got 4"):
        head_model(Head(None, next(iter(METHODS))().fit(logits, labels)), 4)
    assert head_of(TemperatureScaling().fit(logits, labels)).plan is not None
