"""Parts of the answers by class and by column, inputs to look at, and how many labels are enough."""

from __future__ import annotations

from html import escape

from recal.reporting.data.examples import Example, Examples, examples
from recal.reporting.data.learning import learning_curve
from recal.reporting.data.slices import Slices, slices_of
from recal.reporting.drawing.charts import percent
from recal.reporting.drawing.part_charts import learning_chart, slice_chart
from recal.reporting.page import data_tables
from recal.reporting.page.parts import Page, figure, legend, section
from recal.reporting.page.thumbnails import shown_input

# So many parts are shown, the worst; the others are counted.
_MOST = 20


def classes(view: Page) -> str:
    """By predicted class, worst first, before and after."""
    comparison = view.comparison
    blocks = {}
    for name in view.choices:
        answers = {key: comparison.answers[which] for key, which in _keys(view, name).items()}
        parts = {
            key: slices_of(comparison.samples[which], answers[key], "class", comparison.classes)
            for key, which in _keys(view, name).items()
        }
        blocks[name] = _parts(parts, f"By predicted class: {name}")
    note = (
        "Dots: mean confidence minus accuracy of the answers with each class, before and after. Dots on the right are "
        "overconfident. Light boxes: the range of a calibrated model. A star marks a gap that chance does not explain "
        "(corrected for the number of classes)."
    )
    return section("classes", "Class by class, worst first", view.per_method(blocks), note)


def columns(view: Page) -> str:
    """By every column that was given, worst first."""
    comparison = view.comparison
    found: list[str] = []
    for column, values in view.columns.items():
        blocks = {}
        for name in view.choices:
            parts = {
                key: slices_of(comparison.samples[which], values, column) for key, which in _keys(view, name).items()
            }
            blocks[name] = _parts(parts, f"By {column}: {name}")
        found.append(section(f"by-{len(found)}", f"By {column}, worst first", view.per_method(blocks)))
    return "".join(found)


def _keys(view: Page, name: str) -> dict[str, str]:
    return {**({} if view.before is None else {"before": view.before}), "after": name}


def _parts(parts: dict[str, Slices], title: str) -> str:
    after = parts["after"]
    shown = list(after.names[:_MOST])
    # A method that changes answers may never give a class that was given before, and the other way round.
    known = [name for name in shown if all(name in part.names for part in parts.values())]
    chosen = {key: part.of(known) for key, part in parts.items()}
    hidden = len(after.names) - len(known)
    words = after.words + (f" The {len(known)} worst of {len(after.names):,} are shown." if hidden else "")
    if not known:
        return f'<p class="note">{escape(words)}</p>'
    keys = legend({"before": "before", "after": "after"}) if len(parts) > 1 else ""
    card = figure(title, slice_chart(chosen), keys)
    behind = data_tables.slice_table(chosen)
    numbers = f'<div class="card tight"><h3>{escape(title)}, errors and gaps</h3>{behind}</div>'
    return f'<p class="finding">{escape(words)}</p><div class="two">{card}{numbers}</div>'


def look_at_these(view: Page) -> str:
    """The most confident mistakes and the answers that views doubt most, with pictures or links where there are any."""
    blocks = {name: _examples(view, examples(view.comparison, name)) for name in view.choices}
    if not any(blocks.values()):
        return ""
    where = "the file that was tested on" if view.comparison.test is not None else "the file"
    note = f"Rows are numbered from 0 in {where}. “Doubted”: the share of the views in which the prediction changes."
    return section("look", "Samples to look at", view.per_method(blocks), note)


def _examples(view: Page, found: Examples) -> str:
    lists = {
        "The most confident mistakes": found.mistakes,
        "Predictions that change most under transformations": found.doubted,
    }
    return "".join(
        f'<h3>{words}</h3><ul class="look">{"".join(_example(view, one) for one in chosen)}</ul>'
        for words, chosen in lists.items()
        if chosen
    )


def _example(view: Page, one: Example) -> str:
    picture = "" if view.inputs is None else shown_input(view.inputs, one.row)
    verdict = "right" if one.right else f"true class {one.truth}"
    doubted = "" if one.doubt != one.doubt else f"<small>doubted by {percent(one.doubt, 0)} of the views</small>"
    sure = f"{percent(one.before)} → {percent(one.after)}" if view.before is not None else percent(one.after)
    return (
        f"<li>{picture}<b>{escape(one.answer)}</b>, {escape(verdict)}<small>confidence {sure}</small>{doubted}"
        f"<small>row {one.row:,}</small></li>"
    )


def how_many_labels(view: Page) -> str:
    """What fewer labels gave, and what more would bring, for the method that is shown first."""
    curve = learning_curve(view.comparison, view.shown, view.comparison.setup.random_state)
    if curve is None:
        return ""
    keys = legend({"after": "measured", "before": "to be expected"})
    card = figure(
        f"NLL by number of labels: {view.shown}", learning_chart(curve), keys, data_tables.learning_table(curve)
    )
    words = f'<p class="finding">{escape(curve.words)}</p>'
    note = (
        f"{escape(view.shown)} was fitted again on random parts of its rows, three of each size. The estimate "
        "for more labels assumes that the excess NLL falls as 1/n, and the width of the interval as 1/sqrt(n)."
    )
    return section("labels", "Number of labels", f'{words}<div class="two">{card}</div>', note)
