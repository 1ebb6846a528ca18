"""Every calibrator goes through a file and comes back the same, without a line of its own here."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.base import clone

from recal import Views, load, save
from recal.calibrators import CALIBRATORS

NAMES = ["dog", "ant", "cat"]


def views() -> Views:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    logits = 3 * (np.eye(3)[y] + rng.normal(0, 0.7, (90, 3)))
    transformed = {f"zoom:0.{i}": logits * 0.5 + rng.normal(0, 1, (90, 3)) for i in (3, 5, 7)}
    return Views(logits, transformed, np.array(NAMES)[y], classes=NAMES)


@pytest.mark.parametrize("method", CALIBRATORS, ids=lambda method: method.short_name)
def test_a_saved_calibrator_answers_the_same_and_can_be_fitted_again(method, tmp_path):
    seeded = {"random_state": 0} if "random_state" in inspect.signature(method).parameters else {}
    fitted = method(**seeded).fit(views())
    again = load(save(fitted, tmp_path / "calibrator.recal"))
    assert type(again) is method
    assert again.get_params() == fitted.get_params()
    assert again.state().keys() == fitted.state().keys()
    np.testing.assert_array_equal(again.predict_proba(views()), fitted.predict_proba(views()))
    np.testing.assert_array_equal(again.predict(views()), fitted.predict(views()))
    assert save(again, tmp_path / "again.recal").read_bytes() == (tmp_path / "calibrator.recal").read_bytes()
    np.testing.assert_array_equal(clone(again).fit(views()).predict_proba(views()), fitted.predict_proba(views()))
