"""What collect needs of a model, and which adapter serves what the user passes."""

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

from recal.checks import MULTI_LABEL, Floats, check_probs, is_single_column, looks_like_probabilities, two_columns
from recal.collecting.fingerprint import digest
from recal.errors import FileError, InputError, MissingExtraError, Remedy, blame
from recal.files.npz import refuse_bombs
from recal.transforms.preprocessing import Outputs, check_outputs, least_probability

Pixels = Literal["rgb", "gray", "rgba", "gray16"]
_PIXELS: dict[int, Pixels] = {1: "gray", 3: "rgb", 4: "rgba"}
_TINY = 1e-6  # a floor of votes is far above
_FEW_ZEROS = 0.01  # of all rows; a few probabilities of 0 are rounding
_GRADED = (
    "If it returns only an answer and a confidence, grade its answers and use recal calibrate graded.csv --correct "
    "COLUMN, or SignalCalibration in Python."
)
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt")


class Model(ABC):
    """A classifier as collect sees it: batches in, one row of outputs per sample out.

    Attributes
    ----------
    name : str
        How messages call it.
    classes : ndarray or None
        The columns' names, where the model knows them.
    gives_logits, gives_probs : bool
        Whether the adapter itself vouches that its outputs are logits, or probabilities.
    """

    name: str
    n_answered: int = 0  # forward passes in this process so far, one for each sample and view
    classes: NDArray[Any] | None = None
    gives_logits: bool = False
    gives_probs: bool = False
    known_by_content: bool = True
    """Whether equal fingerprints mean equal answers; a Python function is known by its name only."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that differs when the weights or the structure differ, as far as can be told."""

    def returns(self, outputs: Outputs) -> Outputs:
        """Return what the model's outputs are, where the adapter knows better than what was said of them."""
        return outputs

    def running(self) -> AbstractContextManager[Any]:
        """Return a context in which the model answers; what it changes is put back afterwards."""
        return nullcontext()

    def prepare(self, inputs: Any) -> Any:
        """Return the batch in the form, and on the device, where it is transformed."""
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


