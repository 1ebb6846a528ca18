"""Jobs on Ray: workers hold the model, read their own samples, and compute batches by number.

It uses plain actors and `ray.wait`, not Ray Data, whose blocks, buffers and statistics cost more
than a batch of a small network.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.collecting.blocks import Block, Job, Sink
from recal.collecting.local import progress_bar
from recal.collecting.sources import Source
from recal.errors import RecalError, needs_extra
from recal.schema import Count, NotNegative, check_parameters

with needs_extra("ray", "engine='ray'"):
    import ray
    from ray import exceptions

# A batch that killed this many workers ends the job.
_DEATHS = 5


class Worker:
    """Computes batches in another process; Ray starts it again if it dies.

    Each call brings the task, because a worker that was started again has forgotten it.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._open = ExitStack()
        self._opened: tuple[Job, Source, int] | None = None

    def begin(self, task: list[Any]) -> tuple[Job, Source, int]:
        """Open the model, once, and return the task; in a list, Ray does not load it each time."""
        if self._opened is None:
            _set_threads(self._threads)  # before a model is loaded: some read the number only then
            job, source, batch_size = ray.get(task[0])
            self._open.enter_context(job.model.running())
            self._opened = job, source, batch_size
        return self._opened

    def greet(self, task: list[Any]) -> None:
        """Answer when the model is open."""
        self.begin(task)

    def run(self, task: list[Any], index: int) -> Block:
        """Return one batch's block."""
        job, source, batch_size = self.begin(task)
        return job.run(source.batch(index, batch_size), source.describe)


def _set_threads(count: int) -> None:
    """Limit the threads; otherwise each worker on a machine would use all of its cores."""
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = os.environ["RECAL_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def blocks_of(
    actors: Sequence[Any], task: list[Any], indices: Sequence[int], request: str
) -> Iterator[Block]:
    """Yield blocks in the order of arrival.

    A worker gets batches only after it has started, so a worker that waits for resources delays no
    batch. Ray repeats a batch whose worker died.
    """
    waiting, missing = deque(indices), len(indices)
    # The worker of each call, and whether it computes a batch.
    calls = {actor.greet.remote(task): (actor, False) for actor in actors}
    while missing:
        done, _ = ray.wait(list(calls), timeout=60)
        if not done:
            message = (
                f"No worker has answered for a minute. Each asks for {request}. They may still be "
                "importing packages, or Ray waits for resources that other jobs hold; "
                "RayEngine(cpus=..., gpus=...) can request fewer."
            )
            warnings.warn(message, UserWarning, stacklevel=2)
        for call in done:
            actor, is_batch = calls.pop(call)
            block = _receive(call)
            if waiting:
                calls[actor.run.remote(task, waiting.popleft())] = actor, True
            if is_batch:
                missing -= 1
                yield block


def _receive(call: Any) -> Any:
    try:
        return ray.get(call)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RecalError):  # raise it without the traceback of the worker
            raise error.cause from None
        raise
    except exceptions.RayError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise RecalError(
            f"A worker could not start, or died {_DEATHS} times with one batch under way "
            f"({reason})",
            remedy="If memory is short, take a smaller batch_size, or RayEngine(cpus=2)",
        ) from error


@dataclass(frozen=True)
class RayEngine:
    """Runs a job on the cluster at RAY_ADDRESS, or on a local cluster that is started for it and
    shut down afterwards.

    Parameters
    ----------
    workers : int, optional
        The number of actors. The default is the largest number that the cluster has resources for.
    cpus, gpus : float
        The resources that each actor requests.
    threads : int, optional
        The number of threads of each actor. The default is its number of CPUs, at least one. If a
        local run uses another number of threads, the last bits may differ.
    """

    workers: Count | None = None
    cpus: NotNegative = 1.0
    gpus: NotNegative = 0.0
    threads: Count | None = None

    def __post_init__(self) -> None:
        check_parameters(self)

    def run(self, job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
        """Compute every batch that the sink lacks."""
        every = range(-(-source.n_samples // batch_size))
        indices = [index for index in every if index not in sink.done]
        if not indices:
            return
        with self._cluster(), progress_bar(sink, source, batch_size, show=progress) as advance:
            task = [ray.put((job, source, batch_size))]
            actors = self._start_workers(len(indices))
            try:
                request = f"{self.cpus:g} CPU and {self.gpus:g} GPU"
                for block in blocks_of(actors, task, indices, request):
                    sink.take(block.index, block)
                    advance(len(block))
            finally:
                for actor in actors:  # their unfinished work is not needed
                    ray.kill(actor)

    def _start_workers(self, n_batches: int) -> list[Any]:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        each = {"CPU": self.cpus, "GPU": self.gpus}
        room = [resources.get(name, 0) // count for name, count in each.items() if count]
        size = max(1, int(min([*room, n_batches])))
        if self.workers is not None:
            size = min(self.workers, n_batches)
        how = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        how |= {"max_restarts": -1, "max_task_retries": _DEATHS - 1}
        actor: Any = ray.remote(Worker).options(**how)
        threads = self.threads or max(1, int(self.cpus))
        return [actor.remote(threads) for _ in range(size)]

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        if ray.is_initialized():  # by the caller, who will also end it
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS")
        cpus = max(int(np.ceil((self.workers or 0) * self.cpus)), os.cpu_count() or 1)
        local: dict[str, Any] = {} if address else {"include_dashboard": False, "num_cpus": cpus}
        try:
            how = {"logging_level": logging.ERROR, "log_to_driver": False, **local}
            ray.init(address=address or "local", **how)
        except Exception as error:  # Ray raises a bare Exception if the start takes too long
            place = f"the Ray cluster at {address}" if address else "a local Ray cluster"
            reason = str(error).rstrip(".")
            if address and os.environ.get("RAY_AUTH_MODE") != "token":
                # Ray sends its token to an explicit address only in this mode, and reports a
                # refusal as no answer.
                reason += ". If the cluster asks for a token, set RAY_AUTH_MODE=token as well"
            raise RecalError(f"Cannot reach {place}: {reason}.") from error
        try:
            yield
        finally:
            ray.shutdown()
