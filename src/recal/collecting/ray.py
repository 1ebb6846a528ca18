"""Batches handed to Ray actors by their numbers, and their answers gathered: each batch is answered for once.

Plain actors and `ray.wait`, not Ray Data: its blocks, buffers and statistics cost more than a small network's batch.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recal.collecting.inputs.sources import Source
from recal.collecting.job import Block, Finisher, Job
from recal.collecting.local import progress_bar
from recal.collecting.sinks.memory import Sink
from recal.collecting.workers import Refusal, Task, Worker, as_indexed
from recal.errors import InputError, MissingExtraError, RecalError

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise MissingExtraError("ray", "ray", "engine='ray'") from error

# One batch under way and one waiting, so that a worker never waits for the driver.
_AHEAD = 2
# A batch that so many workers died of will not succeed with another.
_DEATHS = 5
_ASK_AGAIN_SECONDS = 0.5
_TELL_AFTER_SECONDS = 60.0
# What tells that a worker, its machine or its answer is gone, and nothing about the batch itself.
_LOST = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
)


class WorkerPool:
    """Some actors that share the batches of one task.

    A worker gets batches only once it has answered, so one that finds no room in the cluster holds none back. When a
    worker dies, its batches go to the others and Ray starts it again, where there is room.
    """

    def __init__(self, task: Task, size: int, threads: int, cpus: float, gpus: float) -> None:
        actor: Any = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
        self._task = ray.put(task)  # held as long as the workers: a restarted worker asks for it again
        self._asked = {"CPU": cpus, "GPU": gpus}
        self._finish: Any = None
        self._actors = [actor.remote(threads) for _ in range(size)]
        self._ready: set[int] = set()  # workers are known by their place in the list
        self._greeted: set[int] = set()
        self._silent: dict[int, float] = {}  # those to be greeted again, and when
        self._calls: dict[Any, tuple[int, int | None]] = {}  # whom, and a batch's number, or None for a greeting
        self._load: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()
        for worker in range(size):
            self._greet(worker)

    def finish_with(self, finish: Finisher) -> None:
        """Let the workers do this with every block from now on."""
        self._finish = ray.put(finish)
        for worker in self._ready:
            self._actors[worker].finish_with.remote(self._finish)

    def answers(self, chunks: list[int]) -> Iterator[Any]:
        """Yield every batch's answer, in the order in which they come."""
        waiting, missing, told = deque(chunks), len(chunks), time.monotonic()
        while missing:
            self._hand_out(waiting)
            self._greet_again()
            if not self._calls and not self._silent:
                raise RecalError(f"All {len(self._actors)} workers are gone, with {missing} batches still to do.")
            if not self._calls:
                time.sleep(_ASK_AGAIN_SECONDS)
                continue
            done, _ = ray.wait(list(self._calls), timeout=_ASK_AGAIN_SECONDS)
            for call in done:
                worker, index = self._calls.pop(call)
                answer = self._receive(call, worker, index, waiting)
                if answer is not None:
                    missing -= 1
                    yield answer
            told = self._tell_of_waiting(told)

    def close(self) -> None:
        """End the workers; what they were at is not needed."""
        for actor in self._actors:
            ray.kill(actor)

    def _greet(self, worker: int) -> None:
        self._greeted.add(worker)
        self._calls[self._actors[worker].begin.remote(self._task, self._finish)] = (worker, None)

    def _greet_again(self) -> None:
        for worker, moment in list(self._silent.items()):
            if moment <= time.monotonic():
                del self._silent[worker]
                self._greet(worker)

    def _hand_out(self, waiting: deque[int]) -> None:
        for worker in self._ready:
            while waiting and self._load[worker] < _AHEAD:
                index = waiting.popleft()
                self._calls[self._actors[worker].run.remote(index)] = (worker, index)
                self._load[worker] += 1

    def _receive(self, call: Any, worker: int, index: int | None, waiting: deque[int]) -> Any:
        """Return a batch's answer; None for a greeting, and for a batch that must wait again."""
        if index is None:
            self._greeted.discard(worker)
        else:
            self._load[worker] -= 1
        try:
            answer = ray.get(call)
        except _LOST as error:
            self._lose(error, worker, index, waiting)
            return None
        if isinstance(answer, Refusal):
            raise answer.error()
        if index is None:
            self._ready.add(worker)
            if self._finish is not None:  # which may have been settled after the greeting went out
                self._actors[worker].finish_with.remote(self._finish)
        return answer

    def _lose(self, error: Exception, worker: int, index: int | None, waiting: deque[int]) -> None:
        if index is None and isinstance(error, exceptions.ActorDiedError):  # Ray restarts all but what failed to begin
            raise RecalError(f"A worker could not start: {_last_line(error)}") from error
        if index is not None:
            waiting.appendleft(index)
            self._deaths[index] += 1
            if self._deaths[index] >= _DEATHS:
                raise RecalError(
                    f"{_DEATHS} workers died with batch {index} under way ({_first_line(error)}). If memory is short, "
                    "take a smaller batch_size, or fewer workers on a machine (RayEngine(cpus=...))."
                ) from error
        if isinstance(error, exceptions.ObjectLostError):  # the answer is gone, and the worker may be well
            return
        self._ready.discard(worker)
        if worker not in self._greeted:
            self._silent.setdefault(worker, time.monotonic() + _ASK_AGAIN_SECONDS)

    def _tell_of_waiting(self, started: float) -> float:
        """Warn, once a minute, when no worker finds room."""
        if self._ready or time.monotonic() - started < _TELL_AFTER_SECONDS:
            return started if not self._ready else time.monotonic()
        asked = " and ".join(f"{count:g} {name}" for name, count in self._asked.items() if count)
        there = ray.available_resources()  # type: ignore[no-untyped-call]
        free = " and ".join(f"{there.get(name, 0):g} {name}" for name, count in self._asked.items() if count)
        warnings.warn(
            f"No worker has answered for a minute. Each asks for {asked}; the cluster has {free} free, in all. "
            "On a busy machine they may still be importing packages. If other jobs hold the resources, Ray waits until "
            "they are free; RayEngine(cpus=..., gpus=...) can request fewer.",
            UserWarning,
            stacklevel=2,
        )
        return time.monotonic()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


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
            closing(self._start_workers(task, len(chunks))) as workers,
            progress_bar(sink.doing, task.source.n_samples, done, shown=progress) as advance,
        ):
            if (finish := sink.finisher()) is not None:
                workers.finish_with(finish)
            for answer in workers.answers(chunks):
                sink.put(answer) if isinstance(answer, Block) else sink.take(answer)
                if finish is None and (finish := sink.finisher()) is not None:
                    workers.finish_with(finish)
                advance(len(answer))

    def _start_workers(self, task: Task, n_chunks: int) -> WorkerPool:
        threads = self.threads or max(1, int(self.cpus))
        return WorkerPool(task, self._size(n_chunks), threads, self.cpus, self.gpus)

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
