"""How much the two promises of `decide` accept, and whether they are kept.

    python -m benchmarks.promises --draws 1000
    python -m benchmarks.promises --models llm_signals.npz --draws 20

Simulated answers have a known chance of being wrong. *error* is the share of wrong answers among
all that were accepted in all draws, divided by the risk; the promise on average keeps it at 1.
*broken* is the share of draws in which the 95 % promise fails. *E1* is the largest set with
(wrong + 1) / (accepted + 1) <= risk, without the average over resamples.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recal import SignalCalibration
from recal.checks import Indices, Vector
from recal.decisions.certify import Evidence, Ranked, ranked
from recal.decisions.guarantee import Terms, read_answers

POPULATION = 100_000


class Sample(NamedTuple):
    confidence: Vector
    chance: Vector  # of being wrong
    wrong: NDArray[np.bool_]
    groups: Indices | None = None
    clusters: Indices | None = None


class Setting(NamedTuple):
    name: str
    risks: tuple[float, ...]
    draw: Callable[[int, np.random.Generator], Sample]


def simple(doubt: Callable[[Vector], Vector], excess: float = 0.0, steps: int = 0):
    """Return a draw of answers whose confidence is 1 - doubt, and that are wrong with probability
    doubt + excess; with steps, only so many confidences occur.
    """

    def draw(n: int, rng: np.random.Generator) -> Sample:
        u = rng.random(n)
        stated = doubt((np.floor(u * steps) + 0.5) / steps if steps else u)
        chance = doubt(u) + excess
        return Sample(1 - stated, chance, rng.random(n) < chance)

    return draw


def four_groups(n: int, rng: np.random.Generator) -> Sample:
    groups = rng.integers(0, 4, n)
    chance = np.array([0.1, 0.2, 0.3, 0.4])[groups] * rng.random(n)
    return Sample(1 - chance, chance, rng.random(n) < chance, groups)


def clustered(sizes: Callable[[int, np.random.Generator], Indices], by_size: float = 0.0):
    """Return a draw of n clusters; answers of a cluster share half of what makes them hard."""

    def draw(n: int, rng: np.random.Generator) -> Sample:
        each = sizes(n, rng)
        clusters = np.repeat(np.arange(n), each)
        hardness = rng.normal(size=n)[clusters] + rng.normal(size=len(clusters))
        confidence = 1 / (1 + np.exp(-2.2 + 1.2 * hardness))
        luck = rng.normal(size=n)[clusters] / np.sqrt(2) + rng.normal(size=len(clusters)) / np.sqrt(
            2
        )
        chance = 1 - confidence + by_size * (each[clusters] > 1)
        return Sample(confidence, chance, _below(luck, chance), clusters=clusters)

    return draw


def _below(luck: Vector, chance: Vector) -> NDArray[np.bool_]:
    from scipy.special import ndtr

    return np.asarray(ndtr(luck) < chance)


SETTINGS = (
    Setting("calibrated", (0.05, 0.1), simple(lambda u: 0.27 * u)),
    Setting("overconfident by .05", (0.1,), simple(lambda u: 0.27 * u, 0.05)),
    Setting("easy", (0.02, 0.05), simple(lambda u: 0.2 * u**2)),
    Setting("hardly separable", (0.15, 0.2), simple(lambda u: 0.05 + 0.5 * u)),
    Setting("ten distinct confidences", (0.05, 0.1), simple(lambda u: 0.27 * u, steps=10)),
    Setting("four groups", (0.1,), four_groups),
)
CLUSTERS = (
    Setting("100 clusters of 20", (0.05, 0.1), clustered(lambda n, rng: np.full(n, 20))),
    Setting(
        "200 clusters, median 17, up to 400",
        (0.05, 0.1),
        clustered(lambda n, rng: np.ceil(np.exp(2.8 + rng.normal(size=n))).astype(np.intp)),
    ),
    Setting(
        "150 clusters of 1 or 200, large ones worse",
        (0.1,),
        clustered(lambda n, rng: np.where(rng.random(n) < 0.01, 200, 1), by_size=0.2),
    ),
)


def parts_of(sample: Sample) -> list[Evidence]:
    return read_answers(
        sample.confidence, ~sample.wrong, groups=sample.groups, clusters=sample.clusters
    ).parts()


def e1(rows: Ranked, risk: float) -> float:
    wrong = rows.errors[rows.ends]
    good = rows.ends[(wrong + 1) <= risk * (rows.ends + 1)]
    return rows.threshold(int(good[-1])) if len(good) else np.inf


class Truth:
    """Share and share of mistakes of all answers above a threshold, by group."""

    def __init__(self, sample: Sample) -> None:
        groups = np.zeros(len(sample.chance), np.intp) if sample.groups is None else sample.groups
        counts = None if sample.clusters is None else np.bincount(sample.clusters)
        weights = np.ones(len(groups)) if counts is None else 1 / counts[sample.clusters]
        self.curves = []
        for group in range(groups.max() + 1):
            rows = np.flatnonzero(groups == group)
            order = rows[np.argsort(-sample.confidence[rows])]
            mass = np.r_[0, np.cumsum(weights[order])] / weights.sum()
            wrong = np.r_[0, np.cumsum((weights * sample.chance)[order])] / weights.sum()
            self.curves.append((-sample.confidence[order], mass, wrong))

    def of(self, thresholds: list[float]) -> tuple[float, float, float]:
        """Return the share accepted, the share accepted and wrong, and the worst error rate."""
        share, mistakes, worst = 0.0, 0.0, 0.0
        for threshold, (falling, mass, wrong) in zip(thresholds, self.curves):
            count = np.searchsorted(falling, -threshold, side="right")
            share, mistakes = share + mass[count], mistakes + wrong[count]
            worst = max(worst, wrong[count] / mass[count] if count else 0.0)
        return share, mistakes, worst

    def possible(self, risk: float) -> float:
        total = 0.0
        for _, mass, wrong in self.curves:
            good = np.flatnonzero(wrong <= risk * mass)
            total += mass[good[-1]]
        return float(total)


def study(setting: Setting, n: int, risk: float, draws: int) -> str:
    """Return a row of the table."""
    rng = np.random.default_rng(0)
    truth = Truth(setting.draw(POPULATION, rng))
    found: dict[str, list[tuple[float, float, float]]] = {"95 %": [], "average": [], "E1": []}
    for _ in range(draws):
        parts = parts_of(setting.draw(n, rng))
        for name, kind in (("95 %", "confidence"), ("average", "average")):
            terms = Terms(risk, 0.95, kind, n_groups=len(parts))  # type: ignore[arg-type]
            thresholds = [terms.threshold(part) for part in parts]
            found[name].append(truth.of(thresholds))
        found["E1"].append(truth.of([e1(part.all_rows, risk) for part in parts]))
    cells = [setting.name, f"{n:,}", f"{risk:.0%}", f"{truth.possible(risk):.1%}"]
    for name, rows in found.items():
        share, mistakes, worst = np.array(rows).T
        error = mistakes.sum() / max(share.sum(), 1e-12) / risk
        broken = float((worst > risk + 1e-9).mean())
        cells.append(f"{share.mean():.1%}")
        cells.append(f"{broken:.1%}" if name == "95 %" else f"{error:.3f}")
    return "| " + " | ".join(cells) + " |"


def models(path: Path, draws: int, most: int, fitted_on: int = 1000) -> None:
    """Print the shares on language models, each calibrated on other rows."""
    data = np.load(path)
    names = sorted({key.split("/")[0] for key in data.files})[:most]
    table: dict[tuple[float, int], list[list[float]]] = {}
    for name in names:
        rng = np.random.default_rng(0)
        signals, correct = data[f"{name}/signals"], data[f"{name}/correct"]
        order = rng.permutation(len(correct))
        fit, rest = order[:fitted_on], order[fitted_on:]
        calibration = SignalCalibration().fit(signals[fit], correct[fit])
        confidence, right = calibration.predict_confidence(signals[rest]), correct[rest]
        for n in (100, 200, 300, 400, 1000):
            for risk in (0.1, 0.2):
                rows = table.setdefault((risk, n), [])
                for _ in range(draws):
                    order = rng.permutation(len(rest))
                    some, others = order[:n], order[n:]
                    part = read_answers(confidence[some], right[some]).parts()[0]
                    line = []
                    for kind in ("confidence", "average"):
                        threshold = Terms(risk, 0.95, kind).threshold(part)  # type: ignore[arg-type]
                        accepted = confidence[others] >= threshold
                        wrong = accepted & ~right[others]
                        line += [accepted.mean(), wrong.mean()]
                    all_rows = ranked(confidence[others], ~right[others])
                    good = all_rows.ends[all_rows.errors[all_rows.ends] <= risk * all_rows.ends]
                    rows.append([*line, good[-1] / len(others) if len(good) else 0.0])
    print("| risk | labels | 95 % | error | average | error | possible |\n" + "|---" * 7 + "|")
    for (risk, n), rows in sorted(table.items()):
        strict, s_wrong, average, a_wrong, possible = np.mean(rows, axis=0)
        print(
            f"| {risk:.0%} | {n:,} | {strict:.1%} | {s_wrong / max(strict, 1e-12):.1%} | "
            f"{average:.1%} | {a_wrong / max(average, 1e-12):.1%} | {possible:.1%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--models", type=Path, help="llm_signals.npz: language models instead")
    parser.add_argument("--most", type=int, default=14, help="so many of the models")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.models:
        models(given.models, given.draws, given.most)
        return
    print(
        "| answers | labels | risk | possible | 95 % | broken | average | error | E1 | error |\n"
        + "|---" * 10
        + "|"
    )
    for setting in SETTINGS:
        for risk in setting.risks:
            for n in (100, 300, 1000):
                print(study(setting, n, risk, given.draws), flush=True)
    for setting in CLUSTERS:
        for risk in setting.risks:
            n = int(setting.name.split()[0])
            print(study(setting, n, risk, given.draws // 4), flush=True)


if __name__ == "__main__":
    main()
