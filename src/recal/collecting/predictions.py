"""Calibrated predictions for new inputs, and their cost in forward passes: in memory, or in a folder
of tables for more inputs than one machine can hold.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.collecting.blocks import (
    Block,
    Preprocess,
    Sink,
    first_changed_block,
    join_labels,
    label_columns,
)
from recal.collecting.fingerprint import digest
from recal.collecting.local import Engine, choose_engine, job_of, open_as_fitted
from recal.collecting.sources import as_indexed
from recal.decisions.follow import WatchResult, followed_confidences, to_the_power
from recal.decisions.profiles import Profile
from recal.errors import InputError
from recal.files.paths import as_path, exists, is_remote
from recal.files.probabilities import read_job, write_prob_file
from recal.transforms import Transform
from recal.transforms.pool import Own
from recal.transforms.preprocessing import Outputs
from recal.views import Views


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


def passes_of(calibrator: Calibrator, logits: Floats) -> NDArray[np.int64]:
    """Return the number of forward passes for each sample, (n_samples,)."""
    views = len(calibrator.needed_transforms())
    return 1 + views * np.asarray(calibrator.map_.needs_views(logits)).astype(np.int64)


def profile_of(calibrator: Any) -> Profile:
    """Return the profile of a calibrator; refuse a calibrator without one."""
    profile = getattr(calibrator, "profile_", None)
    if not isinstance(profile, Profile):
        raise InputError(
            "Following needs a profile of the fit's samples, and this calibration holds none.",
            remedy="Fit it again: recal fit VIEWS --out calibration.recal, with views of --pool damage; "
            "or set calibrator.profile_ = recal.profile(views, y) on the fit's views",
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
    >>> calibrator = TemperatureScaling().fit(np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), [0, 1, 1])
    >>> apply(calibrator, lambda batch: batch, np.array([[2.0, -2.0]])).probs.argmax(1)
    array([0])
    """
    job = job_of(calibrator, model, preprocess, outputs, device, transforms)
    source = open_as_fitted(calibrator, job.model, inputs, labels, files)
    if follow:
        profile_of(calibrator)  # refuse a calibrator without one before the work
    names = class_names(calibrator)
    if source.labels is not None:  # refuse bad labels before the work, not after it
        sizes = len(source.labels), len(calibrator.classes_)
        label_columns(source.labels, source, job.model, names, *sizes)
    job = replace(job, finish=BlockCalibrator(calibrator, job.transforms, source.groups))
    sink = Sink("Applying")
    choose_engine(engine)(job, source, batch_size, sink, progress)
    parts: list[Predictions] = sink.in_order()

    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    probs, given = join("probs"), join_labels(source, [part.labels for part in parts])
    columns = label_columns(given, source, job.model, names, *probs.shape)
    passes, confidences = join("passes"), join("confidences")
    n_known = sum(part.fitted_rows for part in parts)
    predictions = Predictions(probs, *columns, passes, confidences, n_known, logits=join("logits"))
    return predictions.followed(calibrator) if follow else predictions


@dataclass(frozen=True)
class BlockCalibrator:
    """Calibrates a block, here or where it was computed.

    The result has the labels as the source gives them.
    """

    calibrator: Calibrator
    transforms: tuple[Transform, ...]
    groups: NDArray[Any] | None = None  # of all inputs

    def __call__(self, block: Block) -> Predictions:
        transformed: dict[Transform | str, Any] = dict(zip(self.transforms, block.transformed))
        views = Views(block.logits, transformed)
        rows = slice(block.start, block.start + len(block))
        probs, confidences = self.calibrator.predict_both(
            views, None if self.groups is None else self.groups[rows]
        )
        return Predictions(
            probs,
            block.labels,
            None,
            passes_of(self.calibrator, block.logits),
            confidences,
            self.calibrator.fitted_rows(views),
            logits=block.logits,
        )


