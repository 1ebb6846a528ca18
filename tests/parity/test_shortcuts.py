"""The series and its bound against the exact path and the reference: the same groups, betas within
1e-8.
"""

from __future__ import annotations

import numpy as np
import pytest

from recal import ReCal, Views
from recal.engine.series import ScaledLogits
from tests.problems import lossy_views


def as_views(z, views, y=None):
    return Views(z, {f"zoom:0.{i + 1}": view for i, view in enumerate(views)}, y)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("reading", [{}, {"confidence_at": "own"}, {"guard": "ece"}], ids=str)
@pytest.mark.parametrize("sharpness", [0.7, 3.0, 15.0])
@pytest.mark.parametrize(("n", "k"), [(1500, 10), (600, 60), (400, 700)])
def test_the_fit(n, k, sharpness, reading, monkeypatch):
    z, views, y = lossy_views(n, k, n_views=5, sharpness=sharpness, seed=k)
    sample = as_views(z, views, y)
    options = {"random_state": 1, "tol": 0, "max_iter": 30, **reading}
    quick = ReCal(**options).fit(sample)
    monkeypatch.setattr("recal.calibrators.recal._TOLERANCE", 0.0)  # reads every row every time
    exact = ReCal(**options).fit(sample)
    assert [it.sizes for it in quick.history_] == [it.sizes for it in exact.history_]
    ours, theirs = ([it.betas for it in fit.history_] for fit in (quick, exact))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@pytest.mark.parametrize("k", [2, 10, 50, 1000])
def test_the_series_errs_by_less_than_its_bound(k):
    rng = np.random.default_rng(k)
    rows = []
    for _ in range(
        200
    ):  # levels of several heights and numbers of classes: where sums of exponentials bend most
        levels = np.sort(rng.uniform(0, 30, rng.integers(1, 5)))
        rows.append(-levels[rng.choice(len(levels), k, p=rng.dirichlet(np.full(len(levels), 0.3)))])
    state = ScaledLogits(np.array(rows) + 1e-3 * rng.normal(size=(200, k)))
    worst = 0.0
    for scale in np.exp(rng.uniform(-3.5, 2.5, 40)):
        state.scales = np.full(200, scale)
        state.look(np.arange(200))
        state.rescale(np.exp(rng.uniform(-0.2, 0.2, 200)))
        x, bound = state.bounded_log_odds()
        fresh = ScaledLogits(state.logits)
        fresh.rescale(state.scales)
        exact = fresh.log_odds()
        assert (np.abs(x - exact) <= bound + 1e-11).all()
        worst = max(worst, (np.abs(x - exact) / (bound + 1e-11)).max())
    assert worst > 1e-2 or k == 2, "such rows are not what the bound is for"
