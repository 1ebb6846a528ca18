"""From a model and labelled inputs to automated answers: split, collect, fit, decide, judge, write.

The labelled inputs are split at random into three parts. The calibration is fitted on the first, the threshold is
chosen on the second, and both are judged on the third, so that no figure is measured on what it was chosen from. With
`cross_fit` the first two are one: each input's confidence comes from a fit on the other folds.
"""

from __future__ import annotations

import copy
import datetime
import json
import os
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.auto import AutoCalibration
from recal.calibrators.base import Calibrator
from recal.checks import Floats, Labels
from recal.collecting.default_pool import AUTO, NAMED, usual_pool
from recal.collecting.fingerprint import digest
from recal.collecting.inputs.sources import IndexedSource, Source
from recal.collecting.inputs.tables import TableSource, likely_labels
from recal.collecting.job import Job
from recal.collecting.local import as_pool, collect, needs_pilot, open_source
from recal.collecting.models.base import Model, as_model
from recal.collecting.pilot import Picked, read_finished, run_pilot
from recal.collecting.predictions import passes_of
from recal.collecting.preflight import name_and_check
from recal.comparison import compare_probs
from recal.decisions import RiskCurve, decide_each, profile, risk_curve
from recal.decisions.guarantee import crossfitted_answers
from recal.decisions.rule import check_share
from recal.decisions.watching.profile import log_softmax
from recal.engine.clusters import near_duplicates, row_names, split_by_cluster
from recal.errors import DependentRowsWarning, InputError, Remedy
from recal.files.atomic import replacing
from recal.files.saved import save
from recal.files.urls import is_url
from recal.maps.plan import Plan, calibrated_probs
from recal.metrics import evaluate
from recal.reporting import report
from recal.reporting.verdict import RISKS, answer_change
from recal.schema import Seed, check
from recal.transforms import Transform
from recal.views import Views
from recal.workflow.result import (
    CALIBRATION,
    CROSS_FIT,
    DECIDE,
    FIT,
    JUDGE,
    PAGE,
    SUMMARY,
    CalibrationResult,
    broken_groups,
)

# Fitting needs the most; a guarantee needs hundreds; to judge is to confirm.
SHARES = (0.5, 0.3, 0.2)
# With fewer than this in any part, no figure would mean anything.
_FEWEST = 20
_DRAWS = 200
_RUN = "run.json"  # what a finished run computed for, and with which transformations
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
    clusters: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    one_rule: bool = False,
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
) -> CalibrationResult:
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
    clusters : array-like of shape (n_samples,), optional
        Inputs that belong together: frames of a video, samples of a patient. A cluster is never divided between the
        parts, and the guarantee accounts for it. By default what the source tells (`cluster_column`, `cluster_by`).
    groups : array-like of shape (n_samples,), optional
        Inputs of one subject, customer or camera. Each group gets an offset of its confidence, a threshold and a
        guarantee. By default what the source tells (`group_column`).
    one_rule : bool
        Use one threshold for all groups, whose guarantee holds for all of them together.
    cross_fit : bool
        Fit and decide on the same inputs, as `recal.decisions.decide_crossfitted` does. More inputs choose the
        threshold, which automates more where labels are few. The guarantee is then measured, not proven.
    about : mapping, optional
        Facts for the top of the page. Model, data and date are filled in where they are missing; the date comes from
        the environment variable SOURCE_DATE_EPOCH where it is set.
    say : callable
        Called with each line about the progress of the run.
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
    source = copy.copy(source)
    source.clusters = row_names(source.clusters if clusters is None else clusters, source.n_samples, "clusters")
    group_names = row_names(source.groups if groups is None else groups, source.n_samples, "groups")
    source.groups = None  # they are added to the views below, so that stores can be used again with other groups
    parts = _parts(source.n_samples, random_state, source.clusters, cross_fit)
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    say(f"1/4  {_split_words(source.n_samples, sizes, source.clusters, cross_fit)}")
    adapter = as_model(model, outputs=outputs, device=device)
    source = _named(source, adapter, classes, {"outputs": outputs, **how})
    before = adapter.n_answered
    how = {"classes": classes, "progress": progress, "outputs": outputs, **how}
    stores = folder / CROSS_FIT if cross_fit else folder  # other parts of the inputs than those of a run without
    stores.mkdir(parents=True, exist_ok=True)
    fit_part, decide_part, check_part = (Picked(source, rows) for rows in parts)

    say("2/4  Run the model on the inputs, and on transformed copies of some of them.")
    method = AutoCalibration(random_state=random_state) if calibrator is None else calibrator
    reads_views = method.needs_views or method.reads_views
    key = RunKey.of(adapter, source, pool, random_state)
    candidates = _candidates(adapter, source, pool, random_state, how, key, stores) if reads_views else ()
    reuse = adapter.known_by_content and how.get("resume", True) and key.read(stores) is not None

    def views_of(rows: Picked, transforms: Sequence[Transform], name: str) -> Views:
        views = read_finished(stores / name, transforms) if reuse else None
        views = collect(adapter, rows, transforms, out=stores / name, **how) if views is None else views
        return views if group_names is None else views.assign(groups=group_names[rows.rows])

    trial = None
    if candidates and needs_pilot(fit_part, pilot):
        say(
            f"     A pilot tries {len(candidates)} transformations on up to {pilot:,} inputs. It finds views that "
            "improve the answers, and teaches recal apply --follow and recal watch to recognise damaged inputs."
        )
        trial = run_pilot(adapter, fit_part, candidates, pilot, out=stores / FIT, seed=random_state, reuse=reuse, **how)
        say(f"     {trial}.")
    views = views_of(fit_part, candidates if trial is None else trial.chosen, FIT)
    say("3/4  Fit the calibration.")
    fitted = _fit(method, views)
    # What `recal watch` and `recal apply --follow` compare with; the pilot holds every transformation.
    fitted.profile_ = profile(views if trial is None else trial.views, random_state=random_state)
    say("4/4  Choose the threshold, and check everything on the remaining inputs.")
    transforms = fitted.needed_transforms()
    check_views = views_of(check_part, transforms, JUDGE)
    if cross_fit:
        deciding = _crossfitted(method, views, random_state)
    else:
        deciding = _answers(fitted, views_of(decide_part, transforms, DECIDE))
    checking = _answers(fitted, check_views)
    if source.clusters is None:
        _warn_of_copies([views, *([] if cross_fit else [deciding.views]), checking.views])
    n_passes = adapter.n_answered - before if how.get("engine", "local") == "local" else None
    how_to = (risk, confidence, one_rule, random_state)
    result = _judged(fitted, deciding, checking, how_to, sizes, cross_fit, folder, n_passes)
    facts = {"Model": _name(model), "Data": _name(inputs), "Date": today(), **(about or {})}
    _write(result, checking, _curves(deciding, confidence), title, command, facts, random_state)
    key.write(stores, candidates)
    return result


