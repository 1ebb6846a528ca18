"""From a model and labelled inputs to automated answers: split, collect, fit, decide, judge, write.

The labelled inputs are split at random into three parts. The calibration is fitted on the first,
the threshold is chosen on the second, and both are judged on the third, so that no figure is
measured on the data it was chosen from. With `cross_fit` the first two parts are one: each input's
confidence comes from a fit on the other folds. Labels that arrive later join their part.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from recal.calibrators.auto import AutoCalibration
from recal.calibrators.base import Calibrator
from recal.checks import Floats, Labels, need_labels
from recal.clusters import row_names
from recal.collecting.blocks import Job
from recal.collecting.fingerprint import digest
from recal.collecting.local import choose_engine, collect, open_source
from recal.collecting.models import as_model
from recal.collecting.models.base import Model
from recal.collecting.pilot import join_views, read_finished, run_pilot
from recal.collecting.preflight import as_pool, check_job, name_labels, taken_by
from recal.collecting.sources import Source, Subset
from recal.collecting.store import OtherJobError
from recal.collecting.tables import check_labelled
from recal.copies import refuse_known
from recal.decisions import profile
from recal.decisions.crossfit import crossfitted
from recal.errors import FileError, InputError
from recal.files.paths import json_text, read_json, replacing
from recal.files.saved import load
from recal.files.tables import Table, read_table
from recal.files.views import read_views
from recal.maps.steps import Plan, calibrated_probs
from recal.schema import Number, check
from recal.transforms import Transform
from recal.transforms.base import short_spec
from recal.views import Views
from recal.workflow.folder import (
    CALIBRATION,
    CHECK,
    CROSS_FIT,
    DECIDE,
    FIT,
    PREVIOUS,
    ROWS_OF_TABLE,
    ROWS_OF_VIEWS,
    RUN,
    SUMMARY,
    read_summary,
)
from recal.workflow.graded import calibrate_answers
from recal.workflow.run import (
    HeldOut,
    Parts,
    Result,
    Settings,
    extend,
    finish,
    running,
    split,
    split_words,
)


def calibrate(
    model: Any,
    inputs: Any,
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    pool: str | Sequence[Any] | None = "auto",
    pilot: int = 1000,
    labels: Any = None,
    classes: Sequence[Any] | None = None,
    outputs: Any = "logits",
    device: Any = None,
    force: bool = False,
    **how: Any,
) -> Result:
    """Calibrate a model on labelled inputs, decide which answers can be automated, and write both
    into a folder.

    Parameters
    ----------
    model, inputs, pool, labels, classes, outputs, device
        As in `recal.collect`. Inputs must be readable in any order: arrays, files, folders. A
        cluster of the source is never split between the parts, and the guarantee accounts for
        clusters. Each group of the source gets its own confidence offset, threshold and guarantee.
    out : the path of the folder
        An interrupted run resumes from it.
    pilot : int
        Compute the whole pool for this many of the fitting inputs, and for the others only the
        views that help.
    force : start over if an earlier run in this folder had another model, inputs or options
    **how : `preprocess`, `batch_size`, `engine`, `resume`, `progress`
        As in `recal.collect`.
    """
    # All inputs are checked once, before they are split.
    how |= {"classes": classes, "outputs": outputs, "preflight": False}
    check(pilot, Number(1, whole=True), "pilot")
    with running(Path(out), settings) as folder:
        adapter = as_model(model, outputs=outputs, device=device)
        source = open_source(inputs, labels, {}, adapter)
        try:
            return _calibrate_in(folder, adapter, source, settings, pool, pilot, how)
        except OtherJobError:
            if not force:
                raise
            settings.say("     An earlier run had another model, inputs or options: starting over.")
            how["resume"] = False
            return _calibrate_in(folder, adapter, source, settings, pool, pilot, how)


def _calibrate_in(
    folder: Path,
    adapter: Model,
    source: Source,
    settings: Settings,
    pool: Any,
    pilot: int,
    how: dict[str, Any],
) -> Result:
    """Do the work of `calibrate` in the folder of the run."""
    seed, say, cross_fit = settings.random_state, settings.say, settings.cross_fit
    source = copy.copy(source)
    check_labelled(source, settings.about.get("Data", ""))
    source.clusters = row_names(source.clusters, source.n_samples, "clusters")
    groups = row_names(source.groups, source.n_samples, "groups")
    # Groups are added to the views below, so that stores can be reused with other groups.
    source.groups = None
    parts = split(source.n_samples, seed, source.clusters, cross_fit)
    source = name_labels(source, adapter, how["classes"])
    transforms = as_pool(pool, seed, source, adapter)
    engine = how.get("engine", "local")
    local = engine == "local"
    stores = folder / CROSS_FIT if cross_fit else folder  # its parts differ from those of others
    key = _run_key(adapter, source, pool, seed, how)
    earlier = _read_candidates(stores, key) if how.get("resume", True) else None
    job = Job(adapter, transforms, how.get("preprocess"), adapter.returns(how["outputs"]))
    if earlier is None:
        run, size = choose_engine(engine), how.get("batch_size", 256)
        check_job(job, source, run, classes=how["classes"], batch_size=size)
    n_before = adapter.n_answered
    say(f"1/4  {split_words(parts, source.clusters, cross_fit)}")
    stores.mkdir(parents=True, exist_ok=True)
    fit_part, decide_part, check_part = (Subset(source, rows) for rows in parts)

    say("2/4  Run the model on the inputs, and on transformed copies of some of them.")
    method = settings.calibrator or AutoCalibration(random_state=seed)
    candidates = transforms if method.needs_views or method.reads_views else ()
    if candidates and isinstance(pool, str) and pool.partition(":")[0] == "auto":
        # The profile learns from damage, which the model must accept.
        damage = as_pool(pool.replace("auto", "damage", 1), seed, source, adapter)
        if earlier is not None:
            damage = tuple(one for one in damage if str(one) in earlier)
        elif local:
            damage = taken_by(replace(job, transforms=damage), source)
        candidates = tuple({str(one): one for one in (*candidates, *damage)}.values())
    reuse = adapter.known_by_content and earlier is not None

    def views_of(rows: Subset, transforms: Sequence[Transform], name: str) -> Views:
        views = read_finished(stores / name, transforms) if reuse else None
        if views is None:
            views = collect(adapter, rows, transforms, out=stores / name, **how)
        return views if groups is None else views.assign(groups=groups[rows.rows])

    trial = None
    if candidates and fit_part.n_samples > pilot:
        say(
            f"     A pilot tries {len(candidates)} transformations on up to {pilot:,} inputs. It "
            "finds views that improve the answers, and teaches recal apply --follow and recal "
            "watch to recognise damaged inputs."
        )
        trial = run_pilot(
            adapter, fit_part, candidates, pilot, out=stores / FIT, seed=seed, reuse=reuse, **how
        )
        chosen = ", ".join(map(short_spec, trial.chosen)) or "no view"
        say(f"     On {trial.views.n_samples:,} inputs it chose {chosen}.")
        if method.needs_views and not trial.chosen:
            raise InputError(
                f"{type(method).__name__} needs views, and none improves the answers",
                remedy="Leave out --method, or compute all views: "
                f"pilot={fit_part.n_samples} (--pilot {fit_part.n_samples})",
            )
    views = views_of(fit_part, candidates if trial is None else trial.chosen, FIT)
    say("3/4  Fit the calibration.")
    # The pilot has the views of every transformation.
    fitted = _fit(method, views, views if trial is None else trial.views, seed)
    say("4/4  Choose the threshold, and check everything on the remaining inputs.")
    needed = fitted.needed_transforms()
    check_views = views_of(check_part, needed, CHECK)
    decide_views = views if cross_fit else views_of(decide_part, needed, DECIDE)
    n_passes = adapter.n_answered - n_before if local else None
    result = _finish(method, fitted, (views, decide_views, check_views), settings, folder, n_passes)
    with replacing(stores / RUN) as file:
        record = {"key": key, "candidates": [str(one) for one in candidates]}
        file.write(json_text(record).encode())
    return result


def calibrate_views(
    views: Views, out: str | os.PathLike[str], settings: Settings, parts: Parts | None = None
) -> Result:
    """Do what `calibrate` does for views that were collected before, such as those of a language
    model's log.

    Clusters and groups come from the views. `parts` are the rows to fit, to decide and to check on;
    by default random ones.
    """
    need_labels(views.labels, "calibrate")
    seed, say, keep_previous = settings.random_state, settings.say, parts is not None
    if parts is None:
        parts = split(views.n_samples, seed, views.clusters, settings.cross_fit)
    with running(Path(out), settings, keep_previous=keep_previous) as folder:
        say(f"1/3  {split_words(parts, views.clusters, settings.cross_fit)}")
        say("2/3  Fit the calibration.")
        method = settings.calibrator or AutoCalibration(random_state=seed)
        fit_views, decide_views, check_views = (views[rows] for rows in parts)
        fitted = _fit(method, fit_views, fit_views, seed)
        say("3/3  Choose the threshold, and check everything on the remaining inputs.")
        return _finish(method, fitted, (fit_views, decide_views, check_views), settings, folder)


def _run_key(
    model: Model, source: Source, pool: Any, seed: int, how: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the key of a run: if a folder has the same key, the model need not be tested again."""
    labels = None if source.labels is None else np.asarray(source.labels)
    return {
        "model": model.fingerprint(),
        "data": source.fingerprint(),
        "pool": pool if isinstance(pool, str) or pool is None else list(map(str, pool)),
        "seed": seed,
        # Clusters change the split, and therefore the inputs of every store.
        "clusters": digest([row_names(source.clusters, source.n_samples, "clusters")]),
        "labels": digest([labels, source.classes, how["classes"]]),
        "outputs": how["outputs"],
        "preprocess": digest(how.get("preprocess")),
    }


