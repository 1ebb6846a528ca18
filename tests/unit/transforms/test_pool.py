"""Pools and specs: what is drawn, what is refused and with which words."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from recal.errors import InputError
from recal.transforms import (
    TRANSFORMS,
    Brightness,
    Named,
    RandomPixels,
    ZoomOut,
    as_transform,
    pool,
)
from recal.transforms.base import format_strength


def turned(images: Any) -> Any:
    return images[..., ::-1, ::-1]


def test_ranges_draw_the_asked_number_from_the_grid_without_its_upper_end() -> None:
    drawn = pool("zoom:0.1-0.9:80")
    assert [str(t) for t in drawn] == [f"zoom:{n / 100:g}" for n in range(10, 90)]


def test_same_seed_same_pool_other_seed_other_pool() -> None:
    spec = "zoom:0.1-0.9:20+brightness:0.1-0.9:10"
    assert pool(spec, seed=3) == pool(spec, seed=3)
    assert pool(spec, seed=3) != pool(spec, seed=4)
    assert len(set(pool(spec))) == 30
    assert pool(spec)[:20] == pool("zoom:0.1-0.9:20")  # whatever stands beside it


def test_parts_of_one_kind_stay_distinct() -> None:
    drawn = pool("zoom:0.5-0.6:5+zoom:0.5-0.6:4+zoom:0.55")
    assert len(set(drawn)) == 10
    with pytest.raises(InputError, match="has 9 strengths"):
        pool("zoom:0.5-0.6:10+zoom:0.55")
    with pytest.raises(InputError, match=r"'zoom:0.5' is in the pool twice"):
        pool("zoom:0.5+zoom:0.50")


def test_everything_can_be_mixed() -> None:
    given = [turned, "zoom:0.5-0.9:2", Brightness(0.3), Named("mine", turned)]
    mixed = pool([*given, "zoom:0.3+brightness:0.4"])
    assert str(mixed[0]) == "turned"
    assert len(mixed) == 7
    assert pool(turned) == (Named("turned"),)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("zom:0.5", r"no transformation 'zom'.*zoom, brightness.*mean 'zoom'"),
        ("", r"no transformation ''"),
        ([], r"at least one"),
        (7, r"got 7"),
        ("zoom:0.1-0.9", r"'zoom:0.1-0.9:5'; got 'zoom:0.1-0.9'"),
        ("zoom:0.9-0.1:3", r"got 'zoom:0.9-0.1:3'"),
        ("zoom:0.5:size=3", r"options.*layout; got 'size=3'"),
        ("zoom:layout=NCHW:0.5", r"options come last"),
        (lambda x: x, r"Named\('my-name', function\)"),
        (partial(turned), r"Named\('my-name', function\)"),
        ([ZoomOut], r"got <class"),
    ],
)
def test_wrong_specs_are_refused_with_the_remedy(spec: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pool(spec)


@pytest.mark.parametrize(
    "kind", [kind for kind in TRANSFORMS if kind.has_strength], ids=lambda kind: kind.kind
)
@pytest.mark.parametrize(
    "ends", ["{low}-1e9", "{low}-1e999", "{above}-{beyond}", "0-1e9", "1e8-1e9"]
)
def test_a_range_beyond_its_kinds_domain_is_refused_before_a_grid_is_built(
    kind, ends, monkeypatch
) -> None:
    drawing = sys.modules["recal.transforms.pools"]
    monkeypatch.setattr(drawing, "_grid", lambda *_: pytest.fail("a grid was built"))
    least, most, step = kind.strengths.low, kind.strengths.high, kind.strengths.step
    low, above = format_strength(least + step), format_strength(most)
    text = ends.format(low=low, above=above, beyond=most + 2 * step)
    with pytest.raises(InputError, match=f"{kind.kind} takes a strength in .* got"):
        pool(f"{kind.kind}:{text}:3")


@pytest.mark.parametrize("text", ["inf", "nan", "-inf", "1e999", "9" * 400, "Infinity"])
def test_endless_numbers_are_refused(text: str) -> None:
    for spec in (f"zoom:{text}", f"median:0.5:medians=1;{text}", f"zoom:0.1-{text}:3"):
        with pytest.raises(InputError):
            pool(spec)


@pytest.mark.parametrize("count", ["9" * 5000, "9" * 10, "\u0664" * 5000])
def test_a_count_that_nobody_can_compute_is_refused(count: str) -> None:
    with pytest.raises(InputError, match=f"got 'zoom:0.1-0.9:{count}'"):
        pool(f"zoom:0.1-0.9:{count}")


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_seed_must_be_a_whole_number(seed: Any) -> None:
    with pytest.raises(InputError, match="`seed`"):
        pool("zoom:0.5", seed=seed)


def test_specs_and_values_are_the_same_thing() -> None:
    assert as_transform("zoom:0.50") == as_transform(" zoom:0.5 ") == ZoomOut(0.5)
    assert hash(as_transform("zoom:0.50")) == hash(ZoomOut(0.5))
    third = ZoomOut(1 / 3)
    assert as_transform(str(third)) == third
    assert third.scale == 1 / 3
    assert ZoomOut(0.1 + 0.2) == ZoomOut(0.3)
    assert str(ZoomOut(0.1 + 0.2)) == "zoom:0.3"
    seeded = RandomPixels(0.1, seed=2**53 + 1)
    assert as_transform(str(seeded)) == seeded
    option = ZoomOut(0.5, layout="NHWC")
    assert str(option) == "zoom:0.5:layout=NHWC"
    assert as_transform(str(option)) == option != ZoomOut(0.5)


def test_foreign_names_stay_names_and_known_kinds_are_checked() -> None:
    assert as_transform("rotate:90") == Named("rotate:90")
    assert as_transform("zoom") == Named("zoom"), "a user's own function may be called zoom"
    with pytest.raises(InputError, match=r"got 1.5"):
        as_transform("zoom:1.5")
    with pytest.raises(InputError, match=r"zoom:0.1-0.9:5"):
        as_transform("zoom:0.1-0.9:20")
    with pytest.raises(InputError, match=r"means recal's own zoom"):
        as_transform(Named("zoom:0.5", turned))
    with pytest.raises(InputError, match=r"got 3"):
        as_transform(3)


@pytest.mark.parametrize("spec", ["flip:0.5", "flip:0.1-0.9:3", "flip:"])
def test_a_kind_without_strength_takes_none(spec: str) -> None:
    with pytest.raises(InputError, match=f"flip has no strength.*got '{spec[:5]}"):
        pool(spec)
