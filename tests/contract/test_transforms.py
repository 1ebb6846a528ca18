"""What every built-in transformation promises. A new one is found by its class in TRANSFORMS."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recal.errors import InputError
from recal.schema import Choice, field_kinds
from recal.transforms import TRANSFORMS, BuiltIn, Transform, as_transform, pool

FLOATS = ["float16", "float32", "float64"]
DTYPES = {
    "image": ["uint8", "uint16", *FLOATS],
    "video": ["uint8", *FLOATS],
    "series": ["int16", "int32", *FLOATS],
    "audio": ["uint8", "int16", *FLOATS],
    "tabular": ["int32", *FLOATS],
}
# Kinds that take strings alone meet their promises in test_text_transforms.py.
OF_ARRAYS = [cls for cls in TRANSFORMS if cls.modality != "text"]
every_kind = pytest.mark.parametrize("cls", OF_ARRAYS, ids=lambda cls: cls.kind)
every_strength = pytest.mark.parametrize(
    "cls", [cls for cls in OF_ARRAYS if cls.has_strength], ids=lambda cls: cls.kind
)
quick = settings(max_examples=25, deadline=None, derandomize=True)


def shapes(modality: str) -> st.SearchStrategy[tuple[int, ...]]:
    n, size, channels = st.integers(1, 5), st.integers(5, 24), st.sampled_from([1, 3, 4])
    return {
        "image": st.one_of(
            st.tuples(n, channels, size, size),
            st.tuples(n, size, size, channels),
            st.tuples(n, size, size),
        ),
        "video": st.one_of(
            st.tuples(n, size, channels, size, size), st.tuples(n, st.integers(1, 3), size, size)
        ),
        "series": st.one_of(
            st.tuples(n, st.integers(1, 60)), st.tuples(n, st.integers(1, 4), st.integers(1, 60))
        ),
        "audio": st.one_of(
            st.tuples(n, st.integers(1, 400)), st.tuples(n, st.just(2), st.integers(1, 400))
        ),
        "tabular": st.tuples(n, st.just(7)),
    }[modality]


def inputs(modality: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, endpoint=True, dtype=dtype)
    low = 0.0 if modality in ("image", "video") else -1.0
    return rng.uniform(low, 1.0, shape).astype(dtype)


def options(cls: type[BuiltIn]) -> dict[str, Any]:
    return {
        "median": {"medians": (0.5, -1.25, 3, 1e-7, 12345.678, 2, 0)},
        "permute": {"levels": tuple(range(77))},
    }.get(cls.kind, {})


def dtypes(cls: type[BuiltIn]) -> list[str]:
    return (
        FLOATS if cls.kind == "missing" else DTYPES[cls.modality]
    )  # whole numbers have no missing value


def make(cls: type[BuiltIn], strength: float, **extra: Any) -> Any:
    return cls(*[strength][: cls.has_strength], **options(cls), **extra)


@st.composite
def cases(draw: st.DrawFn, cls: type[BuiltIn]) -> tuple[Any, np.ndarray]:
    low, high = sorted((cls.strengths.weak, cls.strengths.strong))
    steps = round((high - low) / cls.strengths.step)
    strength = low + draw(st.integers(0, steps)) * cls.strengths.step
    extra = {}
    for option, kind in field_kinds(cls).items():
        if isinstance(kind, Choice) and option != "layout":
            extra[option] = draw(st.sampled_from(kind.options))
    shape = draw(shapes(cls.modality))
    dtype = draw(st.sampled_from(dtypes(cls)))
    values = inputs(cls.modality, shape, dtype, draw(st.integers(0, 999)))
    values = values.astype(dtype)
    if draw(st.booleans()):
        values = np.asfortranarray(values)
    return make(cls, strength, **extra), values


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@every_kind
def test_keeps_shape_dtype_and_input_and_repeats_itself(cls: type[BuiltIn]) -> None:
    @quick
    @given(cases(cls))
    def check(case: tuple[Any, np.ndarray]) -> None:
        transform, values = case
        before = zlib.crc32(bits(values))
        result = transform(values)
        assert (result.shape, result.dtype) == (values.shape, values.dtype)
        assert zlib.crc32(bits(values)) == before, "the input was changed"
        assert not np.shares_memory(result, values)
        assert bits(transform(values)) == bits(result)
        if values.dtype.kind == "f" and cls.kind != "missing":
            assert np.isfinite(result).all()

    check()


@every_kind
def test_a_sample_alone_gets_what_it_gets_in_a_batch(cls: type[BuiltIn]) -> None:
    @quick
    @given(cases(cls), st.randoms(use_true_random=False))
    def check(case: tuple[Any, np.ndarray], random: Any) -> None:
        transform, values = case
        whole = transform(values)
        order = list(range(len(values)))
        random.shuffle(order)
        assert bits(transform(values[order])) == bits(whole[order])
        for row in order:
            assert bits(transform(values[row : row + 1])) == bits(whole[row : row + 1])

    check()


@every_kind
def test_nothing_in_nothing_out(cls: type[BuiltIn]) -> None:
    shape = {"image": (2, 3, 8, 8), "video": (2, 4, 3, 8, 8), "tabular": (2, 7)}.get(
        cls.modality, (2, 20)
    )
    values = inputs(cls.modality, shape, DTYPES[cls.modality][-1], 0).astype(
        DTYPES[cls.modality][-1]
    )
    transform = make(cls, cls.strengths.strong)
    assert transform(values[:0]).shape == values[:0].shape
    assert transform(torch.from_numpy(values[:0])).shape == values[:0].shape


@every_kind
def test_torch_gives_the_same_bits(cls: type[BuiltIn]) -> None:
    @quick
    @given(cases(cls))
    def check(case: tuple[Any, np.ndarray]) -> None:
        transform, values = case
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        result = transform(tensor)
        assert isinstance(result, torch.Tensor)
        for name in ("shape", "dtype", "device"):
            assert getattr(result, name) == getattr(tensor, name)
        assert bits(result.numpy()) == bits(transform(values))
        assert bits(tensor.numpy()) == bits(values)

    check()


@pytest.mark.parametrize(
    "cls", [cls for cls in TRANSFORMS if cls.traceable], ids=lambda cls: cls.kind
)
def test_torch_operations_agree_with_numpy(cls: type[BuiltIn]) -> None:
    @quick
    @given(cases(cls))
    def check(case: tuple[Any, np.ndarray]) -> None:
        transform, values = case
        values = values.astype(np.float32) if values.dtype.kind != "f" else values
        if np.abs(values).max() > 1:
            values /= np.float32(np.abs(values).max())
        # A tensor whose gradient is wanted takes the way of one on another device.
        tensor = torch.from_numpy(np.ascontiguousarray(values)).requires_grad_()
        result = transform(tensor)
        assert result.requires_grad
        assert (result.shape, result.dtype) == (tensor.shape, tensor.dtype)
        atol = 1e-3 if values.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(result.detach().numpy(), transform(values), atol=atol, rtol=0)

    check()


@every_strength
def test_identity_strength_changes_nothing(cls: type[BuiltIn]) -> None:
    transform = make(cls, cls.strengths.identity)
    assert transform.is_identity

    @quick
    @given(cases(cls))
    def check(case: tuple[Any, np.ndarray]) -> None:
        result = transform(case[1])
        assert bits(result) == bits(case[1])
        assert not np.shares_memory(result, case[1])

    check()


@pytest.mark.parametrize(
    "cls", [cls for cls in OF_ARRAYS if not cls.keeps_information], ids=lambda cls: cls.kind
)
def test_stronger_loses_more(cls: type[BuiltIn]) -> None:
    known = {"image": (4, 3, 32, 32), "video": (4, 20, 1, 8, 8), "tabular": (40, 7)}
    shape = known.get(cls.modality, (4, 200))
    values = inputs(cls.modality, shape, DTYPES[cls.modality][-1], 5)

    def distance(strength: float) -> float:
        return float(np.nan_to_num(np.abs(make(cls, strength)(values) - values), nan=1.0).mean())

    assert 0 < distance(cls.strengths.weak) < distance(cls.strengths.strong)


@every_kind
def test_spec_and_value_are_the_same_thing(cls: type[BuiltIn]) -> None:
    @quick
    @given(cases(cls), st.integers(0, 9))
    def check(case: tuple[Any, np.ndarray], seed: int) -> None:
        transform, values = case
        again = as_transform(str(transform))
        assert again == transform
        assert hash(again) == hash(transform)
        assert str(again) == str(transform)
        assert copy.deepcopy(transform) == transform
        assert bits(again(values)) == bits(transform(values))
        if "seed" in cls.options():
            other = as_transform(f"{transform}:seed={seed}") if seed else transform
            assert (str(other) == str(transform)) == (other == transform)

    check()


@every_strength
def test_declares_itself(cls: type[BuiltIn]) -> None:
    low, high = cls.strengths.low, cls.strengths.high
    weak, strong, identity = cls.strengths.weak, cls.strengths.strong, cls.strengths.identity
    assert all(low <= strength <= high for strength in (weak, strong, identity))
    assert weak != strong
    assert abs(weak - identity) < abs(strong - identity), "weak comes first"
    assert isinstance(make(cls, weak), Transform)
    assert cls.__doc__
    for strength in (low - 1, high + 1, float("nan"), "much", None):
        with pytest.raises(InputError, match=f"{cls.kind}'s"):
            make(cls, strength)  # type: ignore[arg-type]


@every_kind
def test_pools_draw_it_by_its_bare_kind(cls: type[BuiltIn]) -> None:
    data = np.ones((3, 7)) if cls.modality == "tabular" else None
    drawn = pool(cls.kind, data=data)
    if not cls.needs_strength():
        assert drawn == (as_transform(cls.kind),)
    else:
        assert len(set(drawn)) == len(drawn) >= 5


@every_kind
def test_wrong_inputs_are_refused(cls: type[BuiltIn]) -> None:
    transform = make(cls, cls.strengths.strong)
    complex_ones = np.zeros((2, 3, 4, 5), dtype=complex)
    for rubbish in (np.zeros(3), np.array([None, 3]), "text", {"a": 1}, 3, complex_ones):
        with pytest.raises(InputError):
            transform(rubbish)


def test_seeds_and_contents_matter() -> None:
    values = np.random.default_rng(0).normal(size=(2, 50))
    fates = {bits(as_transform(f"drop:0.5:seed={seed}")(values) == values) for seed in range(5)}
    assert len(fates) == 5
    kept = as_transform("drop:0.5")(values) == values
    assert (kept[0] != kept[1]).any()