def calibrate_views(
    views: Views,
    out: str | os.PathLike[str],
    *,
    risk: float = 0.01,
    confidence: float = 0.95,
    calibrator: Calibrator | None = None,
    one_rule: bool = False,
    cross_fit: bool = False,
    random_state: int = 0,
    title: str = "Calibration report",
    command: str = "",
    about: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> CalibrationResult:
    """Do what `calibrate` does with views that were collected before, such as those of a language model's log.

    Clusters and groups are those of the views.
    """
    check_share(risk, "risk")
    check_share(confidence, "confidence")
    if views.labels is None:
        raise InputError("The views have no labels", remedy=Remedy("Pass views with labels", typed="Add --labels FILE"))
    parts = _parts(views.n_samples, random_state, views.clusters, cross_fit)
    sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
    say(f"1/3  {_split_words(views.n_samples, sizes, views.clusters, cross_fit)}")
    say("2/3  Fit the calibration.")
    method = AutoCalibration(random_state=random_state) if calibrator is None else calibrator
    fitted = _fit(method, views[parts[0]])
    fitted.profile_ = profile(views[parts[0]], random_state=random_state)
    say("3/3  Choose the threshold, and check everything on the remaining inputs.")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    fit_views, decide_views, check_views = (views[rows] for rows in parts)
    deciding = _crossfitted(method, fit_views, random_state) if cross_fit else _answers(fitted, decide_views)
    checking = _answers(fitted, check_views)
    if views.clusters is None:
        _warn_of_copies([views])
    result = _judged(fitted, deciding, checking, (risk, confidence, one_rule, random_state), sizes, cross_fit, folder)
    curves = _curves(deciding, confidence)
    _write(result, checking, curves, title, command, {"Date": today(), **(about or {})}, random_state)
    return result


@dataclass(frozen=True)
class RunKey:
    """What a run computed for: the same key in a folder means that the model need not be tried out again."""

    model: str
    data: str
    pool: str
    seed: int
    clusters: str

    @classmethod
    def of(cls, model: Model, source: IndexedSource, pool: Any, seed: int) -> RunKey:
        specs = pool if isinstance(pool, str) or pool is None else [str(one) for one in pool]
        # Clusters change the split, and so the inputs of every store.
        clusters = row_names(source.clusters, source.n_samples, "clusters")
        return cls(model.fingerprint(), source.fingerprint(), json.dumps(specs), seed, digest([clusters]))

    def read(self, stores: Path) -> list[str] | None:
        """Return the transformations of an earlier run with this key; None if there was none."""
        try:
            record = json.loads((stores / _RUN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = isinstance(record, dict) and record.get("key") == asdict(self)
        return [str(spec) for spec in record["candidates"]] if same else None

    def write(self, stores: Path, candidates: Sequence[Transform]) -> None:
        with replacing(stores / _RUN) as file:
            record = {"key": asdict(self), "candidates": [str(one) for one in candidates]}
            file.write((json.dumps(record, indent=2) + "\n").encode())


def ran_before(
    out: str | os.PathLike[str], model: Model, source: Source, pool: Any, seed: int, *, cross_fit: bool = False
) -> bool:
    """Whether a folder holds a finished run on the same model, inputs and pool, so that nothing needs checking."""
    folder = Path(out) / CROSS_FIT if cross_fit else Path(out)
    return isinstance(source, IndexedSource) and RunKey.of(model, source, pool, seed).read(folder) is not None


def _fit(method: Calibrator, views: Views) -> Calibrator:
    with warnings.catch_warnings():
        # The parts are checked together, see `_warn_of_copies`.
        warnings.simplefilter("ignore", DependentRowsWarning)
        return method.fit(views)


def _warn_of_copies(parts: Sequence[Views]) -> None:
    """Warn if inputs of one part are near-copies of inputs in another, and no clusters were given."""
    logits = np.concatenate([views.logits for views in parts])
    labels = np.concatenate([views.labels for views in parts if views.labels is not None])
    count = near_duplicates(log_softmax(logits), logits.argmax(axis=1) != labels)
    if count:
        warnings.warn(
            f"About {count:,} of the {len(logits):,} labelled inputs are near-copies of another one, such as frames of "
            "one video. They are dependent, so the guarantee may not hold. Say which belong together: clusters=... "
            "(--cluster COLUMN, or --cluster-by PATTERN for files).",
            DependentRowsWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class _Answers:
    """Labelled inputs that no fit has seen, with their calibrated probabilities and confidences."""

    views: Views
    probs: Floats
    confidences: Floats

    @property
    def labels(self) -> Labels:
        assert self.views.labels is not None
        return self.views.labels


def _answers(fitted: Calibrator, views: Views) -> _Answers:
    return _Answers(views, *fitted.predict_both(views))


def _crossfitted(method: Calibrator, views: Views, seed: int) -> _Answers:
    assert views.labels is not None
    how: dict[str, Any] = {"folds": _FOLDS, "classes": views.classes, "random_state": seed, "clusters": views.clusters}
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


def split(
    n_samples: int, random_state: int, clusters: NDArray[Any] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to fit, to decide and to check on: a random half, three and two tenths; clusters stay whole."""
    fewest = int(np.ceil(_FEWEST / min(SHARES)))
    if n_samples < fewest:
        raise InputError(
            f"At least {fewest} labelled inputs are needed, to fit, to decide and to check on; got "
            f"{n_samples}. A few thousand are better."
        )
    rng = np.random.default_rng([random_state, 2])
    if clusters is not None:
        first, second, third = split_by_cluster(clusters, SHARES, rng)
        if min(map(len, (first, second, third))) == 0:
            raise InputError(
                f"There are {len(np.unique(clusters))} clusters, too few for three parts that share none",
                argument="clusters",
            )
        return first, second, third
    order = rng.permutation(n_samples)
    cuts = np.round(np.cumsum(SHARES[:2]) * n_samples).astype(int)
    first, second, third = (np.sort(rows) for rows in np.split(order, cuts))
    return first, second, third


def _parts(
    n_samples: int, random_state: int, clusters: NDArray[Any] | None, cross_fit: bool
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the parts of `split`; with `cross_fit` the first two are the same."""
    first, second, third = split(n_samples, random_state, clusters)
    if cross_fit:
        first = second = np.sort(np.concatenate([first, second]))
    return first, second, third


def _split_words(n_samples: int, sizes: tuple[int, int, int], clusters: NDArray[Any] | None, cross_fit: bool) -> str:
    by = "" if clusters is None else f" in {len(np.unique(clusters)):,} clusters"
    what_for = "{:,} to fit and to decide" if cross_fit else "{:,} to fit, {:,} to decide"
    return f"Split {n_samples:,} labelled inputs{by}: {what_for.format(*sizes)}, {sizes[2]:,} to check."


def _named(source: IndexedSource, model: Model, classes: Sequence[Any] | None, how: dict[str, Any]) -> IndexedSource:
    """Return the source with its labels as columns, if they are names that nobody else tells."""
    if how.get("engine", "local") != "local":
        return source
    names = ("preprocess", "outputs", "batch_size")
    named = name_and_check(source, model, classes, **{name: how[name] for name in names if name in how})
    assert isinstance(named, IndexedSource)
    return named


def _candidates(
    model: Model, source: IndexedSource, pool: Any, seed: int, how: dict[str, Any], key: RunKey, stores: Path
) -> tuple[Transform, ...]:
    """Return the transformations to try: those that may improve answers, and damage, which the profile learns from."""
    if not (isinstance(pool, str) and pool in NAMED):
        return as_pool(pool, seed)
    transforms = usual_pool(source, model, seed, pool)
    if pool == AUTO:
        before = key.read(stores)
        damage = usual_pool(source, model, seed, "damage")
        transforms += tuple(
            one for one in damage if (_is_taken(model, source, one, how) if before is None else str(one) in before)
        )
    return tuple({str(transform): transform for transform in transforms}.values())


def _is_taken(model: Model, source: IndexedSource, transform: Transform, how: dict[str, Any]) -> bool:
    """Whether the model answers inputs that are damaged like this: many refuse a table with missing values."""
    if how.get("engine", "local") != "local":
        return True
    job = Job(model, (transform,), how.get("preprocess"), model.returns(how["outputs"]))
    try:
        with model.running():
            job.run(source.batch(0, _TRIED), source.describe)
    except Exception:  # whatever a model says to what it was not made for
        return False
    return True


def _judged(
    fitted: Calibrator,
    deciding: _Answers,
    checking: _Answers,
    how: tuple[float, float, bool, int],
    sizes: tuple[int, int, int],
    cross_fit: bool,
    folder: Path,
    n_passes: int | None = None,
) -> CalibrationResult:
    """Choose the rules on one part, and measure everything that is printed on the checking inputs."""
    risk, confidence, one_rule, seed = how
    labels, groups = checking.labels, None if one_rule else checking.views.groups
    both = decide_each(
        {"before": calibrated_probs(Plan(), deciding.views), "after": deciding.probs},
        deciding.labels,
        risk,
        confidence,
        confidences={"after": deciding.confidences},
        groups=None if one_rule else deciding.views.groups,
        clusters=deciding.views.clusters,
        draws=_DRAWS,
        random_state=seed,
    )
    decision = both["after"]
    fitted.decision_ = decision.rule
    raw = calibrated_probs(Plan(), checking.views)
    accepted = decision.accept(checking.probs, checking.confidences, groups)
    answers = checking.probs.argmax(axis=1)
    own = fitted._predict_proba(checking.views).argmax(axis=1)  # before the guard keeps the model's answers
    measured: dict[str, Any] = {"clusters": checking.views.clusters, "random_state": seed}
    return CalibrationResult(
        fitted,
        decision,
        both["before"],
        both.gains["after"],
        evaluate(raw, labels, _DRAWS, **measured),
        evaluate(checking.probs, labels, _DRAWS, confidences=checking.confidences, **measured),
        sizes,
        int(accepted.sum()),
        int((accepted & (answers != labels)).sum()),
        int(both["before"].accept(raw, groups=groups).sum()),
        answer_change(answers, own, labels),
        float(passes_of(fitted, checking.views.logits).mean()),
        cross_fit,
        folder,
        n_passes,
        broken_groups(decision, deciding.probs, deciding.labels, deciding.views.groups, deciding.confidences),
    )


def _curves(deciding: _Answers, confidence: float) -> dict[str, RiskCurve]:
    """Return the thresholds at every risk of the page, before and after, from the inputs that choose the rule."""
    labels = deciding.labels
    options: dict[str, Any] = {"confidence": confidence, "clusters": deciding.views.clusters}
    return {
        "before": risk_curve(calibrated_probs(Plan(), deciding.views), labels, RISKS, **options),
        "after": risk_curve(deciding.probs, labels, RISKS, confidences=deciding.confidences, **options),
    }


def _write(
    result: CalibrationResult,
    checking: _Answers,
    curves: Mapping[str, RiskCurve],
    title: str,
    command: str,
    about: Mapping[str, str],
    seed: int,
) -> None:
    """Write the page and the summary, and the calibration last: a folder that has it is complete."""
    views, labels = checking.views, checking.labels
    # Page and terminal use the same rows: the checking inputs.
    named = {"before": calibrated_probs(Plan(), views), "after": checking.probs}
    names = views.classes
    compared = compare_probs(
        named,
        labels if names is None else names[labels],
        confidences={"after": checking.confidences},
        passes={"after": result.passes_per_answer},
        classes=names,
        clusters=views.clusters,
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
        curves=curves,
        change=result.change,
        profile=getattr(result.calibrator, "profile_", None),
        groups=views.groups,
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
