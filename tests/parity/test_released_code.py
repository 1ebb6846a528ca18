"""The paper's released code, with its guards and floor, on two synthetic problems whose results
were recorded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recal import ReCal, Views, group
from recal.engine.grouping import group_indices
from recal.engine.scaled import FlooredLogits

DATA = Path(__file__).parent / "data"


@pytest.fixture(params=["released_code_c10", "released_code_c10_saturated"], scope="module")
def recorded(request):
    with np.load(DATA / f"{request.param}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def recorded_views(recorded, part):
    transformed = dict(zip(recorded["transforms"].tolist(), recorded[f"{part}_transformed"]))
    return Views(recorded[f"{part}_logits"], transformed, recorded[f"{part}_labels"])


@pytest.fixture(scope="module")
def fitted(recorded):
    return ReCal(guard="ece", floor=1e-16, sequence=recorded["sequence"]).fit(
        recorded_views(recorded, "val")
    )


def test_stops_where_the_released_code_stopped(recorded, fitted):
    assert fitted.n_iter_ == recorded["stop"]


def test_betas_before_and_after_shrinking_agree(recorded, fitted):
    np.testing.assert_allclose(
        [step.betas for step in fitted.plan_.steps], recorded["betas"], rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        [it.raw_betas for it in fitted.history_], recorded["raw_betas"], rtol=0, atol=1e-6
    )


def test_group_sizes_and_calibration_errors_agree(recorded, fitted):
    np.testing.assert_array_equal([it.sizes for it in fitted.history_], recorded["counts"])
    np.testing.assert_allclose(
        [it.ece_before for it in fitted.history_], recorded["ece_before"], atol=1e-7
    )
    np.testing.assert_allclose(
        [it.ece_after for it in fitted.history_], recorded["ece_after"], atol=1e-7
    )


@pytest.mark.parametrize("part", ["val", "test"])
def test_no_sample_falls_into_another_group_in_any_iteration(recorded, fitted, part):
    sample = recorded_views(recorded, part)
    original = FlooredLogits(sample.logits, fitted.plan_.rule.floor)
    floor = fitted.plan_.rule.floor
    tracks = {t: FlooredLogits(sample.transformed(t), floor) for t in sample.transforms}
    for number, step in enumerate(fitted.plan_.steps):
        view = tracks[step.transform]
        drops = view.drop_at(original.columns)
        groups = group_indices(original, view, drops, fitted.plan_.rule)
        np.testing.assert_array_equal(groups + 1, recorded[f"{part}_groups"][number])
        for state in (original, view):
            state.rescale(np.asarray(step.betas)[groups])


def test_probabilities_of_new_samples_agree(recorded, fitted):
    probs = fitted.predict_proba(recorded_views(recorded, "test"))
    np.testing.assert_allclose(probs, recorded["test_probs"], rtol=0, atol=1e-5)


def test_the_first_groups_come_from_the_raw_logits(recorded):
    first = recorded["sequence"][0]
    groups = group(recorded["val_logits"], recorded["val_transformed"][first])
    np.testing.assert_array_equal(groups, recorded["val_groups"][0])


def test_the_saturated_problem_depends_on_the_floor(recorded, fitted):
    """Without the floor the saturated problem gives other betas, and only that one."""
    without = ReCal(guard="ece", sequence=recorded["sequence"]).fit(recorded_views(recorded, "val"))
    ours = np.array([step.betas for step in without.plan_.steps[:5]])
    differs = np.abs(ours - recorded["betas"][:5]).max() > 1e-6
    assert differs == (np.abs(recorded["val_logits"]).max() > 25)
