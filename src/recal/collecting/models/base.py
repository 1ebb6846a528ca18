"""The interface between `collect` and a model, and the choice of an adapter for the user's model."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
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
from recal.errors import FileError, InputError, MissingExtraError, blame, in_both
from recal.files.limits import refuse_bombs
from recal.transforms.preprocessing import Outputs, check_outputs, least_probability

Pixels = Literal["rgb", "gray", "rgba", "gray16"]
_GRADED = (
    "If it returns only an answer and a confidence, grade its answers and use recal calibrate graded.csv --correct "
    "COLUMN, or SignalCalibration in Python."
)


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
        kinds: dict[Any, Pixels] = {1: "gray", 3: "rgb", 4: "rgba"}
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


def _adapter(module: str, name: str) -> Callable[..., Model]:
    """Return an adapter from a module that may need an optional package."""
    adapter: Callable[..., Model] = getattr(
        importlib.import_module(f"recal.collecting.models.{module}"), name
    )
    return adapter


def as_model(model: Any, *, outputs: Outputs = "logits", device: Any = None) -> Model:
    """Return the adapter for `model`, chosen by its type."""
    check_outputs(outputs)
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return _open_model(Path(model), device)
    if isinstance(model, tuple) and len(model) == 2:
        return _adapter("huggingface", "HuggingFaceModel")(*model, device=device)
    if comes_from(model, "transformers.pipelines"):
        names = ("image_processor", "feature_extractor", "tokenizer")
        processors = [getattr(model, name, None) for name in names]
        processor = next((one for one in processors if one is not None), None)
        return _adapter("huggingface", "HuggingFaceModel")(model.model, processor, device=device)
    if type(model).__name__ == "ExportedProgram" and comes_from(model, "torch.export"):
        return _adapter("torch", "ExportedModel")(model, device=device)
    if comes_from(model, "torch.nn"):
        return _adapter("torch", "TorchModel")(model, device=device)
    if hasattr(model, "get_inputs") and hasattr(model, "run"):
        return _adapter("onnx", "OnnxModel")(model)
    if isinstance(model, type):
        raise InputError(
            f"The model is the class {model.__name__}; pass a trained instance of it, as net = {model.__name__}()."
        )
    if hasattr(model, "predict") and (
        hasattr(model, "predict_proba") or hasattr(model, "decision_function")
    ):
        return _adapter("estimators", "EstimatorModel")(model, outputs=outputs)
    if comes_from(model, "sklearn"):
        raise InputError(
            f"{type(model).__name__} has neither decision_function nor predict_proba, so it gives no confidence; "
            "pass a fitted classifier that has one (an SVC needs probability=True for predict_proba)."
        )
    if callable(model):
        return CallableModel(model)
    raise InputError(
        "A model is a callable that returns logits, a torch module, a fitted scikit-learn classifier, an ONNX session, "
        "a (Hugging Face model, processor or tokenizer) pair, or a path ending in .onnx, .pt2 or .skops; "
        f"got {type(model).__name__}."
    )


def _open_model(path: Path, device: Any) -> Model:
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt"):
        raise InputError(
            f"{path.name} is a pickle, which may run any code when opened, so recal does not open it. Build the module "
            "yourself, load its weights, and pass it; or write it with torch.export.save (.pt2), torch.onnx.export, or "
            "skops.io.dump (.skops) for scikit-learn. With the command line: --model module:function that builds the "
            "network, and --weights FILE.safetensors."
        )
    if not path.exists():
        raise InputError(f"There is no model file {path}. For a model in Python write {path}:NAME.")
    if suffix == ".py":
        raise InputError(
            f"{path} is a program: name the model in it as {path.stem}:NAME, a function or a network."
        )
    if suffix in (".onnx", ".pt2") and not path.is_file():
        raise InputError(f"{path} is not a regular file.")
    if suffix == ".pt2":
        remedy = f"If you trust it, pass torch.export.load({str(path)!r}) (--trust pt2)"
        raise InputError(
            f"Opening {path} can run code, because a .pt2 file may hold pickles.", remedy=remedy
        )
    if suffix == ".onnx":
        return _adapter("onnx", "OnnxModel")(path)
    if suffix == ".skops":
        return as_model(read_skops(path))
    if path.is_dir() and (path / "config.json").exists():
        return _adapter("huggingface", "open_folder")(path, device=device)
    raise InputError(
        "A model file ends in .onnx, .pt2 (torch.export) or .skops (scikit-learn), or is a Hugging Face folder with "
        f"config.json; got {path}."
    )


def import_model(
    spec: str, *, weights: Path | None = None, trusted: Sequence[str] = (), device: Any = None
) -> Any:
    """Return the model at a path, or the Python object that `package.module:name` names.

    Parameters
    ----------
    weights : path, optional
        A .safetensors file for the torch module that `spec` names, or that the function it names
        returns.
    trusted : sequence of str
        Types beyond scikit-learn's and numpy's that a .skops file may hold, by their full names;
        "pt2" to open a .pt2 file, which may run code.
    """
    module, separator, _ = spec.partition(":")
    is_module = all(part.isidentifier() for part in module.split("."))
    if not separator or Path(spec).exists() or not is_module:
        if weights is not None:
            raise InputError(
                f"--weights go with --model module:function, which builds the network; got {spec}."
            )
        if spec.lower().endswith(".pt2") and "pt2" in trusted:
            return _adapter("torch", "ExportedModel")(Path(spec), device=device)
        return read_skops(Path(spec), trusted) if spec.lower().endswith(".skops") else Path(spec)
    model = import_object(spec)
    return model if weights is None else _adapter("torch", "with_weights")(model, weights, spec)


def read_skops(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Read a scikit-learn model from a .skops file; types that skops does not know must be in
    `trusted`.
    """
    try:
        from skops import io
    except ImportError as error:
        raise MissingExtraError("skops", "skops", f"Opening {path.name}") from error
    if not path.exists():
        raise InputError(f"There is no model file {path}.")
    try:
        refuse_bombs(path)
        unknown = [name for name in io.get_untrusted_types(file=path) if name not in trusted]
        if not unknown:
            return io.load(path, trusted=list(trusted))
    except Exception as error:  # a damaged zip file causes many kinds of errors
        raise FileError(
            f"{path} cannot be read as a skops file: {str(error).rstrip('.')}."
        ) from error
    names = ",".join(unknown)
    raise InputError(
        f"{path} holds types that are not known to be harmless: {names}. If you know where the file comes from, say so "
        f"with --trust {names}, or load it with skops.io.load(path, trusted=[...]) and pass the model."
    )


