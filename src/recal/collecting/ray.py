"""collect and apply on Ray: an actor per worker, each batch a task, the results the same to the bit.

Ray Data carries the numbers of the batches, not the inputs: which samples share a forward pass is then decided by
`batch_size` alone, as in a local run, and a batch that a lost worker had begun is simply done again by another.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recal.errors
from recal.calibrators.base import Calibrator
from recal.collecting.apply import calibrate, job_of
from recal.collecting.inputs.sources import IndexedSource, Source
from recal.collecting.job import Block, Job, Preprocess
from recal.collecting.local import open_source
from recal.collecting.progress import progress_bar
from recal.collecting.sinks.memory import Sink
from recal.errors import InputError, MissingExtraError, RecalError
from recal.files.prob_tables import write_prob_file
from recal.preprocessing import Outputs
from recal.transforms.parse import Own

try:
    import ray
    import ray.data
except ImportError as error:
    raise MissingExtraError("ray", "ray", "engine='ray'") from error


@dataclass(frozen=True)
class RayEngine:
    """Runs a job on the cluster at RAY_ADDRESS, or on a local one that is started for it and shut down afterwards.

    Parameters
    ----------
    workers : int, optional
        How many actors; as many as the cluster has room for, where not given.
    cpus, gpus : float
        What each of them asks of the cluster.
    """

    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"`workers` must be at least 1, got {self.workers!r}.")
        if self.cpus < 0 or self.gpus < 0:
            raise InputError(f"`cpus` and `gpus` must not be negative, got {self.cpus!r} and {self.gpus!r}.")

    def run(self, job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
        """Compute every batch that the sink lacks."""
        indexed = _indexed(source)
        chunks = [index for index in range(-(-indexed.n_samples // batch_size)) if index not in sink.done]
        done = indexed.n_samples - sum(_rows(indexed, index, batch_size) for index in chunks)
        task = (job, indexed, batch_size, _threads(), sink.wants_digests)
        with self._cluster(), progress_bar("Collecting", indexed.n_samples, done, shown=progress) as advance:
            for row in self._map(CollectWorker, task, chunks):
                block = _unpack(row)
                sink.put(block)
                advance(len(block))

    def apply(self, task: tuple[Any, ...], chunks: list[int], n_samples: int, progress: bool) -> int:
        """Compute and write every part; return how many rows were written."""
        rows = 0
        with self._cluster(), progress_bar("Applying", n_samples, 0, shown=progress) as advance:
            for row in self._map(ApplyWorker, task, chunks):
                rows += int(row["rows"])
                advance(int(row["rows"]))
        return rows

    def _map(self, worker: type, task: tuple[Any, ...], chunks: list[int]) -> Iterator[dict[str, Any]]:
        if not chunks:
            return
        held = ray.put(task)  # as long as the generator lives: a restarted actor asks for it again
        numbers = ray.data.from_items([{"chunk": index} for index in chunks], override_num_blocks=len(chunks))
        results = numbers.map_batches(
            worker,
            fn_constructor_args=(held,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=self._size(len(chunks))),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        for row in results.iter_rows():
            if row["problem"]:
                kind, message = json.loads(row["problem"])
                raise getattr(recal.errors, kind, RecalError)(message)
            yield row

    def _size(self, n_chunks: int) -> int:
        if self.workers is not None:
            return min(self.workers, n_chunks)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = [resources.get(name, 0) // each for name, each in (("CPU", self.cpus), ("GPU", self.gpus)) if each]
        return int(max(1, min([*room, n_chunks])))

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        with _quiet():
            if ray.is_initialized():  # the caller's own, which is not ours to end
                yield
                return
            self._start()
            try:
                yield
            finally:
                ray.shutdown()

    def _start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = {} if address else {"include_dashboard": False, "num_cpus": self._local_cpus()}
        try:
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
        except Exception as error:  # a start that takes too long is a bare Exception of Ray's
            place = f"the Ray cluster at {address}" if address else "a local Ray cluster"
            reason = str(error).rstrip(".")
            if address and os.environ.get("RAY_AUTH_MODE") != "token":
                # Ray shows its token to an address that is named only when told to, and reports a refusal as no answer.
                reason += ". If the cluster asks for a token, set RAY_AUTH_MODE=token beside RAY_ADDRESS"
            if "timed out" in reason:
                reason += (
                    ". A busy machine starts Ray slowly: try again, or give it longer, RAY_raylet_start_wait_time_s=120"
                )
            raise RecalError(f"Cannot reach {place}: {reason}.") from error

    def _local_cpus(self) -> int:
        asked = 0 if self.workers is None else int(np.ceil(self.workers * self.cpus))
        return max(asked, os.cpu_count() or 1)


class _Worker(ABC):
    """Holds a model and answers for batches by their number; what recal refuses travels back as a message."""

    def __init__(self, task: Any) -> None:
        self.job, self.source, self.batch_size, threads, *rest = ray.get(task)
        _set_threads(threads)
        self._open = ExitStack()
        self._open.enter_context(self.job.model.running())
        self._set(*rest)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
        index = int(batch["chunk"][0])
        try:
            row = self._answer(index)
        except RecalError as error:
            row = {"problem": json.dumps([type(error).__name__, str(error)])}
        return {name: [row.get(name, empty)] for name, empty in self.columns.items()}

    columns: dict[str, Any]

    @abstractmethod
    def _set(self, *rest: Any) -> None:
        """Keep what this kind of worker was given beyond the job."""

    @abstractmethod
    def _answer(self, index: int) -> dict[str, Any]:
        """Return the columns of one batch."""

    def _run(self, index: int, digests: bool) -> Block:
        block: Block = self.job.run(self.source.batch(index, self.batch_size), self.source.describe, digests=digests)
        return block


class CollectWorker(_Worker):
    """Answers with logits."""

    columns = {"problem": "", "chunk": 0, "start": 0, "inputs": "", "labels": "", "shape": "", "values": b""}  # noqa: RUF012

    def _set(self, digests: bool) -> None:
        self.digests = digests

    def _answer(self, index: int) -> dict[str, Any]:
        return _pack(self._run(index, self.digests))


class ApplyWorker(_Worker):
    """Writes one table of calibrated probabilities per batch, and answers with its number of rows."""

    columns = {"problem": "", "chunk": 0, "rows": 0}  # noqa: RUF012

    def _set(self, calibrator: Calibrator, folder: Path) -> None:
        self.calibrator, self.folder = calibrator, folder

    def _answer(self, index: int) -> dict[str, Any]:
        block = self._run(index, False)
        names = self.calibrator.classes_
        numbered = names.dtype.kind in "iu" and np.array_equal(names, np.arange(len(names)))
        classes = None if numbered else names
        probs = calibrate(self.calibrator, self.job.transforms, block)
        write_prob_file(self.folder / f"part-{index:06d}.parquet", probs, None, classes)  # replaces an earlier attempt
        return {"chunk": index, "rows": len(block)}


def apply_distributed(
    calibrator: Calibrator,
    model: Any,
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    preprocess: Preprocess | None = None,
    batch_size: int = 256,
    engine: RayEngine | None = None,
    progress: bool = True,
    outputs: Outputs | None = None,
    device: Any = None,
    transforms: Own = (),
    **files: Any,
) -> Path:
    """Apply a calibrator to inputs too many for one machine: workers write the tables, and nothing is gathered.

    Parameters
    ----------
    calibrator, model, inputs, preprocess, batch_size, progress, outputs, device, transforms, **files
        As in `recal.collecting.apply`.
    out : path
        A folder that all workers can reach. Each batch becomes ``part-000000.parquet`` and so on, in the order of the
        inputs; parts that are there already are kept, so the same call goes on after an interruption.
    engine : RayEngine, optional

    Returns
    -------
    Path
        The folder, when it holds every row.
    """
    source = _indexed(open_source(inputs, None, files))
    job = job_of(calibrator, model, source, preprocess, outputs, device, transforms)
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = range(-(-source.n_samples // batch_size))
    chunks = [index for index in every if not (folder / f"part-{index:06d}.parquet").exists()]
    missing = sum(_rows(source, index, batch_size) for index in chunks)
    task = (job, source, batch_size, _threads(), calibrator, folder)
    written = (engine or RayEngine()).apply(task, chunks, missing, progress)
    if written != missing:
        raise RecalError(f"{missing} rows were to be written to {folder}, and {written} were.")
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray Data tells of every step and draws bars of its own; recal's bar is enough."""
    context, logger = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars = before[0]
        logger.setLevel(before[1])


