"""Write the tables of docs/export.md from the classes themselves: python docs/make/export.py"""

from __future__ import annotations

import re
from pathlib import Path

from recal.calibrators import CALIBRATORS, Calibrator
from recal.export.aggregations import AGGREGATIONS
from recal.export.methods import METHODS
from recal.transforms import TRANSFORMS, BuiltIn

PAGE = Path(__file__).parents[1] / "export.md"
_TABLE = re.compile(r"(<!-- (methods|transformations) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_PLANS = {
    "TemperatureScaling": "a plan: one scale",
    "ReCal": "a plan of steps, replayed in rounds",
    "ViewStacking": "a plan that blends views; its gate decides for which rows they are computed",
    "AutoCalibration": "whatever it chose",
}


def methods() -> str:
    rows = ["| method | class | in the file |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{c.short_name}` | `{c.__name__}` | {_how(c)} |" for c in CALIBRATORS]) + "\n"


def _how(method: type[Calibrator]) -> str:
    if method in AGGREGATIONS:
        return "its formula, over all views of every row"
    if method not in METHODS:
        return _PLANS[method.__name__]
    tables = {"line_values", "step_values"} & set(METHODS[method].__code__.co_names)
    return "a table that scores are looked up in" if tables else "its formula"


def transformations() -> str:
    written = ", ".join(f"`{kind.kind}`" for kind in TRANSFORMS if kind.traceable)
    rows = [f"Written as operations: {written}.", "", "| not written | why |", "|---|---|"]
    return "\n".join(rows + [f"| `{kind.kind}` | {_why(kind)} |" for kind in TRANSFORMS if not kind.traceable]) + "\n"


def _why(kind: type[BuiltIn]) -> str:
    if kind.modality in ("text", "tabular"):
        return f"works on {'texts and token ids' if kind.modality == 'text' else 'columns'} as Python holds them"
    if "seed" in kind.options():
        return "draws at random, from the input's own content"
    return "calls a codec" if kind.modality == "image" else "is meant for pools of damage, which are collected once"


def page(text: str) -> str:
    """Return the page with its tables as they should be."""
    made = {"methods": methods, "transformations": transformations}
    return _TABLE.sub(lambda found: found[1] + made[found[2]]() + found[3], text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
