"""How well confidences follow damage without labels: share of the best temperature's gain, ECE,
accuracy, mistakes.

    python -m benchmarks.following views.npz damaged.npz --draws 3

`views.npz` is a file of labelled views. `damaged.npz` holds `names` (the first is clean), `logits`
(m, n, K), `labels` and `rows`, the rows of the views that were damaged, which are left out of every
fit. Gains are reductions of temperature scaling's NLL; 100 % is the gain of the best temperature
with labels on the same inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measuring import describe
from recal import DecisionRule, TemperatureScaling, Views, decide, profile, read_views
from recal.comparison.results import markdown_table
from recal.decisions import Profile, to_the_power
from recal.metrics import ece, nll

Batch = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.Generator], Iterator[Batch]]


class Fit(NamedTuple):
    kept: Profile
    calibrator: TemperatureScaling
    rule: DecisionRule


def fit(views: Views, rows: np.ndarray, rule_rows: np.ndarray, kinds: tuple[str, ...]) -> Fit:
    """Return profile, temperature and, from other rows, a rule of at most 2 % mistakes.

    Only views of these kinds are used; without any, all but flips and shifts.
    """
    some, other = views[rows], views[rule_rows]
    chosen = {}
    for transform in some.transforms:
        kind = str(transform).split(":")[0]
        if kind in kinds if kinds else kind not in ("flip", "shift"):
            chosen[transform] = some.transformed(transform)
    calibrator = TemperatureScaling().fit(some.logits, some.labels)
    rule = decide(calibrator.predict_proba(other.logits), other.labels, risk=0.02).rule
    return Fit(profile(Views(some.logits, chosen, some.labels)), calibrator, rule)


def judge(made: Fit, logits: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the scores of one batch, as it is and followed."""
    found = made.kept.condition(logits)
    probs = made.calibrator.predict_proba(logits)
    followed = to_the_power(probs, found.ratio)
    best = TemperatureScaling().fit(logits, y).predict_proba(logits)
    right = logits.argmax(axis=1) == y
    accepted = made.rule.accept(probs), made.rule.accept(followed) & (not found.unlike)
    wrong = [float((~right[one]).mean()) if one.any() else 0.0 for one in accepted]
    low, high = found.interval
    return {
        "before": nll(probs, y),
        "after": nll(followed, y),
        "best": nll(best, y),
        "ece": ece(probs, y),
        "ece after": ece(followed, y),
        "error": abs(found.accuracy - float(right.mean())),
        "known": found.known,
        "held": low <= right.mean() <= high,
        "wrong": wrong[0],
        "wrong after": wrong[1],
    }


def cells(batches: list[dict[str, float]]) -> list[str]:
    of = {name: np.array([one[name] for one in batches], float) for name in batches[0]}
    before, after = of["before"], of["after"]
    gain = (before - of["best"]).sum()
    known = of["known"] > 0
    return [
        f"{(before - after).sum() / gain:.1%}" if gain > 0.002 * before.sum() else "-",
        f"{(after < before).mean():.0%}",
        f"{((after - before) / before).max():+.1%}",
        f"{of['ece'].mean():.3f} to {of['ece after'].mean():.3f}",
        f"{of['error'][known].mean():.3f}" if known.any() else "-",
        f"{known.mean():.0%}",
        f"{of['held'][known].mean():.1%}" if known.any() else "-",
        f"{of['wrong'].mean():.1%} to {of['wrong after'].mean():.1%}; "
        f"{of['wrong'].max():.0%} to {of['wrong after'].max():.0%}",
    ]


def settings(damaged: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, int, tuple, Draw]]:
    """Yield a name, the samples of the fit, kinds of view and the batches."""

    def batches(size: int = len(y), *, clean: bool = False) -> Draw:
        def draw(rng: np.random.Generator) -> Iterator[Batch]:
            for logits in damaged[:1] if clean else damaged[1:]:
                rows = rng.choice(len(y), size, replace=False)
                yield logits[rows], y[rows]

        return draw

    def half(rng: np.random.Generator) -> Iterator[Batch]:
        for logits in damaged[1:]:
            yield np.where(rng.random(len(y))[:, None] < 0.5, damaged[0], logits), y

    def mixed(others: float) -> Draw:
        def draw(rng: np.random.Generator) -> Iterator[Batch]:
            for logits in damaged:
                often = np.isin(y, rng.permutation(int(y.max()) + 1)[:3])
                weights = np.where(often, 5.0, others)
                n = min(len(y) // 2, int((weights > 0).sum()))
                rows = rng.choice(len(y), n, replace=False, p=weights / weights.sum())
                yield logits[rows], y[rows]

        return draw

    yield "fit on 2,000", 2000, (), batches()
    yield "fit on 300", 300, (), batches()
    yield "batches of 300", 2000, (), batches(300)
    yield "batches of 50", 2000, (), batches(50)
    yield "views of 3 kinds", 2000, ("zoom", "brightness", "blur"), batches()
    yield "views of 2 kinds", 2000, ("zoom", "brightness"), batches()
    yield "half of each batch undamaged", 2000, (), half
    yield "three classes five times as frequent", 2000, (), mixed(1.0)
    yield "three of ten classes only", 2000, (), mixed(0.0)
    yield "undamaged", 2000, (), batches(clean=True)


def main() -> None:
    parser = describe(__doc__)
    parser.add_argument("views", type=Path)
    parser.add_argument("damaged", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    views = read_views(given.views)
    with np.load(given.damaged) as file:
        damaged, y, rows = file["logits"].astype(np.float32), file["labels"], file["rows"]
    left = np.setdiff1d(np.arange(len(views)), rows)
    head = ["gain", "better", "worst NLL", "mean ECE", "accuracy error", "known", "interval holds"]
    head = ["", *head, "mistakes of a 2 % rule: mean; worst"]
    print(*markdown_table(head, []), sep="\n", flush=True)
    for name, n, kinds, draw_batches in settings(damaged, y):
        found = []
        for draw in range(given.draws):
            order = np.random.default_rng(draw).permutation(left)
            made = fit(views, order[:n], order[n : n + 2000], kinds)
            rng = np.random.default_rng([draw, 1])
            found += [judge(made, *batch) for batch in draw_batches(rng)]
        print(markdown_table(head, [[name, *cells(found)]])[-1], flush=True)


if __name__ == "__main__":
    main()
