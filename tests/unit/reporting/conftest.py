from functools import partial

import numpy as np
import pytest

from recal import compare
from recal.comparison import compare_probs
from tests.problems import views

TRANSFORMS = ("zoom:0.5", "zoom:0.7", "brightness:0.4")
problem = partial(views, n_classes=4, transforms=TRANSFORMS, scale=5, noise=0.7, keep=0.7, blur=1.5)


@pytest.fixture(scope="package")
def comparison():
    return compare(["ts", "vs", "recal"], problem(600), problem(500, seed=1), bootstrap=100)


@pytest.fixture(scope="package", name="views")
def shared_views():
    return problem(700)


@pytest.fixture(scope="package")
def alone():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.3] * 3, 300)
    return compare_probs({"given": probs}, rng.integers(0, 3, 300), bootstrap=50)