def import_object(spec: str) -> Any:
    """Return the object that `package.module:name` names."""
    module, _, name = spec.partition(":")
    here = os.getcwd()
    try:
        if here not in sys.path:  # an installed command does not search the current folder
            sys.path.insert(0, here)
        part = ""
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        raise InputError(_not_found(spec, module, error)) from error
    except SystemExit as stop:
        raise InputError(
            f"The module {module} ended Python while it was imported (sys.exit, or a command line of its own). Put all "
            "but the model below if __name__ == '__main__':"
        ) from stop
    except Exception as error:  # the user's module may raise anything
        holder = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
        if isinstance(holder, ModuleType | type) and part == getattr(error, "name", None):
            near, before = get_close_matches(part, dir(holder), n=1), spec.removesuffix(part)
            hint = f"Did you mean {before}{near[0]}?" if near else "It is written module:name."
            raise InputError(f"{before.rstrip(':.')} has no {part!r}. {hint}") from error
        blame(error, f"The module {module}", "while it was imported")
        raise
    return value


def _not_found(spec: str, module: str, error: ModuleNotFoundError) -> str:
    """Return the message for a missing module, or for a module whose own import is missing."""
    absent, first = error.name or module, module.split(".")[0]
    if absent != first and not module.startswith(absent):
        return f"The module {module} imports {absent!r}, which is not installed: pip install it."
    if module.endswith(".py"):
        return f"A module is named without its ending: write {spec.replace('.py:', ':')}."
    near = get_close_matches(first, [path.stem for path in Path().glob("*.py")], n=1)
    hint = f"Did you mean {near[0]}?" if near else "It is written package.module:name."
    return f"Cannot import {spec!r}: there is no module {absent!r}. {hint}"


def comes_from(value: Any, package: str) -> bool:
    """Whether a base class of the value is from `package`; the package is not imported."""
    return any(
        base.__module__ == package or base.__module__.startswith(package + ".")
        for base in type(value).__mro__
    )


