"""Parts of the answers, groups, and samples to look at, against numpy and on data of known
calibration.
"""

import numpy as np
import pytest
from PIL import Image

from recal.comparison import compare, compare_probs
from recal.decisions import decide
from recal.errors import InputError
from recal.metrics.row_scores import RowScores
from recal.reporting.figure_data import slices_of
from recal.reporting.page import Page, examples, shown_input
from recal.reporting.verdict import automation


def page(comparison, **options):
    return Page(comparison, **options).html()


def calibrated_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(6, 1, n)
    return RowScores(confidence, rng.random(n) < confidence, 0 * confidence, 0 * confidence, 4)


def test_parts_say_what_numpy_counts_and_come_worst_first():
    rows = calibrated_rows(3000)
    camera = np.array(["a", "b", "c"])[np.arange(3000) % 3]
    rows.correct[(camera == "b") & (np.arange(3000) % 2 == 0)] = False
    found = slices_of(rows, camera, "camera")
    assert found.names[0] == "b"
    assert found.off.tolist() == [True, False, False]
    assert found.words == "1 of 3 is miscalibrated beyond chance (corrected for their number)."
    for index, name in enumerate(found.names):
        inside = camera == name
        assert found.counts[index] == inside.sum()
        assert found.errors[index] == (~rows.correct[inside]).sum()
        assert found.gaps[index] == pytest.approx(
            rows.confidence[inside].mean() - rows.correct[inside].mean()
        )


def test_in_calibrated_models_some_part_is_found_off_in_at_most_five_per_cent():
    rng = np.random.default_rng(0)
    alarms = sum(
        slices_of(calibrated_rows(400, seed), rng.integers(0, 25, 400), "part").off.any()
        for seed in range(200)
    )
    assert alarms <= 18


def test_a_column_of_the_wrong_length_is_refused_with_its_name(comparison):
    with pytest.raises(InputError, match="'camera'"):
        page(comparison, columns={"camera": ["a"] * 3})


def test_a_column_of_the_whole_file_is_cut_to_the_test_rows(views):
    found = compare(["ts"], views, splits=1)
    assert len(found.test_rows) == found.setup.n_test
    assert np.array_equal(views.labels[found.test_rows], found.test_labels)
    text = page(found, columns={"camera": np.where(views.labels > 1, "left", "right")})
    assert "By camera, worst first" in text
    assert ">left<" in text


def test_inputs_are_pictures_words_or_nothing(tmp_path):
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    assert shown_input([path], 0) == f"<q>{path}</q>", "a text is never opened as a file"
    grey, colour = np.zeros((9, 9), np.uint8), np.random.default_rng(0).normal(size=(3, 200, 300))
    shown = [shown_input([grey, colour, np.zeros(7), "<b>"], row) for row in range(4)]
    assert 'width="112" height="112"' in shown[0]
    assert 'width="112" height="75"' in shown[1]
    assert shown[2:] == ["", "<q>&lt;b&gt;</q>"]


def test_the_page_shows_the_inputs_of_the_rows_it_names(comparison):
    images = np.zeros((500, 4, 4), np.uint8)
    assert page(comparison, inputs=images).count("data:image/png") > 8
    surest = examples(comparison, "recal")[0]
    rows = comparison.samples["recal"]
    wrong = np.flatnonzero(~rows.correct)
    assert surest.row == wrong[np.argmax(rows.confidence[wrong])]
    assert surest.id == f"row {surest.row}"
    assert "data:image/png" not in page(comparison)


def test_groups_show_what_the_rule_accepts_in_each():
    rng = np.random.default_rng(0)
    group = np.array(["a", "b", "c"])[rng.integers(0, 3, 900)]
    confidence = rng.uniform(0.5, 1, 900)
    correct = rng.random(900) > np.where(group == "b", 0.3, 0.02)
    one = automation(compare_probs({"given": confidence}, correct, bootstrap=0), "given", 0.2)
    groups = one.by_group(group)
    assert groups[0].name == "b"
    assert [found.broken for found in groups] == [True, False, False]
    accepted = confidence >= one.decision.threshold
    for found in groups:
        inside = accepted & (group == found.name)
        assert (found.n_accepted, found.n_errors) == (inside.sum(), (inside & ~correct).sum())


def test_a_page_chooses_its_rule_by_cluster():
    rng = np.random.default_rng(0)
    confidence, film = rng.uniform(0.5, 1, 1000), np.repeat(np.arange(40), 25)
    correct = np.repeat(rng.random(40) < 0.97, 25)
    result = compare_probs({"given": confidence}, correct, clusters=film, bootstrap=0)
    found = automation(result, "given", 0.1).decision
    assert found.threshold == decide(confidence, correct, 0.1, clusters=film).threshold
    assert found.threshold > decide(confidence, correct, 0.1).threshold


def test_a_rule_with_a_threshold_for_each_group_is_applied_group_by_group():
    rng = np.random.default_rng(0)
    group = np.array(["easy", "hard"])[rng.integers(0, 2, 4000)]
    confidence = rng.uniform(0.5, 1, 4000)
    correct = rng.random(4000) < np.where(group == "easy", 0.99, confidence)
    rule = decide(confidence[:2000], correct[:2000], risk=0.1, groups=group[:2000])
    result = compare_probs({"given": confidence[2000:]}, correct[2000:], bootstrap=0)
    one = automation(result, "given", 0.1, decision=rule, groups=group[2000:])
    assert np.array_equal(one.accepted, rule.accept(confidence[2000:], groups=group[2000:]))
    shown = page(result, decisions={"given": rule}, groups={"kind": group[2000:]}, risk=0.1)
    assert ">easy<" in shown
