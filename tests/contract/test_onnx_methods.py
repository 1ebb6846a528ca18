"""Every method that can be written as ONNX operations answers as in numpy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from recal import GaussianProcessCalibration, OrderPreserving, TemperatureScaling
from recal.calibrators import CALIBRATORS, Calibrator
from recal.errors import InputError
from recal.runtime.onnx.heads import Head, head_model, head_of
from recal.runtime.onnx.methods import METHODS

NOT_YET = {"OrderPreserving", "GaussianProcessCalibration"}
SETTINGS: dict[str, dict[str, Any]] = {name: {"lambdas": (1.0, 10.0), "mus": 1.0, "random_state": 0} for name in
                                       ("MatrixScaling", "DirichletCalibration")}  # fmt: skip


def problem(n_classes: int, n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits, some of them saturated, and their labels."""
    rng = np.random.default_rng(n_classes)
    honest = rng.normal(size=(n, n_classes)) * 1.5
    labels = (honest + rng.gumbel(size=honest.shape)).argmax(1)
    return (honest * rng.choice([1, 3, 12], (n, 1))).astype(np.float32), labels


def by_onnx(calibrator: Calibrator, logits: np.ndarray) -> np.ndarray:
    model = head_model(head_of(calibrator), logits.shape[1])
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["probs"], {"logits": logits})[0]


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
        clear = np.sort(expected, axis=1)[:, -1] - np.sort(expected, axis=1)[:, -2] > 1e-6
        assert (found.argmax(1) == expected.argmax(1))[clear].all()


def test_every_method_is_written_has_a_plan_or_is_listed_as_missing() -> None:
    """A new method that maps logits alone must be written for ONNX, or be named here."""
    alone = {c.__name__ for c in CALIBRATORS if not (c.needs_views or getattr(c, "reads_views", False))}
    with_plan = {"TemperatureScaling", "AutoCalibration"}
    assert alone - with_plan - NOT_YET <= {method.__name__ for method in METHODS}


def test_what_cannot_be_written_is_refused_by_name() -> None:
    logits, labels = problem(3, 60)
    for method in (GaussianProcessCalibration, OrderPreserving):
        fitted = method().set_state({"classes_": np.arange(3)})
        with pytest.raises(InputError, match=f"{method.__name__} cannot be written"):
            head_of(fitted)
    with pytest.raises(InputError, match="fitted on 3 classes, got 4"):
        head_model(Head(None, next(iter(METHODS))().fit(logits, labels)), 4)
    assert head_of(TemperatureScaling().fit(logits, labels)).plan is not None
