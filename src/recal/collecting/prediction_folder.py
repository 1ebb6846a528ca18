"""A calibrator applied to inputs too many for one machine: a folder of tables, a part per batch, gathered nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recal.calibrators.base import Calibrator
from recal.collecting.fingerprint import digest
from recal.collecting.inputs.sources import Source
from recal.collecting.job import Block, Job, Preprocess
from recal.collecting.local import choose_engine, open_source
from recal.collecting.predictions import BlockCalibrator, class_names, job_of
from recal.collecting.sinks.changes import InputStamps
from recal.collecting.sinks.memory import Sink
from recal.collecting.workers import as_indexed
from recal.errors import InputError, RecalError
from recal.files.probabilities import read_job, write_prob_file
from recal.files.urls import as_path, exists, is_remote
from recal.transforms.pool import Own
from recal.transforms.preprocessing import Outputs


@dataclass(frozen=True)
class PredictionFolder:
    """A folder of calibrated probabilities that holds every row; it may be passed wherever a path may.

    Attributes
    ----------
    folder : Path
    samples : int
        How many rows its parts hold.
    written : int
        How many of them were computed by this call; the others were there.
    passes : int
        How many forward passes those took.
    """

    folder: Path
    samples: int
    written: int
    passes: int

    @property
    def passes_per_answer(self) -> float | None:
        """How many forward passes an answer took on average, among those that were computed."""
        return self.passes / self.written if self.written else None

    def __fspath__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class WrittenPart:
    """A part that is in its folder."""

    index: int
    rows: int
    passes: int

    def __len__(self) -> int:
        return self.rows


@dataclass(frozen=True)
class PartWriter:
    """Calibrates a block and writes its table; an earlier attempt's is replaced."""

    calibrating: BlockCalibrator
    folder: Path
    made_by: str = ""
    stamps: Mapping[int, tuple[int, str]] = field(default_factory=dict)

    def __call__(self, block: Block) -> WrittenPart:
        found, calibrator = self.calibrating(block), self.calibrating.calibrator
        names, rule = class_names(calibrator), getattr(calibrator, "decision_", None)
        write_prob_file(
            self.folder / part_name(block.index),
            found.probs,
            None,
            None if names is None else np.asarray(names),
            confidence=found.confidences,
            accepted=None if rule is None else rule.accept(found.probs, found.confidences),
            passes=found.passes,
            fitted_rows=found.fitted_rows,
            job={"job": self.made_by, "inputs": block.inputs, "stamp": self.stamps.get(block.index)},
        )
        return WrittenPart(block.index, len(block), int(found.passes.sum()))


class PartsSink(Sink):
    """Counts what is written, by workers or here."""

    doing: ClassVar[str] = "Applying"
    wants_digests: ClassVar[bool] = True

    def __init__(self, job: Job, source: Source, writer: PartWriter, done: frozenset[int]) -> None:
        super().__init__(job, source, None)
        self.writer, self.done = writer, done
        self.written = self.passes = 0

    def finisher(self) -> PartWriter:
        return self.writer

    def put(self, block: Block) -> None:
        self.take(self.writer(block))

    def take(self, finished: WrittenPart) -> None:
        self.written += finished.rows
        self.passes += finished.passes


def part_name(index: int) -> str:
    return f"part-{index:06d}.parquet"


def _of(job: Job) -> list[Any]:
    """Return what a job computes, for a digest."""
    names = [str(transform) for transform in job.transforms]
    return [job.model.fingerprint(), names, job.outputs, None if job.preprocess is None else digest(job.preprocess)]


def _done(folder: Path, indices: Sequence[int], made_by: str, stamps: InputStamps) -> frozenset[int]:
    """Return the parts that are there; refuse those of another calibrator, model or inputs, which are not mixed."""
    records = {index: read_job(folder / part_name(index)) for index in indices}
    other = next((index for index, record in records.items() if record is None or record.get("job") != made_by), None)
    if other is None:
        other = stamps.first_change({index: record for index, record in records.items() if record is not None})
    if other is not None:
        raise InputError(
            f"{folder / part_name(other)} was made with another calibrator, model or other inputs. Parts of two jobs "
            "are not mixed. Choose another folder, or remove the parts in this one."
        )
    return frozenset(indices)


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
    """Apply a calibrator to inputs too many for one machine: workers write the tables, and nothing is gathered.

    Parameters
    ----------
    calibrator, model, inputs, preprocess, batch_size, progress, outputs, device, transforms, **files
        As in `recal.collecting.apply`. Views are computed for the samples below the calibrator's gate alone.
    out : path
        A folder, or a URL, that all workers can reach. Each batch becomes ``part-000000.parquet`` and so on, in the
        order of the inputs; parts that are there already are kept, so the same call goes on after an interruption.
        Beside what `recal apply` writes, a part has a column `passes`: how many forward passes each answer took.
    engine : {"ray", "local"} or RayEngine

    Returns
    -------
    PredictionFolder
        The folder, when it holds every row, and what the work took.
    """
    source = as_indexed(open_source(inputs, None, files))
    job = job_of(calibrator, model, source, preprocess, outputs, device, transforms)
    folder = as_path(out).absolute()
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in folder.iterdir()} if exists(folder) else set()
    every = range(-(-source.n_samples // batch_size))
    made_by = digest(
        [calibrator.get_params(deep=False), calibrator.state(), _of(job), source.fingerprint(), batch_size]
    )
    stamps = InputStamps(source, batch_size, folder)
    done = _done(folder, [index for index in every if part_name(index) in there], made_by, stamps)
    missing = sum(min(batch_size, source.n_samples - index * batch_size) for index in every if index not in done)
    writer = PartWriter(BlockCalibrator(calibrator, job.transforms), folder, made_by, stamps.as_dict())
    sink = PartsSink(job, source, writer, done)
    choose_engine(engine)(job, source, batch_size, sink, progress)
    if sink.written != missing:
        raise RecalError(f"{missing} rows were to be written to {folder}, and {sink.written} were.")
    return PredictionFolder(folder, source.n_samples, sink.written, sink.passes)
