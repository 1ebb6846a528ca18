from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from paper.results.claims import claims_table
from paper.results.fits import METRICS
from paper.results.groups import group_tables, group_transforms
from paper.results.paper import COMPARED, numbers
from paper.results.rank_chart import rank_chart
from paper.results.tables import group_table, halves_table, paper_table, rank_table
from recal.maps.steps import group
from recal.metrics import ece
from recal.views import Views

NAMES = [method.name for method in COMPARED]


def result(protocol, name, value):
    return {
        "method": name,
        "protocol": protocol,
        "n_test": 100,
        "seconds": None if name == "Uncal." else value * 100,
        "metrics": dict.fromkeys(METRICS, value),
        "intervals": {metric: [value / 2, value * 2] for metric in METRICS},
        "changed_predictions": 0,
    }


def results(values=None, halves=2):
    values = values or {name: 0.01 * (number + 1) for number, name in enumerate(NAMES)}
    protocols = ["paper", *(f"half-{number}" for number in range(halves))]
    found = {p: {name: result(p, name, one) for name, one in values.items()} for p in protocols}
    return {"lenet5": found}


def test_the_paper_table_has_our_row_its_interval_and_the_papers_row():
    table = paper_table("ece", "cifar10", results())
    assert list(table.columns[1:]) == NAMES
    ours, interval, paper = table.rows
    assert ours[:3] == ["cifar10 lenet5", "**0.01000**", "0.02000"]
    assert interval[1] == "0.0050 to 0.0200"
    assert paper[0] == "paper: CIFAR10 LeNet5"
    assert paper[3] == "**0.00917**"


def test_halves_give_mean_range_and_paired_differences():
    found = results()
    found["lenet5"]["half-1"]["VS"]["metrics"]["ece"] = 0.01
    table = halves_table("ece", "cifar10", found)
    rows = {row[0]: dict(zip(table.columns[1:], row[1:])) for row in table.rows}
    assert rows["cifar10 lenet5: mean"]["VS"] == "0.02000"
    assert rows["lowest to highest"]["VS"] == "0.0100 to 0.0300"
    assert rows["minus TS: mean"]["VS"] in ("+0.00000", "-0.00000")
    assert rows["minus TS: mean"]["TS"] == ""
    assert rows["minus TS: mean"]["Uncal."] == "-0.01000"
    assert rows["below TS in"]["VS"] == "1 of 2"
    assert halves_table("ece", "cifar10", results(halves=0)) is None


def test_the_papers_numbers_are_complete():
    found = numbers()
    for name in ("ece", "brier", "error"):
        assert len(found[name]) == 12
        assert all(list(row) == NAMES for row in found[name].values())
    assert len(found["time"]) == 12
    kinds = found["groups"]["ImageNet/ResNet152"].values()
    assert {sum(row["count"].values()) for kind in kinds for row in kind.values()} == {25_000}


def claims(values, **options):
    table = claims_table("cifar10", results(values, **options), {})
    return {row[1]: row[3] for row in table.rows}


def test_claims_are_judged_by_the_numbers():
    rising = {name: 0.01 * (number + 1) for number, name in enumerate(NAMES)}
    found = claims(rising)
    assert found["ReCal never changes a prediction"] == "agrees"
    assert found["Brier of ReCal(z,.1-.9,20) is below TS"] == "does not agree"
    assert found["zoom beats brightness, ECE"] == "agrees"
    assert found["for small images zoom .5-.9 suits better than .1-.9, ECE"] == "does not agree"
    assert found["learning time: TS < VS < ReCal(z,.1-.9,20) < Dir-ODIR"] == "does not agree"
    assert found["learning time: Dir-ODIR < MS-ODIR"] == "does not agree"
    assert found["ReCal has the best ECE on ImageNet"] == "not run"
    better = rising | {"ReCal(z,.1-.9,20)": 0.035, "MS-ODIR": 0.9, "Dir-ODIR": 0.8}
    better |= {"TS": 0.02, "VS": 0.03}
    assert claims(better)["learning time: TS < VS < ReCal(z,.1-.9,20) < Dir-ODIR"] == "agrees"
    assert claims(better)["learning time: Dir-ODIR < MS-ODIR"] == "agrees"


def test_a_place_among_the_methods_is_judged_on_the_split_and_over_the_halves():
    rising = {name: 0.01 * (number + 1) for number, name in enumerate(NAMES)}
    last = "ReCal has the best Brier score (paper: 9 of 10)"
    assert claims(rising)[last] == "does not agree"
    assert claims({**rising, "ReCal(b,.1-.9,20)": 0.001})[last] == "agrees"
    found = results({**rising, "ReCal(b,.1-.9,20)": 0.001})
    found["lenet5"]["half-0"]["ReCal(b,.1-.9,20)"]["metrics"]["brier"] = 5.0
    (row,) = [row for row in claims_table("cifar10", found, {}).rows if row[1] == last]
    assert row[3] == "undecided"


@pytest.fixture
def grouped():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    logits = (3 * np.eye(4)[labels] + rng.normal(0, 2, (400, 4))).astype(np.float32)
    copies = {t: logits * 0.7 + rng.normal(0, 1, (400, 4)) for t in group_transforms()}
    return Views(logits, {t: copy.astype(np.float32) for t, copy in copies.items()}, labels)


def test_group_tables_count_every_sample_once_and_judge_each_group_alone(grouped):
    found = group_tables(grouped, grouped)
    assert set(found["kinds"]) == {"zoom", "brightness"}
    for rows in found["kinds"].values():
        assert list(rows) == ["0.9", "0.8", "0.7", "0.67", "0.5", "0.4", "0.33", "0.2", "0.1"]
    row = found["kinds"]["zoom"]["0.67"]
    assert sum(row["count"].values()) == 400
    beta = 1 / found["temperature"]
    original = grouped.logits * beta
    seen = grouped.transformed("zoom:0.67") * beta
    mine = group(original, seen, confidence_at="own") == 2
    probs = np.exp(original) / np.exp(original).sum(1, keepdims=True)
    assert row["count"]["2"] == mine.sum()
    assert row["ece"]["2"] == pytest.approx(ece(probs[mine], grouped.labels[mine]))


def test_the_rank_chart_draws_each_count_to_scale(grouped):
    counts = {"1": [0, 1, 2, 6], "2": [2, 3, 3, 1], "3": [1, 4, 3, 1], "4": [6, 1, 1, 1]}
    root = ElementTree.fromstring(rank_chart("a < b", counts))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in root.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    heights = [float(bar.get("height")) for bar in bars]
    shown = [int(bar.find(f"{space}title").text.split(" ")[-2]) for bar in bars]
    assert sorted(shown) == sorted(n for places in counts.values() for n in places)
    tallest = max(heights)
    assert heights == pytest.approx([tallest * n / 6 for n in shown], abs=0.1)
    assert tallest > 100
    first = group_table("lenet5", "brightness", group_tables(grouped, grouped)).rows[0]
    assert first[-2:] == ["0.0670 / 0.0772 / 0.0218 / 0.0225", "315 / 356 / 11,404 / 12,925"]
    rows = rank_table("lenet5", group_tables(grouped, grouped)).rows
    assert len(rows) == 8
    assert sum(int(cell) for cell in rows[0][1:5]) == 9