@dataclass(frozen=True)
class PredictionFolder:
    """A complete folder of calibrated probabilities; it can be passed wherever a path can."""

    folder: Path
    samples: int  # rows in its parts
    written: int  # rows that this call computed; the others existed before
    passes: int  # forward passes of this call

    @property
    def passes_per_answer(self) -> float | None:
        """The mean number of forward passes per answer that this call computed."""
        return self.passes / self.written if self.written else None

    def __fspath__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class PartWriter:
    """Calibrates a block and writes its table; replaces the table of an earlier attempt.

    The result is the number of rows, and of forward passes.
    """

    calibrate: BlockCalibrator
    folder: Path
    made_by: str

    def __call__(self, block: Block) -> tuple[int, int]:
        part, calibrator = self.calibrate(block), self.calibrate.calibrator
        assert part.passes is not None
        names, rule = class_names(calibrator), getattr(calibrator, "decision_", None)
        write_prob_file(
            self.folder / part_name(block.index),
            part.probs,
            None,
            None if names is None else np.asarray(names),
            confidence=part.confidences,
            accepted=None if rule is None else rule.accept(part.probs, part.confidences),
            passes=part.passes,
            fitted_rows=part.fitted_rows,
            job={"job": self.made_by, "inputs": block.inputs},
        )
        return len(block), int(part.passes.sum())


def part_name(index: int) -> str:
    return f"part-{index:06d}.parquet"


def apply_distributed(
    calibrator: Calibrator,
    model: Any,
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    preprocess: Preprocess | None = None,
    batch_size: int = 256,
    engine: Any = "ray",
    progress: bool = True,
    outputs: Outputs | None = None,
    device: Any = None,
    transforms: Own = (),
    **files: Any,
) -> PredictionFolder:
    """Apply a calibrator to more inputs than one machine can hold: workers write tables, and
    nothing is gathered.

    Parameters
    ----------
    calibrator, model, inputs, preprocess, batch_size, progress, outputs, device, transforms,
    **files
        As in `recal.collecting.apply`. Views are computed only for the samples below the
        calibrator's gate.
    out : path
        A folder or URL that all workers can reach. The batches become ``part-000000.parquet`` and
        so on, in the order of the inputs. Existing parts are kept, so the same call resumes after
        an interruption. A part has the columns of `recal apply` and `passes`, the number of forward
        passes of each answer.
    engine : {"ray", "local"} or RayEngine

    Returns
    -------
    PredictionFolder
        The complete folder, and the number of forward passes.
    """
    job = job_of(calibrator, model, preprocess, outputs, device, transforms)
    source = as_indexed(open_as_fitted(calibrator, job.model, inputs, None, files))
    folder = as_path(out).absolute()
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in folder.iterdir()} if exists(folder) else set()
    every = range(-(-source.n_samples // batch_size))
    records = {
        index: read_job(folder / part_name(index)) or {}
        for index in every
        if part_name(index) in names
    }
    made_by = digest(
        [
            calibrator.get_params(deep=False),
            calibrator.state(),
            job.model.fingerprint(),
            [str(transform) for transform in job.transforms],
            job.outputs,
            job.preprocess and digest(job.preprocess),
            source.fingerprint(),
            batch_size,
        ]
    )
    other = next((index for index, record in records.items() if record.get("job") != made_by), None)
    other = first_changed_block(source, batch_size, records) if other is None else other
    if other is not None:
        raise InputError(
            f"{folder / part_name(other)} was made with another calibrator, model or other inputs. Parts of two jobs "
            "are not mixed. Choose another folder, or remove the parts in this one."
        )
    writer = PartWriter(BlockCalibrator(calibrator, job.transforms), folder, made_by)
    sink = Sink("Applying", frozenset(records))
    job = replace(job, digests=True, finish=writer)
    choose_engine(engine)(job, source, batch_size, sink, progress)
    written, passes = (sum(counts) for counts in zip((0, 0), *sink.in_order()))
    return PredictionFolder(folder, source.n_samples, written, passes)
