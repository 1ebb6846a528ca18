"""The sections of the page below its first screen, as values: each has one figure, one table and two sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from recal.comparison import Comparison
from recal.comparison.results import MAIN_METRICS, Row
from recal.comparison.tables import describe, number, passes, seconds, signed
from recal.decisions import Decision, RiskCurve
from recal.decisions.decision import GroupRisk
from recal.metrics import LABELS
from recal.metrics.evaluation import HIGHER_IS_BETTER
from recal.reporting import charts
from recal.reporting.chart import Chart
from recal.reporting.charts import percent
from recal.reporting.curves import RankBins, Reliability, method_values, rank_bins, reliability, risk_coverage
from recal.reporting.damage import DamageStudy
from recal.reporting.examples import MOST_NUMBERS, Example, examples, shown_input
from recal.reporting.expected_errors import Slices, Thresholds, slices_of
from recal.reporting.groups import FEWEST_RANKED, GROUP_LABELS, group_study, path_of, progress
from recal.reporting.verdict import CONFIDENCE, Automation, Verdict

# The page shows this many parts, the worst ones, and counts the others.
_MOST_PARTS = 20
Cell = str | Markup


@dataclass(frozen=True)
class Table:
    """Cells are text, or markup that is already escaped. A folded table opens on a click; a wide one has a row."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    folded: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Picture:
    """One figure: a chart, or two of them side by side, each with its title."""

    panels: Sequence[tuple[str, Chart]]


