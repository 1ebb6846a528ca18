from __future__ import annotations

import numpy as np
import pytest

from recal.engine.kernels.grouping import WORK, _ordered_sum, sum_order


@pytest.mark.parametrize("count", [2, 7, 8, 9, 100, 127, 128, 129, 300, 1000, 1001, 4097, 100_003])
def test_float32_sums_are_numpys_to_the_bit(count):
    values = np.random.default_rng(count).random((20, count), dtype=np.float32) ** 8
    room = np.zeros(WORK, dtype=np.float32)
    ours = np.array([_ordered_sum(np.concatenate([room, row]), sum_order(count)) for row in values])
    np.testing.assert_array_equal(ours, values.sum(axis=1))
