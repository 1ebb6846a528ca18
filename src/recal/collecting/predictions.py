"""Calibrated predictions for new inputs, and what they cost in forward passes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recal.calibrators.base import Calibrator
from recal.checks import Floats, Labels
from recal.collecting.inputs.sources import Source
from recal.collecting.job import Block, Job, Preprocess
from recal.collecting.local import Engine, choose_engine, open_source
from recal.collecting.models.base import as_model
from recal.collecting.sinks.memory import Sink
from recal.decisions.watching.class_mix import ClassMix, adapt_to_class_mix
from recal.decisions.watching.class_mix import class_mix as estimate_class_mix
from recal.decisions.watching.profile import Profile
from recal.decisions.watching.result import WatchResult, followed_confidences, to_the_power
from recal.decisions.watching.statistics import RowNumbers
from recal.errors import InputError, Remedy
from recal.maps.base import Map
from recal.transforms import Named, Transform
from recal.transforms.pool import Own, by_name
from recal.transforms.preprocessing import Outputs, match_outputs, match_preprocess
from recal.views import Views


@dataclass(frozen=True)
class Predictions:
    """Calibrated probabilities of some inputs, with their labels where those are known."""

    probs: NDArray[np.float64]
    labels: Labels | None
    classes: NDArray[Any] | None
    passes: NDArray[np.int64] | None = None  # forward passes of each answer
    confidences: NDArray[np.float64] | None = None  # the chance that each answer is right, as `predict_confidence`
    fitted_rows: int = 0  # how many of the inputs the calibrator was fitted on
    condition: WatchResult | None = None  # what following found of these inputs, where it was asked for
    class_mix: ClassMix | None = None  # where another class mix than the fit's was asked for
    predictions_changed: int = 0  # by the class mix
    logits: Floats | None = None  # where they were kept, for a comparison with those of the fit

    def followed(self, condition: WatchResult) -> Predictions:
        """Return the same answers at the temperature that suits these inputs."""
        probs = to_the_power(self.probs, condition.ratio)
        sure = (
            self.confidences if self.confidences is None else followed_confidences(self.confidences, self.probs, probs)
        )
        return replace(self, probs=probs, confidences=sure, condition=condition)

    def adapted(self, mix: ClassMix) -> Predictions:
        """Return the answers for another class mix, which can be others."""
        probs = adapt_to_class_mix(self.probs, mix)
        other, sure = probs.argmax(axis=1) != self.probs.argmax(axis=1), self.confidences
        if sure is not None:
            sure = np.where(other, probs.max(axis=1), followed_confidences(sure, self.probs, probs))
        return replace(self, probs=probs, confidences=sure, class_mix=mix, predictions_changed=int(other.sum()))

    def judged(
        self, profile: Profile, condition: WatchResult | None, mix: ClassMix | None, *, estimated: bool = False
    ) -> Predictions:
        """Return the answers for the condition and the class mix of these inputs, as far as they were asked for.

        Where an estimated mix alone explains the inputs they are not damaged, and the temperature stays.
        """
        if condition is not None and mix is not None and estimated and mix.changed:
            condition = replace(condition, ratio=1.0, beta=profile.beta)
        found = self if condition is None else self.followed(condition)
        return found if mix is None else found.adapted(mix)

    @property
    def passes_per_answer(self) -> float | None:
        """How many forward passes an answer took on average."""
        return None if self.passes is None or not len(self.passes) else float(self.passes.mean())


def gate_of(calibrator: Calibrator) -> Map | None:
    """Return the calibrator's map if it has a gate."""
    return None if calibrator.map_.gate is None else calibrator.map_


def passes_of(calibrator: Calibrator, logits: Floats) -> NDArray[np.int64]:
    """Return how many forward passes the answer to each sample takes, (n_samples,)."""
    views = len(calibrator.needed_transforms())
    return 1 + views * np.asarray(calibrator.map_.needs_views(logits)).astype(np.int64)


def profile_of(calibrator: Any) -> Profile:
    """Return the profile that a calibrator carries; say how to make one where it carries none."""
    found = getattr(calibrator, "profile_", None)
    if not isinstance(found, Profile):
        raise InputError(
            "Following needs a profile of the fit's samples, and this calibration holds none.",
            remedy=Remedy(
                "Set calibrator.profile_ = recal.profile(views, y) on the fit's views",
                typed="Fit it again: recal fit VIEWS --out calibration.recal, with views of `--pool damage`",
            ),
        )
    return found


def class_names(calibrator: Calibrator) -> list[Any] | None:
    """Return the classes where they have names, and None where they are column numbers."""
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
    class_mix: ClassMix | Literal["follow"] | None = None,
    keep_logits: bool = False,
    **files: Any,
) -> Predictions:
    """Return calibrated probabilities of inputs; inputs are never held whole.

    If the plan has a gate, views are computed only for the samples below it. `Predictions.passes` tells
    how many forward passes each answer took.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted on views of the same model.
    model, inputs, preprocess, labels, batch_size, engine, progress, outputs, device, **files
        As in `recal.collect`. A normalisation and the kind of outputs need not be given again where the calibrator
        knows, from its views, what they were collected with; others than those are refused.
    transforms : sequence of callables, or mapping of name to callable
        Your own transformations, where the calibrator knows them by name only.
    follow : bool
        Judge these inputs, taken together, by their logits, and use the temperature that suits them; the calibrator
        needs a ``profile_`` for it. `Predictions.condition` says what was found.
    class_mix : ClassMix or "follow", optional
        Answer for another class mix than the fit's: one from `recal.decisions.class_mix`, or "follow" to estimate it
        from these inputs. Predictions can change.
    keep_logits : bool
        Also return the model's logits.

    Examples
    --------
    >>> import numpy as np
    >>> from recal import TemperatureScaling
    >>> from recal.collecting import apply
    >>> calibrator = TemperatureScaling().fit(np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), [0, 1, 1])
    >>> apply(calibrator, lambda batch: batch, np.array([[2.0, -2.0]])).probs.argmax(1)
    array([0])
    """
    if not (class_mix is None or class_mix == "follow" or isinstance(class_mix, ClassMix)):
        raise InputError(
            "is 'follow', or what recal.decisions.class_mix returned", argument="class_mix", came=f"got {class_mix!r}"
        )
    source = open_source(inputs, labels, files)
    job = job_of(calibrator, model, source, preprocess, outputs, device, transforms)
    profile = profile_of(calibrator) if follow or class_mix is not None else None
    sink = ProbabilitySink(
        job, source, calibrator, profile, follow=follow, class_mix=class_mix, keep_logits=keep_logits
    )
    choose_engine(engine)(job, source, batch_size, sink, progress)
    return sink.result()


