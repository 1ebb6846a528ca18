"""Tables, bounds and float32 passes against the exact path: the same groups, betas within 1e-6, the same bits out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from recal import Plan, ReCal, Step, Views
from recal.engine.grouping import group_indices
from recal.engine.kernels.table import AGAINST, FIRST, SECOND
from recal.engine.replay import calibrate_arrays, calibrated_probs, calibrated_scales
from recal.engine.scaled import ScaledLogits
from recal.engine.tabled import TabledLogits
from recal.plan import Rule

spec = importlib.util.spec_from_file_location("problems", Path(__file__).with_name("problems.py"))
problems = importlib.util.module_from_spec(spec)
spec.loader.exec_module(problems)


def as_views(z, views, y=None):
    return Views(z, {f"zoom:0.{i + 1}": view for i, view in enumerate(views)}, y)


@pytest.mark.parametrize("reading", [{}, {"ties": "exact"}, {"confidence_at": "own"}, {"guard": "ece"}], ids=str)
@pytest.mark.parametrize("sharpness", [0.7, 3.0, 15.0])
@pytest.mark.parametrize(("n", "k"), [(3000, 10), (1500, 60), (800, 700)])
def test_the_fit(n, k, sharpness, reading):
    z, views, y = problems.problem(n, k, n_views=5, sharpness=sharpness, seed=k)
    sample = as_views(z, views, y)
    options = {"random_state": 1, "tol": 0, "max_iter": 30, **reading}
    quick, exact = ReCal(**options).fit(sample), ReCal(exact=True, **options).fit(sample)
    assert [it.sizes for it in quick.history_] == [it.sizes for it in exact.history_]
    ours, theirs = ([it.betas for it in fit.history_] for fit in (quick, exact))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


SELECTIONS = [np.random.default_rng(0).permutation(900)[:600], slice(5, 800, 3), slice(None, 100, -2)]


@pytest.mark.parametrize("rows", SELECTIONS, ids=["permuted", "every third", "backwards"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_views_of_any_precision_and_any_selection_of_rows(dtype, rows):
    z, views, y = problems.problem(900, 80, seed=4)
    whole = as_views(z, [view.astype(dtype) for view in views], y)
    copied = as_views(z[rows], [view.astype(dtype)[rows] for view in views], y[rows])
    options = {"random_state": 1, "max_iter": 20, "tol": 0}
    assert ReCal(**options).fit(whole[rows]).plan_ == ReCal(**options).fit(copied).plan_


@pytest.mark.parametrize("sharpness", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("k", [2, 10, 50, 1000])
def test_the_table_of_the_log_partition(k, sharpness):
    z, _, _ = problems.problem(500, k, sharpness=sharpness, seed=2)
    scales = np.exp(np.random.default_rng(0).uniform(-5, 4, 500))
    dense, table = ScaledLogits(z, scales), TabledLogits(z, scales.copy())
    np.testing.assert_allclose(table.log_partition(), dense.log_partition(), rtol=0, atol=1e-6)
    for power, (field, theirs) in enumerate(zip((FIRST, SECOND), dense.slopes(np.ones(500))), 1):
        ours = table.field(table.known, field) / scales**power
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-2)


@pytest.mark.parametrize("k", [50, 1000])
def test_the_table_errs_by_less_than_its_bound(k):
    rng = np.random.default_rng(k)
    rows = []
    for _ in range(200):  # levels of several heights and numbers of classes: where sums of exponentials bend most
        levels = np.sort(rng.uniform(0, 30, rng.integers(1, 5)))
        rows.append(-levels[rng.choice(len(levels), k, p=rng.dirichlet(np.full(len(levels), 0.3)))])
    z = np.array(rows) + 1e-3 * rng.normal(size=(200, k))
    worst = 0.0
    for scale in np.exp(rng.uniform(-3.5, 2.5, 40)):
        scales = np.full(200, scale)
        dense, table = ScaledLogits(z, scales), TabledLogits(z, scales.copy())
        exact, tabled = dense.log_partition(), table.log_partition()
        bound = table.error * table.field(table.known, AGAINST)
        assert (np.abs(tabled - exact) <= bound + 1e-13).all()
        worst = max(worst, (np.abs(tabled - exact) / (bound + 1e-13)).max())
    assert worst > 1e-4, "such rows are not what the bound is for"


def step_by_step(plan, views):
    """Replay with a full pass over every view at every step."""
    original = ScaledLogits(views.logits)
    tracks = {t: ScaledLogits(views.transformed(t)) for t in views.transforms}
    for state in (original, *tracks.values()):
        state.rescale(plan.start)
    for step in plan.steps:
        groups = group_indices(original, -original.log_partition(), tracks[step.transform], plan.rule)
        for state in (original, tracks[step.transform]):
            state.rescale(np.asarray(step.betas)[groups])
    original.rescale(plan.finish)
    return original.scales


@pytest.mark.parametrize("rule", [Rule(), Rule("own"), Rule("own", "exact"), Rule("original", "exact")], ids=str)
@pytest.mark.parametrize("sharpness", [1.0, 15.0])
@pytest.mark.parametrize("k", [2, 10, 65, 300])
def test_the_replay(k, sharpness, rule):
    z, views, _ = problems.problem(333, k, sharpness=sharpness, seed=k)
    sample = as_views(z, views)
    rng = np.random.default_rng(k)
    steps = tuple(
        Step(sample.transforms[rng.integers(len(views))], tuple(np.exp(rng.normal(0, 0.1, 4)))) for _ in range(40)
    )
    plan = Plan(steps, start=0.8, finish=1.1, rule=rule)
    np.testing.assert_array_equal(calibrated_scales(plan, sample), step_by_step(plan, sample))


def test_a_sample_alone_gets_what_it_gets_in_a_batch():
    z, views, y = problems.problem(500, 10, sharpness=8.0)
    sample = as_views(z, views, y)
    plan = ReCal(random_state=0, max_iter=30).fit(sample).plan_
    together = calibrated_probs(plan, sample)
    for rows in ([7], [499, 0, 7], slice(3, 400, 7)):
        np.testing.assert_array_equal(calibrated_probs(plan, sample[rows]), together[rows])
    stack = np.stack([sample.transformed(t) for t in plan.transforms])
    np.testing.assert_array_equal(calibrate_arrays(plan, z, stack), together)


def test_originals_and_views_of_different_precision():
    z, views, _ = problems.problem(200, 10)
    narrow, wide = as_views(z, views), as_views(z.astype(np.float64), views)
    plan = Plan((Step("zoom:0.1", (0.9, 0.8, 1.1, 0.7)), Step("zoom:0.3", (0.8, 0.9, 1.2, 0.9))))
    np.testing.assert_array_equal(calibrated_scales(plan, narrow), calibrated_scales(plan, wide))
