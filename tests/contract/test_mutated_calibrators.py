"""A calibrator's file with its fitted state changed: refused when it is loaded, or it answers with
probabilities.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from recal import load, save
from recal.calibrators import CALIBRATORS
from recal.errors import FileError, RecalError
from recal.maps.base import Map
from recal.maps.blend import Blend
from recal.maps.steps import Plan
from recal.schema import field_names
from tests.problems import seeded, views

METHODS = {method.short_name: method for method in CALIBRATORS}
problem = partial(views, n=60, scale=3, noise=0.7, transforms=("zoom:0.3", "zoom:0.5"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each method, fitted and saved once."""
    folder, held = tmp_path_factory.mktemp("saved"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, method in METHODS.items():
            fitted = seeded(method).fit(problem())
            held[name] = fitted, save(fitted, folder / f"{name}.recal").read_bytes()
    return held


def with_state(fitted: Any, state: dict[str, Any]) -> Any:
    """The calibrator as `save` sees it, with another state."""
    changed = copy.copy(fitted)
    changed.state = lambda: state
    return changed


def changes(value: Any) -> Iterator[Callable[[], Any]]:
    """Other values in the place of one of the state's."""
    yield from (lambda: None, lambda: "x", lambda: -1.0)
    if isinstance(value, bool):
        return
    if isinstance(value, int | float | np.number):
        yield from (lambda: -value, lambda: float("nan"), lambda: float("inf"))
    if isinstance(value, list | tuple) and value:
        yield from (lambda: value[:-1], lambda: [*value, value[0]], lambda: [None] * len(value))
    if isinstance(value, np.ndarray) and value.size:
        yield from (lambda: value[:-1], lambda: -value, lambda: value * 3, lambda: value[None])
        yield from (
            lambda: np.concatenate([value, value]),
            lambda: value[::-1].copy(),
            lambda: value.astype(str),
        )
        if value.dtype.kind == "f":
            yield from (lambda: np.full_like(value, np.nan), lambda: np.full_like(value, np.inf))
            yield lambda: value.ravel()[:1] * 1e300
        if value.dtype.kind in "iu":
            yield from (lambda: value + 1000, lambda: value * 0 - 5, lambda: value.astype(float))


def with_field(changed: Map, name: str, value: Any) -> Map:
    """A map with another value in a field, past all checks."""
    other = copy.copy(changed)
    object.__setattr__(other, name, value)
    return other


def changed_states(fitted: Any) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The state with one of its values changed, or one field of its map."""
    state = fitted.state()
    for key, value in state.items():
        for change in changes(value):
            yield key, lambda key=key, change=change: state | {key: change()}
        if isinstance(value, Map) and not isinstance(value, Plan | Blend):
            for name in field_names(type(value)):
                for change in changes(getattr(value, name)):
                    yield (
                        f"{key}.{name}",
                        lambda key=key, value=value, name=name, change=change: (
                            state | {key: with_field(value, name, change())}
                        ),
                    )


@pytest.mark.parametrize("name", METHODS)
def test_a_changed_state_is_refused_or_answers_with_probabilities(name, files, tmp_path):
    fitted, _ = files[name]
    new, tried, refused = problem(n=20, seed=1), 0, 0
    for key, change in changed_states(fitted):
        try:
            with np.errstate(over="ignore"):
                path = save(with_state(fitted, change()), tmp_path / "changed.recal")
        except RecalError:
            continue  # no file could say so
        tried += 1
        try:
            loaded = load(path)
        except FileError:
            refused += 1
            continue
        if len(loaded.classes_) != 3:  # a calibrator of other classes, and whole
            continue
        with np.errstate(all="ignore"):
            probs = loaded.predict_proba(new)
        assert np.isfinite(probs).all(), f"{key}: {change()}"
        np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-6, err_msg=f"{key}: {change()}")
        loaded.predict(new)
    assert tried > 10
    assert refused > 5


@pytest.mark.parametrize("name", METHODS)
def test_a_state_with_a_part_missing_is_refused_or_answers_the_same(name, files, tmp_path):
    fitted, _ = files[name]
    for key in fitted.state():
        state = {other: value for other, value in fitted.state().items() if other != key}
        try:
            loaded = load(save(with_state(fitted, state), tmp_path / "changed.recal"))
        except FileError:
            continue
        np.testing.assert_array_equal(
            loaded.predict_proba(problem(n=20)), fitted.predict_proba(problem(n=20))
        )
