"""Jobs on Ray: workers hold the model, read their own samples, and compute batches by number.

It uses plain actors and `ray.wait`, not Ray Data, whose blocks, buffers and statistics cost more
than a batch of a small network.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.collecting.blocks import Job, Sink
from recal.collecting.local import progress_bar
from recal.collecting.sources import Source
from recal.errors import InputError, MissingExtraError, RecalError

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise MissingExtraError("ray", "ray", "engine='ray'") from error

# A batch that killed this many workers is not tried again.
_DEATHS = 5
_ASK_AGAIN_SECONDS = 0.5
# Errors which mean that a worker, its machine or its answer is lost. They say nothing about the
# batch itself.
_LOST = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
)


# A job, its inputs and the batch size: the same for every worker.
Task = tuple[Job, Source, int]


class Worker:
    """Computes batches in another process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        _set_threads(threads)  # before a model is opened: some read the number only then
        self._open = ExitStack()

    def begin(self, task: Task) -> None:
        """Open the model."""
        self.task = task
        _set_threads(self.threads)
        self._open.close()  # `begin` may be called twice
        self._open.enter_context(task[0].model.running())

    def run(self, index: int) -> Any:
        """Return the result of one batch."""
        job, source, batch_size = self.task
        return job.run(source.batch(index, batch_size), source.describe)


