"""Jobs over inputs, batch by batch: `collect` turns a model and a pool into Views, and `apply`
turns a model and a calibrator into calibrated predictions.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats, one_each
from recal.collecting.blocks import (
    Block,
    Job,
    MemorySink,
    Preprocess,
    Sink,
    ViewsSink,
    join_labels,
    label_columns,
)
from recal.collecting.models import as_model
from recal.collecting.models.base import Model, to_numpy
from recal.collecting.preflight import Runner, as_pool, check_job, name_labels
from recal.collecting.sources import Source, as_source
from recal.collecting.tables import arrange_columns
from recal.decisions.following import WatchResult, followed_confidences, to_the_power
from recal.decisions.profiles import Profile
from recal.errors import InputError
from recal.files.paths import local_path
from recal.progress import counting, shown
from recal.schema import Number, check
from recal.transforms import Named, Transform
from recal.transforms.pools import Own, by_name
from recal.transforms.preprocessing import (
    Outputs,
    Preprocessing,
    match_outputs,
    match_preprocess,
    record,
)
from recal.views import Views


@contextmanager
def progress_bar(
    sink: Sink, source: Source, batch_size: int, *, show: bool
) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished samples; show their progress."""
    total = source.n_samples
    done = sum(min(batch_size, total - index * batch_size) for index in sink.done)
    with shown(sink.doing, show=show, lines=True), counting("input", total, done) as advance:
        yield advance


Engine = Literal["local", "ray"]


def collect(
    model: Any,
    inputs: Any,
    pool: str | Sequence[Transform | str] | None,
    *,
    preprocess: Preprocess | None = None,
    labels: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    batch_size: int = 256,
    out: str | os.PathLike[str] | None = None,
    engine: Engine | Any = "local",
    resume: bool = True,
    progress: bool = True,
    outputs: Outputs = "logits",
    device: Any = None,
    seed: int = 0,
    preflight: bool = True,
    **files: Any,
) -> Views:
    """Compute a model's logits for inputs and for transformed copies of them.

    Parameters
    ----------
    model : a model of any kind, or its path
        A callable, a torch module, a fitted scikit-learn classifier, an ONNX session, or (model,
        processor). See `recal.collecting.models.as_model`.
    inputs : array, tensor, frame, torch Dataset, or path
        Not yet normalised: transformations act on pixels, and `preprocess` runs after them. A
        folder or dataset is read batch by batch.
    pool : str, sequence of transformations, or None
        As in `recal.pool`; None or "none" for the originals alone; "auto" for the default pool of
        such inputs ("auto:series" if they do not say what they are).
    preprocess : callable, optional
        Turns a transformed batch into the model's input (normalisation, layout). It gets a tensor
        on the model's device for a torch model, and an array otherwise.
    labels : array-like or path, optional
        The true classes, if the inputs have no labels.
    classes : sequence, optional
        The model's columns in order, if labels are not column indices. If neither this nor the
        model names the classes, named labels are columns in alphabetical order.
    batch_size : int
        The number of samples per forward pass. Another size may change the last bits of the logits.
    out : path, optional
        A name ending in .zarr is a resumable store, written batch by batch; an .npz file is written
        at the end.
    engine : {"local", "ray"} or RayEngine
        Where the work is done.
    resume : bool
        Resume a store that was interrupted; False starts over and overwrites it.
    progress : bool
        Show a bar; without a terminal, print a line every 30 seconds.
    outputs : {"logits", "probabilities", "votes"}
        What the model returns. Probabilities become their logarithms; those below a floor of 1e-12
        count as the floor. "votes" are shares of trees or of neighbours, and a share of 0 means too
        few voters: the floor is 0.01 / n_classes. scikit-learn's forests, trees and neighbours are
        recognised.
    device : optional
        Where a torch model runs; it is moved back afterwards.
    seed : int
        For drawing the pool.
    preflight : bool
        Run the model on 32 inputs first, as they are and through one transformation of each kind,
        and refuse constant logits and labels that do not fit. If the order of the classes is only
        assumed (folders, named labels, the numbers 0 and 1), up to 1,000 predictions must also
        agree with it.
    **files
        For inputs given as a path: `read` ("images", "texts" or "sounds") and `on_error`
        ("stop" or "skip") of a folder, `resize`, `crop` and `pixels` ("rgb" or "gray") of
        images, `seconds` of sounds, `label_column` and `text_column` of a table.

    Returns
    -------
    Views
        In memory, or reading from the store.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import collect
    >>> images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    >>> def model(batch):
    ...     return np.stack([batch.mean((1, 2)), batch.std((1, 2))], axis=1) / 50
    >>> collect(model, images, "zoom:0.5-0.9:3", labels=[0, 1, 0, 1, 0, 1])
    Views: 6 samples, 2 classes, 3 transformations, labelled
    """
    batch_size = check(batch_size, Number(1, whole=True), "batch_size")
    adapter = as_model(model, outputs=outputs, device=device)
    outputs = adapter.returns(outputs)
    source = open_source(inputs, labels, files, adapter)
    source, run = name_labels(source, adapter, classes), choose_engine(engine)
    job = Job(adapter, as_pool(pool, seed, source, adapter), preprocess, outputs)
    target = None if out is None else local_path(out)
    if target is not None and target.suffix not in (".zarr", ".npz"):
        rule = "must end in .zarr (written batch by batch) or .npz (written at the end)"
        raise InputError(f"{rule}, got {target.name!r}", argument="out")
    model_digest = adapter.fingerprint()
    how = record(preprocess, outputs, source.reading or {}, source.sample(), model_digest)
    opened: AbstractContextManager[ViewsSink]
    if target is not None and target.suffix == ".zarr":
        from recal.collecting.store import StoreSink

        job = replace(job, preprocessing=how, digests=True)
        opened = StoreSink(job, source, classes, target, batch_size=batch_size, resume=resume)
    else:
        job = replace(job, preprocessing=how)
        opened = nullcontext(MemorySink(job, source, classes, target))
    with opened as sink:
        if preflight and not sink.done:
            check_job(job, source, run, classes=classes, batch_size=batch_size)
        run(job, source, batch_size, sink, progress)
        return sink.finish()


