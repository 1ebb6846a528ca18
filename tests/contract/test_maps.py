"""What every map promises: the same probabilities for arrays of any library, and files that hold it
exactly.
"""

from __future__ import annotations

import inspect
from functools import cache, partial

import array_api_strict
import numpy as np
import pytest

from recal import load, save
from recal.calibrators import CALIBRATORS
from recal.calibrators.base import Calibrator
from recal.maps.base import Map
from recal.schema import field_names
from recal.views import Views
from tests.problems import views

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")

every = pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)

problem = partial(views, n_classes=4, scale=2.5, keep=0.8, transforms=("zoom:0.4", "zoom:0.6"))


@cache
def fitted(method: type[Calibrator], k: int = 4) -> Calibrator:
    quick = {"epochs": 5} if "epochs" in inspect.signature(method).parameters else {}
    return method(**quick).fit(problem(150, n_classes=k))


def other_views(new: Views, model: Calibrator, convert):
    return [convert(np.asarray(new.transformed(transform))) for transform in model.map_.transforms]


@every
@pytest.mark.parametrize("k", [2, 4])
def test_every_array_library_gives_the_same_probabilities(method, k):
    model, new = fitted(method, k), problem(40, n_classes=k, seed=1)
    assert isinstance(model.map_, Map)
    plain = model.map_.probs(new.logits, other_views(new, model, lambda z: z))
    np.testing.assert_allclose(plain.sum(axis=1), 1.0, atol=1e-12)
    for convert in (torch.from_numpy, array_api_strict.asarray):
        probs = model.map_.probs(convert(new.logits), other_views(new, model, convert))
        assert type(probs) is type(convert(new.logits))
        np.testing.assert_allclose(np.asarray(probs), plain, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("convert", [torch.from_numpy, array_api_strict.asarray])
@every
def test_log_odds_as_tensors_give_two_columns(method, convert):
    model, new = fitted(method, 2), problem(40, n_classes=2, seed=1)
    log_odds = new.logits[:, 1] - new.logits[:, 0]
    others = {
        key: new.transformed(key)[:, 1] - new.transformed(key)[:, 0] for key in new.transforms
    }
    expected = model.predict_proba(Views(log_odds, others))
    probs = model.predict_proba(
        Views(convert(log_odds), {key: convert(values) for key, values in others.items()})
    )
    np.testing.assert_allclose(np.asarray(probs), expected, rtol=0, atol=1e-12)


def test_views_of_mixed_libraries_are_read_by_numpy():
    model, new = fitted(CALIBRATORS[0]), problem(40, seed=1)
    mixed = Views(
        torch.from_numpy(new.logits), {key: new.transformed(key) for key in new.transforms}
    )
    assert isinstance(model.predict_proba(mixed), np.ndarray)


@every
def test_a_map_is_frozen_and_comes_back_from_a_file(method, tmp_path):
    model = fitted(method)
    for name in field_names(type(model.map_)):
        with pytest.raises(AttributeError):
            setattr(model.map_, name, None)
    again = load(save(model, tmp_path / "calibrator.recal"))
    assert again.map_ == model.map_
    assert hash(again.map_) == hash(model.map_)
    assert repr(again.map_).startswith(type(model.map_).__name__)
