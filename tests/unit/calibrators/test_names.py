"""Names of methods in tables and on the command line."""

from __future__ import annotations

import pytest

from recal import TemperatureScaling, ViewStacking
from recal.calibrators import CALIBRATORS, StructuredVectorScaling, find_method, name_of
from recal.errors import InputError


@pytest.mark.parametrize("text", ["svs (kept)", "svs(kept)", "svs:kept", " svs  ( kept ) "])
def test_answers_may_be_part_of_the_name(text):
    assert find_method(text) == (StructuredVectorScaling, {"answers": "kept"})


def test_every_name_is_found_again():
    for method in CALIBRATORS:
        assert find_method(name_of(method())) == (method, {})
    for calibrator in (StructuredVectorScaling(answers="kept"), ViewStacking(answers="free")):
        method, options = find_method(name_of(calibrator))
        assert (method, options) == (type(calibrator), {"answers": calibrator.answers})
    assert name_of(ViewStacking()) == "stack"
    assert name_of(TemperatureScaling()) == "ts"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "no method 'nonsense'; the methods are"),
        ("", "no method ''"),
        ("ts (kept)", r"'ts \(kept\)' is no method"),
        ("svs (maybe)", r"'svs \(maybe\)' is no method"),
    ],
)
def test_what_is_no_name_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        find_method(text)
