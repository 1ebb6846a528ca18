"""Train a network by a recipe.

A run that is stopped goes on from its last epoch and ends with the same bits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper.stages import digest_arrays
from paper.training.networks import build  # first: where torch is missing it says what to install
from paper.training.recipes import Recipe
from recal.errors import FileError, InputError
from recal.files.paths import replacing
from recal.transforms.preprocessing import Normalize

import torch  # isort: skip
from recal.collecting.models.torch import as_device  # isort: skip
from safetensors import SafetensorError, safe_open  # isort: skip
from safetensors.torch import save  # isort: skip
from torch import Tensor, nn  # isort: skip
from torch.nn import functional  # isort: skip
from torch.nn.utils.fusion import fuse_conv_bn_eval  # isort: skip


@dataclass
class TrainingState:
    """Everything that the next epoch depends on."""

    network: nn.Module
    optimizer: torch.optim.SGD
    epoch: int = 0  # how many are done
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.intp],
    recipe: Recipe,
    *,
    n_classes: int,
    checkpoint: Path,
    preprocess: Normalize,
    stop_after: int | None = None,
    device: str = "cpu",
    say: Callable[[str], None] | None = print,
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train the network called `name`, or go on from `checkpoint`, and return it with one record
    per epoch.

    Parameters
    ----------
    images, labels : arrays of shape (n, height, width, channels), uint8, and (n,)
    checkpoint : Path
        Written after every epoch, whole or not at all. A finished one is only read.
    preprocess : Preprocess
        The channels' mean and deviation.
    stop_after : int, optional
        Stop when so many epochs are done, as a killed run would; a later call goes on.
    device : str
        "cpu" or "cuda". The same bits come again on the same machine, number of threads and torch
        only.
    say : callable or None
        Told of every epoch, with the time left.
    """
    as_device(device)
    identity = {
        "network": name,
        "n_classes": n_classes,
        "shape": list(images.shape[1:]),
        "data": digest_arrays(images, labels),
        "recipe": recipe.as_dict(),
        "mean": _numbers(preprocess.mean),
        "std": _numbers(preprocess.std),
    }
    # All randomness comes from torch's own generator, forked so that the caller's is left as it
    # was.
    with torch.random.fork_rng(
        devices=range(torch.cuda.device_count()) if device.startswith("cuda") else []
    ):
        torch.manual_seed(recipe.seed)
        network = build(name, n_classes, images.shape[3], images.shape[1]).to(device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        state = TrainingState(network, _optimizer(network, recipe))
        if checkpoint.is_file():
            _restore(state, checkpoint, identity)
        pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))
        targets = torch.from_numpy(labels.astype(np.int64))
        last = recipe.epochs if stop_after is None else min(stop_after, recipe.epochs)
        began, first = time.perf_counter(), state.epoch
        while state.epoch < last:
            record = _one_epoch(state, pixels, targets, recipe, preprocess, device)
            state.epoch += 1
            state.history.append(record)
            _write(state, checkpoint, identity)
            if say is not None:
                spent = time.perf_counter() - began
                left = spent / (state.epoch - first) * (recipe.epochs - state.epoch)
                say(
                    f"{name}: epoch {state.epoch}/{recipe.epochs}, rate {record['rate']:g}, loss "
                    f"{record['loss']:.4f}, accuracy in training {record['accuracy']:.2%}, "
                    f"{format_seconds(left)} left"
                )
    return network.eval(), state.history


def _numbers(value: float | Sequence[float]) -> list[float]:
    return np.asarray(value, dtype=np.float64).reshape(-1).tolist()


def _optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    return torch.optim.SGD(
        network.parameters(),
        lr=recipe.rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )


