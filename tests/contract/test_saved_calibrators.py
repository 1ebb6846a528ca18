"""Every calibrator goes through a file and comes back the same, without a line of its own here."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from recal import load, save
from recal.calibrators import CALIBRATORS
from recal.maps.base import Map
from recal.schema import field_names
from tests.problems import seeded, views

NAMES = ["dog", "ant", "cat"]
VIEWS = views(90, scale=3, noise=0.7, classes=NAMES)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)
def test_a_saved_calibrator_answers_the_same_and_can_be_fitted_again(method, tmp_path):
    fitted = seeded(method).fit(VIEWS)
    again = load(save(fitted, tmp_path / "calibrator.recal"))
    assert type(again) is method
    assert again.get_params() == fitted.get_params()
    assert again.state().keys() == fitted.state().keys()
    assert isinstance(again.map_, Map)
    assert again.map_ == fitted.map_
    assert hash(again.map_) == hash(fitted.map_)
    assert repr(again.map_).startswith(type(again.map_).__name__)
    for name in field_names(type(again.map_)):
        with pytest.raises(AttributeError):
            setattr(again.map_, name, None)
    np.testing.assert_array_equal(again.predict_proba(VIEWS), fitted.predict_proba(VIEWS))
    np.testing.assert_array_equal(again.predict(VIEWS), fitted.predict(VIEWS))
    written = save(again, tmp_path / "again.recal").read_bytes()
    assert written == (tmp_path / "calibrator.recal").read_bytes()
    np.testing.assert_array_equal(
        clone(again).fit(VIEWS).predict_proba(VIEWS), fitted.predict_proba(VIEWS)
    )
