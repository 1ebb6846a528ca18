"""Does the guarantee of `decide` hold? Tested on many samples from populations whose truth is
known.

    python -m benchmarks.decide_guarantee --splits 1000 --data views.npz --data more.npz

Made-up models know the true chance that an answer is wrong. A file of views can also be the
population: its rows are drawn with replacement, so the risk among all its rows is the truth.
"broken" must not exceed 5 %. For comparison: the search by halving (SGR, Geifman and El-Yaniv 2017)
and a naive choice (the largest set whose bound at one threshold holds).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recal import read_views
from recal.decisions import decide
from recal.decisions.certify import Ranked, certified, chance_of_so_few, ranked
from recal.decisions.sets import Method, prediction_sets

Vector = NDArray[np.float64]
POPULATION = 400_000


@dataclass(frozen=True)
class Population:
    """Confidences and the true chance of a mistake of each; for rows of a file that chance is 0 or
    1.
    """

    name: str
    confidence: Vector
    chance: Vector

    def draw(self, n: int, rng: np.random.Generator) -> Ranked:
        rows = rng.integers(len(self.confidence), size=n)
        return ranked(self.confidence[rows], rng.random(n) < self.chance[rows])

    def risk(self, threshold: float) -> float:
        accepted = self.confidence >= threshold
        return float(self.chance[accepted].mean()) if accepted.any() else 0.0


def made_up(rng: np.random.Generator) -> list[Population]:
    logits = rng.normal(size=(POPULATION, 10)) * 4
    probs = np.exp(logits - logits.max(1, keepdims=True))
    top = (probs / probs.sum(1, keepdims=True)).max(1)
    sharp = np.exp(2 * (logits - logits.max(1, keepdims=True)))
    claimed = (sharp / sharp.sum(1, keepdims=True)).max(1)
    honest = 1 - top
    trap = np.where(
        claimed > np.quantile(claimed, 0.97), 0.03, honest
    )  # the most confident answers are not the best
    return [
        Population("calibrated", top, honest),
        Population("overconfident", claimed, honest),
        Population("in steps of 0.05", np.round(claimed * 20) / 20, honest),
        Population("all alike, 1.5 % wrong", rng.random(POPULATION), np.full(POPULATION, 0.015)),
        Population("most confident 3 % worse than the rest", claimed, trap),
    ]


def of_file(path: Path) -> Population:
    views = read_views(path)
    logits = views.logits.astype(np.float64)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    sure = weights.max(1) / weights.sum(1)
    return Population(path.stem, sure, (logits.argmax(1) != views.labels).astype(np.float64))


def ours(answers: Ranked, risk: float, level: float) -> int:
    sizes = certified(answers, risk, level)
    return int(sizes[-1]) if len(sizes) else 0


def halving(answers: Ranked, risk: float, level: float) -> int:
    n, best = len(answers), 0
    steps = int(np.ceil(np.log2(n)))
    low, high = 1, n
    for _ in range(steps):
        middle = (low + high + 1) // 2
        size = int(answers.ends[np.searchsorted(answers.ends, middle)])
        if chance_of_so_few(answers.errors[size], size, risk) <= level / steps:
            best, low = max(best, size), middle
        else:
            high = middle - 1
        if low > high:
            break
    return best


def naive(answers: Ranked, risk: float, level: float) -> int:
    good = chance_of_so_few(answers.errors[answers.ends], answers.ends, risk) <= level
    return int(answers.ends[good][-1]) if good.any() else 0


SEARCHES: dict[str, Callable[[Ranked, float, float], int]] = {
    "recal": ours,
    "SGR": halving,
    "naive": naive,
}


def study(
    population: Population, n: int, risk: float, splits: int, seed: int = 0
) -> dict[str, tuple[float, ...]]:
    """Of each search: how often its promise is broken, how often it refuses, and the share it
    accepts.
    """
    rng = np.random.default_rng(seed)
    order = ranked(population.confidence, np.zeros(len(population.confidence), np.bool_))
    by_rank = np.cumsum(population.chance[np.argsort(-population.confidence, kind="stable")])
    found: dict[str, list[tuple[bool, bool, float]]] = {name: [] for name in SEARCHES}
    for _ in range(splits):
        answers = population.draw(n, rng)
        for name, search in SEARCHES.items():
            size = search(answers, risk, 0.05)
            count = (
                int(np.searchsorted(-order.confidence, -answers.threshold(size), side="right"))
                if size
                else 0
            )
            truth = by_rank[count - 1] / count if count else 0.0
            found[name].append((truth > risk, size == 0, size / n))
    return {name: tuple(np.mean(rows, axis=0).tolist()) for name, rows in found.items()}


def sets_study(
    splits: int, n: int = 200, coverage: float = 0.9, seed: int = 0
) -> list[tuple[str, float, float, float]]:
    """Coverage of prediction sets from few labelled samples: mean, and the share of draws below
    coverage - 5 points.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> tuple[Vector, NDArray[np.intp]]:
        probs = np.exp(rng.normal(size=(count, 10)) * 2)
        probs /= probs.sum(1, keepdims=True)
        y = (probs.cumsum(1) > rng.random((count, 1))).argmax(1)
        claimed = probs**2
        return claimed / claimed.sum(1, keepdims=True), y

    test, truth = draw(20_000)
    rows = np.arange(len(truth))
    lines = []
    methods: list[tuple[Method, bool]] = [
        ("lac", False),
        ("aps", False),
        ("raps", False),
        ("lac", True),
    ]
    for method, per_class in methods:
        held, sizes = [], []
        for _ in range(max(20, splits // 5)):
            size = n * 10 if per_class else n
            kept = prediction_sets(*draw(size), coverage, method, per_class=per_class).predict(test)
            held.append(float(kept[rows, truth].mean()))
            sizes.append(float(kept.sum(1).mean()))
        name = f"{method}, per class" if per_class else method
        lines.append((name, float(np.mean(held)), float(np.std(held)), float(np.mean(sizes))))
    return lines


def groups_study(
    draws: int, n: int = 6000, risk: float = 0.05, seed: int = 0
) -> tuple[float, float, float]:
    """Decide by group: how often any group breaks its guarantee, the share accepted, and that of
    the worst single rule.

    Ten groups from 2 to 30 % of the samples differ in how often they are wrong. Confidences do not
    know about groups.
    """
    rng = np.random.default_rng(seed)
    sizes = np.geomspace(1, 15, 10)
    shift = np.linspace(-1.5, 1.5, 10)

    def draw(count: int) -> tuple[Vector, Vector, NDArray[np.intp]]:
        group = rng.choice(10, count, p=sizes / sizes.sum())
        odds = rng.normal(3.0, 1.5, count)
        return 1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(odds + shift[group])), group

    confidence, chance, group = draw(POPULATION)
    broken, shares, worst = [], [], []
    for _ in range(draws):
        sure, wrong, kinds = draw(n)
        right = rng.random(n) >= wrong
        one = decide(sure, right, risk)
        worst.append(
            max(
                float(chance[(group == k) & (confidence >= one.threshold)].mean())
                for k in range(10)
            )
        )
        rule = decide(sure, right, risk, groups=kinds).rule
        threshold = np.array(
            [dict(zip(rule.groups, rule.thresholds)).get(str(k), np.inf) for k in range(10)]
        )[group]
        accepted = confidence >= threshold
        rates = [chance[accepted & (group == k)] for k in range(10)]
        broken.append(any(len(rate) and rate.mean() > risk for rate in rates))
        shares.append(float(accepted.mean()))
    return float(np.mean(broken)), float(np.mean(shares)), float(np.mean(worst))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--groups", action="store_true", help="study decisions by group instead")
    arguments = parser.parse_args()
    if arguments.groups:
        broken, share, worst = groups_study(arguments.splits)
        print(f"By group, {arguments.splits:,} draws of 6,000 samples, risk 5 %, 95 % confidence:")
        print(f"any of ten groups broken in {broken:.1%} of draws, {share:.1%} accepted.")
        print(f"One rule for all: {worst:.1%} wrong in its worst group.")
        return
    populations = [*made_up(np.random.default_rng(1)), *(of_file(path) for path in arguments.data)]
    print(
        f"### The guarantee of `decide` over {arguments.splits:,} samples each, 95 % confidence\n"
    )
    print(
        "| answers | labelled | risk | broken: recal | SGR | naive | refused: recal | SGR | share: recal | SGR |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for population in populations:
        for n, risk in ((1000, 0.05), (5000, 0.01), (5000, 0.02)):
            found = study(population, n, risk, arguments.splits)
            broken = " | ".join(f"{found[name][0]:.1%}" for name in SEARCHES)
            refused = " | ".join(f"{found[name][1]:.0%}" for name in ("recal", "SGR"))
            share = " | ".join(f"{found[name][2]:.1%}" for name in ("recal", "SGR"))
            print(
                f"| {population.name} | {n:,} | {risk:.0%} | {broken} | {refused} | {share} |",
                flush=True,
            )
    print(
        "\n### Prediction sets of an overconfident model, 90 % promised, from 200 labelled samples (2,000 per class)\n"
    )
    print("| sets | mean coverage | deviation between samples | mean size |")
    print("|---|---|---|---|")
    for name, mean, spread, size in sets_study(arguments.splits):
        print(f"| {name} | {mean:.3f} | {spread:.3f} | {size:.2f} |")


if __name__ == "__main__":
    main()
