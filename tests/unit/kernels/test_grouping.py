from __future__ import annotations

import numpy as np
import pytest

from recal.kernels.grouping import _pairwise_sum


@pytest.mark.parametrize("count", [2, 7, 8, 9, 100, 127, 128, 129, 300, 1000, 1001, 4097])
def test_float32_sums_are_numpys_to_the_bit(count):
    values = np.random.default_rng(count).random((50, count), dtype=np.float32) ** 8
    ours = np.array([_pairwise_sum(row, count) for row in values])
    np.testing.assert_array_equal(ours, values.sum(axis=1))
