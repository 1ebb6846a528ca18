"""Predictions for more inputs than one machine can hold: a folder of tables, one table per batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.collecting.fingerprint import digest
from recal.collecting.job import Block, Job, Preprocess
from recal.collecting.local import choose_engine
from recal.collecting.predictions import BlockCalibrator, class_names, job_of, open_as_fitted
from recal.collecting.sinks import Sink, first_changed_block
from recal.collecting.sources import IndexedSource, as_indexed
from recal.errors import InputError, RecalError
from recal.files.paths import as_path, exists, is_remote
from recal.files.probabilities import read_job, write_prob_file
from recal.transforms.pool import Own
from recal.transforms.preprocessing import Outputs


@dataclass(frozen=True)
class PredictionFolder:
    """A complete folder of calibrated probabilities; it can be passed wherever a path can.

    Attributes
    ----------
    folder : Path
    samples : int
        The number of rows in its parts.
    written : int
        The number of rows that this call computed; the others existed before.
    passes : int
        The number of forward passes of this call.
    """

    folder: Path
    samples: int
    written: int
    passes: int

    @property
    def passes_per_answer(self) -> float | None:
        """The mean number of forward passes per answer, among the answers that this call computed."""
        return self.passes / self.written if self.written else None

    def __fspath__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class PartWriter:
    """Calibrates a block and writes its table; replaces the table of an earlier attempt.

    The result is the number of forward passes of each row.
    """

    calibrate: BlockCalibrator
    folder: Path
    made_by: str

    def __call__(self, block: Block) -> NDArray[np.int64]:
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
        return part.passes


class PartsSink(Sink):
    """Counts the rows that workers or this process write."""

    doing: ClassVar[str] = "Applying"
    wants_digests: ClassVar[bool] = True

    def __init__(
        self, job: Job, source: IndexedSource, writer: PartWriter, done: frozenset[int]
    ) -> None:
        super().__init__(job, source, None)
        self.n_samples, self.writer, self.done = source.n_samples, writer, done
        self.written = self.passes = 0

    def finisher(self) -> PartWriter:
        return self.writer

    def put(self, block: Block) -> None:
        self.take(block.index, self.writer(block))

    def take(self, index: int, result: NDArray[np.int64]) -> None:
        self.written += len(result)
        self.passes += int(result.sum())

    def finish(self) -> PredictionFolder:
        return PredictionFolder(self.writer.folder, self.n_samples, self.written, self.passes)


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
    transformed = [str(transform) for transform in job.transforms]
    computed = [
        job.model.fingerprint(),
        transformed,
        job.outputs,
        job.preprocess and digest(job.preprocess),
    ]
    made_by = digest(
        [
            calibrator.get_params(deep=False),
            calibrator.state(),
            computed,
            source.fingerprint(),
            batch_size,
        ]
    )
    other = next((index for index, record in records.items() if record.get("job") != made_by), None)
    other = first_changed_block(source, batch_size, folder, records) if other is None else other
    if other is not None:
        raise InputError(
            f"{folder / part_name(other)} was made with another calibrator, model or other inputs. Parts of two jobs "
            "are not mixed. Choose another folder, or remove the parts in this one."
        )
    missing = sum(
        min(batch_size, source.n_samples - index * batch_size)
        for index in every
        if index not in records
    )
    writer = PartWriter(BlockCalibrator(calibrator, job.transforms), folder, made_by)
    sink = PartsSink(job, source, writer, frozenset(records))
    choose_engine(engine)(job, source, batch_size, sink, progress)
    if sink.written != missing:  # the user's own source may yield fewer rows than it declares
        raise RecalError(f"{missing} rows were to be written to {folder}, and {sink.written} were.")
    return sink.finish()
