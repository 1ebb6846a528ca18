"""What every map promises: the same probabilities for arrays of any library."""

from __future__ import annotations

from functools import cache, partial

import array_api_strict
import numpy as np
import pytest

from recal.calibrators import CALIBRATORS
from recal.calibrators.base import Calibrator
from recal.views import Views
from tests.problems import views

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

every = pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)

problem = partial(views, n_classes=4, scale=2.5, keep=0.8, transforms=("zoom:0.4", "zoom:0.6"))


@cache
def fitted(method: type[Calibrator], k: int = 4) -> Calibrator:
    return method().fit(problem(150, n_classes=k))


@every
@pytest.mark.parametrize("convert", [torch.from_numpy, array_api_strict.asarray])
def test_views_of_tensors_give_tensors(method, convert):
    model, new = fitted(method), problem(40, seed=1)
    transformed = {
        transform: convert(np.asarray(new.transformed(transform))) for transform in new.transforms
    }
    tensors = Views(convert(new.logits), transformed, groups=np.tile(["a", "b"], 20))
    for rows in (slice(None), [3, 1, 30], slice(20, 4, -3)):
        probs, confidence = model.predict_both(tensors[rows])
        expected, expected_confidence = model.predict_both(new[rows])
        assert type(probs) is type(confidence) is type(convert(new.logits))
        np.testing.assert_allclose(np.asarray(probs), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.asarray(confidence), expected_confidence, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(model.predict(tensors[rows]), model.predict(new[rows]))
