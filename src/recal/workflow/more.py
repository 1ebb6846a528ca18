"""Labels that arrive later: refit a folder of `recal calibrate` with its old rows and new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recal.collecting.pilot import join_views
from recal.errors import FileError, InputError
from recal.files.saved import load
from recal.files.tables import Table, read_table
from recal.files.views import read_views
from recal.views import Views
from recal.workflow.folder import (
    CALIBRATION,
    PREVIOUS,
    ROWS_OF_TABLE,
    ROWS_OF_VIEWS,
    SUMMARY,
    read_summary,
)
from recal.workflow.graded import calibrate_answers
from recal.workflow.job import calibrate_views
from recal.workflow.run import Result, Settings, extend

# What the settings of a summary hold besides the names of columns.
_SETTINGS = ("risk", "confidence", "guarantee", "cross_fit", "keep_rows", "seed")


def add_labels(
    folder: Path,
    new: Views | Path,
    *,
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Result, list[str]]:
    """Refit with the rows that a folder keeps and new labelled rows.

    Old rows keep their part: rows that were fitted on never decide or check. The earlier results
    are kept in the folder `previous`.

    Parameters
    ----------
    folder : a folder that `recal calibrate` wrote
    new : views with labels, or the path of a table of graded answers

    Returns
    -------
    The result, and lines about what changed.
    """
    before = read_summary(folder)
    if "systems" in before:
        raise InputError(
            "--more cannot extend a calibration of several systems. Add the rows to its table, and "
            "run its recal calibrate command again with --force."
        )
    try:
        stored = dict(before["settings"])
        sizes = [int(before["parts"][name]) for name in ("fit", "decide", "check")]
        named = {key: stored.pop(key) for key in list(stored) if key not in _SETTINGS}
        settings = Settings(
            random_state=stored.pop("seed"),
            command=command,
            say=say,
            about={"Data": f"{folder} and later rows"},
            **stored,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{folder / SUMMARY} does not say how the folder was made ({error}). Calibrate again."
        ) from error
    result: Result
    if isinstance(new, Views):
        result = _more_views(folder, new, settings, sizes)
    else:
        old = read_table(_kept(folder, ROWS_OF_TABLE))
        more = read_table(new)
        more.check(old)
        cells = {name: np.concatenate([old.cells[name], more.cells[name]]) for name in old}
        result = calibrate_answers(Table(cells, new), folder, settings, named, sizes)
    return result, _changes(before, read_summary(folder), folder)


def _more_views(folder: Path, new: Views, settings: Settings, sizes: list[int]) -> Result:
    from sklearn.base import clone  # slow to import

    old = read_views(_kept(folder, ROWS_OF_VIEWS))
    if old.classes is not None and new.classes is None and new.labels is not None:
        new = Views(
            new.logits,
            {str(one): new.transformed(one) for one in new.transforms},
            old.classes[new.labels],
            classes=old.classes,
            clusters=new.clusters,
            groups=new.groups,
        )
    views = join_views([old, new])
    parts = extend(sizes, new.n_samples, settings.random_state, views.clusters, settings.cross_fit)
    method = clone(load(folder / CALIBRATION))
    return calibrate_views(views, folder, replace(settings, calibrator=method), parts)


def _kept(folder: Path, name: str) -> Path:
    """Return the file of a folder's labelled rows."""
    if (folder / name).is_file():
        return folder / name
    kinds = {ROWS_OF_TABLE: "a table of graded answers", ROWS_OF_VIEWS: "labelled views"}
    found = [kind for other, kind in kinds.items() if (folder / other).is_file()]
    raise InputError(
        f"{folder} keeps {found[0] if found else 'no labelled rows'}, and --more names "
        f"{kinds[name]}. It takes rows of the kind that the folder was made from (recal collect "
        "makes views of a model's inputs), and a folder made without --drop-rows."
    )


def _changes(before: dict[str, Any], after: dict[str, Any], folder: Path) -> list[str]:
    """Return what changed: rows, method, threshold and share."""

    def facts(summary: dict[str, Any]) -> str:
        decision = summary["decision"]
        thresholds = decision.get("thresholds", [decision.get("threshold")])
        shown = ", ".join("none" if one is None else f"{one:.4g}" for one in thresholds)
        method = f"method {summary['method']}, " if "method" in summary else ""
        return (
            f"{sum(summary['parts'].values()):,} labelled rows, {method}threshold {shown}, "
            f"{decision['coverage']:.1%} accepted where the rule was chosen"
        )

    return [
        f"Before: {facts(before)}. Now: {facts(after)}.",
        f"The previous version is in {folder / PREVIOUS}. To go back: recal calibrate {folder} "
        "--rollback",
    ]
