"""torch modules and torch.export files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.collecting.fingerprint import digest_array, digest_file, digest_texts
from recal.collecting.models.base import Model, as_numpy, in_pieces, with_channel
from recal.errors import FileError, InputError, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "Running a torch model") from error


class TorchModel(Model):
    """A torch module, run in evaluation mode and without gradients. Its modes and device are
    restored afterwards.

    The module is moved to `device`, if one is given. Batches are moved to the module's device
    before they are transformed. After `preprocess`, floats and uint8 are cast to the dtype of the
    weights; other integers, such as token ids, stay as they are.
    """

    def __init__(self, module: torch.nn.Module, *, device: Any = None) -> None:
        self.module = module
        self.name = type(module).__name__
        self.device, self.dtype = _home(module)
        self.requested = device  # checked when the model runs: another machine may have it

    def fingerprint(self) -> str:
        state, texts = self.module.state_dict(), [repr(self.module)]
        for key in sorted(state):
            texts.append(key)
            if isinstance(state[key], torch.Tensor):
                tensor = state[key].detach().cpu().contiguous()
                texts.append(f"{tensor.dtype}{tuple(tensor.shape)}{_digest_tensor(tensor)}")
        return digest_texts(texts)

    @contextmanager
    def running(self) -> Iterator[None]:
        modes = {module: module.training for module in self.module.modules()}
        home = self.device
        try:
            if self.requested is not None and (away := as_device(self.requested)) != home:
                self.module.to(away)
                self.device = away
            self.module.eval()
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes.items():
                # train() would also change submodules that the user has set by hand.
                module.training = mode
            if self.device != home:
                self.module.to(home)
                self.device = home

    def prepare(self, inputs: Any) -> torch.Tensor:
        return as_tensor(inputs).to(self.device)

    def answer(self, batch: Any) -> NDArray[Any]:
        tensor = with_channel(as_tensor(batch).to(self.device), self.shape)
        if self.dtype is not None and (tensor.is_floating_point() or tensor.dtype == torch.uint8):
            tensor = tensor.to(self.dtype)
        return in_pieces(lambda piece: as_numpy(self.module(piece), self.name), tensor, self.fixed)


class ExportedModel(TorchModel):
    """A program of `torch.export`: the program itself, or the path of a file that the caller
    trusts.
    """

    def __init__(self, program: Path | torch.export.ExportedProgram, *, device: Any = None) -> None:
        self.origin, self.requested = program, device
        self.name = program.name if isinstance(program, Path) else type(program).__name__
        self._open()

    def _open(self) -> None:
        program = read_program(self.origin) if isinstance(self.origin, Path) else self.origin
        self.module = program.module()
        self.device, self.dtype = _home(self.module)
        names = set(program.graph_signature.user_inputs)
        shapes = [
            node.meta["val"].shape
            for node in program.graph.nodes
            if node.op == "placeholder" and node.name in names
        ]
        if len(shapes) != 1:
            raise InputError(
                f"{self.name} takes {len(shapes)} inputs; recal passes one, the batch."
            )
        self.shape = tuple(size if isinstance(size, int) else None for size in shapes[0])
        self.fixed = self.shape[0] if self.shape else None

    def __getstate__(self) -> dict[str, Any]:
        return {"origin": self.origin, "requested": self.requested, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def fingerprint(self) -> str:
        return digest_file(self.origin) if isinstance(self.origin, Path) else super().fingerprint()

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.requested is not None:  # exported modules have no training mode to restore
            self.device = as_device(self.requested)
            self.module.to(self.device)
        with torch.no_grad():
            yield


def as_device(device: Any) -> torch.device:
    """Return a device of this machine; refuse any other."""
    try:
        usable = torch.device(device)
        torch.empty(1, device=usable)  # fails if this build of torch, or this machine, lacks it
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"The device {device!r} cannot be used here ({reason}). Use 'cpu'."
        ) from error
    return usable


def read_program(path: Path) -> torch.export.ExportedProgram:
    """Open a file of `torch.export.save`.

    It may hold pickles, so callers pass only files that the user trusts.
    """
    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.ERROR)  # torch would print its own errors, which are reported below
    try:
        return torch.export.load(path)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(f"{path} cannot be read as a torch.export file: {first}.") from error
    finally:
        logger.setLevel(level)


def as_tensor(values: Any) -> torch.Tensor:
    """Return an array or tensor as a tensor, without a copy if possible."""
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise InputError(
            f"A torch model takes numbers; this batch has dtype {array.dtype}. Convert it in the preprocessing."
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    # Copy read-only arrays: torch warns about them and may write to them.
    return torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy())


def _home(module: torch.nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """Return the device of the first weight and the dtype of the first floating-point weight."""
    weights = [*module.parameters(), *module.buffers()]
    floats = [weight.dtype for weight in weights if weight.is_floating_point()]
    return (weights[0].device if weights else torch.device("cpu")), (floats[0] if floats else None)


def _digest_tensor(tensor: torch.Tensor) -> str:
    if tensor.is_sparse or tensor.is_quantized:
        return repr(tensor)
    values = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0)
    return digest_array(values)
