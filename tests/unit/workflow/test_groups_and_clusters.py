"""Clusters and groups on their way through the commands: from a table or a file of views to every
decision.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from recal import TemperatureScaling, Views, decide, read_views
from recal.cli.app import run
from recal.collecting import as_source
from recal.workflow.job import calibrate, calibrate_views
from recal.workflow.run import Settings, group_lines


def settings(**more):
    return Settings(risk=0.2, calibrator=TemperatureScaling(), **more)


def videos(n_clusters=200, size=5, seed=0):
    """Views of frames; those filmed at night are harder."""
    rng = np.random.default_rng(seed)
    y, night = rng.integers(0, 3, n_clusters), np.arange(n_clusters) % 3 == 0
    logits = np.where(night, 1.0, 3.0)[:, None] * np.eye(3)[y] + rng.normal(size=(n_clusters, 3))
    logits = np.repeat(logits, size, axis=0) + 0.3 * rng.normal(size=(n_clusters * size, 3))
    names = np.repeat(np.where(night, "night", "day"), size)
    clusters = np.repeat(np.arange(n_clusters), size)
    return Views(logits, labels=np.repeat(y, size), clusters=clusters, groups=names)


def test_a_fit_reads_groups_and_clusters_from_views():
    views = videos()
    explicit = TemperatureScaling().fit(
        views.logits, views.labels, groups=views.groups, clusters=views.clusters
    )
    fitted = TemperatureScaling().fit(views)
    np.testing.assert_array_equal(
        fitted.predict_confidence(views), explicit.predict_confidence(views, views.groups)
    )
    assert not np.array_equal(
        fitted.predict_confidence(views), fitted.predict_confidence(views.logits)
    )


@pytest.mark.parametrize("cross_fit", [False, True])
def test_views_are_split_and_decided_by_cluster_and_group(tmp_path, cross_fit):
    views, lines = videos(), []
    result = calibrate_views(
        views, tmp_path / "out", settings(cross_fit=cross_fit, say=lines.append)
    )
    assert "in 200 clusters" in lines[0]
    assert sum(result.sizes[1:]) % 5 == 0
    assert result.decision.n_clusters == result.sizes[1] / 5
    assert result.decision.rule.groups == ("day", "night")
    assert hasattr(result.calibrator, "group_offsets_")
    if not cross_fit:
        both = result.calibrator.predict_both(views)
        expected = result.decision.accept(*both, views.groups)
        assert result.calibrator.accept(views).sum() == expected.sum()


def test_arrays_with_clusters_and_groups_give_what_views_give(tmp_path):
    views = videos()
    source = as_source(views.logits)
    source.clusters, source.groups = views.clusters, views.groups
    how = {"labels": views.labels, "pool": None, "progress": False}
    by_model = calibrate(lambda batch: batch, source, tmp_path / "a", settings(), **how)
    by_views = calibrate_views(views, tmp_path / "b", settings())
    assert by_model.decision.thresholds == by_views.decision.thresholds
    # Other groups need no new answers of the model.
    source.groups = None
    again = calibrate(lambda batch: batch, source, tmp_path / "a", settings(), **how)
    assert again.decision.rule.groups == ()


def test_a_table_keeps_its_columns_of_clusters_and_groups_from_collect_to_apply(
    tmp_path, monkeypatch, capsys
):
    views = videos()
    columns = zip(views.logits, views.labels, views.clusters, views.groups)
    rows = [",".join([*map(str, logits), str(label), *names]) for logits, label, *names in columns]
    text = "\n".join(["a,b,c,label,film,light", *rows])
    (tmp_path / "data.csv").write_text(text)
    (tmp_path / "three_model.py").write_text(
        "def net(frame):\n    return frame[['a', 'b', 'c']].to_numpy()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = ["--model", "three_model:net", "--data", "data.csv"]
    for out in ("v.npz", "v.zarr"):
        assert run(["collect", *named, "--cluster", "film", "--group", "light", "--out", out]) == 0
        stored = read_views(out)
        assert stored.groups.tolist() == views.groups.tolist()
        assert stored.clusters.tolist() == views.clusters.tolist()
    more = "--pool none --risk 0.2 --method ts --cluster film --group light --out out"
    assert run(["calibrate", *named, *more.split()]) == 0
    (tmp_path / "data.csv").write_text(text.replace("night", "dusk"))
    capsys.readouterr()
    assert run(["apply", "out", *named, "--out", "answers.csv"]) == 0
    assert "such as 'dusk'. Nothing in them is accepted" in capsys.readouterr().err
    accepted = [",true" in line for line in (tmp_path / "answers.csv").read_text().splitlines()[1:]]
    assert any(accepted)
    assert not any(np.array(accepted)[views.groups == "night"])


def test_the_groups_that_need_most_labels_come_first():
    sizes = np.r_[np.arange(5, 18), 400]
    groups = np.repeat([f"g{size:03}" for size in sizes], sizes)
    lines = group_lines(
        decide(np.full(len(groups), 0.99), np.full(len(groups), True), risk=0.1, groups=groups), 0.3
    )
    assert lines[0] == "Nothing is accepted yet in 13 of 14 groups:"
    assert lines[-1] == "  and 3 more groups"
    assert len(lines) == 12
    numbers = [
        int(re.search(r"([\d,]+) (to|more)", line)[1].replace(",", "")) for line in lines[1:-1]
    ]
    assert numbers == sorted(numbers, reverse=True)
