"""How well confidences follow damage without labels: share of the best temperature's gain, ECE,
accuracy, mistakes.

    python -m benchmarks.following views.npz damaged.npz --draws 3
    python -m benchmarks.following views.npz

`views.npz` is a file of labelled views. `damaged.npz` holds `names` (the first is clean), `logits`
(m, n, K), `labels` and `rows`, the rows of the views that were damaged, which are left out of every
fit. Without it, each kind of view in turn is left out of the fit and used as the damage. Gains are
reductions of temperature scaling's NLL; 100 % is the gain of the best temperature with labels on
the same inputs.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy_estimators import AccuracyEstimators
from recal import DecisionRule, TemperatureScaling, Views, decide, profile, read_views
from recal.decisions import Profile, adapt_to_class_mix, class_mix, to_the_power
from recal.decisions.damage import Process, entropies, row_numbers, statistics
from recal.decisions.damage_sets import labelled_rows
from recal.errors import FewSamplesWarning, SameRowsWarning
from recal.metrics import ece, nll

HARMLESS = ("flip", "shift")
POOLS = {
    "2 kinds": ("zoom", "brightness"),
    "3 kinds": ("zoom", "brightness", "blur"),
    "4 kinds": ("zoom", "brightness", "blur", "jpeg"),
    "6 kinds": ("zoom", "brightness", "blur", "jpeg", "contrast", "pixelate"),
}


class Judged(NamedTuple):
    """One batch:

    NLL and ECE as they were and followed, the best NLL, accuracy, its estimate, and the rule.
    """

    before: float
    after: float
    best: float
    ece_before: float
    ece_after: float
    accuracy: float
    estimate: float
    width: float
    held: bool
    known: bool
    wrong_before: float
    wrong_after: float


class Fit(NamedTuple):
    kept: Profile
    calibrator: TemperatureScaling
    rule: DecisionRule | None


def kind_of(spec: object) -> str:
    return str(spec).split(":")[0]


def harmless(spec: object) -> bool:
    return kind_of(spec) in HARMLESS


def fit(
    views: Views, rows: np.ndarray, kinds: Sequence[str] = (), rule_rows: np.ndarray | None = None
) -> Fit:
    """Profile, temperature and, from other rows, a rule of at most 2 % mistakes among accepted
    answers.
    """
    some = views[rows]
    chosen = {
        t: some.transformed(t)
        for t in some.transforms
        if kind_of(t) in kinds or not (kinds or harmless(t))
    }
    calibrator = TemperatureScaling().fit(some.logits, some.labels)
    rule = None
    if rule_rows is not None:
        other = views[rule_rows]
        assert other.labels is not None
        rule = decide(calibrator.predict_proba(other.logits), other.labels, risk=0.02).rule
    return Fit(profile(Views(some.logits, chosen, some.labels)), calibrator, rule)


def judge(made: Fit, logits: np.ndarray, y: np.ndarray) -> Judged:
    found = made.kept.condition(logits)
    probs = made.calibrator.predict_proba(logits)
    followed = to_the_power(probs, found.ratio)
    best = TemperatureScaling().fit(logits, y).predict_proba(logits)
    right = logits.argmax(axis=1) == y
    wrong = [float("nan")] * 2
    if made.rule is not None:
        accepted = [made.rule.accept(probs), made.rule.accept(followed) & (not found.unlike)]
        wrong = [float((~right[one]).mean()) if one.any() else 0.0 for one in accepted]
    low, high = found.interval
    return Judged(
        *(nll(one, y) for one in (probs, followed, best)),
        ece(probs, y),
        ece(followed, y),
        float(right.mean()),
        found.accuracy,
        high - low,
        low <= right.mean() <= high,
        found.known,
        *wrong,
    )


def row(name: str, found: list[Judged]) -> str:
    table = np.array(found, dtype=np.float64)
    (
        before,
        after,
        best,
        ece,
        ece_after,
        accuracy,
        estimate,
        width,
        held,
        known,
        wrong,
        wrong_after,
    ) = table.T
    gain, change = (before - best).sum(), (after - before) / before
    errors = np.abs(estimate - accuracy)[known > 0]
    cells = [
        f"{(before - after).sum() / gain:.1%}" if gain > 0.002 * before.sum() else "-",
        f"{(after < before).mean():.0%}",
        f"{change.max():+.1%}",
        f"{ece.mean():.3f} -> {ece_after.mean():.3f}",
        f"{errors.mean():.3f}, {errors.max():.3f}" if len(errors) else "-",
        f"{known.mean():.0%}",
        f"{held[known > 0].mean():.1%}, {width[known > 0].mean():.2f}" if len(errors) else "-",
        f"{wrong.mean():.1%} -> {wrong_after.mean():.1%}; {wrong.max():.0%} -> {wrong_after.max():.0%}",
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


HEAD = (
    "| | gain | better | worst NLL | mean ECE | accuracy error: mean, largest | known | interval holds, width "
    "| mistakes of a 2 % rule: mean; worst |\n|---|" + "---|" * 8
)


POOLED_HEAD = "| | gain | better | worst damage | undamaged |\n|---|---|---|---|---|"


def halves(views: Views, left_out: np.ndarray, n: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on, and others for the rule."""
    order = np.random.default_rng(draw).permutation(
        np.setdiff1d(np.arange(views.n_samples), left_out)
    )
    return order[:n], order[n : n + 2000]


