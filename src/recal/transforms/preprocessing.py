"""How inputs reach a model and what it returns: normalisation, kinds of outputs, and the record
that files keep.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np

from recal.errors import InputError
from recal.schema import Levels, ListOf, Number, Record, Size, Sizes, Texts, check, kind_of
from recal.transforms import arrays

Outputs = Literal["logits", "probabilities", "votes"]
# Smaller probabilities count as this before their logarithm is taken. A 0 among computed ones has
# underflowed, and even 1e-10 is informative.
PROBABILITY_FLOOR = 1e-12


def check_outputs(outputs: Any) -> Outputs:
    """Return the kind of a model's outputs; refuse anything else."""
    kind: Outputs = check(outputs, kind_of(Outputs), "outputs")
    return kind


def least_probability(outputs: Outputs, n_classes: int) -> float:
    """Return the floor of probabilities.

    A share of 0 votes means too few voters (trees or neighbours). Their floor was chosen on one
    half of 28 data sets and confirmed on the other (docs/methods.md).
    """
    return 0.01 / n_classes if outputs == "votes" else PROBABILITY_FLOOR


class _PerChannel(ListOf):
    """One number, or one for each channel."""

    def __init__(self) -> None:
        super().__init__(Number(), keep=tuple)
        self.rule = "a number, or a list with one for each channel"

    def read(self, value: Any, sizes: Sizes) -> Any:
        return super().read([value] if np.ndim(value) == 0 else value, sizes)


Channels = Literal["first", "last", "keep"]
PerChannel = Annotated[float | Sequence[float], _PerChannel()]


class Normalize(Record):
    """Divide by `divide`, subtract `mean`, divide by `std`, per channel; for arrays and tensors, to
    float32.

    Parameters
    ----------
    mean, std : float or one per channel
    divide : float
        255 brings uint8 pixels to [0, 1].
    channels : {"first", "last", "keep"}
        Where the model expects the channels of (n, h, w, c) or (n, c, h, w) batches. Grey (n, h, w)
        batches get a channel axis.

    Examples
    --------
    >>> import numpy as np
    >>> from recal.collecting import Normalize
    >>> Normalize(mean=0.5, std=0.5)(np.full((1, 2, 2, 3), 255, np.uint8)).shape
    (1, 3, 2, 2)
    """

    mean: PerChannel = 0.0
    std: PerChannel = 1.0
    divide: float = 255.0
    channels: Channels = "first"

    def check(self) -> None:
        if self.divide == 0 or 0 in np.asarray(self.std):
            raise InputError("must not be 0", argument=("divide", "std"))

    def __call__(self, images: Any) -> Any:
        is_tensor = arrays.is_tensor(images)
        values = images.float() if is_tensor else np.asarray(images, dtype=np.float32)
        values = values / self.divide
        if self.channels != "keep":
            values = self._place_channels(values)
        axis = 1 if self.channels == "first" else -1
        return (values - self._along(axis, self.mean, values)) / self._along(axis, self.std, values)

    def _place_channels(self, values: Any) -> Any:
        shape = values.shape
        if len(shape) == 3:
            return values[:, None] if self.channels == "first" else values[..., None]
        if len(shape) != 4:
            rule = "Images come as (n, h, w), (n, h, w, c) or (n, c, h, w)"
            raise InputError(f"{rule}; got {tuple(shape)}.")
        is_last = shape[-1] in (1, 3, 4) and shape[1] not in (1, 3, 4)
        if is_last == (self.channels == "last"):
            return values
        return arrays.numpy_or_torch(values).moveaxis(values, *((3, 1) if is_last else (1, 3)))

    def _along(self, axis: int, number: float | Sequence[float], values: Any) -> Any:
        constants = np.asarray(number, dtype=np.float32).reshape(-1)
        if len(constants) not in (1, values.shape[axis]):
            rule = f"need one value, or one for each of {values.shape[axis]} channels"
            raise InputError(f"{rule}, got {len(constants)}", argument=("mean", "std"))
        shape = [1] * len(values.shape)
        shape[axis] = len(constants)
        return arrays.constant(constants.reshape(shape).tolist(), values)


