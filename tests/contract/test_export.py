"""Every calibrator gives the same probabilities in numpy, in torch and in an exported ONNX file."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from recal import Plan, TemperatureScaling
from recal.calibrators import CALIBRATORS, Calibrator, OrderPreserving, VectorScaling
from recal.errors import InputError, NotFittedError
from recal.export.calibration import calibration_of
from recal.export.onnx_file import calibration_model
from recal.export.torch_module import by_torch, calibrated
from tests.problems import extreme_views

_SEARCH = {"penalty": (1.0, 10.0), "intercept_penalty": 1.0, "random_state": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "MatrixScaling": _SEARCH,
    "DirichletCalibration": _SEARCH,
    "ReCal": {"max_iter": 20},
    "ViewStacking": {"no_harm": False},
}
QUICK = {"epochs": 3, "draws": 20}
# A factor found by halving is as exact as float32.
HALVED = {"SplineCalibration": 1e-6}


@cache
def fitted(method: type[Calibrator], n_classes: int, answers: str | None) -> Calibrator:
    known = method().get_params()
    options = SETTINGS.get(method.__name__, {}) | {
        name: value for name, value in QUICK.items() if name in known
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(**options, **({} if answers is None else {"answers": answers})).fit(
            extreme_views(n_classes)[:400]
        )


def session_of(source: Any, n_classes: int) -> onnxruntime.InferenceSession:
    model = calibration_model(calibration_of(source), n_classes)
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def by_onnx(
    session: onnxruntime.InferenceSession, logits: np.ndarray, views: np.ndarray
) -> list[np.ndarray]:
    feeds = {"logits": logits, "transformed": views} if len(views) else {"logits": logits}
    return session.run(["probs", "confidence"], feeds)


CASES = [
    pytest.param(method, answers, id=f"{method.__name__}{'' if answers is None else '-' + answers}")
    for method in CALIBRATORS
    for answers in (("free", "kept") if "answers" in method().get_params() else (None,))
]


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize(("method", "answers"), CASES)
def test_every_runtime_gives_the_same(
    method: type[Calibrator], answers: str | None, n_classes: int
) -> None:
    calibrator, views = fitted(method, n_classes, answers), extreme_views(n_classes)
    probs, confidence = calibrator.predict_both(views)
    logits = np.array(views.logits)
    transformed = np.array([views.transformed(t) for t in calibrator.needed_transforms()]).reshape(
        -1, *logits.shape
    )

    calibration, exact = calibration_of(calibrator), HALVED.get(method.__name__, 1e-12)
    tensors = torch.from_numpy(logits).double(), torch.from_numpy(transformed.astype(np.float64))
    found = calibration.answer(tensors[0], list(tensors[1]))
    np.testing.assert_allclose(found[0].numpy(), probs, rtol=0, atol=exact)
    np.testing.assert_allclose(found[1].numpy(), confidence, rtol=0, atol=exact)
    assert (found[0].argmax(1).numpy() == probs.argmax(1)).all()
    for scores, _ in (by_torch(calibration, *tensors), calibrated(calibration, *tensors)):
        np.testing.assert_allclose(scores.softmax(1).numpy(), probs, rtol=0, atol=exact)
        assert (scores.argmax(1).numpy() == probs.argmax(1)).all()

    session = session_of(calibrator, n_classes)
    written, sure = by_onnx(session, logits, transformed)
    np.testing.assert_allclose(written, probs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sure, confidence, rtol=0, atol=1e-6)
    clear = np.diff(np.sort(probs, axis=1)[:, -2:])[:, 0] > 1e-6
    assert (written.argmax(1) == probs.argmax(1))[clear].all()
    for rows in (slice(0, 1), slice(0, 0)):
        alone, _ = by_onnx(session, logits[rows], transformed[:, rows])
        np.testing.assert_allclose(alone, written[rows], rtol=0, atol=1e-7)


STEPS = ("Isotonic", "Histogram", "BayesianBinning", "MutualInformation", "Venn", "Spline")


@pytest.mark.parametrize(
    "method",
    [method for method in CALIBRATORS if method.__name__.startswith(STEPS)],
    ids=lambda method: method.__name__,
)
@pytest.mark.parametrize("grid", [0.25, None], ids=["scores that tie", "scores apart"])
def test_steps_and_lines_do_not_depend_on_the_last_bit(
    method: type[Calibrator], grid: float | None
) -> None:
    """Logits on a grid give scores that equal knots of the fit up to rounding, which differs
    between libraries.
    """
    rng = np.random.default_rng(3)
    calibrated = rng.normal(size=(15_000, 3)) * 1.5
    labels = (calibrated + rng.gumbel(size=calibrated.shape)).argmax(1)
    logits = (calibrated * rng.choice([1, 3, 12], (len(labels), 1))).astype(np.float32)
    logits = logits if grid is None else (np.round(logits / grid) * grid).astype(np.float32)
    calibrator = method().fit(logits[:5000], labels[:5000])
    probs = calibrator.predict_proba(logits[5000:])
    written = by_onnx(session_of(calibrator, 3), logits[5000:], np.zeros((0, 10_000, 3)))[0]
    np.testing.assert_allclose(written, probs, rtol=0, atol=2e-6)
    found = calibration_of(calibrator).answer(torch.from_numpy(logits[5000:]), [])[0].numpy()
    np.testing.assert_allclose(found, probs, rtol=0, atol=2e-6)


def test_order_preserving_functions_that_read_few_ranks_too() -> None:
    views = extreme_views(10)
    calibrator = OrderPreserving(n_ranks=3).fit(views[:400])
    logits = np.array(views.logits)
    written = by_onnx(session_of(calibrator, 10), logits, np.zeros((0, *logits.shape)))[0]
    np.testing.assert_allclose(written, calibrator.predict_proba(views), rtol=0, atol=1e-6)


def test_a_method_of_ones_own_is_exported() -> None:
    class Mine(VectorScaling):
        """Somebody's own."""

    views = extreme_views(3)
    logits, mine = np.array(views.logits), Mine().fit(views[:400])
    written = by_onnx(session_of(mine, 3), logits, np.zeros((0, *logits.shape)))[0]
    np.testing.assert_allclose(written, mine.predict_proba(views), rtol=0, atol=1e-6)


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match="fitted on 3 classes, got logits of 4"):
        calibration_model(calibration_of(VectorScaling().fit(extreme_views(3)[:400])), 4)
    with pytest.raises(InputError, match="fitted on 3 classes, got 4"):
        calibration_model(calibration_of(TemperatureScaling().fit(extreme_views(3)[:400])), 4)
    with pytest.raises(InputError, match="at least two classes"):
        calibration_model(calibration_of(Plan()), 1)
    with pytest.raises(NotFittedError):
        calibration_of(TemperatureScaling())
