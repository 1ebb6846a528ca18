"""The pool of damage."""

from __future__ import annotations

import numpy as np
import pytest

from recal import pool
from recal.errors import InputError
from recal.transforms.pool import DAMAGE


@pytest.mark.parametrize("made_for", DAMAGE)
def test_a_pool_of_damage_has_three_strengths_of_three_or_more_kinds(made_for):
    data = np.random.default_rng(0).normal(size=(20, 5)) if made_for == "tabular" else None
    kinds = [str(transform).split(":")[0] for transform in pool(f"damage:{made_for}", data=data)]
    assert all(kinds.count(kind) == 3 for kind in kinds)
    assert len(set(kinds)) >= 3


def test_damage_alone_is_that_of_images_and_joins_others():
    assert pool("flip+damage")[1:] == pool("damage:image") == pool("damage")
    assert len({str(transform).split(":")[0] for transform in pool("damage")}) >= 6
    with pytest.raises(InputError, match="got 'damage:smell'"):
        pool("damage:smell")
