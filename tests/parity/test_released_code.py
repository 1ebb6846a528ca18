"""The paper's released code, with its guards, floor and float32 comparisons, on two synthetic
problems whose results were recorded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recal import ReCal, Views, evaluate
from tests.parity import reference

DATA = Path(__file__).parent / "data"
PLAIN, SATURATED = "released_code_c10", "released_code_c10_saturated"
# How the released code differs from `ReCal(guard="ece")`.
RELEASED = {"floor": 1e-16, "released": True}


def read(name):
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def recorded_views(recorded, part):
    transformed = dict(zip(recorded["transforms"].tolist(), recorded[f"{part}_transformed"]))
    return Views(recorded[f"{part}_logits"], transformed, recorded[f"{part}_labels"])


@pytest.mark.parametrize("name", [PLAIN, pytest.param(SATURATED, marks=pytest.mark.slow)])
def test_the_slow_reference_reproduces_the_released_code(name):
    recorded = read(name)
    steps, start, finish = reference.fit(
        recorded["val_logits"],
        recorded["val_transformed"],
        recorded["val_labels"],
        recorded["sequence"],
        guard="ece",
        **RELEASED,
    )
    assert len(steps) == recorded["stop"]
    betas = [betas for _, betas in steps]
    np.testing.assert_allclose(betas, recorded["betas"], rtol=0, atol=1e-6)
    probs = reference.replay(
        recorded["test_logits"], recorded["test_transformed"], steps, start, finish, **RELEASED
    )
    np.testing.assert_allclose(probs, recorded["test_probs"], rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def fitted():
    recorded = read(PLAIN)
    method = ReCal(guard="ece", sequence=recorded["sequence"])
    return recorded, method.fit(recorded_views(recorded, "val"))


def test_recal_reproduces_the_problem_that_is_not_saturated(fitted):
    recorded, recal = fitted
    assert recal.n_iter_ == recorded["stop"]
    for ours, theirs in [
        ([step.betas for step in recal.plan_.steps], "betas"),
        ([it.raw_betas for it in recal.history_], "raw_betas"),
        ([it.ece_before for it in recal.history_], "ece_before"),
        ([it.ece_after for it in recal.history_], "ece_after"),
        (recal.predict_proba(recorded_views(recorded, "test")), "test_probs"),
    ]:
        np.testing.assert_allclose(ours, recorded[theirs], rtol=0, atol=1e-6, err_msg=theirs)
    np.testing.assert_array_equal([it.sizes for it in recal.history_], recorded["counts"])


def test_recal_is_as_good_as_the_released_code_on_the_saturated_problem():
    recorded = read(SATURATED)
    recal = ReCal(guard="ece", sequence=recorded["sequence"]).fit(recorded_views(recorded, "val"))
    test = recorded_views(recorded, "test")
    ours = evaluate(recal.predict_proba(test), test.labels)["nll"]
    theirs = evaluate(np.asarray(recorded["test_probs"], np.float64), test.labels)["nll"]
    assert ours <= 1.02 * theirs
