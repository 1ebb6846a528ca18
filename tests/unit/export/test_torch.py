"""The model and its plan as one torch module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recal import Blend, CalibratedModule, PanelCalibration, Plan, ReCal, Step, Views, ViewStacking
from recal.calibrators import PlattScaling
from recal.errors import InputError, NotFittedError
from recal.export.calibration import calibration_of
from recal.export.torch_module import calibrated
from recal.maps.steps import calibrated_probs
from recal.transforms import Named

PLAN = Plan(
    (
        Step("zoom:0.5", (0.7, 0.9, 0.8, 0.95)),
        Step("brightness:0.4", (0.8, 1.1, 0.9, 0.7)),
        Step("blur:1.5", (1.0, 1.0, 1.0, 1.0)),
        Step("zoom:0.5", (0.9, 1.2, 0.6, 1.05)),
    ),
    start=0.8,
)


class Net(torch.nn.Module):
    """A small network that counts the rows it is shown."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 6, 3),
            torch.nn.BatchNorm2d(6),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.5),
        )
        self.head = torch.nn.Linear(6 * 14 * 14, 10)
        self.batches: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches.append(images.shape[0])
        return 4 * self.head(self.body(images))


def normalise(images: torch.Tensor) -> torch.Tensor:
    return (images - 0.4) / 0.3


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def views_of(model: torch.nn.Module, images: torch.Tensor) -> Views:
    with torch.no_grad():
        logits = model(normalise(images)).numpy()
        return Views(logits, {t: model(normalise(t(images))).numpy() for t in PLAN.transforms})


def test_only_needed_views_are_computed_in_one_batch(images: torch.Tensor) -> None:
    model = Net()
    CalibratedModule(model, PLAN)(images)
    assert model.batches == [27], "the originals, zoom and brightness; blur changes nothing"
    model.batches.clear()
    CalibratedModule(model, PLAN)(torch.rand(40, 3, 16, 16))
    assert model.batches == [40, 40, 40]


def test_gradients_reach_the_input(images: torch.Tensor) -> None:
    images.requires_grad_()
    CalibratedModule(Net(), PLAN)(images)[:, 0].sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_can_be_exported_with_any_batch_size(images: torch.Tensor) -> None:
    module = CalibratedModule(Net(), BLEND, preprocess=normalise)
    shapes = {"inputs": {0: torch.export.Dim("batch")}}
    program = torch.export.export(module, (images,), dynamic_shapes=shapes)
    for n in (2, 5, 30):
        other = torch.rand(n, 3, 16, 16)
        torch.testing.assert_close(program.module()(other), module(other), atol=1e-5, rtol=0)


def test_a_model_that_answers_with_an_object_of_logits(images: torch.Tensor) -> None:
    class Wrapped(Net):
        def forward(self, images: torch.Tensor) -> Any:
            return type("Output", (), {"logits": super().forward(images)})()

    assert torch.equal(
        CalibratedModule(Wrapped(), PLAN)(images), CalibratedModule(Net(), PLAN)(images)
    )


def test_your_own_transformation_needs_its_code(images: torch.Tensor) -> None:
    def flipped(images: torch.Tensor) -> torch.Tensor:
        return images.flip(-1)

    betas = (0.9, 0.8, 0.7, 0.6)
    assert CalibratedModule(Net(), Plan((Step(Named("flipped", flipped), betas),)))(
        images
    ).shape == (9, 10)
    with pytest.raises(InputError, match=r"'flipped'.*transforms="):
        CalibratedModule(Net(), Plan((Step("flipped", betas),)))


def test_code_that_works_in_place_spoils_neither_the_inputs_nor_other_views(
    images: torch.Tensor,
) -> None:
    betas = (0.9, 0.8, 0.7, 0.6)
    steps = (Step(Named("dark", lambda rows: rows.mul_(0.5)), betas), Step("zoom:0.5", betas))
    clean = (Step(Named("dark", lambda rows: rows * 0.5), betas), Step("zoom:0.5", betas))
    hasty = CalibratedModule(Net(), Plan(steps), preprocess=lambda rows: rows.sub_(0.5))
    calm = CalibratedModule(Net(), Plan(clean), preprocess=lambda rows: rows - 0.5)
    for rows in (images, images.repeat(4, 1, 1, 1)):
        before = rows.clone()
        torch.testing.assert_close(hasty(rows), calm(rows))
        assert torch.equal(rows, before)


