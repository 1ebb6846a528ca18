from __future__ import annotations

import numpy as np
from numba import njit

from recal.engine.kernels.exponential import exp, exp32


@njit
def over(function, values, out):
    for i in range(len(values)):
        out[i] = function(values[i])


def test_exp_is_accurate_to_a_few_units_in_the_last_place():
    x = -np.concatenate([np.linspace(0, 2, 20001), np.linspace(0, 707, 20001)])
    out = np.empty_like(x)
    over(exp, x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)


def test_exp_of_zero_is_one_and_far_below_it_is_zero():
    assert exp(0.0) == 1.0
    assert exp(-0.0) == 1.0
    assert exp(-1e6) == 0.0


def test_exp32_is_accurate_to_three_in_ten_million():
    x = -np.linspace(0, 86, 100001).astype(np.float32)
    out = np.empty_like(x)
    over(exp32, x, out)
    np.testing.assert_allclose(out.astype(np.float64), np.exp(x.astype(np.float64)), rtol=3e-7)
    assert out[0] == 1.0
