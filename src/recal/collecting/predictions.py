"""Calibrated predictions for new inputs, and their cost in forward passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats
from recal.collecting.blocks import Block, Preprocess, Sink, join_labels, label_columns
from recal.collecting.local import Engine, choose_engine, job_of, open_as_fitted
from recal.decisions.following import WatchResult, followed_confidences, to_the_power
from recal.decisions.profiles import Profile
from recal.errors import InputError
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
    sink = PredictionSink(calibrator, job.transforms, source.groups)
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


class PredictionSink(Sink):
    """Calibrates blocks. Predictions have the labels as the source gives them."""

    def __init__(
        self,
        calibrator: Calibrator,
        transforms: tuple[Transform, ...],
        groups: NDArray[Any] | None,  # of all inputs
    ) -> None:
        super().__init__("Applying")
        self.calibrator, self.transforms, self.groups = calibrator, transforms, groups

    def take(self, index: int, result: Block) -> None:
        calibrator, logits = self.calibrator, result.logits
        views = Views(logits, dict(zip(self.transforms, result.transformed)))
        rows = slice(result.start, result.start + len(result))
        groups = None if self.groups is None else self.groups[rows]
        probs, confidences = calibrator.predict_both(views, groups)
        passes, n_known = passes_of(calibrator, logits), calibrator.fitted_rows(views)
        self.results[index] = Predictions(
            probs, result.labels, None, passes, confidences, n_known, logits=logits
        )
