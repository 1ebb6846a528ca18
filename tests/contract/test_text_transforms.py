"""What every kind for texts promises of strings, byte strings and texts of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recal.errors import InputError
from recal.transforms import TRANSFORMS, BuiltIn, as_transform, pool

TEXTS = [
    "It rains. The cat is wet! Does it mind? No: it sleeps, and dreams of a drier and warmer place.",
    "Ein Satz.\nNoch einer,\n\nund ein dritter ohne Punkt",
    "雨が降る。猫は眠る。誰も気にしない。",
    "one two three four five six seven eight nine ten",
]
KINDS = [cls for cls in TRANSFORMS if cls.modality == "text"]
every_kind = pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.kind)
of_ids = pytest.mark.parametrize(
    "cls", [cls for cls in KINDS if not cls.strings_only], ids=lambda cls: cls.kind
)


def make(cls: type[BuiltIn], strength: float) -> Any:
    return cls(strength, **({"mask_id": 255} if cls.kind == "tokenmask" else {}))


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

    if cls.kind != "tokenmask":
        assert kept(0.0) > kept(0.2) > kept(0.8)


@every_kind
def test_specs_seeds_and_pools(cls):
    transform = make(cls, 0.3)
    assert as_transform(str(transform)) == transform
    assert len(pool(f"{cls.kind}:0.1-0.4:5")) == 5
    if "seed" in cls.options():
        other = as_transform(f"{transform}:seed=5")
        assert other(TEXTS) != transform(TEXTS)
    for rubbish in (3, None, {"a": 1}, [3], np.zeros(3), "one text"):
        with pytest.raises(InputError):
            transform(rubbish)


@of_ids
def test_bytes_and_ids_of_different_lengths_need_no_padding(cls):
    transform = make(cls, 0.4)
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.arange(1, 11), np.arange(5, 40)]
    before = [row.copy() for row in ragged]
    found = transform(ragged)
    assert [type(row) for row in found] == [np.ndarray, np.ndarray]
    assert all((old == new).all() for old, new in zip(before, ragged))
    bodies = [b"\x7fELF\x02\x01\x01 some bytes", b"PK\x03\x04 others"]
    changed = transform(bodies)
    assert all(isinstance(body, bytes) for body in changed)
    if cls.kind == "tokenmask":
        assert [len(row) for row in found] == [10, 35]
        assert [body.count(b"\xff") for body in changed] == [
            round(0.4 * len(body)) for body in bodies
        ]
    else:
        assert [len(row) for row in found] == [6, 21]
        assert [len(body) for body in changed] == [
            len(body) - round(0.4 * len(body)) for body in bodies
        ]


@pytest.mark.parametrize(
    "cls", [cls for cls in KINDS if cls.strings_only], ids=lambda cls: cls.kind
)
def test_kinds_of_letters_and_sentences_refuse_ids(cls):
    with pytest.raises(InputError, match="needs a list of strings"):
        make(cls, 0.3)(np.ones((2, 9), dtype=np.int64))
    with pytest.raises(InputError, match="needs strings, but there is b"):
        make(cls, 0.3)([b"bytes"])


def test_sentences_are_whole():
    left = as_transform("sentencedrop:0.5")(TEXTS)
    assert left[2].count("。") == len(left[2].split("。")) - 1 == 1
    assert all(part in TEXTS[0] for part in left[0].split(". "))