def _one_epoch(
    state: TrainingState,
    pixels: Tensor,
    targets: Tensor,
    recipe: Recipe,
    preprocess: Normalize,
    device: str,
) -> dict[str, float]:
    rate = recipe.rate_in(state.epoch)
    for settings in state.optimizer.param_groups:
        settings["lr"] = rate
    mean = torch.tensor(_numbers(preprocess.mean), device=device)[:, None, None] * preprocess.divide
    std = torch.tensor(_numbers(preprocess.std), device=device)[:, None, None] * preprocess.divide
    state.network.train()
    began, loss_sum, right = time.perf_counter(), 0.0, 0
    for rows in torch.split(torch.randperm(len(pixels)), recipe.batch_size):
        batch = augment(pixels[rows], crop=recipe.crop, flip=recipe.flip).to(device)
        inputs = ((batch.float() - mean) / std).contiguous(memory_format=torch.channels_last)
        wanted = targets[rows].to(device)
        logits = state.network(inputs)
        loss = functional.cross_entropy(logits, wanted)
        if not torch.isfinite(loss):
            epoch = f"epoch {state.epoch + 1}"
            raise InputError(f"The loss is {loss.item()} in {epoch}. Lower the learning rate.")
        state.optimizer.zero_grad()
        torch.autograd.backward(loss)
        state.optimizer.step()
        loss_sum += loss.item() * len(rows)
        right += int((logits.argmax(1) == wanted).sum())
    seconds = time.perf_counter() - began
    return {
        "rate": rate,
        "loss": loss_sum / len(pixels),
        "accuracy": right / len(pixels),
        "seconds": seconds,
    }


def augment(batch: Tensor, *, crop: int, flip: bool) -> Tensor:
    """Mirror half of the pictures and cut each at random out of a black border of `crop` pixels."""
    if flip:
        mirrored = torch.rand(len(batch)) < 0.5
        batch = torch.where(mirrored[:, None, None, None], batch.flip(3), batch)
    if crop:
        height, width = batch.shape[2:]
        framed = functional.pad(batch, (crop, crop, crop, crop))
        top, left = torch.randint(0, 2 * crop + 1, (2, len(batch)))
        rows = top[:, None] + torch.arange(height)
        columns = left[:, None] + torch.arange(width)
        which = torch.arange(len(batch))[:, None, None]
        batch = framed.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(
            0, 3, 1, 2
        )
    return batch


def load_network(checkpoint: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network of a checkpoint, ready to predict, and the record of its training."""
    tensors, about = _read(checkpoint)
    identity = about["identity"]
    with torch.random.fork_rng(devices=[]):
        network = build(
            identity["network"], identity["n_classes"], identity["shape"][2], identity["shape"][0]
        )
    _load_weights(network, tensors, checkpoint)
    return _for_prediction(network), about


def _for_prediction(network: nn.Module) -> nn.Module:
    """Fold each normalisation into the convolution before it: the same answers, to rounding, in
    half the time.
    """
    network.eval()
    for module in list(network.modules()):
        if isinstance(module, nn.Sequential):
            for index, (layer, following) in enumerate(pairwise(module)):
                if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                    module[index], module[index + 1] = (
                        fuse_conv_bn_eval(layer, following),
                        nn.Identity(),
                    )
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


# --- checkpoints
# --------------------------------------------------------------------------------------------


def _write(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    tensors = {f"weights/{key}": value for key, value in state.network.state_dict().items()}
    for key, parameter in state.network.named_parameters():
        velocity = state.optimizer.state[parameter].get("momentum_buffer")
        if velocity is not None:  # a branch that was always dropped has none yet
            tensors[f"momentum/{key}"] = velocity
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    packed = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    about = {"identity": identity, "epoch": state.epoch, "history": state.history}
    with replacing(path) as file:  # a kill leaves the epoch before
        file.write(save(packed, metadata={"recal": json.dumps(about)}))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise FileError(f"There is no checkpoint {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["recal"])
            return {key: file.get_tensor(key) for key in file.keys()}, about  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FileError(
            f"{path} is no checkpoint of a training: {error}. Delete it to train afresh."
        ) from error


def _load_weights(network: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    weights = {
        key.removeprefix("weights/"): value
        for key, value in tensors.items()
        if key.startswith("weights/")
    }
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise FileError(f"{path} holds the weights of another network: {error}") from error


def _restore(state: TrainingState, path: Path, identity: dict[str, Any]) -> None:
    tensors, about = _read(path)
    if about["identity"] != identity:
        changed = [key for key in identity if about["identity"].get(key) != identity[key]]
        which = ", ".join(changed)
        raise FileError(f"{path} belongs to another training ({which} differ). Delete it.")
    _load_weights(state.network, tensors, path)
    for key, parameter in state.network.named_parameters():
        if f"momentum/{key}" in tensors:
            velocity = torch.empty_like(parameter).copy_(tensors[f"momentum/{key}"])
            state.optimizer.state[parameter]["momentum_buffer"] = velocity
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])
    state.epoch, state.history = about["epoch"], about["history"]


def format_seconds(seconds: float) -> str:
    """Write a time as a person says it.

    Examples
    --------
    >>> from paper.training.train import format_seconds
    >>> format_seconds(75), format_seconds(7300)
    ('1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
