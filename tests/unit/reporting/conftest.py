import numpy as np
import pytest

from recal import Views, compare
from recal.comparison import compare_probs


def make_views(n, seed=0, k=4, transforms=("zoom:0.5", "zoom:0.7", "brightness:0.4")):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    logits = 5 * (np.eye(k)[y] + rng.normal(0, 0.7, (n, k)))
    copies = {t: 0.7 * logits + rng.normal(0, 1.5, (n, k)) for t in transforms}
    return Views(logits, copies, y)


@pytest.fixture(scope="package")
def comparison():
    return compare(["ts", "vs", "recal"], make_views(600), make_views(500, seed=1), bootstrap=100)


@pytest.fixture(scope="package")
def views():
    return make_views(700)


@pytest.fixture(scope="package")
def alone():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.3] * 3, 300)
    return compare_probs({"given": probs}, rng.integers(0, 3, 300), bootstrap=50)
