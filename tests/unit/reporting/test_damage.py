"""The report's part on damaged inputs: what the profile knows, and what new inputs show."""

from __future__ import annotations

import numpy as np
import pytest

from recal import Views, profile, report
from recal.errors import InputError
from recal.reporting.view_studies import damage_study


def logits(y: np.ndarray, strength: float, loud: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return loud * (4.0 * (1 - strength) * np.eye(4)[y] + rng.normal(size=(len(y), 4)))


@pytest.fixture(scope="module")
def kept():
    y = np.arange(600) % 4
    kinds = {"fading": 2.0, "shouting": 4.0, "hush": 1.0}
    through = {
        f"{kind}:{s}": logits(y, s, loud, i)
        for i, (kind, loud) in enumerate(kinds.items())
        for s in (0.3, 0.45, 0.6)
    }
    return profile(Views(logits(y, 0, 2.0, 9), {**through, "<b>:1": logits(y, 0.5, 2.0, 8)}, y))


def test_the_study_tells_each_views_accuracy_and_temperature(kept):
    y = np.arange(600) % 4
    study = damage_study(kept)
    assert study.kinds[:2] == ("fading", "fading")
    assert study.accuracy[0] == pytest.approx(
        (logits(y, 0.3, 2.0, 0).argmax(1) == y).mean(), abs=0.01
    )
    louder, fading = study.temperature[[5, 2]]
    assert louder / fading == pytest.approx(2.0, rel=0.15)
    assert [row[1] for row in study.rows() if row[0] == "hush"] == [3]
    assert study.notes == ()


def test_accuracies_are_told_where_the_inputs_as_they_are_are_all_right():
    y = np.arange(200) % 4
    damaged = logits(y, 0.7, 2.0, 2)
    study = damage_study(
        profile(Views(logits(y, 0, 9.0, 1) + 99 * np.eye(4)[y], {"fading:1": damaged}, y))
    )
    assert study.usual == 1.0
    assert study.accuracy[0] == pytest.approx((damaged.argmax(1) == y).mean(), abs=0.01)


def test_new_inputs_get_a_sentence_and_a_place(kept):
    study = damage_study(kept, logits(np.arange(300) % 4, 0.6, 2.0, 77))
    assert study.notes[0].startswith("300 new inputs: The temperature is multiplied by")
    assert study.place[1] > 1.5
    few = damage_study(kept, logits(np.arange(10) % 4, 0.6, 2.0, 77))
    assert "10 inputs are too few" in few.notes[0]
    assert few.place is None


def test_the_page_has_the_part_and_no_markup_of_a_view(kept, tmp_path):
    probs, y = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 20), [0, 1, 1] * 20
    text = report(probs, tmp_path / "a.html", y=y, bootstrap=20, profile=kept).read_text()
    assert 'id="damage"' in text
    assert "&lt;b&gt;" in text
    assert "<b>:" not in text
    assert 'id="damage"' not in report(probs, tmp_path / "b.html", y=y, bootstrap=20).read_text()
    with pytest.raises(InputError, match="pass it as `profile`"):
        report(probs, tmp_path / "c.html", y=y, new=[[0.0, 1.0]])


def test_views_of_two_kinds_are_said_to_be_too_few():
    y = np.arange(200) % 4
    study = damage_study(
        profile(Views(logits(y, 0, 2.0, 1), {"fading:1": logits(y, 0.5, 2.0, 2)}, y))
    )
    assert "1 damaging kind and 3 are needed" in study.words
    assert damage_study(profile(logits(y, 0, 2.0, 1), y)) is None