def _set_threads(count: int) -> None:
    """Limit the threads; otherwise each of several workers on one machine would use all of its
    cores.
    """
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = os.environ["RECAL_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


class WorkerPool:
    """Actors that share the batches of one task.

    A worker gets batches only after it has started, so a worker that waits for resources delays no
    batch. When a worker dies, its batches go to the others, and Ray restarts it if there are
    resources.
    """

    def __init__(self, task: Task, size: int, threads: int, cpus: float, gpus: float) -> None:
        actor: Any = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0
        )
        # Kept as long as the workers, because a restarted worker needs it again.
        self._task = ray.put(task)
        self._request = {"CPU": cpus, "GPU": gpus}
        self._actors = [actor.remote(threads) for _ in range(size)]
        self._ready: set[int] = set()  # workers, by their index in the list
        self._silent: dict[int, float] = {}  # workers to greet again, and when
        # The worker of each call, and the number of a batch or None for a greeting.
        self._calls: dict[Any, tuple[int, int | None]] = {}
        self._deaths: Counter[int] = Counter()
        for worker in range(size):
            self._greet(worker)

    def answers(self, chunks: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each batch and its answer, in the order of arrival."""
        waiting, missing, since = deque(chunks), len(chunks), time.monotonic()
        while missing:
            load = Counter(worker for worker, _ in self._calls.values())
            # Each worker has one batch running and one queued, so that it never waits for the driver.
            for worker in self._ready:
                for _ in range(min(2 - load[worker], len(waiting))):
                    index = waiting.popleft()
                    self._calls[self._actors[worker].run.remote(index)] = (worker, index)
            for worker, moment in list(self._silent.items()):
                if moment <= time.monotonic():
                    del self._silent[worker]
                    self._greet(worker)
            if not self._calls and not self._silent:
                raise RecalError(
                    f"All {len(self._actors)} workers are gone, with {missing} batches still to do."
                )
            if not self._calls:
                time.sleep(_ASK_AGAIN_SECONDS)
                continue
            done, _ = ray.wait(list(self._calls), timeout=_ASK_AGAIN_SECONDS)
            for call in done:
                worker, place = self._calls.pop(call)
                answer = self._receive(call, worker, place, waiting)
                if place is not None and answer is not None:
                    missing -= 1
                    yield place, answer
            since = self._warn_of_waiting(since)

    def close(self) -> None:
        """End the workers; their unfinished work is not needed."""
        for actor in self._actors:
            ray.kill(actor)

    def _greet(self, worker: int) -> None:
        self._calls[self._actors[worker].begin.remote(self._task)] = (worker, None)

    def _receive(self, call: Any, worker: int, index: int | None, waiting: deque[int]) -> Any:
        """Return a batch's answer;

        None for a greeting, and for a batch that goes back to the queue.
        """
        try:
            answer = ray.get(call)
        except _LOST as error:
            self._lose(error, worker, index, waiting)
            return None
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, RecalError):  # raise it without the traceback of the worker
                raise error.cause from None
            raise
        if index is None:
            self._ready.add(worker)
        return answer

    def _lose(self, error: Exception, worker: int, index: int | None, waiting: deque[int]) -> None:
        # Ray does not restart a worker that failed to start.
        if index is None and isinstance(error, exceptions.ActorDiedError):
            raise RecalError(f"A worker could not start: {_lines(error)[-1]}") from error
        if index is not None:
            waiting.appendleft(index)
            self._deaths[index] += 1
            if self._deaths[index] >= _DEATHS:
                raise RecalError(
                    f"{_DEATHS} workers died with batch {index} under way ({_lines(error)[0].rstrip('.')}). If memory "
                    "is short, take a smaller batch_size, or fewer workers on a machine (RayEngine(cpus=...))."
                ) from error
        if isinstance(error, exceptions.ObjectLostError):  # the worker may be alive
            return
        self._ready.discard(worker)
        if (worker, None) not in self._calls.values():
            self._silent.setdefault(worker, time.monotonic() + _ASK_AGAIN_SECONDS)

    def _warn_of_waiting(self, since: float) -> float:
        """Warn once a minute if no worker has started; return the start of the current minute."""
        now = time.monotonic()
        if self._ready or now - since < 60:
            return now if self._ready else since
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        names = [name for name, count in self._request.items() if count]
        warnings.warn(
            f"No worker has answered for a minute. Each asks for {_amounts(self._request, names)}; the cluster has "
            f"{_amounts(free, names)} free, in all. On a busy machine they may still be importing packages. If other jobs "
            "hold the resources, Ray waits until they are free; RayEngine(cpus=..., gpus=...) can request fewer.",
            UserWarning,
            stacklevel=2,
        )
        return now


def _amounts(resources: Mapping[str, float], names: Sequence[str]) -> str:
    return " and ".join(f"{resources.get(name, 0):g} {name}" for name in names)


def _lines(error: Exception) -> list[str]:
    return (str(error).strip() or type(error).__name__).splitlines()


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

    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"must be at least 1, got {value!r}", argument=name)
        if self.cpus < 0 or self.gpus < 0:
            raise InputError(
                f"must not be negative, got {self.cpus!r} and {self.gpus!r}",
                argument=("cpus", "gpus"),
            )

    def run(self, job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
        """Compute every batch that the sink lacks."""
        every = range(-(-source.n_samples // batch_size))
        chunks = [index for index in every if index not in sink.done]
        if not chunks:
            return
        with (
            self._cluster(),
            closing(self._start_workers((job, source, batch_size), len(chunks))) as workers,
            progress_bar(sink, source, batch_size, show=progress) as advance,
        ):
            for index, answer in workers.answers(chunks):
                sink.take(index, answer)
                advance(min(batch_size, source.n_samples - index * batch_size))

    def _start_workers(self, task: Task, n_chunks: int) -> WorkerPool:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        each = {"CPU": self.cpus, "GPU": self.gpus}
        room = [resources.get(name, 0) // count for name, count in each.items() if count]
        size = max(1, int(min([*room, n_chunks])))
        if self.workers is not None:
            size = min(self.workers, n_chunks)
        return WorkerPool(task, size, self.threads or max(1, int(self.cpus)), self.cpus, self.gpus)

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
            if "timed out" in reason:
                reason += ". A busy machine starts Ray slowly: try again, or give it longer, RAY_raylet_start_wait_time_s=120"
            raise RecalError(f"Cannot reach {place}: {reason}.") from error
        try:
            yield
        finally:
            ray.shutdown()
