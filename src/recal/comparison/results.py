"""The result of a comparison: values, intervals and paired differences of every method."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recal import __version__
from recal.clusters import count_of_clusters
from recal.errors import InputError
from recal.files.paths import plain_values
from recal.metrics import LABELS
from recal.metrics.evaluation import HIGHER_IS_BETTER, CalibrationTest, calibration_test_of
from recal.metrics.intervals import (
    CALIBRATION_ERRORS,
    NO_INTERVAL,
    Interval,
    combined_interval,
    percentile_interval,
)
from recal.metrics.row_scores import RowScores

if TYPE_CHECKING:
    from recal.calibrators.base import Calibrator

UNCALIBRATED = "uncalibrated"
# Metrics of the paper's tables, and those that matter for decisions.
MAIN_METRICS = ("ece", "brier", "nll", "error_rate", "aurc")


@dataclass(frozen=True)
class Row:
    """One method's line for one metric; the differences are to the baseline, negative is lower."""

    method: str
    value: float
    interval: Interval
    difference: float
    difference_interval: Interval
    mark: str  # "best", "second" or ""

    @property
    def differs(self) -> bool:
        """Whether the interval of the difference excludes zero."""
        low, high = self.difference_interval
        return low > 0 or high < 0

    def to_dict(self) -> dict[str, Any]:
        """Everything but the method, by name."""
        return {name: value for name, value in vars(self).items() if name != "method"}

    @property
    def has_interval(self) -> bool:
        return bool(np.isfinite(self.interval).all())

    def change(self, digits: int) -> str:
        """Return the difference in brackets; empty if it is not distinguishable."""
        return f" ({signed(self.difference, digits)})" if self.differs else ""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of the comparison, so that it can be repeated; the defaults are those of given
    probabilities.
    """

    n_fit: int = 0
    n_test: int
    n_classes: int
    n_bins: int
    splits: int = 1
    draws: int
    random_state: int
    version: str = __version__


@dataclass(frozen=True, repr=False)
class Comparison:
    """Every method's metrics on the same test rows, with intervals and paired differences to a
    baseline.

    Attributes
    ----------
    methods : names, "uncalibrated" first
    values : mapping of metric to an array (n_splits, n_methods)
    fit_seconds : array (n_splits, n_methods), CPU seconds
    passes : forward passes of the model that each method needs for one new input
        The mean over the first split's test rows; a gate may spare most of them the views.
    test_labels : the first split's test labels as column indices
    samples : mapping of method to the first split's test rows, their confidence and correctness
    calibrators : mapping of method to the calibrator fitted on the first split
    failures : mapping of method to why it could not be fitted
    probs : mapping of method to its probabilities for the first split's test rows
    test_rows : the test rows' places in the file they come from; None where they are all of it, in
        order
    classes : names of the columns, where they were given
    passes_known : False if probabilities were given without their number of forward passes
    clusters : the cluster of each test row of the first split, if clusters were given
    graded : True if the confidence of each answer was given instead of probabilities; `probs` then
        holds 1-D arrays, every prediction is class 0, and `test_labels` are 0 for right answers
    ids : what traces each test row to its input, such as a file name, where it is known
    warnings : what was warned of while the methods were fitted
    """

    methods: Sequence[str]
    baseline: str
    values: Mapping[str, NDArray[np.float64]]
    fit_seconds: NDArray[np.float64]
    passes: Sequence[float]
    keeps_accuracy: Sequence[bool]
    setup: Setup
    test_labels: NDArray[np.intp]
    samples: Mapping[str, RowScores]
    probs: Mapping[str, NDArray[np.floating[Any]]]
    calibrators: Mapping[str, Calibrator] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    paired: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    test_rows: NDArray[np.intp] | None = None
    classes: NDArray[Any] | None = None
    passes_known: bool = True
    graded: bool = False
    clusters: NDArray[np.intp] | None = None
    ids: NDArray[np.str_] | None = None
    warnings: Sequence[str] = ()

    def rows(self, metric: str) -> list[Row]:
        """One line for each method, in the order of `methods`."""
        if metric not in self.values:
            raise InputError(f"There is no metric {metric!r}; there are {', '.join(self.values)}.")
        values = self.values[metric]
        base = self.methods.index(self.baseline)
        marks = self._marks(metric)
        # NaN where both are infinite: the NLL of a certain, wrong answer.
        with np.errstate(invalid="ignore"):
            differences = (values - values[:, [base]]).mean(axis=0).tolist()
        return [
            Row(
                method,
                float(values[:, index].mean()),
                self._interval(metric, index),
                differences[index],
                self._difference_interval(metric, index, base),
                marks[index],
            )
            for index, method in enumerate(self.methods)
        ]

    def row(self, metric: str, method: str) -> Row:
        """One method's line for one metric."""
        if method not in self.methods:
            raise InputError(f"There is no method {method!r}; there are {', '.join(self.methods)}.")
        return self.rows(metric)[self.methods.index(method)]

    def best(self, metric: str = "nll") -> str:
        """The method with the best mean of a metric."""
        return next((row.method for row in self.rows(metric) if row.mark == "best"), self.baseline)

    def digits(self, metric: str) -> int:
        """Number of decimals in tables: enough to tell methods apart."""
        if metric == "brier":  # divided by the number of classes
            return 4 + math.ceil(math.log10(self.setup.n_classes))
        return 5 if metric == "aurc" else 4

    @cached_property
    def answers(self) -> Mapping[str, NDArray[np.intp]]:
        """The first split's answers of every method, as column indices."""
        columns = {name: one.reshape(len(one), -1) for name, one in self.probs.items()}
        return {name: one.argmax(axis=1) for name, one in columns.items()}

    @cached_property
    def calibration_tests(self) -> Mapping[str, CalibrationTest]:
        """The test of calibration of every method, on the first split's test rows."""
        return {
            name: calibration_test_of(rows, self.setup.n_bins)
            for name, rows in self.samples.items()
        }

    def _interval(self, metric: str, index: int) -> Interval:
        if self.setup.splits > 1:
            return self._over_splits(self.values[metric][:, index])
        return self.intervals[metric][index] if self.intervals else NO_INTERVAL

    def _over_splits(self, values: NDArray[np.float64]) -> Interval:
        return corrected_interval(values, self.setup.n_test / self.setup.n_fit)

    def _difference_interval(self, metric: str, index: int, base: int) -> Interval:
        if index == base:
            return (0.0, 0.0)
        if self.setup.splits > 1:
            return self._over_splits(self.values[metric][:, index] - self.values[metric][:, base])
        if metric not in self.paired:
            return NO_INTERVAL
        draws = self.paired[metric]
        if metric in CALIBRATION_ERRORS:
            return self._error_difference(metric, index, base)
        with np.errstate(invalid="ignore"):  # both infinite: no difference
            return percentile_interval(draws[index] - draws[base])

    def _error_difference(self, metric: str, index: int, base: int) -> Interval:
        """Interval of the difference of two calibration errors, from the interval of each (MOVER).

        Noise raises both errors, but not by the same amount. The intervals of single errors allow
        for that, and the draws lie around the errors without this bias; both only share how
        strongly the errors vary together.
        """
        draws = self.paired[metric][[index, base]]
        one, two = draws.mean(axis=1).tolist()
        spread = draws.std(axis=1)
        # Draws of two errors share the noise of the bins, so their correlation is too high; the
        # cube shrinks it.
        correlation = float(np.corrcoef(draws)[0, 1]) ** 3 if (spread > 0).all() else 0.0
        if np.array_equal(draws[0], draws[1]):
            return (0.0, 0.0)
        first, second = self.intervals[metric][index], self.intervals[metric][base]
        negative = -second[1], -second[0]
        # An estimate cannot lie below zero, so it is too large for a calibrated model: zero is
        # tried as well.
        ends = [
            combined_interval(mine, first, -other, negative, -correlation)
            for mine in ((one, 0.0) if first[0] <= 0 else (one,))
            for other in ((two, 0.0) if second[0] <= 0 else (two,))
        ]
        observed = float(self.values[metric][0, index] - self.values[metric][0, base])
        return min(observed, *(low for low, _ in ends)), max(observed, *(high for _, high in ends))

    def _marks(self, metric: str) -> list[str]:
        means = self.values[metric].mean(axis=0)
        losses = np.where(np.isnan(means), np.inf, -means if metric in HIGHER_IS_BETTER else means)
        # Values that look equal are equal; there is no mark if all methods share the first place.
        losses = np.round(losses, self.digits(metric))
        levels = np.unique(losses[np.isfinite(losses)])
        if len(levels) < 2:
            return [""] * len(means)
        names = {levels[0]: "best", levels[1]: "second"}
        return [names.get(level, "") for level in losses]

    def table(self, metrics: Sequence[str], cell: Callable[[Row, int], str]) -> list[list[str]]:
        """Return the head, and a line for each method: name, `cell(row, digits)` for each metric,
        CPU time of the fit, passes.
        """
        columns = [["method", *self.methods]]
        for metric in metrics:
            cells = [cell(row, self.digits(metric)) for row in self.rows(metric)]
            columns.append([LABELS[metric], *cells])
        columns.append(["fit (CPU)", *map(seconds, self.fit_seconds.mean(axis=0).tolist())])
        columns.append(["passes", *map(passes, self.passes)])
        return [list(line) for line in zip(*columns)]

    def describe(self) -> str:
        """One sentence on the data and on where the intervals come from."""
        setup = self.setup
        if setup.n_fit:
            sizes = (
                f"fitted on {setup.n_fit:,} samples, tested on {setup.n_test:,}, "
                f"{setup.n_classes:,} classes"
            )
        elif self.graded:
            sizes = f"{setup.n_test:,} graded answers"
        else:
            sizes = f"{setup.n_test:,} samples, {setup.n_classes:,} classes"
        if setup.splits > 1:
            return (
                f"Mean over {setup.splits} random splits, {sizes}; 95 % intervals by t with "
                "Nadeau and Bengio's correction for overlapping splits."
            )
        if setup.draws:
            units = "the test rows"
            if self.clusters is not None:
                units = count_of_clusters(len(np.unique(self.clusters)))
            sizes += f"; 95 % intervals from {setup.draws:,} bootstrap draws of {units}"
        return f"{'One split, ' if setup.n_fit else ''}{sizes}."

    def __str__(self) -> str:
        return self.to_markdown()

    __repr__ = __str__

    def to_markdown(self, metrics: Sequence[str] = MAIN_METRICS) -> str:
        """A table for people: best in bold, second best in italics."""
        marks = {"best": "**", "second": "*", "": ""}

        def cell(row: Row, digits: int) -> str:
            return (
                f"{marks[row.mark]}{number(row.value, digits)}{marks[row.mark]}{row.change(digits)}"
            )

        head, *body = self.table(metrics, cell)
        note = (
            f"**Best**, *second best*; in brackets the difference to {self.baseline} where its "
            f"interval excludes zero. {self.describe()}"
        )
        left_out = [f"{method} was left out: {why}" for method, why in self.failures.items()]
        return "\n".join([*markdown_table(head, body), "", note, *left_out]) + "\n"

    def to_latex(self, metrics: Sequence[str] = MAIN_METRICS) -> str:
        """The same table for a paper: best in bold, second best underlined; needs the package
        booktabs.
        """
        marks = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
        special: dict[str, int | str | None] = {mark: f"\\{mark}" for mark in "&%_#${}"}
        special |= {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "−": "$-$", "–": "--"}

        def escape(text: str) -> str:
            return text.translate(str.maketrans(special))

        def cell(row: Row, digits: int) -> str:
            return marks[row.mark] % escape(number(row.value, digits)) + escape(row.change(digits))

        head, *rows = self.table(metrics, cell)
        body = [[escape(name), *cells] for name, *cells in rows]
        columns = "l" + "r" * (len(head) - 1)
        first, *rest = (" & ".join(line) + r" \\" for line in (head, *body))
        start = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule"]
        end = [r"\bottomrule", r"\end{tabular}", f"% {self.describe()}\n"]
        return "\n".join([*start, *rest, *end])

    def to_csv(self) -> str:
        """One line for each method and metric, all metrics."""
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        columns = "method metric value low high difference difference_low difference_high mark"
        writer.writerow([*columns.split(), "fit_cpu_seconds", "forward_passes"])
        for metric in self.values:
            for index, row in enumerate(self.rows(metric)):
                numbers = [row.value, *row.interval, row.difference, *row.difference_interval]
                cost = [self.fit_seconds[:, index].mean(), self.passes[index]]
                writer.writerow([row.method, metric, *numbers, row.mark, *cost])
        return target.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain values for JSON; what is not finite becomes None."""
        rows = {metric: self.rows(metric) for metric in self.values}
        methods = {
            method: {
                "fit_cpu_seconds": self.fit_seconds[:, index].mean(),
                "forward_passes": self.passes[index],
                "keeps_accuracy": self.keeps_accuracy[index],
                "metrics": {metric: rows[metric][index].to_dict() for metric in rows},
            }
            for index, method in enumerate(self.methods)
        }
        plain = {"baseline": self.baseline, "setup": vars(self.setup), "methods": methods}
        plain |= {"failures": self.failures, "warnings": self.warnings}
        return dict(plain_values(plain))

    def _repr_html_(self) -> str:
        # Imported by name, because reporting imports comparisons and imports go one way.
        return str(import_module("recal.reporting.notebook").comparison_html(self))


def corrected_interval(values: NDArray[np.float64], test_to_fit: float) -> Interval:
    """A 95 % t-interval for a mean over random splits, with Nadeau and Bengio's correction.

    Splits of one data set overlap, so their spread divided by their number is too optimistic: the
    variance is multiplied by (1 / splits + n_test / n_fit) instead of 1 / splits.
    """
    from scipy.stats import t

    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return NO_INTERVAL
    half = float(t.ppf(0.975, n - 1)) * corrected_error(values, test_to_fit)
    return float(values.mean() - half), float(values.mean() + half)


def corrected_error(values: NDArray[np.float64], test_to_fit: float) -> float:
    """Return the standard error of a mean over random splits."""
    return float(values.std(ddof=1) * np.sqrt(1 / len(values) + test_to_fit))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    r"""Return the lines of a Markdown table, with columns aligned for a terminal. A bar inside a
    cell is escaped, and what would begin an HTML tag.

    Examples
    --------
    >>> from recal.comparison.results import markdown_table
    >>> print(*markdown_table(["method", "ECE"], [["ts", "0.012"], ["a|b", "0.020"]]), sep="\n")
    | method | ECE   |
    | ------ | ----- |
    | ts     | 0.012 |
    | a\|b   | 0.020 |
    """
    lines = [
        [re.sub(r"<(?=[A-Za-z/!?])", "&lt;", cell.replace("|", r"\|")) for cell in row]
        for row in (head, *rows)
    ]
    widths = [max(3, *map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines]


def number(value: float, digits: int = 4) -> str:
    """A metric with fixed decimals; a dash if it is undefined."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float, digits: int = 4) -> str:
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s" if value >= 0.001 else "0"


def passes(value: float) -> str:
    """Forward passes per answer: a whole number unless a gate spares some inputs their views."""
    return f"{value:.2f}".removesuffix(".00")
