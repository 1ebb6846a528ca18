"""Prediction sets: the rank that is promised, coverage by simulation, per class, and sets that no
batch changes.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from recal import TemperatureScaling, load, prediction_sets, save
from recal.decisions.sets import PredictionSets, content_uniforms, parted, smallest
from recal.errors import FewSamplesWarning, InputError
from tests.problems import probs_and_labels

problem = partial(probs_and_labels, n_classes=5, spread=2, sharpness=1, favour=1)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_the_limit_is_the_score_of_the_rank_that_split_conformal_names():
    probs = np.column_stack([np.linspace(0.95, 0.05, 19), np.linspace(0.05, 0.95, 19)])
    y = np.zeros(19, int)
    assert prediction_sets(probs, y, 0.9).limits == pytest.approx((1 - probs[17, 0],), abs=1e-5), (
        "the 18th of 19"
    )
    assert prediction_sets(probs, y, 0.95).limits == pytest.approx((1 - probs[18, 0],), abs=1e-5), (
        "the 19th of 19"
    )
    assert prediction_sets(probs, y, 0.96).limits == (math.inf,), (
        "no score among 19 can promise that"
    )


@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
def test_tied_probabilities_are_covered_in_float32_and_after_rounding(method):
    rng = np.random.default_rng(0)
    rows = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])
    probs = rows[rng.integers(0, 4, 4000)]
    y = (probs.cumsum(axis=1) > rng.random((4000, 1))).argmax(axis=1)
    moved = np.exp(np.log(probs) + 1.2345)
    for coverage in (0.7, 0.8, 0.9):
        sets = prediction_sets(probs, y, coverage, method, penalty=0.1)
        for same in (probs, probs.astype(np.float32), moved / moved.sum(axis=1, keepdims=True)):
            assert sets.predict(same)[np.arange(4000), y].mean() >= coverage


def test_scores_of_all_three_methods_by_hand():
    probs = np.array([[0.2, 0.5, 0.3]])
    assert PredictionSets("lac", 0.9, (1.0,)).scores(probs)[0] == pytest.approx([0.8, 0.5, 0.7])
    rest = (1 - content_uniforms(probs)) * probs[0]  # the part of a class that does not count
    assert PredictionSets("aps", 0.9, (1.0,)).scores(probs)[0] == pytest.approx(
        [1, 0.5, 0.8] - rest
    )
    raps = PredictionSets("raps", 0.9, (1.0,), penalty=0.1, free_ranks=1)
    assert raps.scores(probs)[0] == pytest.approx([1.2, 0.5, 0.9] - rest)


@pytest.mark.parametrize("method", ["lac", "aps", "raps"])
@pytest.mark.parametrize("spoiled", [1.0, 2.5])
def test_coverage_is_kept_in_small_samples_for_any_model(method, spoiled):
    """The mean coverage over many small labelled samples lies between the promise and the promise +
    1/(n + 1).
    """
    test, truth = problem(4000, seed=999, sharpness=spoiled)
    rows, n = np.arange(4000), 60
    found = []
    for seed in range(150):
        sets = prediction_sets(*problem(n, seed=seed, sharpness=spoiled), 0.85, method)
        found.append(sets.predict(test)[rows, truth].mean())
    error = 3 * (np.std(found) / math.sqrt(150) + math.sqrt(0.85 * 0.15 / 4000))
    assert 0.85 - error <= np.mean(found) <= 0.85 + 1 / (n + 1) + error


def test_per_class_coverage_is_kept_for_each_class():
    probs, y = problem(8000, seed=1, sharpness=2.5)
    test, truth = problem(20_000, seed=2, sharpness=2.5)

    def worst(sets):
        """Return the coverage of the class that is covered least."""
        kept = sets.predict(test)[np.arange(len(truth)), truth]
        return min(kept[truth == k].mean() for k in range(probs.shape[1]))

    assert worst(prediction_sets(probs, y, 0.9)) < 0.89, "the promise for all is not for each"
    assert worst(prediction_sets(probs, y, 0.9, per_class=True)) > 0.88


@pytest.mark.parametrize(
    ("per_class", "coverage", "words"),
    [
        (True, 0.9, "2 of 2 classes have fewer than the 9 labelled samples"),
        (False, 0.95, "fewer than the 19 labelled samples"),
        (True, 0.75, "every set holds every class"),
        (False, 0.8, "every set holds every class"),
    ],
)
def test_sets_that_hold_every_class_say_so(per_class, coverage, words):
    with pytest.warns(FewSamplesWarning, match=words):
        sets = prediction_sets(np.full((12, 2), 0.5), [0, 1] * 6, coverage, per_class=per_class)
    assert sets.predict([[0.5, 0.5]]).all()


def test_the_penalty_is_chosen_on_samples_that_the_limit_is_not_made_from():
    chosen, rest = parted(1000, 0.9)
    assert len(chosen) == 200
    assert sorted([*chosen, *rest]) == list(range(1000))
    assert len(parted(249, 0.9)[0]) == 0, "few samples choose by luck"
    assert len(parted(250, 0.9)[0]) == 50
    assert len(parted(494, 0.99)[0]) == 0, "98 samples have no limit that holds 99 %"
    assert len(parted(495, 0.99)[0]) == 99
    assert len(parted(100_000, 0.9)[0]) == 2000
    probs, y = problem(1000, seed=5, n_classes=8, sharpness=2.5)
    sets = prediction_sets(probs, y, 0.9, "raps")
    fixed = prediction_sets(
        probs[rest], y[rest], 0.9, "raps", penalty=sets.penalty, free_ranks=sets.free_ranks
    )
    assert sets == fixed
    of_chosen, rows = probs[chosen], np.arange(len(chosen))[:, None]
    ranks = np.zeros(of_chosen.shape)
    ranks[rows, (-of_chosen).argsort(axis=1)] = np.arange(1, 9)
    scores = PredictionSets("aps", 0.9, (1.0,)).scores(of_chosen)
    assert smallest(scores, ranks, y[chosen], 0.9) == (sets.penalty, sets.free_ranks)


def test_a_chosen_penalty_gives_the_smallest_sets_of_those_tried():
    scores, ranks = np.array([[0.5, 0.9, 1.0]] * 40), np.array([[1.0, 2.0, 3.0]] * 40)
    assert smallest(scores, ranks, np.array([0] * 30 + [1] * 10), 0.9) == (0.0, 1), (
        "nothing to gain: aps"
    )
    # Every other sample's third class lies below the limit, and the true class is never below rank
    # 2.
    scores[::2, 2] = 0.85
    penalty, free = smallest(scores, ranks, np.array([1] * 40), 0.9)
    assert penalty > 0.05
    assert free == 1


def test_a_sample_alone_gets_what_it_gets_in_a_batch():
    probs, y = problem(300, seed=4)
    sets = prediction_sets(probs, y, 0.8, "aps")
    together = sets.predict(probs)
    assert (np.concatenate([sets.predict(row[None]) for row in probs]) == together).all()
    u = content_uniforms(probs)
    assert len(set(u.tolist())) == 300
    assert abs(np.mean(u) - 0.5) < 0.06
    assert abs(np.corrcoef(u, probs.max(1))[0, 1]) < 0.15


def test_no_set_is_empty_where_that_is_asked():
    probs, y = problem(2000, seed=5)
    plain = prediction_sets(probs, y, 0.4).predict(probs)
    full = prediction_sets(probs, y, 0.4, at_least_one=True).predict(probs)
    assert not plain.any(1).all()
    assert full.any(1).all()
    assert (full >= plain).all()


def test_sets_are_saved_alone_and_with_their_calibrator(tmp_path):
    probs, y = problem(400, seed=6)
    sets = prediction_sets(probs, y, 0.9, "raps", per_class=True)
    assert load(save(sets, tmp_path / "sets.recal")) == sets
    calibrator = TemperatureScaling().fit(np.log(probs), y)
    calibrator.sets_ = sets
    assert load(save(calibrator, tmp_path / "with.recal")).sets_ == sets


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "thr"}, "got 'thr'"),
        ({"coverage": 90}, "got 90"),
        ({"limits": ()}, "got ()"),
        ({"limits": (math.nan,)}, "got (nan,)"),
        ({"penalty": -1}, "got -1"),
        ({"free_ranks": 1.5}, "got 1.5"),
    ],
)
def test_what_no_sets_can_be_is_refused(fields, said):
    with pytest.raises(InputError) as error:
        PredictionSets(**{"method": "lac", "coverage": 0.9, "limits": (0.5,), **fields})
    assert said in str(error.value)
