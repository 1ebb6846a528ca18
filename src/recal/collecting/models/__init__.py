"""Adapters for models, and the choice of one for the user's model."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from recal.collecting.models.base import CallableModel, EstimatorModel, Model, comes_from
from recal.errors import FileError, InputError, blame, needs_extra
from recal.files.paths import refuse_bombs
from recal.transforms.preprocessing import Outputs, check_outputs


def as_model(model: Any, *, outputs: Outputs = "logits", device: Any = None) -> Model:
    """Return the adapter for `model`, chosen by its type."""
    check_outputs(outputs)
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return _open_model(Path(model), device)
    if isinstance(model, tuple) and len(model) == 2:
        return _torch().HuggingFaceModel(*model, device=device)
    if type(model).__name__ == "ExportedProgram" and comes_from(model, "torch.export"):
        return _torch().ExportedModel(model, device=device)
    if comes_from(model, "torch.nn"):
        return _torch().TorchModel(model, device=device)
    if hasattr(model, "get_inputs") and hasattr(model, "run"):
        return _onnx().OnnxModel(model)
    if isinstance(model, type):
        name = model.__name__
        raise InputError(f"The model is the class {name}; pass a trained instance: net = {name}().")
    if hasattr(model, "predict_proba") or hasattr(model, "decision_function"):
        return EstimatorModel(model, outputs=outputs)
    if callable(model):
        return CallableModel(model)
    raise InputError(
        "A model is a function that returns logits, a torch module, a fitted scikit-learn "
        "classifier with decision_function or predict_proba, an ONNX session, a (Hugging Face "
        "model, processor) pair, or a path ending in .onnx, .pt2 or .skops; "
        f"got {type(model).__name__}."
    )


def _open_model(path: Path, device: Any, trusted: Sequence[str] = ()) -> Model:
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt"):
        raise InputError(
            f"{path.name} is a pickle, which may run any code, so recal does not open it. Load it "
            "yourself and pass the model (--model module:NAME); or write it with "
            "torch.export.save (.pt2), torch.onnx.export (.onnx) or skops.io.dump (.skops)."
        )
    if not path.exists():
        raise InputError(f"There is no model file {path}. For a model in Python write {path}:NAME.")
    if suffix in (".onnx", ".pt2") and not path.is_file():
        raise InputError(f"{path} is not a regular file.")
    if suffix == ".pt2" and "pt2" not in trusted:
        remedy = f"If you trust it, pass torch.export.load({str(path)!r}) (--trust pt2)"
        rule = f"Opening {path} can run code, because a .pt2 file may hold pickles."
        raise InputError(rule, remedy=remedy)
    if suffix == ".pt2":
        return _torch().ExportedModel(path, device=device)
    if suffix == ".onnx":
        return _onnx().OnnxModel(path)
    if suffix == ".skops":
        return as_model(read_skops(path, trusted))
    if path.is_dir() and (path / "config.json").exists():
        with needs_extra("huggingface", f"Opening the folder {path}"):
            importlib.import_module("torch")  # whose adapter would name the extra `torch`
        return _torch().open_pretrained(path, device=device)
    raise InputError(
        "A model file ends in .onnx, .pt2 (torch.export) or .skops (scikit-learn), or is a Hugging "
        f"Face folder with config.json; got {path}. A model in Python is named module:NAME."
    )


def _torch() -> Any:
    return importlib.import_module("recal.collecting.models.torch")


def _onnx() -> Any:
    return importlib.import_module("recal.collecting.models.onnx")


def import_model(spec: str, *, trusted: Sequence[str] = (), device: Any = None) -> Any:
    """Return the model at a path, or the Python object that `package.module:name` names.

    Parameters
    ----------
    trusted : sequence of str
        Types beyond scikit-learn's and numpy's that a .skops file may hold, by their full names;
        "pt2" to open a .pt2 file, which may run code.
    """
    module, separator, _ = spec.partition(":")
    is_module = all(part.isidentifier() for part in module.split("."))
    if separator and is_module and not Path(spec).exists():
        return import_object(spec)
    path = Path(spec)
    if path.suffix.lower() == ".skops":  # wrapped later, when the kind of its outputs is known
        return read_skops(path, trusted)
    return _open_model(path, device, trusted)


def read_skops(path: Path, trusted: Sequence[str] = ()) -> Any:
    """Read a scikit-learn model from a .skops file; types that skops does not know must be in
    `trusted`.
    """
    with needs_extra("skops", f"Opening {path.name}"):
        from skops import io
    if not path.exists():
        raise InputError(f"There is no model file {path}.")
    try:
        refuse_bombs(path)
        unknown = [name for name in io.get_untrusted_types(file=path) if name not in trusted]
        if not unknown:
            return io.load(path, trusted=list(trusted))
    except Exception as error:  # a damaged zip file causes many kinds of errors
        reason = str(error).rstrip(".")
        raise FileError(f"{path} cannot be read as a skops file: {reason}.") from error
    names = ",".join(unknown)
    raise InputError(
        f"{path} holds types that are not known to be harmless: {names}. If you trust the file, "
        f"use --trust {names}, or load it with skops.io.load(path, trusted=[...]) and pass the "
        "model."
    )


def import_object(spec: str) -> Any:
    """Return the object that `package.module:name` names."""
    module, _, name = spec.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # an installed command does not search the current folder
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        rule = f"Cannot import {spec!r}: there is no module {error.name!r}"
        remedy = "Install it (pip install), or name the model as package.module:name"
        raise InputError(rule, remedy=remedy) from error
    except SystemExit as stop:
        rule = f"The module {module} ended Python while it was imported (sys.exit)"
        remedy = "Put all but the model below `if __name__ == '__main__':`"
        raise InputError(rule, remedy=remedy) from stop
    except Exception as error:  # the user's module may raise anything
        blame(error, f"The module {module}", "while it was imported")
        raise
    for part in name.split("."):
        if not hasattr(value, part):
            near = get_close_matches(part, dir(value), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{spec!r}: there is no {part!r} in {module}.{hint}")
        value = getattr(value, part)
    return value
