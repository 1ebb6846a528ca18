"""The arena: problems from installed packages, win rates, the page, and CalArena's layout."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.arena import calarena, summary
from benchmarks.arena.summary import PANEL, Problem


def losses_of(name, **nll):
    return Problem(name, 2, 100, 30, {**dict.fromkeys(PANEL, 1.0), **nll})


def test_a_tie_counts_half_and_the_method_itself_is_no_rival():
    one = losses_of("a/x", ts=0.5, sms=2.0)
    assert summary.win_share(one, "ts") == 1.0
    assert summary.win_share(one, "sms") == 0.0
    assert summary.win_share(one, "ets") == pytest.approx(
        (1 + 0.5 * (len(PANEL) - 3)) / (len(PANEL) - 1)
    )


def test_intervals_draw_data_sets_and_not_problems():
    problems = [losses_of(f"{data}/{model}") for data in "abc" for model in "xy"]
    assert summary.interval(problems, np.array([0.0, 2.0] * 3)) == (1.0, 1.0), (
        "every data set has the same mean"
    )
    low, high = summary.interval(problems, np.repeat([0.0, 1.0, 2.0], 2))
    assert low < 1 < high


def test_changes_are_in_per_cent_of_the_reference():
    line = summary.summarise([losses_of("a/x", sms=0.9), losses_of("b/x", sms=1.2)], "sms")
    assert (line.mean, line.median, line.worst, line.worse) == pytest.approx((5, 5, 20, 1))


@pytest.fixture
def cheap(monkeypatch, tmp_path):
    """One quick classifier on two of scikit-learn's data sets."""
    pytest.importorskip("pandas")
    from benchmarks.arena import problems

    monkeypatch.setattr(problems, "ALWAYS", ())
    monkeypatch.setattr(problems, "IN_TURN", ("naive_bayes",))
    problems.build_all(tmp_path, ("digits", "breast_cancer"))
    return problems, tmp_path


def test_the_arena_from_data_to_page(cheap, tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.arena.page import write_page
    from benchmarks.arena.scores import Scores, read

    def broken(logits, labels, test):
        raise ValueError("no")

    _, folder = cheap
    found = dict(read(folder))
    assert list(found) == ["breast_cancer/naive_bayes", "digits/naive_bayes"]
    scores, about = Scores(folder / "scores.json"), {}
    for name, parts in found.items():
        scores.add(name, parts, {"peer": broken})
        with np.load(folder / f"{name.split('/')[0]}.npz") as file:
            about[name.split("/")[0]] = json.loads(str(file["about"]))
    page = write_page(scores, about, tmp_path / "out").read_text()
    assert page.count("| ensemble ") == 2, "two tables"
    assert page.count("| auto ") == 2 + 2, "two tables, and the groups that have problems"
    assert "peer: ValueError (2)" in page
    assert (tmp_path / "out" / "arena.svg").exists()
    nll = scores.found["digits/naive_bayes"]["nll"]["kept"]
    assert nll["ensemble"] < nll["ts"] < nll["none"]
    assert nll["peer"] == nll["none"], "a fit that failed counts as uncalibrated"
    scores.found["digits/naive_bayes"]["failed"].clear()
    scores.add("digits/naive_bayes", found["digits/naive_bayes"], {"peer": broken})
    assert not scores.found["digits/naive_bayes"]["failed"], "what is there is not fitted again"
    scores.forget(("peer",))
    scores.add("digits/naive_bayes", found["digits/naive_bayes"], {"peer": broken})
    assert scores.found["digits/naive_bayes"]["failed"] == ["peer: ValueError"], (
        "unless it is to be"
    )


def test_two_classes_may_come_as_one_column():
    probas, labels = np.array([0.9, 0.8, 0.3, 0.4, 0.6]), np.array([1, 0, 0, 1, 1])
    one, two = (
        calarena.RecalCalibrator("ts").fit(given, labels)
        for given in (probas, calarena.as_columns(probas))
    )
    assert one.predict_proba(probas[:, None]).shape == (5, 2)
    np.testing.assert_array_equal(
        one.predict_proba(probas), two.predict_proba(calarena.as_columns(probas))
    )
