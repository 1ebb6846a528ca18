from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from recal.engine import rows


def over(function, values, **options):
    @njit(**options)
    def fill(values, out):
        for i in range(len(values)):
            out[i] = function(values[i])

    out = np.empty_like(values)
    fill(values, out)
    return out


# A kernel's own liberties, such as reordering sums, must not reach into the polynomial.
@pytest.mark.parametrize(
    "options", [{}, {"fastmath": {"reassoc", "contract", "nsz"}}], ids=["plain", "reordering"]
)
def test_exp_is_accurate_to_a_few_units_in_the_last_place(options):
    x = -np.concatenate([np.linspace(0, 2, 20001), np.linspace(0, 707, 20001)])
    np.testing.assert_allclose(over(rows.fast_exp, x, **options), np.exp(x), rtol=1e-15)


def test_exp_of_zero_is_one_and_far_below_it_is_zero():
    assert over(rows.fast_exp, np.array([0.0, -0.0, -1e6])).tolist() == [1.0, 1.0, 0.0]