def test_nan_from_the_model_stays_nan_in_its_row() -> None:
    logits = torch.randn(4, 10)
    logits[2, 3] = float("nan")
    fitted = calibration_of(Plan(start=0.5))
    answer, _ = calibrated(fitted, logits, torch.zeros(0, 4, 10))
    assert answer[2].isnan().any()
    others = [0, 1, 3]
    alone, _ = calibrated(fitted, logits[others], torch.zeros(0, 3, 10))
    torch.testing.assert_close(answer[others], alone)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((len, PLAN), InputError, "wraps a torch.nn.Module, got builtin"),
        ((Net(), "plan"), InputError, "A Plan or.*got str"),
        ((Net(), ReCal()), NotFittedError, "ReCal is not fitted"),
        ((Net(), PanelCalibration()), InputError, "got PanelCalibration"),
    ],
)
def test_wrong_inputs_are_refused(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        CalibratedModule(*arguments)


def test_probabilities_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="these are probabilities"):
        CalibratedModule(torch.nn.Sequential(Net(), torch.nn.Softmax(1)), PLAN)(images)


def test_outputs_of_another_shape_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"\(n, n_classes\), got \(27, 3, 16, 16\)"):
        CalibratedModule(torch.nn.Identity(), PLAN)(images)


BLEND = Blend(0.6, (("zoom:0.5", 0.5), ("flip", 0.4)), (), 1e-4, gate=0.5, gated_own=1.2, start=0.5)


@pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")
@pytest.mark.parametrize("method", [ViewStacking, PlattScaling])
@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_one_output_is_the_log_odds_of_the_second_class(method: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    network = torch.nn.Linear(3, 1)
    log_odds = network(torch.from_numpy(x)).detach().numpy()[:, 0]
    labels = (rng.random(300) < 1.0 / (1.0 + np.exp(-0.5 * log_odds))).astype(int)
    fitted = method().fit(log_odds, labels)
    expected = fitted.predict_proba(log_odds)
    for model in (network, torch.nn.Sequential(network, torch.nn.Flatten(0))):
        probs = CalibratedModule(model, fitted)(torch.from_numpy(x)).double().softmax(1)
        np.testing.assert_allclose(probs.detach().numpy(), expected, atol=1e-6)
        sure = CalibratedModule(model, fitted).predict_confidence(torch.from_numpy(x))
        np.testing.assert_allclose(sure.detach(), fitted.predict_confidence(log_odds), atol=1e-6)


def test_a_gate_sends_only_unsure_rows_through_the_views(images: torch.Tensor) -> None:
    model = Net().eval()
    with torch.no_grad():
        logits = model(images)
        views = Views(logits.numpy(), {t: model(t(images)).numpy() for t in BLEND.transforms})
        gate = float((BLEND.start * logits.double()).softmax(1).amax(1).median())
        plan = replace(BLEND, gate=gate + 1e-6)  # type: ignore[type-var]
        needed = plan.needs_views(logits.numpy())
        model.batches.clear()
        probs = CalibratedModule(model, plan)(images).softmax(1).numpy()
    assert 0 < needed.sum() < 9
    assert model.batches == [9, 2 * needed.sum()]
    np.testing.assert_allclose(probs, calibrated_probs(plan, views), atol=1e-6)


@pytest.mark.slow  # torch compiles for ten seconds
@pytest.mark.parametrize("plan", [PLAN, BLEND], ids=["steps", "blend"])
def test_compiled_modules_answer_the_same(images: torch.Tensor, plan: Plan) -> None:
    module = CalibratedModule(Net(), plan, preprocess=normalise)
    with torch.no_grad():
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(images), module(images), atol=1e-5, rtol=0)


def test_half_precision_compares_as_the_plan_says(images: torch.Tensor) -> None:
    for plan in (PLAN, BLEND):
        module = CalibratedModule(Net(), plan).half()
        with torch.no_grad():
            answer = module(images.half())
            logits = module.logits_of(images.half())
            views = {t: module.logits_of(t(images.half())).numpy() for t in plan.transforms}
        assert answer.dtype == torch.float32
        probs = calibrated_probs(plan, Views(logits.numpy(), views))
        np.testing.assert_allclose(
            answer.softmax(1).numpy(), probs, atol=2e-3
        )  # half answers depend on the batch


def test_jit_tracing_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"use torch\.export\.export"):
        torch.jit.trace(CalibratedModule(Net(), PLAN), (images,))  # type: ignore[attr-defined]