def job_of(
    calibrator: Calibrator,
    model: Any,
    source: Source,
    preprocess: Preprocess | None,
    outputs: Outputs | None,
    device: Any,
    transforms: Own,
) -> Job:
    """Return the job of a calibrator: its transformations, its gate, and the preprocessing of its views."""
    stored = getattr(calibrator, "preprocessing_", None)
    between = match_preprocess(stored, preprocess)
    if outputs is not None and (stored is None or outputs != stored.outputs):
        outputs = as_model(model, outputs=outputs, device=device).returns(outputs)
    kind = match_outputs(stored, outputs)
    sample = source.sample()
    if stored is not None and sample is not None and stored.dtype not in (None, sample[1]):
        warnings.warn(
            f"The calibrator's views were collected from {stored.dtype} inputs and these are {sample[1]}; pixels from "
            "0 to 255 and from 0 to 1 are not the same to a model.",
            UserWarning,
            stacklevel=3,
        )
    needed = needed_transforms(calibrator, transforms)
    answering = as_model(model, outputs=kind, device=device)
    kind = answering.returns(kind) if stored is None else kind
    return Job(answering, needed, between, kind, gate_of(calibrator))


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


@dataclass(frozen=True)
class CalibratedBlock:
    """What a block's samples are answered, and what the answers took."""

    index: int
    probs: NDArray[np.float64]
    confidences: NDArray[np.float64]
    passes: NDArray[np.int64]
    labels: NDArray[Any] | None
    fitted_rows: int = 0
    numbers: RowNumbers | None = None
    logits: NDArray[np.float32] | None = None  # where the class mix is estimated

    def __len__(self) -> int:
        return len(self.probs)


@dataclass(frozen=True)
class BlockCalibrator:
    """Calibrates a block, here or where it was computed."""

    calibrator: Calibrator
    transforms: tuple[Transform, ...]
    profile: Profile | None = None  # where inputs are followed
    keeps_logits: bool = False
    groups: NDArray[Any] | None = None  # of all inputs

    def __call__(self, block: Block) -> CalibratedBlock:
        views: dict[Transform | str, Any] = dict(zip(self.transforms, block.transformed))
        seen = Views(block.logits, views)
        rows = slice(block.start, block.start + len(block))
        both = self.calibrator.predict_both(seen, None if self.groups is None else self.groups[rows])
        passes = passes_of(self.calibrator, block.logits)
        fitted = self.calibrator.fitted_rows(seen)
        numbers = None if self.profile is None else self.profile.numbers(block.logits)
        kept = np.asarray(block.logits, np.float32) if self.keeps_logits else None
        return CalibratedBlock(block.index, *both, passes, block.labels, fitted, numbers, kept)


class ProbabilitySink(Sink):
    """Calibrates each block as it comes and keeps the probabilities alone."""

    doing: ClassVar[str] = "Applying"

    def __init__(
        self,
        job: Job,
        source: Source,
        calibrator: Calibrator,
        profile: Profile | None = None,
        *,
        follow: bool = False,
        class_mix: ClassMix | Literal["follow"] | None = None,
        keep_logits: bool = False,
    ) -> None:
        super().__init__(job, source, class_names(calibrator))
        self.keep_logits = keep_logits or class_mix == "follow"
        self.calibrator, self.profile, self.follow, self.class_mix = calibrator, profile, follow, class_mix
        self._blocks: dict[int, CalibratedBlock] = {}

    def put(self, block: Block) -> None:
        self._check(block)
        self.take(self.finisher()(block))

    def finisher(self) -> BlockCalibrator:
        followed = self.profile if self.follow else None
        return BlockCalibrator(
            self.calibrator, self.job.transforms, followed, self.keep_logits, getattr(self.source, "groups", None)
        )

    def take(self, finished: CalibratedBlock) -> None:
        if finished.labels is not None and self.source.labels is None:
            self._labels[finished.index] = finished.labels
        self._blocks[finished.index] = finished

    def result(self) -> Predictions:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        probs = np.concatenate([block.probs for block in blocks])
        labels, classes = self.labels(*probs.shape)
        passes, sure = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("passes", "confidences"))
        kept = [block.logits for block in blocks if block.logits is not None]
        logits = np.concatenate(kept) if kept else None
        fitted_rows = sum(block.fitted_rows for block in blocks)
        applied = Predictions(probs, labels, classes, passes, sure, fitted_rows, logits=logits)
        if self.profile is None:
            return applied
        pieces = [block.numbers for block in blocks if block.numbers is not None]
        condition, mix = self.profile.condition_of(pieces) if self.follow else None, self.class_mix
        if isinstance(mix, str):
            assert logits is not None
            mix = estimate_class_mix(self.profile, logits)
        return applied.judged(self.profile, condition, mix, estimated=self.class_mix == "follow")