def _read_candidates(stores: Path, key: dict[str, Any]) -> list[str] | None:
    """Return the transformations of an earlier run with this key, or None."""
    try:
        record = read_json(stores / RUN)
    except FileError:
        return None
    return [str(spec) for spec in record["candidates"]] if record.get("key") == key else None


def _fit(method: Calibrator, views: Views, transformed: Views, seed: int) -> Calibrator:
    """Fit the method, and add the profile that `recal watch` and `recal apply --follow` compare
    inputs with.
    """
    fitted = method.fit(views)
    fitted.profile_ = profile(transformed, random_state=seed)
    return fitted


def _finish(
    method: Calibrator,
    fitted: Calibrator,
    parts: tuple[Views, Views, Views],
    settings: Settings,
    folder: Path,
    n_passes: int | None = None,
) -> Result:
    """Choose the rules on one part, check them on another, and write the folder."""
    fit_views, decide_views, check_views = parts
    if settings.cross_fit:
        both = crossfitted(
            method,
            fit_views,
            cast(Labels, fit_views.labels),
            folds=5,
            classes=fit_views.classes,
            clusters=fit_views.clusters,
            random_state=settings.random_state,
        )
    else:
        both = fitted.predict_both(decide_views)
    deciding, checking = (
        _answers(decide_views, *both),
        _answers(check_views, *fitted.predict_both(check_views)),
    )
    if settings.keep_rows:
        kept = (fit_views, check_views) if settings.cross_fit else parts
        join_views(kept).write(folder / ROWS_OF_VIEWS)
    passes = float(fitted.map_.passes(check_views.logits).mean())
    made = "" if n_passes is None else f" This run made {n_passes:,} in all."
    return finish(
        fitted,
        deciding,
        checking,
        settings,
        folder,
        passes=passes,
        rows_name="inputs",
        sizes=tuple(views.n_samples for views in parts),
        facts={
            "method": getattr(fitted, "choice_", fitted.short_name),
            "passes_per_answer": passes,
            "passes": n_passes,
        },
        notes=[f"Forward passes per answer: {passes:.2f}.{made}"],
    )


