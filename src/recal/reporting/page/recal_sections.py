"""How ReCal got there, and the four groups. Each part is empty where there is nothing to show."""

from __future__ import annotations

from html import escape

from recal.comparison.tables import number
from recal.plan import ConfidenceAt
from recal.reporting.data.figures import path_of, progress
from recal.reporting.data.groups import FEWEST_RANKED, GROUP_LABELS, GroupStudy, group_study
from recal.reporting.drawing import group_charts
from recal.reporting.drawing.charts import percent
from recal.reporting.page.parts import Page, figure, legend, section, table

# Beyond so many numbers a page about them would keep people waiting.
_MOST_NUMBERS = 200_000_000


def recal_figures(view: Page) -> str:
    """What ReCal did in each iteration, for each method that recorded it."""
    comparison = view.comparison
    blocks = {}
    group_keys = legend(dict(zip(group_charts.GROUP_CSS, GROUP_LABELS.values())))
    for name, calibrator in comparison.calibrators.items():
        history, plan = getattr(calibrator, "history_", ()), getattr(calibrator, "plan_", None)
        if not history or plan is None or comparison.test is None or name not in view.choices:
            continue
        data = progress(history)
        size = comparison.test.n_samples * comparison.test.n_classes * len(plan.steps)
        path = path_of(plan, comparison.test, comparison.test_labels) if size <= _MOST_NUMBERS else None
        keys = legend({"after": "fitting rows", **({"before": "test rows"} if path is not None else {})})
        rejected = "" if data.accepted.all() else " Hollow dots are rejected iterations."
        cards = [figure("ECE while fitting", group_charts.progress_chart(data, path), keys + rejected)]
        if path is not None:
            keys = legend({"after": "NLL", "before": "Brier score"})
            cards.append(figure("Proper scores on the test rows", group_charts.path_chart(path), keys))
        cards.append(figure("Change of each group's confidence", group_charts.betas_chart(data), group_keys))
        cards.append(figure("Groups by transformation", group_charts.flow_chart(data), group_keys))
        head = f"<h2>How {escape(name)} got there</h2>"
        note = (
            f'<p class="note">{len(history)} iterations over {len(plan.transforms)} transformations. Each sorts the '
            "samples into four groups, by whether the prediction was kept or changed and whether the confidence in it "
            "rose or fell when the input lost information, and scales each group's logits by a factor of its own.</p>"
        )
        blocks[name] = f'{head}{note}<div class="two">{"".join(cards)}</div>'
    return view.per_method(blocks)


def groups(view: Page) -> str:
    """The group study of the test rows, in both readings."""
    test = view.comparison.test
    if test is None or not test.transforms:
        return ""
    if test.n_samples * test.n_classes * len(test.transforms) > _MOST_NUMBERS:
        return ""
    readings: dict[ConfidenceAt, str] = {"original": "at the original's answer", "own": "at the copy's own answer"}
    studies = {words: group_study(test, confidence_at=reading) for reading, words in readings.items()}
    keys = legend({"r1": "smallest ECE", "r2": "second", "r3": "third", "r4": "largest ECE"})
    cards = [
        figure(f"Ranks of the groups, confidence {words}", group_charts.rank_chart(study), keys)
        for words, study in studies.items()
    ]
    tables = "".join(
        f"<details><summary>ECE and size of each group, confidence {words}</summary>{_group_table(study)}</details>"
        for words, study in studies.items()
    )
    note = (
        "How the uncalibrated test inputs react to each transformation. A single temperature cannot correct a group "
        "with a large error. The copy's confidence is measured in two ways. In brackets: the median size of the group. "
        f"Groups of fewer than {FEWEST_RANKED} samples are not ranked."
    )
    body = f'<div class="two">{"".join(cards)}</div>{tables}'
    return section("groups", "The four groups", body, note)


def _group_table(study: GroupStudy) -> str:
    lines = []
    for spec, sizes, errors in study.lines():
        cells = [
            f"{number(error)}<small>{size:,} ({percent(size / sum(sizes))})</small>"
            for size, error in zip(sizes, errors)
        ]
        lines.append([escape(spec), *cells])
    return table(["transformation", *GROUP_LABELS.values()], lines)
