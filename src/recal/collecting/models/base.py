"""The interface between `collect` and a model, and what adapters share."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recal.checks import (
    MULTI_LABEL,
    Floats,
    check_probs,
    is_single_column,
    looks_like_probabilities,
    two_columns,
)
from recal.collecting.fingerprint import digest
from recal.errors import InputError, in_both
from recal.transforms.preprocessing import PROBABILITY_FLOOR, Outputs, least_probability

Pixels = Literal["rgb", "gray"]


class Model(ABC):
    """A classifier as `collect` uses it: it takes a batch and returns one row of outputs per
    sample.

    Attributes
    ----------
    name : str
        The model's name in messages.
    classes : ndarray or None
        The names of the columns, if the model knows them.
    gives_logits, gives_probs : bool
        Whether the adapter knows that its outputs are logits, or probabilities.
    known_by_content : bool
        Whether equal fingerprints mean equal predictions. A Python function is known by its name
        only.
    shape : tuple
        The shape of the model's input, including the batch; empty if unknown.
    fixed : int or None
        The only batch size that the model takes.
    features : tuple of str or None
        The names of the columns of a table that the model was fitted on, if it knows them.
    n_features : int or None
        Their number, if the model knows it.
    """

    name: str
    n_answered: int = 0  # forward passes in this process so far, one per sample and view
    classes: NDArray[Any] | None = None
    gives_logits: bool = False
    gives_probs: bool = False
    known_by_content: bool = True
    shape: tuple[Any, ...] = ()
    fixed: int | None = None
    features: tuple[str, ...] | None = None
    n_features: int | None = None

    @property
    def pixels(self) -> Pixels | None:
        """The kind of image that the model takes, by the channels of its input, or None if the
        shape is ambiguous.
        """
        kinds: dict[Any, Pixels] = {1: "gray", 3: "rgb"}
        counts = [side for side in self.shape[1::2] if side in kinds]
        return kinds[counts[0]] if len(self.shape) == 4 and len(counts) == 1 else None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes with the weights or the structure, as far as the adapter can
        see them.
        """

    def returns(self, outputs: Outputs) -> Outputs:
        """Return the kind of the model's outputs: `outputs`, unless the adapter knows better."""
        return outputs

    def running(self) -> AbstractContextManager[Any]:
        """Return a context in which the model can answer; its state is restored afterwards."""
        return nullcontext()

    def prepare(self, inputs: Any) -> Any:
        """Return the batch in the form and on the device in which it is transformed."""
        return inputs

    @abstractmethod
    def answer(self, batch: Any) -> NDArray[Any]:
        """Return the model's outputs for a transformed and preprocessed batch."""


class CallableModel(Model):
    """Any function from a batch to logits, as arrays or tensors."""

    known_by_content = False

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def fingerprint(self) -> str:
        return digest(self.function)

    def answer(self, batch: Any) -> NDArray[Any]:
        return as_numpy(self.function(batch), self.name)