def as_model(model: Any, *, outputs: Outputs = "logits", device: Any = None) -> Model:
    """Return the adapter for `model`, chosen by what it is."""
    check_outputs(outputs)
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return _open_model(Path(model), device)
    if isinstance(model, tuple) and len(model) == 2:
        from recal.collecting.models.huggingface import HuggingFaceModel

        return HuggingFaceModel(*model, device=device)
    if _comes_from(model, "transformers.pipelines"):
        from recal.collecting.models.huggingface import HuggingFaceModel

        parts = (getattr(model, name, None) for name in ("image_processor", "feature_extractor", "tokenizer"))
        return HuggingFaceModel(model.model, next((part for part in parts if part is not None), None), device=device)
    if type(model).__name__ == "ExportedProgram" and _comes_from(model, "torch.export"):
        from recal.collecting.models.torch import ExportedModel

        return ExportedModel(model, device=device)
    if _comes_from(model, "torch.nn"):
        from recal.collecting.models.torch import TorchModel

        return TorchModel(model, device=device)
    if hasattr(model, "get_inputs") and hasattr(model, "run"):
        from recal.collecting.models.onnx import OnnxModel

        return OnnxModel(model)
    if isinstance(model, type):
        raise InputError(
            f"The model is the class {model.__name__}; pass a trained instance of it, as net = {model.__name__}()."
        )
    if hasattr(model, "predict") and (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        from recal.collecting.models.estimators import EstimatorModel

        return EstimatorModel(model, outputs=outputs)
    if _comes_from(model, "sklearn"):
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
    if path.suffix.lower() in _PICKLES:
        raise InputError(
            f"{path.name} is a pickle, which may run any code when opened, so recal does not open it. Build the module "
            "yourself, load its weights, and pass it; or write it with torch.export.save (.pt2), torch.onnx.export, or "
            "skops.io.dump (.skops) for scikit-learn. With the command line: --model module:function that builds the "
            "network, and --weights FILE.safetensors."
        )
    if not path.exists():
        module = f"{path}.py" if Path(f"{path}.py").exists() else ""
        hint = f" For a model in {module} write {path}:NAME." if module else ""
        raise InputError(f"There is no model file {path}.{hint}")
    if path.suffix.lower() == ".py":
        raise InputError(
            f"{path} is a program: name the model in it as {path.stem}:NAME, the function or network itself."
        )
    if path.suffix.lower() in (".onnx", ".pt2") and not path.is_file():
        raise InputError(f"{path} is not a regular file.")
    if path.suffix.lower() == ".onnx":
        from recal.collecting.models.onnx import OnnxModel

        return OnnxModel(path)
    if path.suffix.lower() == ".pt2":
        raise InputError(
            f"Opening {path} can run code, because a .pt2 file may hold pickles.",
            remedy=Remedy(
                f"If you trust it, pass torch.export.load({str(path)!r})",
                typed="If you trust it, add: --trust pt2",
            ),
        )
    if path.suffix.lower() == ".skops":
        return as_model(read_skops(path))
    if path.is_dir() and (path / "config.json").exists():
        from recal.collecting.models.huggingface import open_folder

        return open_folder(path, device=device)
    raise InputError(
        "A model file ends in .onnx, .pt2 (torch.export) or .skops (scikit-learn), or is a Hugging Face folder with "
        f"config.json; got {path}."
    )


def import_model(spec: str, *, weights: Path | None = None, trusted: Sequence[str] = (), device: Any = None) -> Any:
    """Return the model at a path, or what `package.module:name` names in Python.

    Parameters
    ----------
    weights : path, optional
        A .safetensors file for the torch module that `spec` names, or that the function it names returns.
    trusted : sequence of str
        Types beyond scikit-learn's and numpy's that a .skops file may hold, by their full names; "pt2" to open a
        .pt2 file, which may run code.
    """
    module, separator, _ = spec.partition(":")
    if not separator or Path(spec).exists() or not all(part.isidentifier() for part in module.split(".")):
        if weights is not None:
            raise InputError(f"--weights go with --model module:function, which builds the network; got {spec}.")
        if spec.lower().endswith(".pt2") and "pt2" in trusted:
            from recal.collecting.models.torch import ExportedModel

            return ExportedModel(Path(spec), device=device)
        return read_skops(Path(spec), trusted) if spec.lower().endswith(".skops") else Path(spec)
    found = import_object(spec)
    if weights is None:
        return found
    from recal.collecting.models.torch import with_weights

    return with_weights(found, weights, spec)


def read_skops(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Read a scikit-learn model from a .skops file; types that skops does not know must be named to be made."""
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
    except Exception as error:  # it reads a zip file, whose damage shows in many ways
        raise FileError(f"{path} cannot be read as a skops file: {str(error).rstrip('.')}.") from error
    names = ",".join(unknown)
    raise InputError(
        f"{path} holds types that are not known to be harmless: {names}. If you know where the file comes from, say so "
        f"with --trust {names}, or load it with skops.io.load(path, trusted=[...]) and pass the model."
    )


def import_object(spec: str) -> Any:
    """Return what `package.module:name` names."""
    module, _, name = spec.partition(":")
    here = os.getcwd()
    try:
        if here not in sys.path:  # a command, unlike `python`, does not look in the current folder by itself
            sys.path.insert(0, here)
        part = ""
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise InputError(_not_found(spec, module, error)) from error
    except AttributeError as error:
        if not isinstance(error.obj, ModuleType | type) or error.name is None or part != error.name:
            blame(error, f"The module {module}", "while it was imported")
            raise
        near = get_close_matches(error.name, dir(error.obj), n=1)
        hint = f"Did you mean {spec.removesuffix(error.name)}{near[0]}?" if near else "It is written module:name."
        raise InputError(f"{spec.removesuffix(error.name).rstrip(':.')} has no {error.name!r}. {hint}") from error
    except SystemExit as stop:
        raise InputError(
            f"The module {module} ended Python while it was imported (sys.exit, or a command line of its own). Put all "
            "but the model below if __name__ == '__main__':"
        ) from stop
    except Exception as error:  # whatever a module of the user's does
        blame(error, f"The module {module}", "while it was imported")
        raise
    return found


def _not_found(spec: str, module: str, error: ModuleNotFoundError) -> str:
    """Return the sentence for a module that is not there, itself or what it imports."""
    absent, (first, *_) = error.name or module, module.split(".")
    if absent != first and not module.startswith(absent):
        return f"The module {module} imports {absent!r}, which is not installed here: pip install it, then try again."
    if module.endswith(".py"):
        return f"A module is named without its ending: write {spec.replace('.py:', ':')}."
    near = get_close_matches(first, [path.stem for path in Path().glob("*.py")], n=1)
    hint = f"Did you mean {near[0]}?" if near else "It is written package.module:name."
    return f"Cannot import {spec!r}: there is no module {absent!r} in this folder, and none is installed. {hint}"


def _comes_from(value: Any, package: str) -> bool:
    """Whether the value's class descends from one of `package`, without importing it."""
    return any(base.__module__ == package or base.__module__.startswith(package + ".") for base in type(value).__mro__)


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """Return a model's outputs as an array; take `.logits` where the model wraps them."""
    values = getattr(values, "logits", values)
    if isinstance(values, dict) and "logits" in values:
        values = values["logits"]
    if isinstance(values, tuple | list | dict) and not _is_nested_numbers(values):
        raise InputError(
            f"{name} returned a {type(values).__name__}; one (n_samples, n_classes) array is needed. Wrap the model so "
            f"that it returns the logits alone. {_GRADED}"
        )
    if hasattr(values, "detach"):
        values = values.detach()
        values = (values.float() if values.dtype.itemsize < 4 and values.is_floating_point() else values).cpu().numpy()
    return np.asarray(values)


def _is_nested_numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], list | int | float)


