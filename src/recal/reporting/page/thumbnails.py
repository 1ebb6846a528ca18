"""Inputs that a person should look at: small pictures inside the page, links to their files, or the words of a text.

A string that comes from data is a text and never a path: only a `Path`, which the caller made, is opened.
"""

from __future__ import annotations

import base64
import io
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recal.errors import FileError

_SIDE = 112
_MOST_LETTERS = 300


def shown_input(inputs: Any, row: int) -> str:
    """Markup for one input: a picture, a link where it is a file, the beginning of a text, or nothing."""
    value = inputs[row]
    if isinstance(value, str):
        more = "…" if len(value) > _MOST_LETTERS else ""
        return f"<q>{escape(value[:_MOST_LETTERS])}{more}</q>"
    if isinstance(value, os.PathLike):
        return _linked(Path(value))
    image = _as_pixels(np.asarray(value))
    return "" if image is None else _picture(image, f"input {row}")


def _linked(path: Path) -> str:
    from recal.collecting.inputs.folder import read_image

    try:
        inside = _picture(np.asarray(read_image(path)), path.name)
    except FileError:
        inside = escape(path.name)
    return f'<a href="{escape(path.resolve().as_uri())}">{inside}</a>'


def _picture(pixels: NDArray[np.uint8], words: str) -> str:
    from PIL import Image

    image = Image.fromarray(pixels)
    factor = _SIDE / max(image.size)
    # Small images are enlarged by whole pixels, so that they are seen as the model sees them.
    how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
    image = image.resize((max(round(image.width * factor), 1), max(round(image.height * factor), 1)), how)
    held = io.BytesIO()
    image.save(held, format="PNG", optimize=True)
    code = base64.b64encode(held.getvalue()).decode("ascii")
    return (
        f'<img alt="{escape(words)}" width="{image.width}" height="{image.height}" src="data:image/png;base64,{code}">'
    )


def _as_pixels(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """An array as an image: grey or colour, channels last or first; None where it is none."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[-1] not in (1, 3):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[-1] == 3):
        return None
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    values = array.astype(np.float64)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    # Normalised images lie anywhere: they are stretched over what can be seen.
    low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (0.0, 255.0) if low >= 0 and high <= 255 else (low, high)
    return np.clip(255 * (values - low) / ((high - low) or 1.0), 0, 255).astype(np.uint8)
