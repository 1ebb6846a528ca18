"""The plan: immutable data that prints, compares and knows what a runtime must compute."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from recal import Blend, Plan, Step
from recal.errors import InputError
from recal.transforms import Named
from recal.transforms.image import ZoomOut

NEUTRAL = (1.0, 1.0, 1.0, 1.0)


def test_lists_and_numpy_numbers_become_tuples_of_floats():
    step = Step("zoom:0.5", np.array([1, 2, 3, 4], dtype=np.float32))
    plan = Plan([step], start=np.float64(0.5), finish=2)
    assert step.betas == (1.0, 2.0, 3.0, 4.0)
    assert {type(beta) for beta in step.betas} == {float}
    assert type(plan.steps) is tuple
    assert (type(plan.start), type(plan.finish)) == (float, float)


def test_equal_plans_are_equal_and_hash_alike():
    plan = Plan((Step("zoom:0.50", (1, 2, 3, 4)),), start=0.5)
    assert {plan, Plan([Step(ZoomOut(0.5), [1, 2, 3, 4])], start=0.5)} == {plan}
    assert plan != dataclasses.replace(plan, confidence_at="own")
    assert plan != dataclasses.replace(plan, steps=(Step("zoom:0.5", (1, 2, 3, 5)),))


def test_only_transformations_that_change_something_must_be_computed_each_once():
    steps = [Step("zoom:0.9", NEUTRAL), Step("zoom:0.5", (1, 1, 1, 0.9))]
    steps += [Step("mine", (1, 1.1, 1, 1)), Step("zoom:0.5", (0.8, 1, 1, 1))]
    assert Plan(steps).transforms == (ZoomOut(0.5), Named("mine"))
    assert [step.is_neutral for step in steps] == [True, False, False, False]
    assert Plan().transforms == ()


@pytest.mark.parametrize(
    "betas", [(1, 1, 1), (1, 1, 1, 0), (1, 1, 1, np.nan), ("a", 1, 1, 1), None], ids=repr
)
def test_betas_must_be_four_positive_finite_numbers(betas):
    with pytest.raises(InputError, match="four positive finite betas"):
        Step("zoom:0.5", betas)


@pytest.mark.parametrize("name", ["start", "finish"])
@pytest.mark.parametrize("value", [0, np.nan, 10**400, "a"], ids=repr)
def test_start_and_finish_must_be_positive_finite_numbers(name, value):
    with pytest.raises(InputError, match=f"`{name}` must be a positive finite beta"):
        Plan(**{name: value})


def test_a_plan_prints_what_a_person_wants_to_know():
    plan = Plan(
        (Step("zoom:0.5", (1, 0.9, 0.8, 1)), Step("zoom:0.7", NEUTRAL)), start=0.5, finish=0.8
    )
    assert str(plan).splitlines() == [
        "Plan: temperature 2, then 2 steps with 1 view (zoom:0.5)",
        "    1  zoom:0.5         1.0000 0.9000 0.8000 1.0000",
        "    2  zoom:0.7         1.0000 1.0000 1.0000 1.0000",
        "  finish temperature 1.25",
    ]
    assert str(Plan(start=0.5)) == "Plan: temperature 2, no steps"


def blend(**changes):
    usual = {
        "own": 0.6,
        "weights": (("zoom:0.5", 0.4),),
        "offsets": (0.1, 0.0, -0.1),
        "epsilon": 1e-3,
        "gate": 0.99,
    }
    return Blend(**{**usual, "gated_own": 1.1, "gated_offsets": (0.0, 0.2, 0.0), **changes})


@pytest.mark.parametrize(
    "bad",
    [
        {"own": -0.1},
        {"own": 10**400},
        {"gated_own": np.inf},
        {"weights": (("zoom:0.5", np.nan),)},
        {"weights": (("zoom:0.5", 0.4), ("zoom:0.50", 0.1))},
        {"offsets": "abc"},
        {"epsilon": 1.0},
        {"gate": 0.0},
        {"answers": "both"},
        {"gated_offsets": (0.0, 0.1)},
        {"matrices": [[[0.0] * 2] * 2] * 2},
        {"matrices": [[[1e200, 0.0, 0.0]] * 3] * 2},
    ],
    ids=repr,
)
def test_a_blend_refuses_what_no_blend_may_hold(bad):
    with pytest.raises(InputError, match=re.escape(next(iter(bad)).split("_")[-1].rstrip("s"))):
        blend(**bad)


def test_the_gate_says_who_needs_views():
    logits = np.array([[0.0, 3.0, 0.0], [0.0, 6.0, 0.0], [9.0, 0.0, 0.0]], dtype=np.float32)
    gated = blend(gate=1 / (1 + 2 * np.exp(-6.0)), start=1.0)
    assert gated.transforms == (ZoomOut(0.5),)
    assert gated.needs_views(logits).tolist() == [True, False, False]
    assert dataclasses.replace(gated, start=0.5).needs_views(logits).tolist() == [True, True, True]
    assert blend(gate=None).needs_views(logits).tolist() == [True] * 3
    assert blend(weights=()).needs_views(logits).tolist() == [False] * 3
    assert Plan((Step("zoom:0.5", (1, 1, 1, 2)),)).needs_views(logits).tolist() == [True] * 3
    assert Plan(start=0.5).needs_views(logits).tolist() == [False] * 3


def test_a_blend_prints_what_a_person_wants_to_know():
    assert str(blend(start=0.5)).splitlines() == [
        "Plan: temperature 2, then stacking with 1 view (zoom:0.5). Predictions never change.",
        "  original         0.6000",
        "  zoom:0.5         0.4000",
        "  no view at a confidence of 0.99 or more: original 1.1000",
    ]