def _answers(views: Views, probs: Floats, confidence: Any) -> HeldOut:
    labels, clusters = cast(Labels, views.labels), views.clusters
    before = calibrated_probs(Plan(), views)
    rows = (probs, labels, views.classes, confidence, 0, views.groups, clusters)
    return HeldOut(*rows, before=before, ids=views.ids)


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
        sizes = [int(before["parts"][name]) for name in ("fit", "decide", "check")]
        about = {"Data": f"{folder} and later rows"}
        settings = Settings(command=command, say=say, about=about, **before["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{folder / SUMMARY} does not say how the folder was made ({error}). Calibrate again."
        ) from error
    if isinstance(new, Views):
        result = _more_views(folder, new, settings, sizes)
    else:
        old = read_table(_kept(folder, ROWS_OF_TABLE))
        more = read_table(new)
        more.check(old)
        cells = {name: np.concatenate([old.cells[name], more.cells[name]]) for name in old}
        result = calibrate_answers(Table(cells, new), folder, settings, before["columns"], sizes)
    return result, _changes(before, read_summary(folder), folder)


def _more_views(folder: Path, new: Views, settings: Settings, sizes: list[int]) -> Result:
    from sklearn.base import clone  # slow to import

    old = read_views(_kept(folder, ROWS_OF_VIEWS))
    refuse_known(new.logits, old.logits, folder)
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
