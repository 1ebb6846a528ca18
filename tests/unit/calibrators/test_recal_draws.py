"""What ReCal draws from a pool that was made for stacking."""

from __future__ import annotations

import pytest

from recal import ReCal, Views
from recal.errors import InputError
from tests.problems import views


def _views(*specs: str) -> Views:
    return views(200, scale=3, noise=0.67, keep=1, transforms=specs)


def test_draws_pass_over_views_that_lose_nothing() -> None:
    mixed, lossy = _views("zoom:0.5", "my own", "flip", "shift"), _views("zoom:0.5", "my own")
    fits = [ReCal(random_state=0, tol=0, max_iter=20).fit(views) for views in (mixed, lossy)]
    assert fits[0].plan_ == fits[1].plan_
    assert {str(record.transform) for record in fits[0].history_} == {"zoom:0.5", "my own"}


def test_they_are_drawn_where_there_is_nothing_else_or_they_are_asked_for() -> None:
    alone = ReCal(random_state=0, tol=0, max_iter=5).fit(_views("flip"))
    assert {str(record.transform) for record in alone.history_} == {"flip"}
    asked = ReCal(sequence=["flip", 0], tol=0).fit(_views("zoom:0.5", "flip"))
    assert [str(record.transform) for record in asked.history_] == ["flip", "zoom:0.5"]


@pytest.mark.parametrize("item", [5, "zoom:0.9"])
def test_a_sequence_names_views_that_are_there(item) -> None:
    with pytest.raises(InputError, match=f"`sequence`.*{item}"):
        ReCal(sequence=[item]).fit(_views("zoom:0.5"))