class EstimatorModel(Model):
    """A fitted scikit-learn classifier.

    Logits come from `decision_function`; one number per sample is the log-odds of the second class.
    Without that method, or with ``outputs="probabilities"``, they are the logarithms of
    `predict_proba`. Probabilities of forests, trees and neighbours are shares of votes
    (``outputs="votes"``), also at the end of a pipeline or a search. Batches of more than two
    dimensions are flattened if the classifier was fitted on rows of that length.
    """

    def __init__(self, estimator: Any, *, outputs: Outputs = "logits") -> None:
        self.estimator = estimator
        self.name = type(estimator).__name__
        classes = getattr(estimator, "classes_", None)
        if classes is None or isinstance(classes, list):
            why = "is not fitted; fit it first" if classes is None else "has several outputs"
            raise InputError(f"{self.name} {why}.")
        self.classes = np.asarray(classes)
        if getattr(estimator, "decision_function_shape", None) == "ovo" and len(classes) > 2:
            rule = f"{self.name} gives one margin per pair of classes"
            raise InputError(rule, remedy="Set decision_function_shape='ovr'")
        is_scorer = outputs == "logits" and hasattr(estimator, "decision_function")
        self.method = "decision_function" if is_scorer else "predict_proba"
        if not hasattr(estimator, self.method):
            remedy = f"Use {in_both(outputs='logits')} for its decision_function"
            raise InputError(f"{self.name} has no {self.method}", remedy=remedy)
        # LightGBM has its own attribute, and invents names for columns without any.
        names = getattr(estimator, "feature_names_in_", getattr(estimator, "feature_name_", None))
        if names is not None and not all(re.fullmatch(r"Column_\d+", str(name)) for name in names):
            self.features = tuple(map(str, names))
        self.n_features = getattr(estimator, "n_features_in_", None)
        self.gives_probs = self.method == "predict_proba"
        self.gives_logits = not self.gives_probs

    def returns(self, outputs: Outputs) -> Outputs:
        last = getattr(self.estimator, "best_estimator_", self.estimator)
        last = last.steps[-1][1] if hasattr(last, "steps") else last
        # Their probabilities are shares of trees, of neighbours or of the samples in a leaf.
        voting = {"ForestClassifier", "DecisionTreeClassifier"}
        voting |= {"KNeighborsClassifier", "RadiusNeighborsClassifier"}
        votes = self.gives_probs and any(kind.__name__ in voting for kind in type(last).__mro__)
        return "votes" if votes and outputs in ("logits", "probabilities") else outputs

    def fingerprint(self) -> str:
        return digest([self.method, self.estimator])

    def answer(self, batch: Any) -> NDArray[Any]:
        values = np.asarray(getattr(self.estimator, self.method)(self._rows(batch)))
        return values if values.dtype.kind == "f" else values.astype(np.float64)

    def _rows(self, batch: Any) -> Any:
        is_frame = hasattr(batch, "columns")
        if isinstance(batch, list) or (is_frame and self.features is not None):
            return batch  # texts, or a frame for a model that knows its columns by name
        expected = self.n_features
        batch = to_numpy(batch)
        if expected is None:  # a pipeline whose first step takes any input
            return batch
        size = int(np.prod(batch.shape[1:]))
        if batch.ndim == 4 and size == 3 * expected:
            rule = (
                f"{self.name} was fitted on {expected} values, and colour images here have {size}"
            )
            raise InputError(rule, remedy=f"If they are grey, pass {in_both(pixels='gray')}")
        return batch if batch.ndim <= 2 or size != expected else batch.reshape(len(batch), -1)


def comes_from(value: Any, package: str) -> bool:
    """Whether a base class of the value is from `package`; the package is not imported."""
    return any(
        base.__module__ == package or base.__module__.startswith(package + ".")
        for base in type(value).__mro__
    )


def to_numpy(values: Any) -> NDArray[Any]:
    """Return an array, a list or a tensor on any device as a numpy array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


_GRADE = "If it gives answers, grade them: recal calibrate graded.csv --correct COLUMN."


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """Return a model's outputs as an array; take `.logits` if the model wraps them."""
    values = getattr(values, "logits", values)
    if isinstance(values, dict) and "logits" in values:
        values = values["logits"]
    is_list = isinstance(values, list) and bool(values)
    is_numbers = is_list and isinstance(values[0], list | int | float)
    if isinstance(values, tuple | list | dict) and not is_numbers:
        raise InputError(
            f"{name} returned a {type(values).__name__}; one (n_samples, n_classes) array of "
            f"logits is needed. Wrap the model so that it returns this alone. {_GRADE}"
        )
    if hasattr(values, "detach"):
        is_half = values.dtype.itemsize < 4 and values.is_floating_point()
        values = (values.float() if is_half else values).detach().cpu().numpy()
    return np.asarray(values)


