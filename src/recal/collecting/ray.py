"""collect and apply on Ray: an actor per worker, each batch a task, the results those of a local run.

Ray carries the numbers of the batches, not the inputs: which samples share a forward pass is then decided by
`batch_size` alone, as in a local run, and a batch that a lost worker had begun is simply done again by another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.collecting.inputs.sources import Source
from recal.collecting.job import Block, Job
from recal.collecting.progress_bar import progress_bar
from recal.collecting.ray_actors import Crew
from recal.collecting.sinks.memory import Sink
from recal.collecting.workers import Task, as_indexed
from recal.errors import InputError, MissingExtraError, RecalError

try:
    import ray
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
    threads : int, optional
        With how many threads each computes; as many as its CPUs, at least one, where not given. Another number than
        a local run has may round last bits otherwise.
    """

    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError("must be at least 1", argument=name, came=f"got {value!r}")
        if self.cpus < 0 or self.gpus < 0:
            raise InputError(
                "must not be negative", argument=("cpus", "gpus"), came=f"got {self.cpus!r} and {self.gpus!r}"
            )

    def run(self, job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
        """Compute every batch that the sink lacks."""
        task = Task(job, as_indexed(source), batch_size, sink.wants_digests)
        every = range(-(-task.source.n_samples // batch_size))
        chunks = [index for index in every if index not in sink.done]
        done = task.source.n_samples - sum(map(task.rows, chunks))
        if not chunks:
            return
        with (
            self._cluster(),
            closing(self._crew(task, len(chunks))) as crew,
            progress_bar(sink.doing, task.source.n_samples, done, shown=progress) as advance,
        ):
            if (finish := sink.finisher()) is not None:
                crew.finish_with(finish)
            for answer in crew.answers(chunks):
                sink.put(answer) if isinstance(answer, Block) else sink.take(answer)
                if finish is None and (finish := sink.finisher()) is not None:
                    crew.finish_with(finish)
                advance(len(answer))

    def _crew(self, task: Task, n_chunks: int) -> Crew:
        threads = self.threads or max(1, int(self.cpus))
        return Crew(task, self._size(n_chunks), threads, self.cpus, self.gpus)

    def _size(self, n_chunks: int) -> int:
        if self.workers is not None:
            return min(self.workers, n_chunks)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = [resources.get(name, 0) // each for name, each in (("CPU", self.cpus), ("GPU", self.gpus)) if each]
        return int(max(1, min([*room, n_chunks])))

    @contextmanager
    def _cluster(self) -> Iterator[None]:
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