@dataclass(frozen=True)
class Block:
    """The content of a section for one method. `lists` holds samples to look at, by heading."""

    finding: str = ""
    picture: Picture | None = None
    table: Table | None = None
    lists: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A titled part of the page; the script shows the block of the chosen method. Without methods the key is ""."""

    id: str
    title: str
    note: str
    blocks: Mapping[str, Block]
    rows: str = ""  # which rows the numbers come from


@dataclass(frozen=True)
class Page:
    """A comparison, what is known about it, and which of its methods the page shows first."""

    comparison: Comparison
    shown: str
    before: str | None  # None if there is only one set of probabilities
    tables: Mapping[str, Thresholds]
    verdicts: Mapping[str, Verdict]
    automated: Mapping[str, Automation]
    rows: str = ""  # what the rows of the page are called, such as "1,219 checking inputs"
    inputs: Any = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    damage: DamageStudy | None = None

    @property
    def choices(self) -> Sequence[str]:
        """The methods that can be compared with the model before."""
        return [name for name in self.comparison.methods if name != self.before]

    def pair(self, name: str) -> dict[str, str]:
        """Methods by "before" and "after"."""
        return {**({} if self.before is None else {"before": self.before}), "after": name}


def sections(page: Page) -> Iterator[Section]:
    """Yield the sections in the order of the page, leaving out those without content."""
    yield automation_section(page)
    yield from group_sections(page)
    yield methods_section(page)
    yield reliability_section(page)
    yield ranks_section(page)
    yield risk_section(page)
    for index, (name, values) in enumerate(page.columns.items()):
        yield part_section(page, f"by-{index}", name, dict.fromkeys(page.comparison.methods, values))
    if not page.comparison.graded:
        yield part_section(page, "classes", "class", page.comparison.answers, page.comparison.classes)
        yield from sets_section(page)
    yield from look_section(page)
    yield from damage_section(page)
    yield from iterations_section(page)
    yield from four_groups_section(page)


def automation_section(page: Page) -> Section:
    """The share of answers that can be automated at each risk."""
    blocks = {}
    for name in page.choices:
        pair = {key: page.automated[method] for key, method in page.pair(name).items()}
        curves = {key: (one.method, one.curve) for key, one in pair.items() if one.curve is not None}
        picture = table = None
        if len(curves) == len(pair):
            picture = Picture([("Share automated by risk", charts.automation_chart(curves))])
            table = _risk_table(curves)
        blocks[name] = Block(_rule_words(pair["after"]), picture, table)
    note = (
        f"Guarantee: with {CONFIDENCE:.0%} confidence, at most this share of accepted answers is wrong on inputs like "
        "these. Each point of the curve has its own guarantee."
    )
    return Section("automation", "Answers that can be automated", note.replace("%", " %"), blocks, page.rows)


def _risk_table(curves: Mapping[str, tuple[str, RiskCurve]]) -> Table:
    after = curves["after"][1]
    rows = []
    for index, risk in enumerate(after.risks):
        low, high = after.intervals[index]
        start = after.thresholds[index]
        shares = [percent(curve.coverage[index]) for _, curve in curves.values()]
        interval = f"{100 * low:.1f} – {percent(high)}"
        rows.append([percent(risk, 2), *shares, interval, f"{start:.4f}" if start <= 1 else "–"])
    head = ["errors allowed", *(name for name, _ in curves.values()), "95 % interval", "from confidence"]
    return Table(head, rows, "Share accepted at each risk")


def _rule_words(one: Automation) -> str:
    """Say what the rule accepts on the rows of the page."""
    decision = one.decision
    if not decision.possible:
        return str(decision)
    start = "" if len(decision.thresholds) > 1 else f" from a confidence of {decision.threshold:.4g} on"
    elsewhere = decision.n_samples != one.n_samples
    chosen = f" The threshold was chosen on {decision.n_samples:,} other inputs." if elsewhere else ""
    return (
        f"The rule accepts {one.n_accepted:,} of {one.n_samples:,} answers ({percent(one.share)}){start}; "
        f"{one.n_errors:,} of them are wrong.{chosen}"
    )


def group_sections(page: Page) -> Iterator[Section]:
    """Errors among accepted answers by group, worst first, under one rule for all."""
    for index, (by, values) in enumerate(page.groups.items()):
        if not any(page.automated[name].accepted.any() for name in page.choices):
            yield part_section(page, f"group-{index}", by, dict.fromkeys(page.comparison.methods, values))
            continue
        blocks = {}
        for name in page.choices:
            one = page.automated[name]
            groups = one.by_group(values)
            worst = groups[:_MOST_PARTS]
            rows = [
                [
                    _starred(group.name, group.broken),
                    f"{group.n_samples:,}",
                    f"{group.n_accepted:,}",
                    f"{group.n_errors:,}",
                    percent(group.error_rate),
                    f"{100 * group.interval[0]:.1f} – {percent(group.interval[1])}" if group.n_accepted else "–",
                ]
                for group in worst
            ]
            head = [by, "answers", "accepted", "errors", "error rate", "95 % interval"]
            table = Table(head, rows, f"Errors among accepted answers by {by}, worst first")
            picture = Picture(
                [("Errors among accepted answers", charts.group_risk_chart(worst, one.decision.risk, by))]
            )
            blocks[name] = Block(_group_words(groups, one.decision, by), picture, table)
        note = "The dashed line is the error rate that the rule allows. A star marks a group that clearly exceeds it."
        yield Section(f"group-{index}", f"By {by}, worst first", note, blocks, page.rows)


def _group_words(groups: Sequence[GroupRisk], decision: Decision, by: str) -> str:
    risk = f"{100 * decision.risk:g} %"
    names = [one.name for one in groups if one.broken]
    if not names:
        return f"No {by} clearly exceeds the {risk} errors that the rule allows."
    most = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    rule = f"the rule of the {by}" if decision.rule.groups else "one rule for all answers"
    advice = "" if decision.rule.groups else f" Choose one rule for each group: recal decide --group {by}."
    return f"Warning: {rule} clearly exceeds {risk} errors in {len(names)} of {len(groups)} groups ({most}).{advice}"


def methods_section(page: Page) -> Section:
    """Values with intervals, best and second best, and differences to the baseline that exclude zero."""
    comparison = page.comparison
    metrics = [metric for metric in MAIN_METRICS if metric in comparison.values]
    rows = {metric: comparison.rows(metric) for metric in metrics}
    fitted = comparison.test is not None
    head = ["method", *(LABELS[metric] for metric in metrics), "p, calibration test"]
    head += ["fit, CPU", "passes"] if fitted else []
    lines: list[list[Cell]] = []
    for index, name in enumerate(comparison.methods):
        keeps = "" if comparison.keeps_accuracy[index] else Markup("<small>may change predictions</small>")
        cells: list[Cell] = [Markup("{}{}").format(name, keeps)]
        cells += [value_cell(rows[metric][index], metric, comparison.digits(metric)) for metric in metrics]
        cells.append(comparison.calibration_tests[name].shown.removeprefix("p ").removeprefix("= "))
        if fitted:
            cells += [seconds(comparison.fit_seconds[:, index].mean()), passes(comparison.passes[index])]
        lines.append(cells)
    several = len(comparison.methods) > 1
    title = "Methods compared" if several else "Metrics"
    note = (
        f"Lower is better. ▼ or ▲: difference to {comparison.baseline} where its 95 % interval excludes zero; bold is "
        "best, underlined second best."
        if several
        else "Lower is better; the 95 % interval is below each value."
    )
    left_out = " ".join(f"{name} was left out: {why}" for name, why in comparison.failures.items())
    chart = charts.methods_chart(method_values(comparison, "nll")) if len(comparison.methods) > 2 else None
    picture = None if chart is None else Picture([("NLL, lower is better", chart)])
    return Section(
        "methods", title, note, {"": Block(left_out, picture, Table(head, lines, title, wide=True))}, page.rows
    )


def value_cell(row: Row, metric: str, digits: int) -> Markup:
    """A value with its mark, its difference to the baseline and its interval; screen readers hear words."""
    cell = Markup("{}").format(number(row.value, digits))
    if row.mark:
        word = row.mark + (" best" if row.mark == "second" else "")
        cell = Markup('<span class="{}">{}</span><span class="spoken">{}</span>').format(row.mark, cell, word)
    if row.differs:
        word = "better" if (row.difference < 0) != (metric in HIGHER_IS_BETTER) else "worse"
        arrow = "▼" if row.difference < 0 else "▲"
        change = '<span class="{0}"><span aria-hidden="true">{1}</span><span class="spoken">{0}</span> {2}</span>'
        cell += Markup(change).format(word, arrow, signed(row.difference, digits))
    low, high = row.interval
    if np.isfinite(low) and np.isfinite(high):
        cell += Markup("<small>{} – {}</small>").format(number(low, digits), number(high, digits))
    return cell


def reliability_section(page: Page) -> Section:
    """Reliability diagrams before and after."""
    samples, n_bins = page.comparison.samples, page.comparison.setup.n_bins
    data = {name: reliability(rows, n_bins) for name, rows in samples.items()}
    blocks = {}
    for name in page.choices:
        pair = page.pair(name)
        panels = [(method, charts.reliability_chart(data[method], key, method)) for key, method in pair.items()]
        table = _bin_table({method: data[method] for method in pair.values()})
        blocks[name] = Block(picture=Picture(panels), table=table)
    note = (
        "The thick mark is the accuracy in a bin of confidence, the light box its 95 % band, and the dark box its "
        "distance to the mean confidence. A calibrated model lies on the dashed line."
    )
    return Section("reliability", "Reliability", note, blocks, page.rows)


def _bin_table(methods: Mapping[str, Reliability]) -> Table:
    head = ["confidence"]
    for name in methods:
        head += [f"{name}: answers", "mean confidence", "correct", "95 % band"]
    rows = []
    for low in sorted({float(edge) for data in methods.values() for edge in data.low}):
        cells, end = [], 1.0
        for data in methods.values():
            match = np.flatnonzero(data.low == low)
            if not len(match):
                cells += ["–"] * 4
                continue
            i = int(match[0])
            end = float(data.high[i])
            band = f"{percent(data.band_low[i])} – {percent(data.band_high[i])}"
            cells += [f"{int(data.counts[i]):,}", percent(data.confidence[i]), percent(data.accuracy[i]), band]
        rows.append([f"{low:.2f}–{end:.2f}", *cells])
    return Table(head, rows, "Reliability in bins of confidence", folded=True)


def ranks_section(page: Page) -> Section:
    """Errors expected and observed in bins with equally many answers."""
    data = {name: rank_bins(rows) for name, rows in page.comparison.samples.items()}
    blocks = {}
    for name in page.choices:
        pair = page.pair(name)
        panels = [(method, charts.rank_bins_chart(data[method], key, method)) for key, method in pair.items()]
        blocks[name] = Block(picture=Picture(panels), table=_rank_table(data[name], name))
    note = (
        "Each column has equally many answers; the line is the error rate expected from the confidence. A dot outside "
        "its light box made more or fewer errors than a calibrated model would."
    )
    return Section("ranks", "Errors by rank of confidence", note, blocks, page.rows)


def _rank_table(data: RankBins, name: str) -> Table:
    columns = (data.lowest, data.highest, data.counts, data.expected, data.observed, data.low, data.high)
    rows = [
        [f"{a:.4g}–{b:.4g}", f"{int(n):,}", percent(e, 2), percent(o, 2), f"{percent(low, 2)} – {percent(high, 2)}"]
        for a, b, n, e, o, low, high in zip(*(column.tolist() for column in columns))
    ]
    head = ["confidence", "answers", "errors expected", "made", "if calibrated"]
    return Table(head, rows, f"Errors by rank of confidence, {name}", folded=True)


def risk_section(page: Page) -> Section:
    """Risk-coverage curves before and after."""
    curves = {name: risk_coverage(rows) for name, rows in page.comparison.samples.items()}
    blocks = {}
    for name in page.choices:
        pair = {method: curves[method] for method in page.pair(name).values()}
        rows = []
        for share in (np.arange(1, 11) / 10).tolist():
            risks = [float(curve.risk[np.argmin(np.abs(curve.coverage - share))]) for curve in pair.values()]
            rows.append([percent(share, 0), *(percent(risk, 2) for risk in risks)])
        table = Table(["answers accepted", *pair], rows, "Error rate among accepted answers")
        picture = Picture([("Error rate among accepted answers", charts.risk_coverage_chart(pair))])
        blocks[name] = Block(picture=picture, table=table)
    note = "The error rate if only the most confident answers are accepted. A lower curve ranks answers better."
    return Section("risk", "Risk and coverage", note, blocks, page.rows)


def part_section(
    page: Page, id: str, by: str, values: Mapping[str, NDArray[Any]], names: NDArray[Any] | None = None
) -> Section:
    """Overconfidence by class or by a column, worst first, before and after."""
    blocks = {}
    for name in page.choices:
        parts = {
            key: slices_of(page.comparison.samples[method], values[method], by, names)
            for key, method in page.pair(name).items()
        }
        blocks[name] = _parts(parts)
    note = (
        "Dots: mean confidence minus accuracy, so overconfidence is on the right; light boxes: the range of a "
        "calibrated model. A star marks a gap that chance does not explain."
    )
    return Section(id, f"By {'predicted class' if id == 'classes' else by}, worst first", note, blocks, page.rows)


def _parts(parts: Mapping[str, Slices]) -> Block:
    after = parts["after"]
    # A method that changes answers may never predict a class that was predicted before, and the other way round.
    both = [name for name in after.names[:_MOST_PARTS] if all(name in part.names for part in parts.values())]
    words = after.words
    if len(both) < len(after.names):
        words += f" The {len(both)} worst of {len(after.names):,} are shown."
    if not both:
        return Block(words)
    chosen = {key: part.of(both) for key, part in parts.items()}
    after, before = chosen["after"], chosen.get("before")
    head = [after.by, "answers", "expected", "made", "if calibrated", "gap", *([] if before is None else ["before"])]
    rows = []
    for i, name in enumerate(after.names):
        cells: list[Cell] = [
            _starred(name, bool(after.off[i])), f"{after.counts[i]:,}", f"{after.expected[i]:,.1f}",
            f"{after.errors[i]:,}", f"{after.low[i]:,}–{after.high[i]:,}", f"{100 * after.gaps[i]:+.1f} %",
        ]  # fmt: skip
        rows.append([*cells, *([] if before is None else [f"{100 * before.gaps[i]:+.1f} %"])])
    title = f"Overconfidence by {after.by}"
    table = Table(head, rows, f"Errors expected and made by {after.by}, worst first")
    return Block(words, Picture([(title, charts.slice_chart(chosen))]), table)


def _starred(name: str, star: bool) -> Cell:
    return Markup('{} <b title="more than chance explains">*</b>').format(name) if star else name


def sets_section(page: Page) -> Iterator[Section]:
    """Prediction sets of each method, made on one half of the rows and measured on the other."""
    rows: list[list[Cell]] = []
    for one in page.automated.values():
        if one.sets is not None:
            low, high = one.sets.interval
            covered = Markup("{}<small>{} – {}</small>").format(percent(one.sets.coverage), percent(low), percent(high))
            rows.append([one.method, covered, f"{one.sets.mean_size:.3f}", percent(one.sets.single)])
    if rows:
        coverage = f"{100 * next(iter(page.automated.values())).set_coverage:g} %"
        note = (
            f"The smallest sets of classes that contain the true class {coverage} of the time. They are made on one "
            "half of the rows and measured on the other."
        )
        table = Table(["method", "coverage", "mean size", "one class"], rows, f"Prediction sets at {coverage}")
        yield Section("sets", "Prediction sets", note, {"": Block(table=table)}, page.rows)


def look_section(page: Page) -> Iterator[Section]:
    """The most confident mistakes, and the predictions that change most under transformations."""
    blocks = {}
    for name in page.choices:
        chosen = examples(page.comparison, name)
        lists = {
            "The most confident mistakes": [_shown(page, one) for one in chosen.mistakes],
            "Predictions that change most under transformations": [_shown(page, one) for one in chosen.doubted],
        }
        blocks[name] = Block(lists={words: items for words, items in lists.items() if items})
    if any(block.lists for block in blocks.values()):
        where = "the tested file" if page.comparison.test is not None else "the file"
        yield Section("look", "Samples to look at", f"Rows are numbered from 0 in {where}.", blocks, page.rows)


def _shown(page: Page, one: Example) -> dict[str, Any]:
    before = f"{percent(one.before)} → " if page.before is not None else ""
    small = [f"confidence {before}{percent(one.after)}"]
    if one.doubt == one.doubt:
        small.append(f"changes in {percent(one.doubt, 0)} of the views")
    if page.comparison.graded:
        answer, truth = "right" if one.right else "wrong", ""
    else:
        answer, truth = one.answer, "right" if one.right else f"true class {one.truth}"
    picture = "" if page.inputs is None else shown_input(page.inputs, one.row)
    return {"picture": picture, "answer": answer, "truth": truth, "small": [*small, f"row {one.row:,}"]}


def damage_section(page: Page) -> Iterator[Section]:
    """How temperature and accuracy change with damage; nothing without a profile that has views."""
    study = page.damage
    if study is None:
        return
    rows = [
        [
            kind + ("" if kind in study.damaging else " (no damage)"),
            str(count),
            f"{100 * low:.0f} – {percent(high, 0)}",
            f"{cool:.2f} – {hot:.2f}",
        ]
        for kind, count, (low, high), (cool, hot) in study.rows()
    ]
    table = Table(["kind", "views", "accuracy", "temperature"], rows, "Views by kind of damage")
    picture = Picture([("Temperature and accuracy of each view", charts.damage_chart(study))])
    note = (
        "Each view of the labelled samples is a damaged data set with known labels. From these the calibration learns "
        "to estimate temperature and accuracy of new inputs from their logits alone; predictions never change."
    )
    words = " ".join((study.words, *study.notes))
    rows_name = f"{study.n_samples:,} inputs of the fit"
    yield Section("damage", "Damaged inputs", note, {"": Block(words, picture, table)}, rows_name)


def iterations_section(page: Page) -> Iterator[Section]:
    """The iterations of ReCal, for each method that recorded them."""
    comparison = page.comparison
    blocks = {}
    for name, calibrator in comparison.calibrators.items():
        history, plan = getattr(calibrator, "history_", ()), calibrator.map_.plan
        if not history or plan is None or comparison.test is None or name not in page.choices:
            continue
        size = comparison.test.n_samples * comparison.test.n_classes * len(plan.steps)
        path = path_of(plan, comparison.test, comparison.test_labels) if size <= MOST_NUMBERS else None
        table = None
        if path is not None:
            kept = np.unique(np.linspace(0, len(path.steps) - 1, 8).astype(int))
            rows = [
                [f"{path.steps[i]}", f"{path.ece[i]:.4f}", f"{path.nll[i]:.4f}", f"{path.brier[i]:.5f}"] for i in kept
            ]
            table = Table(["steps", "ECE", "NLL", "Brier / K"], rows, "Metrics on the test rows by number of steps")
        chart = charts.iterations_chart(progress(history), path)
        words = f"{len(history)} iterations over {len(plan.transforms)} transformations."
        blocks[name] = Block(words, Picture([("ECE while fitting", chart)]), table)
    if blocks:
        note = (
            "Each iteration sorts the samples into four groups, by whether the prediction and its confidence survive a "
            "transformation, and scales the logits of each group. Hollow dots are rejected iterations."
        )
        yield Section("iterations", "Iterations of ReCal", note, blocks)


def four_groups_section(page: Page) -> Iterator[Section]:
    """Ranks of the four groups by calibration error, before calibration."""
    test = page.comparison.test
    if test is None or not test.transforms:
        return
    if test.n_samples * test.n_classes * len(test.transforms) > MOST_NUMBERS:
        return
    study = group_study(test)
    rows: list[list[Cell]] = []
    for spec, sizes, errors in study.lines():
        cells: list[Cell] = [
            Markup("{}<small>{} ({})</small>").format(number(error), f"{size:,}", percent(size / sum(sizes)))
            for size, error in zip(sizes, errors)
        ]
        rows.append([spec, *cells])
    head = ["transformation", *GROUP_LABELS.values()]
    table = Table(head, rows, "ECE and size of each group", folded=True)
    picture = Picture([("How often each group ranks first to last by ECE", charts.group_ranks_chart(study))])
    note = (
        "How uncalibrated predictions react to each transformation: groups with a large error need a correction of "
        f"their own. Median sizes are in brackets; groups of fewer than {FEWEST_RANKED} samples are not ranked."
    )
    yield Section("groups", "The four groups", note, {"": Block(picture=picture, table=table)}, page.rows)


def metrics_table(comparison: Comparison) -> Table:
    """Every metric of every method."""
    rows = [
        [label, *(value_cell(row, metric, comparison.digits(metric)) for row in comparison.rows(metric))]
        for metric, label in LABELS.items()
        if metric in comparison.values
    ]
    return Table(["metric", *comparison.methods], rows, "All metrics of all methods", folded=True)


def facts(page: Page, command: str) -> list[tuple[str, str]]:
    """Everything that is needed to make the report again."""
    comparison, setup = page.comparison, page.comparison.setup
    shown = " Figures, verdict and slider show the first split." if setup.splits > 1 else ""
    pairs = [("Data", describe(comparison) + shown)]
    pairs += [(f"Fingerprint, {name}", value) for name, value in setup.fingerprints.items()]
    pairs += [("Seed", str(setup.random_state)), ("Bins", str(setup.n_bins)), ("Baseline", comparison.baseline)]
    pairs += [(f"Method {name}", repr(calibrator)) for name, calibrator in comparison.calibrators.items()]
    pairs.append(("Versions", ", ".join(f"{name} {value}" for name, value in setup.versions.items())))
    return [*pairs, *([("Command", command)] if command else [])]
