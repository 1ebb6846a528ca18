"""collect: a model, a pool and inputs to Views, batch by batch."""

from __future__ import annotations

import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from recal.checks import check_one_each
from recal.collecting.default_pool import NAMED, usual_pool
from recal.collecting.inputs.sources import Source, as_source
from recal.collecting.job import Job, Preprocess
from recal.collecting.models.base import as_model
from recal.collecting.sinks.memory import FileSink, MemorySink, Sink, ViewsSink
from recal.errors import InputError, Remedy
from recal.files.urls import as_path, refuse_single_file
from recal.transforms import Transform
from recal.transforms import pool as draw_pool
from recal.transforms.preprocessing import Outputs, record
from recal.views import Views


class ProgressLines:
    """Prints one line every 30 seconds: how much is done, and how long the rest will take."""

    every: ClassVar[float] = 30.0

    def __init__(self, what: str, total: int | None, done: int) -> None:
        self.what, self.total, self.done = what, total, done
        self.first, self.start = done, time.monotonic()
        self.printed = self.start

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.printed < self.every:
            return
        self.printed = now
        share = f"{self.done:,} inputs"
        if self.total is not None:
            seconds = (now - self.start) / (self.done - self.first) * (self.total - self.done)
            left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
            share = f"{self.done:,} of {self.total:,} inputs ({self.done / self.total:.0%}), about {left} left"
        print(f"recal: {self.what}: {share}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(what: str, total: int | None, done: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of newly finished samples; show a bar, or a line every 30 seconds."""
    if not shown:
        yield lambda count: None
        return
    if not sys.stderr.isatty():
        yield ProgressLines(what, total, done).advance
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


Engine = Literal["local", "ray"]
Runner = Callable[[Job, Source, int, Sink, bool], None]


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
    pilot: int | None = None,
    **files: Any,
) -> Views:
    """Compute a model's logits for inputs and for transformed copies of them.

    Parameters
    ----------
    model : callable, torch module, fitted scikit-learn classifier, ONNX session, (model, processor), or path
        What gives logits for a batch; see `recal.collecting.models.base.as_model`.
    inputs : array, tensor, torch Dataset or DataLoader, iterable of batches, or path
        Not yet normalised: transformations act on pixels, and `preprocess` follows them. A folder, dataset or loader
        is read batch by batch and never held whole.
    pool : str, sequence of transformations, or None
        As in `recal.pool`; None or "none" for the originals alone; "auto" for the default pool for such inputs.
    preprocess : callable, optional
        From a transformed batch to what the model takes (normalisation, layout). It gets a tensor on the model's
        device for a torch model, and an array otherwise.
    labels : array-like or path, optional
        The true classes, where the inputs do not bring them.
    classes : sequence, optional
        The model's columns in order, where labels are not column indices. If neither this nor the model tells the
        names of the classes, named labels are columns in alphabetical order; a few hundred predictions must agree.
    batch_size : int
        Samples in one forward pass. Another size may change the last bits of the logits.
    out : path, optional
        A name ending in .zarr is a store, written batch by batch and resumable; one in .npz is written at the end.
    engine : {"local", "ray"} or RayEngine
        Where the work is done.
    resume : bool
        Resume a store that was interrupted; False starts over and overwrites it.
    progress : bool
        Show a bar; without a terminal, print a line every 30 seconds.
    outputs : {"logits", "probabilities", "votes"} or "probabilities:FLOOR"
        What the model returns. Logarithms are taken of probabilities; those below a floor of 1e-12 count as the floor.
        "votes" are probabilities that are shares of trees or of neighbours, where 0 means too few voters: the floor is
        0.01 / n_classes. scikit-learn's forests, trees and neighbours are known to vote. Another floor is set by its
        number, as in "probabilities:0.001".
    device : optional
        Where a torch model runs; it is moved back afterwards.
    seed : int
        For drawing the pool, and the pilot's samples.
    pilot : int, optional
        Compute all of the pool for that many labelled samples, drawn at random; then, for all of them, only the views
        that `ViewStacking` chose there. Beside a store the pilot is kept as one of its own, ``name.pilot.zarr``.
        `recal.collecting.run_pilot` tells more about it.
    **files
        For inputs given as a path: `read` ("images", "texts", "sounds" or "bytes") and `on_error` ("stop" or "skip")
        of a folder, `resize`, `crop` and `pixels` ("rgb", "gray", "rgba" or "gray16") of images, `seconds` of sounds,
        `label_column` and `text_column` of a table.

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
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError("must be a whole number from 1 on", argument="batch_size", came=f"got {batch_size!r}")
    answering = as_model(model, outputs=outputs, device=device)
    outputs = answering.returns(outputs)
    source = open_source(inputs, labels, files)
    if engine == "local":
        from recal.collecting.preflight import name_and_check  # it imports this module

        how: dict[str, Any] = {"preprocess": preprocess, "outputs": outputs, "batch_size": int(batch_size)}
        source = name_and_check(source, answering, classes, **how)
    named = isinstance(pool, str) and pool in NAMED
    transforms = usual_pool(source, answering, seed, str(pool)) if named else as_pool(pool, seed)
    target = None if out is None else as_path(out)
    if pilot is not None and transforms and needs_pilot(source, pilot):
        from recal.collecting.pilot import run_pilot

        how = {"preprocess": preprocess, "outputs": outputs, "engine": engine, "batch_size": batch_size}
        how |= {"classes": classes, "resume": resume, "progress": progress, "out": target, "seed": seed}
        transforms = run_pilot(answering, source, transforms, pilot, **how).chosen
    between = record(preprocess, outputs, source.reading(), source.sample(), answering.fingerprint())
    job = Job(answering, transforms, preprocess, outputs, preprocessing=between)
    sink = _open_sink(target, job, source, classes, int(batch_size), resume)
    run = choose_engine(engine)
    with sink:
        run(job, source, int(batch_size), sink, progress)
        return sink.finish()


def needs_pilot(source: Source, size: int) -> bool:
    """Whether there are more samples than the pilot would take; otherwise all are computed anyway."""
    return source.n_samples is None or source.n_samples > size


def as_pool(pool: str | Sequence[Transform | str] | None, seed: int = 0) -> tuple[Transform, ...]:
    """Return a pool as its transformations; nothing at all where it is None or empty."""
    if (
        pool is None
        or (isinstance(pool, str) and pool == "none")
        or (not isinstance(pool, str) and not callable(pool) and len(pool) == 0)
    ):
        return ()
    return draw_pool(pool, seed=seed)


def open_source(inputs: Any, labels: Any, files: Mapping[str, Any]) -> Source:
    """Return the source of what the caller passed, and tell of what it leaves out."""
    source = as_source(inputs, **files)
    if source.skipped and source is not inputs:  # a source that the caller opened can be asked
        warnings.warn(
            f"{len(source.skipped)} images could not be read and were skipped, such as {source.skipped[0]}.",
            UserWarning,
            stacklevel=3,
        )
    return with_labels(source, labels)


def with_labels(source: Source, labels: Any) -> Source:
    """Give a source the labels that came beside it."""
    if labels is None:
        return source
    if isinstance(labels, str | os.PathLike):
        from recal.collecting.inputs.files import read_labels

        labels = read_labels(Path(labels))
    array = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    check_one_each(array, source.n_samples)
    given = copy.copy(source)  # the caller's source stays as it was
    given.labels, given.classes = array, None
    return given


def _open_sink(
    target: Path | None, job: Job, source: Source, classes: Sequence[Any] | None, batch_size: int, resume: bool
) -> ViewsSink:
    if target is None:
        return MemorySink(job, source, classes)
    if target.suffix == ".npz":
        refuse_single_file(target)
        return FileSink(job, source, classes, target)
    if target.suffix == ".zarr":
        from recal.collecting.sinks.store import StoreSink

        return StoreSink(job, source, classes, target, batch_size=batch_size, resume=resume)
    raise InputError(
        "must end in .zarr (written batch by batch) or .npz (written at the end)",
        argument="out",
        came=f"got {target.name!r}",
    )


def choose_engine(engine: Any) -> Runner:
    """Return the function that runs a job."""
    if engine == "local":
        return run_local
    if engine == "ray":
        from recal.collecting.ray import RayEngine

        return RayEngine().run
    if hasattr(engine, "run"):
        run: Runner = engine.run
        return run
    raise InputError(
        "must be 'local' or 'ray'",
        argument="engine",
        came=f"got {engine!r}",
        remedy=Remedy("A RayEngine sets more", typed=""),
    )


def run_local(job: Job, source: Source, batch_size: int, sink: Sink, progress: bool) -> None:
    """Run the job in this process."""
    done = sum(min(batch_size, (source.n_samples or batch_size) - index * batch_size) for index in sink.done)
    with job.model.running(), progress_bar(sink.doing, source.n_samples, done, shown=progress) as advance:
        for batch in source.batches(batch_size, sink.done):
            if batch.index in sink.done:
                sink.meet_again(batch)
                continue
            sink.put(job.run(batch, source.describe, digests=sink.wants_digests))
            advance(len(batch))