class Preprocessing(Record):
    """How inputs reached the model when views were collected.

    Parameters
    ----------
    normalize : Normalize, optional
        What ran after the transformations.
    function : str, optional
        The name of the user's function that ran in its place. Files hold no code, so it must be
        given again.
    outputs : str
        What the model returned: "logits", "probabilities" or "votes".
    pixels, resize, crop, seconds : optional
        How files were read, if inputs came from a folder.
    text_column, label_column, cluster_column, group_column : str, optional
        Which columns were read, if inputs came from a table.
    columns, levels : optional
        The names of a table's columns in the order in which the model got them, and the categories
        of each; later tables are brought into this form.
    shape, dtype : optional
        Shape and dtype of one input before the transformations, if all have the same.
    model : str, optional
        A digest of the model, so that recal notices if a calibration is applied to another model.
    asked : optional
        How a language model was asked: its name, options, templates and settings.

    Examples
    --------
    >>> from recal.collecting import Normalize
    >>> from recal.transforms.preprocessing import Preprocessing
    >>> print(Preprocessing(Normalize(mean=0.5, std=0.25), shape=(28, 28), dtype="uint8"))
    --divide 255 --mean 0.5 --std 0.25 --channels first
    """

    normalize: Normalize | None = None
    function: str | None = None
    outputs: Outputs = "logits"
    pixels: str | None = None
    resize: Size | None = None
    crop: Size | None = None
    seconds: float | None = None
    text_column: str | None = None
    label_column: str | None = None
    cluster_column: str | None = None
    group_column: str | None = None
    columns: Texts | None = None
    levels: Levels | None = None
    shape: tuple[Size, ...] | None = None
    dtype: str | None = None
    model: str | None = None
    asked: Levels | None = None

    def check(self) -> None:
        if self.normalize is not None and self.function is not None:
            raise InputError("Preprocessing is a Normalize, or the name of a function, not both.")

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, values: Any) -> Preprocessing:
        """Return what `as_json` wrote; refuse anything else."""
        try:
            if (normalize := values.get("normalize")) is not None:
                values = {**values, "normalize": Normalize(**normalize)}
            return cls(**values)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"a preprocessing cannot hold {values!r}: {error}") from None

    def options(self) -> dict[str, str]:
        """Return the same as command-line options, by name; label columns are left out because they
        change no input.
        """
        steps, reading = ("divide", "mean", "std", "channels"), ("pixels", "resize", "crop")
        values = {name: getattr(self.normalize, name, None) for name in steps}
        values["preprocess"] = self.function
        values["outputs"] = None if self.outputs == "logits" else self.outputs
        values |= {name: getattr(self, name) for name in (*reading, "seconds")}
        values["text-column"] = self.text_column
        return {name: _text(value) for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in self.options().items())


def _text(value: Any) -> str:
    parts = value if isinstance(value, tuple) else (value,)
    return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)


def record(
    preprocess: Callable[[Any], Any] | None,
    outputs: Outputs,
    reading: Mapping[str, Any],
    sample: tuple[tuple[int, ...], str] | None,
    model: str,
) -> Preprocessing:
    """Return the record of one collection.

    `sample` is the shape and dtype of one input, if all have the same, and `model` the model's
    digest.
    """
    own: dict[str, Any] = {**reading, "outputs": outputs, "model": model}
    if sample is not None:
        own["shape"], own["dtype"] = sample
    if isinstance(preprocess, Normalize):
        own["normalize"] = preprocess
    elif preprocess is not None:
        own["function"] = _function_name(preprocess)
    return Preprocessing(**own)


def _function_name(function: Callable[[Any], Any]) -> str:
    # Functions of numpy 2.0 have only the shorter of the two names, and no module of their own.
    short = getattr(function, "__name__", type(function).__qualname__)
    name = getattr(function, "__qualname__", None) or short
    return f"{getattr(function, '__module__', None) or type(function).__module__}:{name}"


def match_preprocess(
    stored: Preprocessing | None, own: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """Return the function to run between transformations and model: the user's own, or that of the
    collection.

    A normalisation that contradicts the stored one is refused; functions cannot be compared.
    """
    if stored is None:
        return own
    if own is None:
        if stored.function is not None:
            rule = f"The views were collected with the function {stored.function!r}"
            remedy = f"Files hold no code; give it again: preprocess={stored.function} in Python"
            raise InputError(rule, remedy=remedy)
        return stored.normalize
    if isinstance(own, Normalize) and stored.function is None and stored.normalize != own:
        before = stored.normalize or "no preprocessing"
        rule = f"{own} contradicts the calibration, whose views were collected with {before}"
        raise InputError(rule, remedy="Leave it out, or collect and fit again")
    return own


def check_model(stored: Preprocessing | None, model: str, *, refuse: bool = False) -> None:
    """Warn if the calibration was fitted for a model with another digest, or refuse that model."""
    if stored is None or stored.model in (None, model):
        return
    message = (
        "The calibration was fitted for another model, or for another file of this one: fit a "
        "calibration for this model"
    )
    if refuse:
        raise InputError(message, remedy="Use --force to apply it all the same")
    warnings.warn(f"{message}.", UserWarning, stacklevel=3)


def match_outputs(stored: Preprocessing | None, outputs: Outputs | None) -> Outputs:
    """Return the kind of outputs, as the user gives it or as stored with the views; refuse a
    contradiction.
    """
    if stored is None:
        return outputs or "logits"
    is_vote = outputs == "probabilities" and stored.outputs == "votes"
    if outputs not in (None, stored.outputs) and not is_vote:
        rule = f"{outputs!r} contradicts the calibration, fitted with {stored.outputs!r}"
        remedy = "Leave it out, or collect and fit again"
        raise InputError(rule, argument="outputs", remedy=remedy)
    return stored.outputs