def as_logits(raw: NDArray[Any], outputs: Outputs, model: Model) -> Floats:
    """Return a batch of outputs as logits in float32 or float64; refuse what is not what `outputs` says.

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
    values: Floats = raw.astype(np.float32) if raw.dtype.itemsize < 4 else raw
    if is_single_column(values.shape):
        values = _binary(values, outputs, model)
    if model.gives_logits:
        return values
    if outputs != "logits" or model.gives_probs:
        floor = least_probability(outputs, values.shape[1])
        return log_of(values, model.name, floor) if np.isfinite(values).all() else values
    if looks_like_probabilities(values):
        before = "Return the values before the softmax, or say"
        after = "to take their logarithms"
        raise InputError(
            f"Every row that {model.name} returned lies in [0, 1] and sums to 1: these are probabilities, and logits "
            "are needed",
            remedy=Remedy(
                f"{before} outputs='probabilities' {after}", typed=f"{before} --outputs probabilities {after}"
            ),
        )
    return values


def _binary(values: Floats, outputs: Outputs, model: Model) -> Floats:
    """Return two columns for a model with one output: the log-odds or the probability of the second class."""
    says_probs = not model.gives_logits and (outputs != "logits" or model.gives_probs)
    if says_probs and np.isfinite(values).all() and not (values.min() >= 0 and values.max() <= 1):
        raise InputError(
            f"What {model.name} returns as the probability of the second class must lie in [0, 1]",
            came=f"got {values.min():.4g} to {values.max():.4g}",
            remedy=Remedy(
                "If these are log-odds, leave outputs='probabilities' out",
                typed="If these are log-odds, leave --outputs out",
            ),
        )
    if not says_probs and not model.gives_logits and looks_like_probabilities(values):
        raise InputError(
            f"Every value that {model.name} returned lies in [0, 1]: these are probabilities of the second class, and "
            "log-odds are needed",
            remedy=Remedy("Say outputs='probabilities' to take them so", typed="Add: --outputs probabilities"),
        )
    return two_columns(values, probs=says_probs)


def log_of(probs: Floats, name: str, floor: float) -> Floats:
    """Return the logarithms of probabilities, floored, and say so when the floor was needed."""
    empty = np.flatnonzero((probs == 0).all(axis=1))
    if len(empty):
        raise InputError(
            f"{name} gave no class a probability above 0 for row {empty[0]}. Return 1 / n_classes for every class "
            "where the model has no answer."
        )
    try:
        check_probs(probs)
    except InputError as error:
        raise InputError(
            f"What {name} returns as probabilities {error.rule}",
            came=error.came,
            remedy=error.remedy
            if error.remedy == MULTI_LABEL
            else Remedy(
                "If these are logits, leave outputs='probabilities' out",
                typed="If these are logits, leave --outputs out",
            ),
        ) from None
    votes = floor > _TINY
    if (probs < floor).any(axis=1).mean() > (0 if votes else _FEW_ZEROS):
        more = (
            ""
            if votes
            else (
                " For a forest or neighbours use outputs='votes' (--outputs votes). To set another floor, such as "
                "0.001: outputs='probabilities:0.001' (--outputs probabilities:0.001)."
            )
        )
        warnings.warn(
            f"{name} returned probabilities of 0, or close to it. Those below {floor:g} count as {floor:g}: the "
            f"logarithm of 0 is minus infinity.{more}",
            UserWarning,
            stacklevel=2,
        )
    return np.log(np.maximum(probs, probs.dtype.type(floor)))


def pixels_of(shape: Sequence[Any]) -> Pixels | None:
    """Return what images must be for an input of this shape, by its channels; None where the shape does not tell."""
    if len(shape) != 4:
        return None
    counts = [side for side in (shape[1], shape[3]) if side in (1, 3, 4)]
    return _PIXELS[counts[0]] if len(counts) == 1 else None


def with_channel(batch: Any, shape: Sequence[Any]) -> Any:
    """Return a batch of grey images or sounds with the axis of length 1 that an input of this shape has for channels.

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
