"""--cluster, --group and --rows mean the same in every command that measures, fits or decides."""

from __future__ import annotations

import numpy as np
import pytest

from recal import Views, load
from tests.unit.cli.commands import answer, typed

N, CLUSTERS = 600, 30
RNG = np.random.default_rng(0)
CLUSTER = np.repeat(np.arange(CLUSTERS), N // CLUSTERS)
Y = RNG.integers(0, 3, N)
# The errors of one cluster go together.
SHIFT = RNG.normal(0, 1.5, (CLUSTERS, 3))[CLUSTER]
LOGITS = 2.0 * np.eye(3)[Y] + SHIFT + RNG.normal(0, 0.3, (N, 3))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Views(LOGITS, labels=Y).write("v.npz")
    Views(LOGITS, labels=Y).assign(clusters=CLUSTER.astype(str)).write("own.npz")
    lines = [f"film {one},{'ab'[row % 2]}" for row, one in enumerate(CLUSTER)]
    (tmp_path / "rows.csv").write_text("\n".join(["film,camera", *lines]) + "\n")
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    lines = [
        f"{a:.6f},{b:.6f},{1 - round(a, 6) - round(b, 6):.6f},{y},film {one},{'ab'[row % 2]}"
        for row, ((a, b, _), y, one) in enumerate(zip(probs, Y, CLUSTER))
    ]
    (tmp_path / "p.csv").write_text("\n".join(["0,1,2,label,film,camera", *lines]) + "\n")
    return tmp_path


def width(found: dict) -> float:
    low, high = found["metrics"]["nll"]["interval"]
    return high - low


ROWS = "--rows rows.csv --cluster film"


@pytest.mark.parametrize(
    "words", [f"v.npz {ROWS}", "p.csv --cluster film --group camera", "own.npz"]
)
def test_evaluate_resamples_whole_clusters(place, capsys, words):
    alone = width(answer(capsys, "evaluate v.npz"))
    assert width(answer(capsys, f"evaluate {words}")) > 1.5 * alone


def test_evaluate_says_that_it_knows_the_clusters_and_shows_groups(place, capsys):
    assert typed(f"evaluate v.npz {ROWS} --group camera") == 0
    assert f"{CLUSTERS} clusters" in capsys.readouterr().out
    found = answer(capsys, "evaluate p.csv --group camera --cluster film")
    assert {name: one["samples"] for name, one in found["groups"].items()} == {"a": 300, "b": 300}


def test_the_report_of_evaluate_knows_clusters_and_groups(place, capsys):
    found = answer(capsys, "evaluate p.csv --cluster film --group camera --report page.html")
    page = (place / "page.html").read_text()
    bounds = [f"{bound:.4f}" for bound in found["metrics"]["nll"]["interval"]]
    for words in (*bounds, f"{CLUSTERS} clusters", "camera"):
        assert words in page


def test_fit_reads_groups_and_clusters(place, capsys):
    assert typed(f"fit v.npz --method ts {ROWS} --group camera --out c.recal") == 0
    assert load("c.recal").predict_confidence(LOGITS[:2], groups=["a", "b"]).shape == (2,)


def test_answers_of_a_rule_for_groups_can_be_audited(place, capsys):
    by = "--rows rows.csv --group camera"
    assert typed(f"calibrate v.npz {by} --method ts --risk 0.3 --out c") == 0
    assert typed(f"apply c v.npz {by} --out answers.csv") == 0
    assert answer(capsys, "audit c answers.csv --checks 20 --out checks.csv")["drawn"] == 20


@pytest.mark.parametrize("command", ["compare", "report --force"])
def test_splits_keep_clusters_whole(place, capsys, command):
    line = f"{command} v.npz --methods ts --splits 2"
    alone = answer(capsys, line)
    assert answer(capsys, f"{line} {ROWS}") != alone
    assert typed(f"{line} --rows rows.csv --cluster scene") == 2
    assert "'scene'" in capsys.readouterr().err


def test_a_missing_cluster_is_refused(place, capsys):
    (place / "rows.csv").write_text((place / "rows.csv").read_text().replace("film 3,", ",", 1))
    assert typed(f"evaluate v.npz {ROWS}") == 2
    assert "'film'" in capsys.readouterr().err
