"""A calibrator applied to new inputs: only the transformations it needs are computed, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Labels
from recal.collecting.inputs.sources import Source
from recal.collecting.job import Block, Job, Preprocess
from recal.collecting.local import Engine, choose_engine, open_source
from recal.collecting.models.base import Outputs, as_model
from recal.collecting.sinks.memory import Sink
from recal.errors import InputError
from recal.transforms import Named, Transform
from recal.transforms.parse import Own, by_name
from recal.views import Views


@dataclass(frozen=True)
class Applied:
    """Calibrated probabilities of some inputs, with their labels where those are known."""

    probs: NDArray[np.float64]
    labels: Labels | None
    classes: NDArray | None


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
    outputs: Outputs = "logits",
    device: Any = None,
    transforms: Own = (),
    **files: Any,
) -> Applied:
    """Return calibrated probabilities of inputs; neither inputs nor logits are ever held whole.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted on views of the same model.
    model, inputs, preprocess, labels, batch_size, engine, progress, outputs, device, **files
        As in `recal.collect`.
    transforms : sequence of callables, or mapping of name to callable
        Your own transformations, where the calibrator knows them by name only.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import TemperatureScaling
    >>> from recal.collecting import apply
    >>> calibrator = TemperatureScaling().fit(np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), [0, 1, 1])
    >>> apply(calibrator, lambda batch: batch, np.array([[2.0, -2.0]])).probs.argmax(1)
    array([0])
    """
    needed = needed_transforms(calibrator, transforms)
    job = Job(as_model(model, outputs=outputs, device=device), needed, preprocess, outputs)
    source = open_source(inputs, labels, files)
    sink = ProbabilitySink(job, source, calibrator)
    choose_engine(engine)(job, source, batch_size, sink, progress)
    return sink.result()


def needed_transforms(calibrator: Calibrator, given: Own = ()) -> tuple[Transform, ...]:
    """Return what must be computed for a calibrator; names are looked up among the transformations given."""
    own = by_name(given)
    needed = tuple(own.get(str(transform), transform) for transform in calibrator.needed_transforms())
    for transform in needed:
        if isinstance(transform, Named) and transform.function is None:
            raise InputError(
                f"The calibrator needs the transformation {str(transform)!r}, which is known by name only; "
                f"give its code again: transforms={{{str(transform)!r}: your_function}}."
            )
    return needed


class ProbabilitySink(Sink):
    """Calibrates each block as it comes and keeps the probabilities alone."""

    def __init__(self, job: Job, source: Source, calibrator: Calibrator) -> None:
        super().__init__(job, source, None)
        self.calibrator = calibrator
        self._probs: dict[int, NDArray[np.float64]] = {}

    def put(self, block: Block) -> None:
        self._check(block)
        self._probs[block.index] = calibrate(self.calibrator, self.job.transforms, block)

    def result(self) -> Applied:
        probs = np.concatenate([self._probs[index] for index in sorted(self._probs)])
        names = self.calibrator.classes_
        self.asked_classes = None if np.array_equal(names, np.arange(len(names))) else names.tolist()
        labels, classes = self.labels(*probs.shape)
        return Applied(probs, labels, classes)


def calibrate(calibrator: Calibrator, transforms: Sequence[Transform], block: Block) -> NDArray[np.float64]:
    """Return the calibrated probabilities of one block."""
    views: dict[Transform | str, Any] = dict(zip(transforms, block.transformed))
    return calibrator.predict_proba(Views(block.logits, views))
