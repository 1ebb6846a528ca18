"""A gate spares sure samples their views wherever a calibrator is applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recal import Blend, Plan, Views, ViewStacking
from recal.collecting.local import apply
from recal.maps.steps import calibrated_probs
from recal.transforms import Named

PLAN = Blend(0.6, (("zoom:0.5", 0.5), ("flip", 0.4)), (), 1e-4, gate=0.9, gated_own=1.2, start=0.6)
WEIGHTS = np.random.default_rng(0).normal(size=(36, 4))


class Model:
    """A linear model that remembers how many rows it was shown."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, batch: Any) -> np.ndarray:
        self.rows.append(len(batch))
        return np.asarray(batch, dtype=float).reshape(len(batch), -1) @ WEIGHTS


def inputs(n: int) -> np.ndarray:
    size = np.where(np.arange(n) % 3, 2.0, 0.2)
    return np.random.default_rng(1).random((n, 6, 6)) * size[:, None, None]


def stacking(plan: Plan = PLAN) -> ViewStacking:
    """A fitted one, without a fit."""
    return ViewStacking().set_state({"map_": plan, "classes_": np.arange(4)})


def expected(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    model = Model()
    views = Views(
        model(images), {transform: model(transform(images)) for transform in PLAN.transforms}
    )
    return calibrated_probs(PLAN, views), PLAN.needs_views(views.logits)


def test_apply_asks_for_the_views_of_unsure_samples_alone() -> None:
    images, model = inputs(50), Model()
    probs, needed = expected(images)
    found = apply(stacking(), model, images, batch_size=20, progress=False)
    np.testing.assert_allclose(found.probs, probs, atol=1e-12)
    np.testing.assert_array_equal(found.passes, 1 + 2 * needed)
    assert 0 < needed.sum() < 50
    assert sum(model.rows) == 50 + 2 * needed.sum()
    assert found.passes_per_answer == pytest.approx((1 + 2 * needed).mean())


def test_a_bad_row_of_a_view_is_named_by_its_place_among_all_inputs() -> None:
    def model(batch: Any) -> np.ndarray:
        logits = np.asarray(batch, dtype=float).reshape(len(batch), -1) @ WEIGHTS
        logits[np.asarray(batch)[:, 0, 0] < 0] = np.nan
        return logits

    def broken(batch: Any) -> np.ndarray:
        spoiled = np.array(batch)
        spoiled[-1, 0, 0] = -1.0
        return spoiled

    plan = Blend(0.6, ((Named("broken", broken), 0.5),), (), 1e-4, gate=0.9, start=0.6)
    images = inputs(20)
    _, needed = expected(images)
    last = int(np.flatnonzero(needed)[-1])
    assert last != needed.sum() - 1
    with pytest.raises(ValueError, match=rf"nan for .*\b{last}\b.*view 'broken'"):
        apply(stacking(plan), model, images, progress=False)