def batches(
    logits: np.ndarray, y: np.ndarray, size: int | None, rng: np.random.Generator
) -> Iterator[tuple]:
    rows = np.arange(len(y)) if size is None else rng.choice(len(y), size, replace=False)
    yield logits[rows], y[rows]


def on_damage(views: Views, path: Path, draws: int) -> None:
    with np.load(path) as held:
        names, damaged, y, rows = (
            held["names"],
            held["logits"].astype(np.float32),
            held["labels"],
            held["rows"],
        )
    print(
        f"{len(names) - 1} kinds of damage, {len(y):,} inputs each, {draws} draws of the fitting samples\n\n{HEAD}"
    )

    def study(
        name: str,
        n: int = 2000,
        size: int | None = None,
        kinds: Sequence[str] = (),
        sets: str = "damage",
    ) -> None:
        found = []
        for draw in range(draws):
            rng, (mine, others) = np.random.default_rng([draw, 1]), halves(views, rows, n, draw)
            made = fit(views, mine, kinds, others)
            if sets == "clean":
                chosen = [(damaged[0], y)] * (1 if size is None else 20)
            elif sets == "half":
                chosen = [
                    (np.where(rng.random(len(y))[:, None] < 0.5, damaged[0], one), y)
                    for one in damaged[1:]
                ]
            elif sets in ("mix", "few"):
                chosen = [
                    _mixed(one, y, rng, others=1.0 if sets == "mix" else 0.0) for one in damaged
                ]
            else:
                chosen = [(one, y) for one in damaged[1:]]
            found += [judge(made, *batch) for one in chosen for batch in batches(*one, size, rng)]
        print(row(name, found), flush=True)

    for n in (2000, 500, 300):
        study(f"fit on {n:,}", n=n)
    for size in (1000, 300, 100, 50):
        study(f"batches of {size:,}", size=size)
    for name, kinds in POOLS.items():
        study(name, kinds=kinds)
    for size in (None, 300, 100, 50):
        study("clean" if size is None else f"clean, batches of {size}", size=size, sets="clean")
    study("half of each batch clean", sets="half")
    study("three classes five times as frequent", sets="mix")
    study("three of ten classes only", sets="few")
    _pooled(views, names, damaged, y, rows, draws)
    _coverage(views, damaged, y, rows)
    _estimators(views, damaged, y, rows, draws)
    _class_mixes(views, damaged, y, rows, draws)


