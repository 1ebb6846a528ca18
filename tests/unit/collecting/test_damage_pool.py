"""The pool of damage, and a classifier that follows with it."""

from __future__ import annotations

import numpy as np
import pytest

from recal import CalibratedClassifier, DecisionRule, TemperatureScaling, pool
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


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Dots in one of four quarters, on a noisy ground."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    images = rng.normal(90, 45, (n, 16, 16))
    for row, quarter in enumerate(y):
        top, left = 8 * (quarter // 2), 8 * (quarter % 2)
        images[row, top + 2 : top + 6, left + 2 : left + 6] += 25
    return np.clip(images, 0, 255).astype(np.uint8), y


def model(images: np.ndarray) -> np.ndarray:
    values = np.asarray(images, float)
    quarters = [
        values[:, t + 1 : t + 7, s + 1 : s + 7].mean((1, 2)) for t in (0, 8) for s in (0, 8)
    ]
    return np.stack(quarters, axis=1) / 4


def test_a_classifier_collects_damage_by_itself_and_follows():
    fit, y = pictures(700, 0)
    following = CalibratedClassifier(model, TemperatureScaling(), follow=True, batch_size=700).fit(
        fit, y
    )
    plain = CalibratedClassifier(model, TemperatureScaling(), batch_size=700).fit(fit, y)
    clean, _ = pictures(400, 1)
    assert following.predict_proba(clean) == pytest.approx(plain.predict_proba(clean), abs=0.1)
    noisy = np.clip(clean + np.random.default_rng(2).normal(0, 90, clean.shape), 0, 255).astype(
        np.uint8
    )
    followed, stayed = following.predict_proba(noisy), plain.predict_proba(noisy)
    assert (followed.argmax(1) == stayed.argmax(1)).all()
    assert following.condition_.known or following.condition_.reason
    following.predict_proba(clean[:20])
    assert not following.condition_.known
    following.calibrator_.decision_ = DecisionRule((0.5,), risk=0.1, confidence=0.95)
    assert following.accept(clean).any()
