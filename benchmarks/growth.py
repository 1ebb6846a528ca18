"""How the cost of fits and answers grows with samples, classes, views and iterations: exponents of
power laws.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.measuring import exponent, made_up, take_turns
from recal import AutoCalibration, ReCal, TemperatureScaling, Views, ViewStacking

BASE = {"samples": 2000, "classes": 100, "views": 10, "iterations": 50}
AXES = {
    "samples": [1000, 2000, 4000, 8000, 16000],
    "classes": [50, 100, 200, 400, 800],
    "views": [2, 5, 10, 20, 40],
    "iterations": [25, 50, 100, 200],
}
# The dimensions of each kind of work.
WORK = {
    "ReCal": ("samples", "classes", "views", "iterations"),
    "ViewStacking": ("samples", "classes", "views"),
    "TemperatureScaling": ("samples", "classes"),
    "predict_proba of TemperatureScaling": ("samples", "classes"),
    "AutoCalibration": ("samples", "classes", "views"),
}


def growth(small: bool) -> list[dict[str, Any]]:
    warnings.simplefilter(
        "ignore"
    )  # there are few samples for many classes, but only speed matters here
    rows = []
    for who, axes in WORK.items():
        for axis in axes:
            # The default takes seconds, so its largest sizes are left out and its runs are not
            # repeated.
            default = who == "AutoCalibration"
            sizes, seconds = AXES[axis][: 2 if small else 4 if default else None], []
            for value in sizes:
                size = {**BASE, axis: value}
                logits, views, y = made_up(
                    size["samples"], size["classes"], size["views"] if "views" in axes else 0
                )
                run = _work(who, Views(logits, views, y), size["iterations"])
                first = not seconds  # the first run loads compiled code
                seconds.append(
                    take_turns({"run": run}, 1 if default else 2, warm_up=first or not default)[
                        "run"
                    ].cpu
                )
            power = exponent(sizes, seconds)
            rows.append(
                {"who": who, "axis": axis, "sizes": sizes, "cpu": seconds, "exponent": power}
            )
    return rows


def _work(who: str, sample: Views, iterations: int) -> Callable[[], Any]:
    if who == "ViewStacking":
        return lambda: ViewStacking(random_state=0).fit(sample)
    if who == "TemperatureScaling":
        return lambda: TemperatureScaling().fit(sample)
    if who == "AutoCalibration":
        return lambda: AutoCalibration().fit(sample)
    if who == "ReCal":
        return lambda: ReCal(random_state=0, tol=0, max_iter=iterations).fit(sample)
    fitted = TemperatureScaling().fit(sample)
    return lambda: fitted.predict_proba(sample)