def as_logits(raw: NDArray[Any], outputs: Outputs, model: Model) -> Floats:
    """Return a batch of outputs as logits in float32 or float64; refuse outputs that contradict
    `outputs`.

    Probabilities become their logarithms; those below the floor of `outputs` count as the floor.
    """
    if raw.ndim != 2 and not (raw.ndim == 1 and len(raw)):
        raise InputError(
            f"{model.name} returned the shape {raw.shape}; (n_samples, n_classes) is needed, or "
            "(n_samples,) for the log-odds of the second of two classes."
        )
    if raw.dtype.kind not in "f":
        raise InputError(f"{model.name} returned dtype {raw.dtype}; logits are floats. {_GRADE}")
    # A copy: a model may write its next answers into the same memory.
    values: Floats = raw.astype(np.float32 if raw.dtype.itemsize < 4 else raw.dtype)
    is_probs = not model.gives_logits and (outputs != "logits" or model.gives_probs)
    is_single = is_single_column(values.shape)
    if not is_probs and not model.gives_logits and looks_like_probabilities(values):
        raise InputError(
            f"{model.name} returned values in [0, 1]: these are probabilities, and logits are "
            "needed",
            remedy="Return the values before the softmax or sigmoid, or use "
            f"{in_both(outputs='probabilities')} to take their logarithms",
        )
    if is_single:
        values = two_columns(values, probs=is_probs)
    if not is_probs or not np.isfinite(values).all():
        return values
    return log_of(values, model.name, least_probability(outputs, values.shape[1]))


def log_of(probs: Floats, name: str, floor: float) -> Floats:
    """Return the logarithms of probabilities; warn if some are below the floor."""
    try:
        check_probs(probs)
    except InputError as error:
        remedy = f"If these are logits, leave {in_both(outputs='probabilities')} out"
        if error.remedy == MULTI_LABEL:
            remedy = MULTI_LABEL
        rule = f"What {name} returns as probabilities {error.rule}"
        raise InputError(rule, remedy=remedy) from None
    # A few probabilities of 0 come from rounding, but not among votes.
    if (probs < floor).any(axis=1).mean() > (0 if floor > PROBABILITY_FLOOR else 0.01):
        message = (
            f"{name} returned probabilities of 0, or close to it. Those below {floor:g} count as "
            f"{floor:g}. Shares of votes are outputs='votes' (--outputs votes)."
        )
        warnings.warn(message, UserWarning, stacklevel=2)
    return np.log(np.maximum(probs, probs.dtype.type(floor)))


def in_pieces(run: Callable[[Any], NDArray[Any]], batch: Any, size: int | None) -> NDArray[Any]:
    """Return the outputs of a model that takes `size` rows at a time; the last piece repeats the
    last row.
    """
    if size is None:
        return run(batch)
    starts = range(0, len(batch), size)
    pieces = [batch[np.minimum(np.arange(start, start + size), len(batch) - 1)] for start in starts]
    # Copy each answer: a model may write the next one into the same memory.
    return np.concatenate([run(piece).copy() for piece in pieces])[: len(batch)]


def to_dtype(values: NDArray[Any], dtype: Any, name: str) -> NDArray[Any]:
    """Return values in the dtype that a model takes; refuse those that it cannot represent.

    Pixels from 0 to 1 are not the pixels 0 and 1 of a model that takes uint8.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.models.base import to_dtype
    >>> to_dtype(np.array([0.0, 255.0]), np.uint8, "net.onnx")
    array([  0, 255], dtype=uint8)
    """
    with np.errstate(invalid="ignore"):
        changed = values.astype(dtype, copy=False)
    if not np.issubdtype(dtype, np.integer) or np.array_equal(changed, values):
        return changed
    limits = np.iinfo(dtype)
    raise InputError(
        f"{name} takes whole numbers from {limits.min} to {limits.max} ({np.dtype(dtype)}), "
        f"got values from {values.min():.4g} to {values.max():.4g}",
        remedy="Pass pixels as they are in the file, not divided or normalised",
    )


def with_channel(batch: Any, shape: Sequence[Any]) -> Any:
    """Return a batch of grey images or sounds with a channel axis of length 1, if an input of this
    shape has one.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting.models.base import with_channel
    >>> with_channel(np.zeros((5, 8000)), ("batch", 1, 8000)).shape
    (5, 1, 8000)
    """
    if len(batch.shape) + 1 != len(shape) or len(batch.shape) < 2:
        return batch
    if shape[1] == 1:
        return batch[:, None]
    return batch[..., None] if shape[-1] == 1 else batch
