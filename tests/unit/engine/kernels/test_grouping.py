from __future__ import annotations

import numpy as np
import pytest

from recal.engine.kernels.grouping import sum_order


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100, 127, 128, 129, 300, 1000, 1001, 4097, 100_003])
def test_float32_sums_are_numpys_to_the_bit(count):
    if count > 8192 and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("numpy 2.0 sums longer rows in pieces")
    values = np.random.default_rng(count).random((20, count), dtype=np.float32) ** 8
    ours = values.copy()
    for target, source in sum_order(count):
        ours[:, target] += ours[:, source]
    np.testing.assert_array_equal(ours[:, 0], values.sum(axis=1))
