"""What a method did on many problems: win rate against a fixed panel, change of NLL, intervals by
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recal.reporting import chart as figure

# What a method is compared with: the model as it is and twelve methods of the literature.
PANEL = (
    "none", "ts", "ets", "vs", "svs", "sms", "dir-odir", "platt", "beta", "isotonic", "histogram",
    "irm", "spline",
)  # fmt: skip
_DRAWS = 1000


@dataclass
class Problem:
    """One classifier on one data set, with what each method scored on it."""

    name: str
    n_classes: int
    n_samples: int
    mistakes: int
    nll: dict[str, float] = field(default_factory=dict)

    @property
    def data(self) -> str:
        return self.name.split("/")[0]


@dataclass(frozen=True)
class Line:
    """One method over all problems: win rate and changes of NLL in per cent, with 95 % intervals by
    data set.
    """

    wins: float
    wins_interval: tuple[float, float]
    mean: float
    mean_interval: tuple[float, float]
    median: float
    worst: float
    worse: int  # problems with an NLL more than 1 % above the reference's


def summarise(problems: Sequence[Problem], name: str, reference: str = "ts") -> Line:
    change = np.array([100 * (p.nll[name] / p.nll[reference] - 1) for p in problems])
    wins = np.array([100 * win_share(p, name) for p in problems])
    return Line(
        float(wins.mean()),
        interval(problems, wins),
        float(change.mean()),
        interval(problems, change),
        float(np.median(change)),
        float(change.max()),
        int((change > 1).sum()),
    )


def win_share(problem: Problem, name: str) -> float:
    """Return the share of the panel's other methods that this one beats; a tie counts half."""
    rivals = [problem.nll[other] for other in PANEL if other != name]
    return float(
        np.mean(
            [(problem.nll[name] < rival) + 0.5 * (problem.nll[name] == rival) for rival in rivals]
        )
    )


def interval(problems: Sequence[Problem], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return where 95 % of the means lie when data sets are drawn anew."""
    data = np.array([problem.data for problem in problems])
    sums = np.array(
        [(values[data == name].sum(), (data == name).sum()) for name in np.unique(data)]
    )
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), (_DRAWS, len(sums)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return float(low), float(high)


def win_rates_chart(rows: Sequence[tuple[str, float, float, float]]) -> figure.Chart:
    """Return the figure of the page: name, win rate, low and high of each method, in percent, best
    first.
    """
    size = len(rows)
    marks: list[figure.Mark] = [figure.Line((50, 50), (0, size), "ideal", "as many wins as losses")]
    for index, (name, rate, low, high) in enumerate(rows):
        y = size - index - 0.5
        words = f"{name}: {rate:.1f} % [{low:.1f}, {high:.1f}]"
        marks.append(figure.Line((low, high), (y, y), "whisker", words))
        style = "dot after" if name in ("auto", "ensemble") else "dot plain"
        marks.append(figure.Dots((rate,), (y,), style, (words,), 4.5))
    names = tuple((size - index - 0.5, name) for index, (name, *_) in enumerate(rows))
    ticks = tuple((value, f"{value:g} %") for value in figure.ticks(10, 95, 6))
    x = figure.Axis(10, 95, "comparisons won", ticks)
    title = "Win rate in pairwise comparisons, predictions kept"
    y_axis = figure.Axis(0, size, "", names, grid=False)
    return figure.Chart(title, x, y_axis, marks, height=72 + 20 * size, left=166)