def open_source(
    inputs: Any,
    labels: Any,
    files: Mapping[str, Any],
    model: Model,
    stored: Preprocessing | None = None,
) -> Source:
    """Return the source of the caller's inputs with the caller's labels, and warn about skipped
    files.

    The columns of a table are those of the model, or of the views of a calibration (`stored`).
    """
    source = arrange_columns(as_source(inputs, **files), model, stored)
    if source.skipped and source is not inputs:  # a caller who opened the source can look there
        number, first = len(source.skipped), source.skipped[0]
        message = f"{number} files could not be read and were skipped, such as {first}."
        warnings.warn(message, UserWarning, stacklevel=3)
    if labels is None:
        return source
    if isinstance(labels, str | os.PathLike):
        from recal.collecting.files import read_labels

        labels = read_labels(Path(labels))
    labelled = copy.copy(source)  # the caller's source stays as it was
    labelled.labels, labelled.classes = one_each(to_numpy(labels), source.n_samples), None
    return labelled


def job_of(
    calibrator: Calibrator,
    model: Any,
    preprocess: Preprocess | None,
    outputs: Outputs | None,
    device: Any,
    transforms: Own,
) -> Job:
    """Return the job of a calibrator: its transformations, its gate, and the preprocessing of its
    views.
    """
    stored = getattr(calibrator, "preprocessing_", None)
    between = match_preprocess(stored, preprocess)
    if outputs is not None and (stored is None or outputs != stored.outputs):
        outputs = as_model(model, outputs=outputs, device=device).returns(outputs)
    kind = match_outputs(stored, outputs)
    adapter = as_model(model, outputs=kind, device=device)
    kind = adapter.returns(kind) if stored is None else kind
    gate = None if calibrator.map_.gate is None else calibrator.map_
    return Job(adapter, needed_transforms(calibrator, transforms), between, kind, gate)


def open_as_fitted(
    calibrator: Calibrator, model: Model, inputs: Any, labels: Any, files: Mapping[str, Any]
) -> Source:
    """Return the source of new inputs, with the columns of the fit if they are a table.

    Warn if they have another dtype than the inputs of the fit.
    """
    stored = getattr(calibrator, "preprocessing_", None)
    source = open_source(inputs, labels, files, model, stored)
    sample = source.sample()
    if stored is not None and sample is not None and stored.dtype not in (None, sample[1]):
        message = (
            f"The calibrator's views were collected from {stored.dtype} inputs and these are "
            f"{sample[1]}; pixels from 0 to 255 and from 0 to 1 are not the same to a model."
        )
        warnings.warn(message, UserWarning, stacklevel=3)
    return source


def needed_transforms(calibrator: Calibrator, functions: Own = ()) -> tuple[Transform, ...]:
    """Return the transformations that a calibrator needs; those known by name are looked up in
    `functions`.
    """
    own, needed = by_name(functions), calibrator.needed_transforms()
    transforms = tuple(own.get(str(transform), transform) for transform in needed)
    for transform in transforms:
        if isinstance(transform, Named):
            transform.code()  # refuse it now if it is known by name only
    return transforms


def choose_engine(engine: Any) -> Runner:
    """Return the function that runs a job."""
    if engine == "local":
        return run_local
    if engine == "ray":
        from recal.collecting.ray import RayEngine

        engine = RayEngine()
    if not hasattr(engine, "run"):
        rule = f"must be 'local', 'ray' or a RayEngine, got {engine!r}"
        raise InputError(rule, argument="engine")
    run: Runner = engine.run
    return run


