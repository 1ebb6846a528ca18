"""From a model and labelled inputs to automated answers: split, collect, fit, decide, judge, write.

The labelled inputs are split at random into three parts. The calibration is fitted on the first, the threshold is
chosen on the second, and both are judged on the third, so that no figure is measured on what it was chosen from. With
`cross_fit` the first two are one: each input's confidence comes from a fit on the other folds.
"""

from __future__ import annotations

import datetime
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.auto import AutoCalibration
from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.collecting.default_pool import AUTO, NAMED, usual_pool
from recal.collecting.inputs.sources import IndexedSource, Source
from recal.collecting.inputs.tables import TableSource, likely_labels
from recal.collecting.job import Job
from recal.collecting.local import as_pool, collect, needs_pilot, open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.pilot import Picked, pilot_path, run_pilot
from recal.collecting.predictions import passes_of
from recal.comparison import compare_probs
from recal.decisions import decide_each, profile
from recal.decisions.guarantee import crossfitted_answers
from recal.decisions.rule import check_share
from recal.errors import InputError, Remedy
from recal.files.atomic import replacing
from recal.files.urls import is_url
from recal.files.views import read_views
from recal.maps.replay import calibrated_probs
from recal.metrics import evaluate
from recal.plan import Plan
from recal.reporting import report
from recal.reporting.verdict import answer_change
from recal.saving.saved import save
from recal.schema import Seed, check
from recal.transforms import Transform
from recal.views import Views
from recal.workflow.folder import CALIBRATION, CROSS_FIT, DECIDE, FIT, JUDGE, PAGE, SUMMARY
from recal.workflow.found import Calibrated

# Fitting needs the most; a guarantee needs hundreds; to judge is to confirm.
SHARES = (0.5, 0.3, 0.2)
# With fewer than this in any part, no figure would mean anything.
_FEWEST = 20
_DRAWS = 200
_TRIED = 16  # inputs
_FOLDS = 5  # of a cross-fit; each is one more fit


def calibrate(
    model: Any,
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    risk: float = 0.01,
    confidence: float = 0.95,
    calibrator: Calibrator | None = None,
    pool: str | Sequence[Any] | None = AUTO,
    pilot: int = 1000,
    labels: Any = None,
    classes: Sequence[Any] | None = None,
    cross_fit: bool = False,
    random_state: int = 0,
    progress: bool = True,
    title: str = "Calibration report",
    command: str = "",
    about: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
    outputs: Any = "logits",
    device: Any = None,
    files: dict[str, Any] | None = None,
    **how: Any,
) -> Calibrated:
    """Calibrate a model on labelled inputs, decide which answers can be automated, and write both into a folder.

    Parameters
    ----------
    model, inputs, pool, labels, classes, outputs, device
        As in `recal.collect`. Inputs must be readable in any order: arrays, files, folders.
    out : path of the folder
        An interrupted run resumes from it.
    risk, confidence : float
        As in `recal.decide`.
    calibrator : Calibrator, optional
        ``AutoCalibration()`` where not given.
    pilot : int
        The whole pool is computed for so many of the fitting inputs; for the others only the views that help.
    cross_fit : bool
        Fit and decide on the same inputs, as `recal.decisions.decide_crossfitted` does. More inputs choose the
        threshold, which automates more where labels are few. The guarantee is then measured, not proven.
    about : mapping, optional
        Facts for the top of the page. Model, data and date are filled in where they are missing; the date comes from
        the environment variable SOURCE_DATE_EPOCH where it is set.
    say : callable
        Is told what is being done, line by line.
    **how : `preprocess`, `batch_size`, `engine`, `resume`
        As in `recal.collect`.
    """
    if is_url(out):
        raise InputError(
            "is a folder of this machine; only views and answers can lie at a URL", argument="out", came=f"got {out}"
        )
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    check(random_state, Seed(), "random_state")
    folder = Path(out)
    source = open_source(inputs, labels, files or {})
    if not isinstance(source, IndexedSource):
        raise InputError(
            "The labelled inputs are split at random, so they must be readable in any order: an array, a file, a "
            "folder or a torch dataset, not a loader or a generator."
        )
    check_labelled(source)
    parts = split(source.n_samples, random_state)
    if cross_fit:
        both = np.sort(np.concatenate(parts[:2]))
        parts = both, both, parts[2]
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    shared = "{:,} to fit and to decide" if cross_fit else "{:,} to fit, {:,} to decide"
    told = f"1/4  Split {source.n_samples:,} labelled inputs: {shared.format(*sizes)}, {sizes[2]:,} to check."
    say(told)
    answering = as_model(model, outputs=outputs, device=device)
    asked = {"classes": classes, "progress": progress, "outputs": outputs, **how}
    stores = folder / CROSS_FIT if cross_fit else folder  # other parts of the inputs than those of a run without
    stores.mkdir(parents=True, exist_ok=True)

    say("2/4  Run the model on the inputs, and on transformed copies of some of them.")
    method = AutoCalibration(random_state=random_state) if calibrator is None else calibrator
    reads = method.needs_views or method.reads_views
    candidates = _candidates(answering, source, pool, random_state, asked) if reads else ()
    views = _fit_views(answering, Picked(source, parts[0]), candidates, pilot, stores / FIT, asked, random_state, say)
    say("3/4  Fit the calibration.")
    fitted = method.fit(views)
    # What `recal watch` and `recal apply --follow` compare with; the pilot holds every transformation.
    tried = pilot_path(stores / FIT)
    fitted.profile_ = profile(read_views(tried) if tried.exists() else views, random_state=random_state)
    say("4/4  Choose the threshold, and check everything on the remaining inputs.")
    needed = fitted.needed_transforms()
    judging = collect(answering, Picked(source, parts[2]), needed, out=stores / JUDGE, **asked)
    if cross_fit:
        deciding = _crossfitted(method, views, random_state)
    else:
        rows = collect(answering, Picked(source, parts[1]), needed, out=stores / DECIDE, **asked)
        deciding = _Answers(rows, *fitted.predict_both(rows))
    checking = _Answers(judging, *fitted.predict_both(judging))
    result = _judged(fitted, deciding, checking, risk, confidence, sizes, cross_fit, folder, random_state)
    facts = {"Model": _name(model), "Data": _name(inputs), "Date": today(), **(about or {})}
    _write(result, checking, title, command, facts, random_state)
    return result