def _indexed(source: Source) -> IndexedSource:
    if not isinstance(source, IndexedSource):
        raise InputError(
            "Workers read their own samples, so engine='ray' needs inputs that can be read in any order: arrays, "
            "files, folders, or datasets. For a DataLoader pass its dataset: loader.dataset."
        )
    return source


def _rows(source: IndexedSource, index: int, size: int) -> int:
    return min(size, source.n_samples - index * size)


def _pack(block: Block) -> dict[str, Any]:
    values = np.concatenate([block.logits[None], block.transformed])
    return {
        "problem": "",
        "chunk": block.index,
        "start": block.start,
        "inputs": block.inputs or "",
        "labels": "" if block.labels is None else json.dumps(block.labels.tolist()),
        "shape": json.dumps([values.dtype.str, *values.shape]),
        "values": values.tobytes(),
    }


def _unpack(row: dict[str, Any]) -> Block:
    dtype, *shape = json.loads(row["shape"])
    values = np.frombuffer(row["values"], dtype=dtype).reshape(shape)
    labels = np.array(json.loads(row["labels"])) if row["labels"] else None
    return Block(int(row["chunk"]), int(row["start"]), values[0], values[1:], labels, row["inputs"] or None)


def _threads() -> dict[str, int]:
    """How many threads this process computes with: another number may round otherwise."""
    from threadpoolctl import threadpool_info

    counts = {str(pool["user_api"]): int(pool["num_threads"]) for pool in threadpool_info()}
    if "torch" in sys.modules:
        counts["torch"] = int(sys.modules["torch"].get_num_threads())
    return counts


def _set_threads(counts: dict[str, int]) -> None:
    from threadpoolctl import threadpool_limits

    limits = {api: count for api, count in counts.items() if api != "torch"}
    if limits:
        threadpool_limits(limits)
    if "torch" in counts and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(counts["torch"])