def run_local(job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
    """Run the job in this process."""
    with job.model.running(), progress_bar(sink, source, batch_size, show=progress) as advance:
        for batch in source.batches(batch_size, sink.done):
            sink.take(batch.index, job.run(batch, source.describe))
            advance(len(batch))


# --- predictions


@dataclass(frozen=True)
class Predictions:
    """Calibrated probabilities of some inputs, with their labels if they are known."""

    probs: NDArray[np.float64]
    labels: NDArray[Any] | None
    classes: NDArray[Any] | None
    passes: NDArray[np.int64] | None = None  # forward passes of each answer
    confidences: NDArray[np.float64] | None = None  # the chance that each answer is right
    fitted_rows: int = 0  # how many of the inputs the calibrator was fitted on
    condition: WatchResult | None = None  # the assessment of these inputs, if `follow`
    logits: Floats | None = None  # of the originals

    def followed(self, calibrator: Calibrator) -> Predictions:
        """Return predictions at the temperature that suits these inputs, taken together."""
        assert self.logits is not None
        condition = profile_of(calibrator).condition(self.logits)
        probs, confidences = to_the_power(self.probs, condition.ratio), self.confidences
        if confidences is not None:
            confidences = followed_confidences(confidences, self.probs, probs)
        return replace(self, probs=probs, confidences=confidences, condition=condition)

    @property
    def passes_per_answer(self) -> float | None:
        """The mean number of forward passes per answer."""
        return None if self.passes is None or not len(self.passes) else float(self.passes.mean())


def profile_of(calibrator: Any) -> Profile:
    """Return the profile of a calibrator; refuse a calibrator without one."""
    profile = getattr(calibrator, "profile_", None)
    if not isinstance(profile, Profile):
        raise InputError(
            "Following needs a profile of the fit's samples, and this calibration holds none",
            remedy="Fit it again: recal fit VIEWS --out FILE, with views of --pool damage; or set "
            "calibrator.profile_ = recal.profile(views, y) on the fit's views",
        )
    return profile


def class_names(calibrator: Calibrator) -> list[Any] | None:
    """Return the names of the classes, or None if they are column numbers."""
    names = calibrator.classes_
    numbered = names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names)))
    return None if numbered else list(names.tolist())


def apply(
    calibrator: Calibrator,
    model: Any,
    inputs: Any,
    *,
    preprocess: Preprocess | None = None,
    labels: Any = None,
    batch_size: int = 256,
    engine: Engine | Any = "local",
    progress: bool = True,
    outputs: Outputs | None = None,
    device: Any = None,
    transforms: Own = (),
    follow: bool = False,
    **files: Any,
) -> Predictions:
    """Return calibrated probabilities of inputs; inputs are read batch by batch.

    If the plan has a gate, views are computed only for the samples below it. `Predictions.passes`
    has the number of forward passes of each answer.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted on views of the same model.
    model, inputs, preprocess, labels, batch_size, engine, progress, outputs, device, **files
        As in `recal.collect`. The calibrator keeps the normalisation and the kind of outputs of its
        views, so they need not be given again; different ones are refused.
    transforms : sequence of callables, or mapping of name to callable
        Your own transformations, if the calibrator knows only their names.
    follow : bool
        Judge these inputs, taken together, by their logits, and use the temperature that suits
        them. The calibrator needs a ``profile_`` for this. `Predictions.condition` says what was
        found.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import TemperatureScaling
    >>> from recal.collecting import apply
    >>> calibrator = TemperatureScaling().fit([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]], [0, 1, 1])
    >>> apply(calibrator, lambda batch: batch, np.array([[2.0, -2.0]])).probs.argmax(1)
    array([0])
    """
    job = job_of(calibrator, model, preprocess, outputs, device, transforms)
    source = open_as_fitted(calibrator, job.model, inputs, labels, files)
    if follow:
        profile_of(calibrator)  # refuse a calibrator without one before the work
    about = source, job.model, class_names(calibrator), len(calibrator.classes_)
    label_columns(source.labels, *about)  # refuse bad labels before the work
    sink = PredictionSink(calibrator, job.transforms, source.groups)
    choose_engine(engine)(job, source, batch_size, sink, progress)
    parts: list[Predictions] = sink.in_order()
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("probs", "passes", "confidences", "logits")
    }
    given = join_labels(source, [part.labels for part in parts])
    labels, classes = label_columns(given, *about)
    n_known = sum(part.fitted_rows for part in parts)
    predictions = Predictions(labels=labels, classes=classes, fitted_rows=n_known, **joined)
    return predictions.followed(calibrator) if follow else predictions


class PredictionSink(Sink):
    """Calibrates blocks. Predictions have the labels as the source gives them."""

    def __init__(
        self,
        calibrator: Calibrator,
        transforms: tuple[Transform, ...],
        groups: NDArray[Any] | None,  # of all inputs
    ) -> None:
        super().__init__("Applying")
        self.calibrator, self.transforms, self.groups = calibrator, transforms, groups

    def take(self, index: int, result: Block) -> None:
        calibrator, logits = self.calibrator, result.logits
        views = Views(logits, dict(zip(self.transforms, result.transformed)))
        rows = slice(result.start, result.start + len(result))
        groups = None if self.groups is None else self.groups[rows]
        probs, confidences = calibrator.predict_both(views, groups)
        passes, n_known = calibrator.map_.passes(logits), calibrator.fitted_rows(views)
        found = Predictions(probs, result.labels, None, passes, confidences, n_known, logits=logits)
        self.results[index] = found
