"""What every kind for texts promises of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recal.errors import InputError
from recal.transforms import TRANSFORMS, BuiltIn, as_transform, pool

TEXTS = [
    "It rains. The cat is wet! Does it mind? No: it sleeps, and dreams of a drier, warmer place.",
    "Ein Satz.\nNoch einer,\n\nund ein dritter ohne Punkt",
    "雨が降る。猫は眠る。誰も気にしない。",
    "one two three four five six seven eight nine ten",
]
KINDS = [cls for cls in TRANSFORMS if cls.modality == "text"]
every_kind = pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.kind)


def make(cls: type[BuiltIn], strength: float) -> Any:
    return cls(strength)


@every_kind
def test_texts_are_changed_the_same_way_alone_in_a_list_and_in_an_array(cls):
    transform = make(cls, 0.3)
    together = transform(TEXTS)
    assert transform(TEXTS) == together != TEXTS
    assert [transform([text])[0] for text in TEXTS] == together
    assert transform(np.array(TEXTS)).tolist() == together
    objects = transform(np.array(TEXTS, dtype=object))
    assert (objects.dtype, objects.tolist()) == (np.dtype(object), together)


@every_kind
def test_strength_zero_changes_nothing_and_nothing_becomes_empty(cls):
    assert make(cls, 0.0)(TEXTS) == TEXTS
    assert all(text.strip() for text in make(cls, 1.0)([*TEXTS, "a", "word"]))
    assert make(cls, 0.5)(["", "  "]) == ["", "  "]
    assert make(cls, 0.5)([]) == []


@every_kind
def test_stronger_changes_more(cls):
    def kept(strength: float) -> int:
        return sum(len(text) for text in make(cls, strength)(TEXTS))

    assert kept(0.0) > kept(0.2) > kept(0.8)


@every_kind
def test_specs_seeds_and_pools(cls):
    transform = make(cls, 0.3)
    assert as_transform(str(transform)) == transform
    assert len(pool(f"{cls.kind}:0.1-0.4:5")) == 5
    if "seed" in cls.options():
        other = as_transform(f"{transform}:seed=5")
        assert other(TEXTS) != transform(TEXTS)
    for rubbish in (3, None, {"a": 1}, [3], [b"bytes"], np.ones((2, 9), dtype=int), "one text"):
        with pytest.raises(InputError):
            transform(rubbish)