def _mixed(
    logits: np.ndarray, y: np.ndarray, rng: np.random.Generator, others: float
) -> tuple[np.ndarray, np.ndarray]:
    often = np.isin(y, rng.permutation(int(y.max()) + 1)[:3])
    weights = np.where(often, 5.0, others)
    n = min(len(y) // 2, int((weights > 0).sum()))
    rows = rng.choice(len(y), n, replace=False, p=weights / weights.sum())
    return logits[rows], y[rows]


def bare_process(views: Views, rows: np.ndarray, beta: float) -> Callable[[np.ndarray], float]:
    """The ratio of a batch by a process over the whole views alone: no mixtures, small sets or
    holding back.
    """
    some = views[rows]
    assert some.labels is not None
    accuracy = float((some.logits.argmax(axis=1) == some.labels).mean())
    cut = float(np.quantile(entropies(some.logits, beta), accuracy))
    through = [some.logits, *(some.transformed(t) for t in some.transforms if not harmless(t))]
    sets = [labelled_rows(one, some.labels, beta, cut) for one in through]
    found = np.array([statistics(one.numbers) for one in sets])
    spread = found.std(axis=0)
    process = Process((found - found[0]) / spread, np.array([[one.log_ratio] for one in sets]))
    return lambda logits: float(
        np.exp(process((statistics(row_numbers(logits, beta, cut)) - found[:1]) / spread)[0][0, 0])
    )


def _pooled(
    views: Views,
    names: np.ndarray,
    damaged: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    draws: int,
    count: int = 20,
) -> None:
    """Many small batches of each damage, each followed by itself; the best temperature is that of
    all of them.
    """
    print(f"\n{count} batches of each damage, judged together\n\n{POOLED_HEAD}")
    made = [fit(views, halves(views, rows, 2000, draw)[0]) for draw in range(draws)]
    bare = [
        bare_process(views, halves(views, rows, 2000, draw)[0], one.kept.beta)
        for draw, one in enumerate(made)
    ]
    for size in (50, 100, 300):
        found: dict[str, list[tuple[float, float, float, float]]] = {
            "followed": [],
            "bare process": [],
        }
        for draw, one in enumerate(made):
            for number, logits in enumerate(damaged):
                rng = np.random.default_rng([draw, size, number])
                chosen = [rng.choice(len(y), size, replace=False) for _ in range(count)]
                whole = np.concatenate(chosen)
                probs = one.calibrator.predict_proba(logits[whole])
                best = nll(
                    TemperatureScaling().fit(logits[whole], y[whole]).predict_proba(logits[whole]),
                    y[whole],
                )
                ratios = {
                    "followed": [one.kept.condition(logits[batch]).ratio for batch in chosen],
                    "bare process": [bare[draw](logits[batch]) for batch in chosen],
                }
                for name, each in ratios.items():
                    after = np.concatenate(
                        [to_the_power(p, r) for p, r in zip(np.split(probs, count), each)]
                    )
                    found[name].append(
                        (number == 0, nll(probs, y[whole]), nll(after, y[whole]), best)
                    )
        for name, all_of_it in found.items():
            clean, before, after, best = np.array(all_of_it).T
            hurt, change = clean == 0, (after - before) / before
            gain = (before - after)[hurt].sum() / (before - best)[hurt].sum()
            better = (change[hurt] < 0).mean()
            cells = [
                f"{gain:.1%}",
                f"{better:.0%}",
                f"{change[hurt].max():+.1%}",
                f"{change[~hurt].mean():+.2%}",
            ]
            print(f"| {name}, batches of {size} | " + " | ".join(cells) + " |", flush=True)


def _coverage(
    views: Views, damaged: np.ndarray, y: np.ndarray, rows: np.ndarray, count: int = 500
) -> None:
    rng, held, known = np.random.default_rng(7), [], []
    for draw in range(10):
        kept = fit(
            views, halves(views, rows, int(rng.choice([500, 1000, 2000])), 100 + draw)[0]
        ).kept
        for _ in range(count // 10):
            one, size = damaged[rng.integers(len(damaged))], int(rng.choice([100, 300, 1000]))
            chosen = rng.choice(len(y), size, replace=False)
            found = kept.condition(one[chosen])
            right = float((one[chosen].argmax(axis=1) == y[chosen]).mean())
            held.append(found.interval[0] <= right <= found.interval[1])
            known.append(found.known)
    inside = np.mean(np.array(held)[np.array(known)])
    print(
        f"\n95 % intervals over {count} batches: {np.mean(held):.1%} hold the accuracy; where known {inside:.1%}"
    )


def _estimators(
    views: Views, damaged: np.ndarray, y: np.ndarray, rows: np.ndarray, draws: int
) -> None:
    """The accuracy estimate beside those that the literature knows."""
    errors: dict[str, dict[str, list[float]]] = {}
    for draw in range(draws):
        rng, chosen = np.random.default_rng([draw, 3]), halves(views, rows, 2000, draw)[0]
        kept = fit(views, chosen).kept
        estimators = AccuracyEstimators(views.logits[chosen], views.labels[chosen])
        for one in damaged:
            chosen = rng.choice(len(y), 500, replace=False)
            sets = {
                "20 damages and none": (one[chosen], y[chosen]),
                "and 5 times three classes": _mixed(one, y, rng, 1.0),
            }
            for name, (logits, truth) in sets.items():
                right = float((logits.argmax(axis=1) == truth).mean())
                for estimator, value in {
                    "followed": kept.condition(logits).accuracy,
                    **estimators(logits),
                }.items():
                    errors.setdefault(name, {}).setdefault(estimator, []).append(abs(value - right))
    print(
        "\n| mean, largest error of the accuracy | "
        + " | ".join(errors)
        + " |\n|---|"
        + "---|" * len(errors)
    )
    for estimator in next(iter(errors.values())):
        cells = [
            f"{np.nanmean(one[estimator]):.3f}, {np.nanmax(one[estimator]):.3f}"
            for one in errors.values()
        ]
        print(f"| {estimator} | " + " | ".join(cells) + " |")


def _class_mixes(
    views: Views, damaged: np.ndarray, y: np.ndarray, rows: np.ndarray, draws: int
) -> None:
    """What adapting to the class mix does to NLL and accuracy, with the mix of the fit and with
    others.
    """
    print(
        "\n| inputs, class mix, batch | adapted | NLL: mean, worst change | accuracy |\n|---|---|---|---|"
    )
    found: dict[str, list[tuple[bool, float, float]]] = {}
    for draw in range(draws):
        rng, made = np.random.default_rng([draw, 4]), fit(views, halves(views, rows, 2000, draw)[0])
        for number, one in enumerate(damaged):
            for name, often, others in (
                ("as at the fit", 1.0, 1.0),
                ("5 times three", 5.0, 1.0),
                ("three of ten", 1.0, 0.0),
            ):
                for size in (100, 500):
                    for _ in range(5 if number == 0 else 1):
                        few = np.isin(y, rng.permutation(int(y.max()) + 1)[:3])
                        weights = np.where(few, often, others)
                        chosen = rng.choice(len(y), size, replace=False, p=weights / weights.sum())
                        probs, truth = made.calibrator.predict_proba(one[chosen]), y[chosen]
                        mix = class_mix(made.kept, one[chosen])
                        after = adapt_to_class_mix(probs, mix)
                        right = [float((p.argmax(axis=1) == truth).mean()) for p in (probs, after)]
                        what = f"{'undamaged' if number == 0 else 'damaged'}, {name}, {size}"
                        found.setdefault(what, []).append(
                            (
                                mix.changed,
                                nll(after, truth) / nll(probs, truth) - 1,
                                right[1] - right[0],
                            )
                        )
    for what, all_of_it in sorted(found.items(), reverse=True):
        changed, change, gained = np.array(all_of_it, float).T
        print(
            f"| {what} | {changed.mean():.0%} | {change.mean():+.1%}, {change.max():+.1%} | {gained.mean():+.3f} |"
        )


def on_views(views: Views, draws: int) -> None:
    """Leave each kind of view out of the fit, and take it for the damage."""
    kinds = sorted({kind_of(t) for t in views.transforms} - set(HARMLESS))
    print(f"Each of {len(kinds)} kinds of view left out in its turn: {', '.join(kinds)}\n\n{HEAD}")
    everything: list[Judged] = []
    inside: list[bool] = []
    asked = 0
    for kind in kinds:
        found = []
        for draw in range(draws):
            mine, others = halves(views, np.array([], int), min(2000, views.n_samples // 2), draw)
            made = fit(views, mine, [one for one in kinds if one != kind] or ["none"], None)
            left = views[others]
            assert left.labels is not None
            for transform in [t for t in left.transforms if kind_of(t) == kind]:
                through = np.asarray(left.transformed(transform), np.float32)
                found.append(judge(made, through, left.labels))
                for logits, truth in _some(through, np.asarray(left.logits), left.labels, draw):
                    condition, right = (
                        made.kept.condition(logits),
                        float((logits.argmax(axis=1) == truth).mean()),
                    )
                    inside += [
                        condition.interval[0] <= right <= condition.interval[1]
                    ] * condition.known
                    asked += 1
        print(row(f"without {kind}", found), flush=True)
        everything += found
    print(row("all", everything))
    print(
        f"\n95 % intervals over {asked} batches: {len(inside)} known, {np.mean(inside):.1%} of these hold the accuracy"
    )


def _some(through: np.ndarray, clean: np.ndarray, y: np.ndarray, draw: int) -> Iterator[tuple]:
    """Batches of 100 to 1,000 damaged inputs, and a set that is damaged in half."""
    rng = np.random.default_rng([draw, 8])
    for size in (100, 100, 300, 300, 1000, 1000):
        rows = rng.choice(len(y), size, replace=False)
        yield through[rows], y[rows]
    yield np.where(rng.random(len(y))[:, None] < 0.5, clean, through), y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("views", type=Path)
    parser.add_argument("damaged", type=Path, nargs="?")
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter(
        "ignore", SameRowsWarning
    )  # the best temperature is that of the tested samples
    warnings.simplefilter("ignore", FewSamplesWarning)
    views = read_views(given.views)
    on_views(views, given.draws) if given.damaged is None else on_damage(
        views, given.damaged, given.draws
    )


if __name__ == "__main__":
    main()