def as_array(values: Any) -> NDArray[Any]:
    """Return an array, a list or a tensor on any device as a numpy array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """Return a model's outputs as an array; take `.logits` if the model wraps them."""
    values = getattr(values, "logits", values)
    if isinstance(values, dict) and "logits" in values:
        values = values["logits"]
    is_list = isinstance(values, list) and bool(values)
    is_numbers = is_list and isinstance(values[0], list | int | float)
    if isinstance(values, tuple | list | dict) and not is_numbers:
        raise InputError(
            f"{name} returned a {type(values).__name__}; one (n_samples, n_classes) array is needed. Wrap the model so "
            f"that it returns the logits alone. {_GRADED}"
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
            f"{model.name} returned the shape {raw.shape}; (n_samples, n_classes) is needed, or (n_samples,) for the "
            "log-odds of the second of two classes."
        )
    if raw.dtype.kind not in "f":
        raise InputError(
            f"{model.name} returned dtype {raw.dtype}; logits are floats. If it returns its answers only, it has no "
            f"confidence to calibrate. {_GRADED}"
        )
    # A copy: a model may write its next answers into the same memory.
    values: Floats = raw.astype(np.float32 if raw.dtype.itemsize < 4 else raw.dtype)
    is_probs = not model.gives_logits and (outputs != "logits" or model.gives_probs)
    is_single = is_single_column(values.shape)
    if not is_probs and not model.gives_logits and looks_like_probabilities(values):
        which, sign, kind = "row", " and sums to 1: these are probabilities", "logits"
        if is_single:
            which, sign, kind = "value", ": these are probabilities of the second class", "log-odds"
        raise InputError(
            f"Every {which} that {model.name} returned lies in [0, 1]{sign}, and {kind} are needed",
            remedy="Return the values before the softmax or sigmoid, or use "
            f"{in_both(outputs='probabilities')} to take their logarithms",
        )
    is_finite = bool(np.isfinite(values).all())
    if is_probs and is_single and is_finite and not 0 <= values.min() <= values.max() <= 1:
        raise InputError(
            f"What {model.name} returns as the probability of the second class must lie in [0, 1], "
            f"got {values.min():.4g} to {values.max():.4g}",
            remedy=f"If these are log-odds, leave {in_both(outputs='probabilities')} out",
        )
    if is_single:
        values = two_columns(values, probs=is_probs)
    if not is_probs or not is_finite:
        return values
    return log_of(values, model.name, least_probability(outputs, values.shape[1]))


def log_of(probs: Floats, name: str, floor: float) -> Floats:
    """Return the logarithms of probabilities; warn if some are below the floor."""
    empty = np.flatnonzero((probs == 0).all(axis=1))
    if len(empty):
        raise InputError(
            f"{name} gave no class a probability above 0 for row {empty[0]}. Return 1 / n_classes for every class "
            "where the model has no answer."
        )
    try:
        check_probs(probs)
    except InputError as error:
        leave_out = f"If these are logits, leave {in_both(outputs='probabilities')} out"
        remedy = error.remedy if error.remedy == MULTI_LABEL else leave_out
        raise InputError(
            f"What {name} returns as probabilities {error.rule}", remedy=remedy
        ) from None
    is_votes = floor > 1e-6
    # A few probabilities of 0 come from rounding.
    if (probs < floor).any(axis=1).mean() > (0 if is_votes else 0.01):
        hint = (
            " For a forest or neighbours use outputs='votes' (--outputs votes). To set another floor, such as 0.001: "
            "outputs='probabilities:0.001' (--outputs probabilities:0.001)."
        )
        warnings.warn(
            f"{name} returned probabilities of 0, or close to it. Those below {floor:g} count as {floor:g}: the "
            f"logarithm of 0 is minus infinity.{'' if is_votes else hint}",
            UserWarning,
            stacklevel=2,
        )
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
    limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    if limits is None or values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    low, high = values.min(), values.max()
    if low >= limits.min and high <= limits.max and (values == np.floor(values)).all():
        return values.astype(dtype)
    raise InputError(
        f"{name} takes whole numbers from {limits.min} to {limits.max} ({np.dtype(dtype)}), "
        f"got values from {low:.4g} to {high:.4g}",
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
