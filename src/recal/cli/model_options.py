"""The options that `collect` and `apply` share: which model, which inputs, and what stands between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    str | None,
    typer.Option("--model", help="A .onnx or .pt2 file, a Hugging Face folder, or package.module:name in Python."),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Inputs: .npz, .npy, IDX, a binary CIFAR archive, or a folder of images by class."),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", help="Labels where the data bring none: .npy, IDX, or .txt with one per line."),
]
Preprocess = Annotated[
    str | None, typer.Option("--preprocess", help="package.module:name of a function that runs after transformations.")
]
Mean = Annotated[str | None, typer.Option("--mean", help="Normalise: mean per channel, such as 0.485,0.456,0.406.")]
Std = Annotated[str | None, typer.Option("--std", help="Normalise: standard deviation per channel.")]
Divide = Annotated[float | None, typer.Option("--divide", help="Divide pixels by this first, such as 255.")]
Channels = Annotated[
    str | None, typer.Option("--channels", help="Where the model wants the channels of images: first, last or keep.")
]
Resize = Annotated[int | None, typer.Option("--resize", help="Images: the new length of the shorter side.")]
Crop = Annotated[int | None, typer.Option("--crop", help="Images: the side of the square kept from the middle.")]
OnError = Annotated[str | None, typer.Option("--on-error", help="Images that cannot be read: stop or skip.")]
Part = Annotated[str | None, typer.Option("--part", help="CIFAR archives: train or test.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Samples in one forward pass.")]
Outputs = Annotated[str | None, typer.Option("--outputs", help="What the model returns: logits or probabilities.")]
Device = Annotated[str | None, typer.Option("--device", help="Where a torch model runs, such as cuda.")]
Engine = Annotated[str | None, typer.Option("--engine", help="local, or ray for a cluster.")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were typed; the defaults of the others live in the function that is called."""
    return {name: value for name, value in options.items() if value is not None}


def preprocessing(
    function: str | None, mean: str | None, std: str | None, divide: float | None, channels: str | None
) -> Any:
    """Return the preprocess that the options describe, or None."""
    from recal.errors import InputError

    normalise = given(mean=_numbers(mean, "mean"), std=_numbers(std, "std"), divide=divide, channels=channels)
    if function is not None:
        if normalise:
            raise InputError(f"--preprocess does it all; leave out {', '.join('--' + name for name in normalise)}.")
        from recal.collecting.models.base import import_object

        return import_object(function)
    if not normalise:
        return None
    from recal.collecting import Normalize

    return Normalize(**normalise)


def _numbers(text: str | None, name: str) -> tuple[float, ...] | None:
    from recal.errors import InputError

    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} takes numbers separated by commas, got {text!r}.") from None