def calibrate_views(
    views: Views,
    out: str | os.PathLike[str],
    *,
    risk: float = 0.01,
    confidence: float = 0.95,
    calibrator: Calibrator | None = None,
    random_state: int = 0,
    title: str = "Calibration report",
    command: str = "",
    about: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Calibrated:
    """Do what `calibrate` does with views that were collected before, such as those of a language model's log."""
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    if views.labels is None:
        raise InputError("The views have no labels", remedy=Remedy("Pass views with labels", typed="Add --labels FILE"))
    parts = split(views.n_samples, random_state)
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    say(
        f"1/3  Split {views.n_samples:,} labelled inputs: {sizes[0]:,} to fit, {sizes[1]:,} to decide, {sizes[2]:,} to "
        "check."
    )
    say("2/3  Fit the calibration.")
    method = AutoCalibration(random_state=random_state) if calibrator is None else calibrator
    fitted = method.fit(views[parts[0]])
    say("3/3  Choose the threshold, and check everything on the remaining inputs.")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    deciding, checking = (_Answers(views[rows], *fitted.predict_both(views[rows])) for rows in parts[1:])
    result = _judged(fitted, deciding, checking, risk, confidence, sizes, False, folder, random_state)
    _write(result, checking, title, command, {"Date": today(), **(about or {})}, random_state)
    return result


@dataclass(frozen=True)
class _Answers:
    """Labelled inputs that no fit has seen, with their calibrated probabilities and confidences."""

    views: Views
    probs: Floats
    sure: Floats


def _crossfitted(method: Calibrator, views: Views, seed: int) -> _Answers:
    assert views.labels is not None
    how: dict[str, Any] = {"folds": _FOLDS, "classes": views.classes, "random_state": seed}
    return _Answers(views, *crossfitted_answers(method, views, views.labels, **how))


def check_labelled(source: Source, where: object = "") -> None:
    """Refuse inputs without labels, and say where labels may come from."""
    if not isinstance(source, IndexedSource) or source.batch(0, 1).labels is not None:
        return
    frame = source.values if isinstance(source, TableSource) else None
    columns = [] if frame is None else [str(name) for name in frame.columns]
    told = f"the columns are {', '.join(columns)}" if columns else ""
    likely = None if frame is None else likely_labels(frame)
    python, typed = ("...", "NAME") if likely is None else (repr(likely), shlex.quote(likely))
    column = Remedy(
        f"Say which column holds them: label_column={python}",
        typed=f"Say which column holds them: --label-column {typed}",
    )
    others = Remedy(
        "Pass `labels`, or put the files into one folder per class",
        typed="Add --labels FILE, or put the files into one folder per class",
    )
    error = InputError("The inputs have no labels", came=told, remedy=column if columns else others)
    raise error.at(where) if where else error


def split(n_samples: int, random_state: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to fit, to decide and to judge on: a random half, three and two tenths."""
    fewest = int(np.ceil(_FEWEST / min(SHARES)))
    if n_samples < fewest:
        raise InputError(
            f"At least {fewest} labelled inputs are needed, to fit, to decide and to check on; got "
            f"{n_samples}. A few thousand are better."
        )
    order = np.random.default_rng([random_state, 2]).permutation(n_samples)
    cuts = np.round(np.cumsum(SHARES[:2]) * n_samples).astype(int)
    first, second, third = (np.sort(rows) for rows in np.split(order, cuts))
    return first, second, third


def _candidates(
    model: Model, source: IndexedSource, pool: Any, seed: int, asked: dict[str, Any]
) -> tuple[Transform, ...]:
    """Return the transformations to try: those that may improve answers, and damage, which the profile learns from."""
    if not (isinstance(pool, str) and pool in NAMED):
        return as_pool(pool, seed)
    found = usual_pool(source, model, seed, pool)
    if pool == AUTO:
        damage = usual_pool(source, model, seed, "damage")
        found += tuple(one for one in damage if _is_taken(model, source, one, asked))
    return tuple({str(transform): transform for transform in found}.values())


def _is_taken(model: Model, source: IndexedSource, transform: Transform, asked: dict[str, Any]) -> bool:
    """Whether the model answers inputs that are damaged like this: many refuse a table with missing values."""
    if asked.get("engine", "local") != "local":
        return True
    job = Job(model, (transform,), asked.get("preprocess"), model.returns(asked["outputs"]))
    try:
        with model.running():
            job.run(source.batch(0, _TRIED), source.describe)
    except Exception:  # whatever a model says to what it was not made for
        return False
    return True


def _fit_views(
    model: Any,
    source: Picked,
    candidates: tuple[Transform, ...],
    pilot: int,
    out: Path,
    asked: dict[str, Any],
    seed: int,
    say: Callable[[str], None],
) -> Views:
    """Collect what the fit reads; of many inputs only the views that a pilot found worth it."""
    if candidates and needs_pilot(source, pilot):
        found = run_pilot(model, source, candidates, pilot, out=out, seed=seed, **asked)
        say(f"     {found}.")
        candidates = found.chosen
    return collect(model, source, candidates, out=out, **asked)


def _judged(
    fitted: Calibrator,
    deciding: _Answers,
    checking: _Answers,
    risk: float,
    confidence: float,
    sizes: tuple[int, int, int],
    cross_fit: bool,
    folder: Path,
    seed: int,
) -> Calibrated:
    """Choose the rules on one part, and measure everything that is printed on the checking inputs."""
    labels = checking.views.labels
    assert deciding.views.labels is not None
    assert labels is not None
    named = {"before": calibrated_probs(Plan(), deciding.views), "after": deciding.probs}
    confidences = {"after": deciding.sure}
    both = decide_each(
        named, deciding.views.labels, risk, confidence, confidences=confidences, draws=_DRAWS, random_state=seed
    )
    decision = both["after"]
    fitted.decision_ = decision.rule
    raw = calibrated_probs(Plan(), checking.views)
    accepted = decision.accept(checking.probs, checking.sure)
    answers = checking.probs.argmax(axis=1)
    own = fitted._predict_proba(checking.views).argmax(axis=1)  # before the guard keeps the model's answers
    return Calibrated(
        fitted,
        decision,
        both["before"],
        both.gains["after"],
        evaluate(raw, labels, _DRAWS, random_state=seed),
        evaluate(checking.probs, labels, _DRAWS, confidences=checking.sure, random_state=seed),
        sizes,
        int(accepted.sum()),
        int((accepted & (answers != labels)).sum()),
        int(both["before"].accept(raw).sum()),
        answer_change(answers, own, labels),
        float(passes_of(fitted, checking.views.logits).mean()),
        cross_fit,
        folder,
    )


def _write(
    result: Calibrated, checking: _Answers, title: str, command: str, about: Mapping[str, str], seed: int
) -> None:
    """Write the page and the summary, and the calibration last: a folder that has it is complete."""
    views = checking.views
    assert views.labels is not None
    # Page and terminal use the same rows: the checking inputs.
    named = {"before": calibrated_probs(Plan(), views), "after": checking.probs}
    names = views.classes
    compared = compare_probs(
        named,
        views.labels if names is None else names[views.labels],
        confidences={"after": checking.sure},
        passes={"after": result.passes_per_answer},
        classes=names,
        random_state=seed,
    )
    report(
        compared,
        result.folder / PAGE,
        title=title,
        about=about,
        rows="checking inputs",
        command=command,
        risk=result.decision.risk,
        decisions={"before": result.decision_before, "after": result.decision},
        change=result.change,
        profile=getattr(result.calibrator, "profile_", None),
    )
    with replacing(result.folder / SUMMARY) as file:
        file.write((json.dumps(result.to_dict(), indent=2) + "\n").encode())
    save(result.calibrator, result.folder / CALIBRATION)


def _name(value: Any) -> str:
    """Return a path as it was given, and the type of anything else."""
    return str(value) if isinstance(value, str | os.PathLike) else type(value).__name__


def today() -> str:
    """Return the date for the page; reproducible builds set SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch.isdigit() else datetime.datetime.now()
    return now.date().isoformat()
