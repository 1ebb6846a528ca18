from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from recal.engine.kernels import exponential


def over(function, values, **options):
    @njit(**options)
    def fill(values, out):
        for i in range(len(values)):
            out[i] = function(values[i])

    out = np.empty_like(values)
    fill(values, out)
    return out


# A kernel's own liberties, such as reordering sums, must not reach into the polynomial.
@pytest.mark.parametrize("options", [{}, {"fastmath": {"reassoc", "contract", "nsz"}}], ids=["plain", "reordering"])
def test_exp_is_accurate_to_a_few_units_in_the_last_place(options):
    x = -np.concatenate([np.linspace(0, 2, 20001), np.linspace(0, 707, 20001)])
    np.testing.assert_allclose(over(exponential.exp, x, **options), np.exp(x), rtol=1e-15)


def test_exp_of_zero_is_one_and_far_below_it_is_zero():
    assert over(exponential.exp, np.array([0.0, -0.0, -1e6])).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("options", [{}, {"fastmath": {"reassoc", "contract", "nsz"}}], ids=["plain", "reordering"])
def test_exp32_is_accurate_to_three_in_ten_million(options):
    x = -np.linspace(0, 86, 100001).astype(np.float32)
    out = over(exponential.exp32, x, **options)
    np.testing.assert_allclose(out.astype(np.float64), np.exp(x.astype(np.float64)), rtol=3e-7)
    assert out[0] == 1.0


def test_log1p_is_accurate_relatively_down_to_the_smallest():
    x = np.concatenate([np.linspace(0, 1, 20001), np.geomspace(1e-300, 1, 20001)])
    np.testing.assert_allclose(over(exponential.log1p, x, fastmath={"reassoc"}), np.log1p(x), rtol=1e-15)
