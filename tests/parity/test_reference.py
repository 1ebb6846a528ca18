"""The package against the slow reference: groups, temperatures, fit, replay."""

from __future__ import annotations

import numpy as np
import pytest

from recal import ReCal, TemperatureScaling, Views, group
from tests.parity import reference
from tests.problems import lossy_views as problem

SIZES = [(400, 2), (400, 3), (300, 10), (200, 128), (150, 1000)]


def as_views(z, views, y=None):
    return Views(z, {f"zoom:0.{i + 1}": view for i, view in enumerate(views)}, y)


@pytest.mark.parametrize("confidence_at", ["original", "own"])
@pytest.mark.parametrize("sharpness", [1.0, 12.0])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_groups(n, k, sharpness, confidence_at):
    z, views, _ = problem(n, k, sharpness=sharpness, seed=k)
    for view in views:
        expected = reference.group(z.astype(float), view.astype(float), confidence_at)
        np.testing.assert_array_equal(group(z, view, confidence_at), expected)


@pytest.mark.parametrize(("more", "expected"), [(0.99 * 2.0**-24, 4), (1.01 * 2.0**-24, 3)])
def test_a_confidence_rose_if_it_is_higher_by_more_than_the_last_float32(more, expected):
    odds = np.array([0.9, 0.9 + more])
    (own, other) = np.stack([np.log(odds), np.log(1 - odds)], axis=1)[:, None, :]
    assert group(own, other).tolist() == [expected]
    assert group([[60.0, 0.0]], [[70.0, 0.0]]).tolist() == [4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sharpness", [0.3, 3.0, 12.0])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_one_temperature(n, k, sharpness, dtype):
    z, _, y = problem(n, k, sharpness=sharpness, seed=n, dtype=dtype)
    expected = reference.doubting_beta(z.astype(np.float64), y)
    assert TemperatureScaling().fit(z, y).beta_ == pytest.approx(expected, abs=1e-8)


READINGS = [
    {},
    {"confidence_at": "own"},
    {"shrink": "temperature"},
    {"guard": "ece"},
    {"start": "temperature"},
    {"finish": "temperature"},
    {"separable": "bound"},
    {"separable": "bound", "start": "temperature", "finish": "temperature"},
    {"start": "temperature", "finish": "temperature", "guard": "ece", "confidence_at": "own"},
]


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: "+".join(reading) or "default")
@pytest.mark.parametrize(("n", "k"), [(300, 2), (200, 10)])
def test_fit_and_replay(n, k, reading):
    z, views, y = problem(2 * n, k, seed=k)
    sequence = np.random.default_rng(k).integers(0, len(views), 12)
    steps, start, finish = reference.fit(z[:n], [v[:n] for v in views], y[:n], sequence, **reading)
    everything = as_views(z, views, y)
    recal = ReCal(sequence=sequence, **reading).fit(everything[:n])
    assert recal.n_iter_ == len(steps)
    np.testing.assert_allclose(
        [s.betas for s in recal.plan_.steps], [b for _, b in steps], rtol=0, atol=1e-6
    )
    assert (recal.plan_.start, recal.plan_.finish) == pytest.approx((start, finish), abs=1e-6)
    rule = {name: reading[name] for name in ("confidence_at",) if name in reading}
    expected = reference.replay(z[n:], [v[n:] for v in views], steps, start, finish, **rule)
    np.testing.assert_allclose(recal.predict_proba(everything[n:]), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("separable", ["pooled", "bound"])
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
@pytest.mark.parametrize("k", [3, 60])
def test_groups_without_a_mistake(k, separable, sharpness):
    z, views, y = problem(200, k, sharpness=sharpness, seed=1)
    y = np.where(np.arange(200) < 4, y, z.argmax(axis=1))
    steps, _, _ = reference.fit(z, views, y, [0, 1, 2, 3], separable=separable)
    recal = ReCal(sequence=[0, 1, 2, 3], separable=separable).fit(as_views(z, views, y))
    np.testing.assert_allclose(
        [s.betas for s in recal.plan_.steps], [b for _, b in steps], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("sharpness", [12.0, 40.0])
def test_saturated_fit(sharpness):
    z, views, y = problem(500, 10, sharpness=sharpness, seed=3)
    sequence = np.random.default_rng(1).integers(0, len(views), 20)
    steps, _, _ = reference.fit(z, views, y, sequence)
    recal = ReCal(sequence=sequence).fit(as_views(z, views, y))
    np.testing.assert_allclose(
        [s.betas for s in recal.plan_.steps], [b for _, b in steps], rtol=0, atol=1e-6
    )
