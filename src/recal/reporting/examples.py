"""Samples that a person should look at, and how the page shows them.

These are the most confident mistakes, and the predictions that change most under transformations. A
string that comes from the data is a text and never a path: only a `Path`, which the caller made, is
opened.
"""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from recal.comparison import Comparison
from recal.errors import FileError
from recal.views import Views

# Reading this many logits takes about a second.
_MOST_NUMBERS = 200_000_000
_SIDE = 112
_MOST_LETTERS = 300


@dataclass(frozen=True)
class Example:
    """One input of the test rows.

    Attributes
    ----------
    row : its row in the tested file, from 0
    id : what traces it to its input, such as a file name; empty if that is not known
    before, after : the confidence in the prediction
    doubt : the share of views in which the prediction changes; NaN without views
    """

    row: int
    answer: str
    truth: str
    before: float
    after: float
    doubt: float
    id: str = ""

    @property
    def right(self) -> bool:
        return self.answer == self.truth


@dataclass(frozen=True)
class Examples:
    mistakes: tuple[Example, ...]
    doubted: tuple[Example, ...]


def examples(comparison: Comparison, method: str, most: int = 8) -> Examples:
    """Return the most confident mistakes of a method, and the predictions that most views
    contradict.
    """
    rows, labels = comparison.samples[method], comparison.test_labels
    answers, before = (
        comparison.answers[method],
        comparison.samples[comparison.methods[0]].confidence,
    )
    doubt = view_doubt(comparison.test)
    names = comparison.classes

    def example(index: int) -> Example:
        answer, truth = (int(column[index]) for column in (answers, labels))
        words = [str(value if names is None else names[value]) for value in (answer, truth)]
        place = index if comparison.test_rows is None else int(comparison.test_rows[index])
        share = float("nan") if doubt is None else float(doubt[index])
        name = "" if comparison.ids is None else str(comparison.ids[index])
        sure = float(before[index]), float(rows.confidence[index])
        return Example(
            place, words[0], words[1], *sure, share, f"row {name}" if name.isdigit() else name
        )

    wrong = np.flatnonzero(~rows.correct)
    mistakes = wrong[np.argsort(-rows.confidence[wrong], kind="stable")[:most]]
    doubted: NDArray[np.intp] = np.empty(0, np.intp)
    if doubt is not None:
        # Among equally doubted predictions the most confident come first: there, views add the
        # most.
        ranked = np.lexsort((-rows.confidence, -doubt))[:most]
        doubted = ranked[doubt[ranked] > 0]
    return Examples(tuple(map(example, mistakes.tolist())), tuple(map(example, doubted.tolist())))


def too_large(views: Views, times: int) -> bool:
    """Whether reading all logits this many times would take more than about a second."""
    return views.n_samples * views.n_classes * times > _MOST_NUMBERS


def view_doubt(views: Views | None) -> NDArray[np.float64] | None:
    """Return the share of views in which the prediction changes;

    None without views or with too many of them.
    """
    if views is None or not views.transforms or too_large(views, len(views.transforms)):
        return None
    own = views.logits.argmax(axis=1)
    changed = np.zeros(views.n_samples)
    for transform in views.transforms:
        changed += views.transformed(transform).argmax(axis=1) != own
    return changed / len(views.transforms)


def shown_input(inputs: Any, row: int) -> Markup:
    """Return markup for one input: a picture, a link to a file, the beginning of a text, or
    nothing.
    """
    value = inputs[row]
    if isinstance(value, str):
        more = "…" if len(value) > _MOST_LETTERS else ""
        return Markup("<q>{}{}</q>").format(value[:_MOST_LETTERS], more)
    if isinstance(value, os.PathLike):
        return _linked(Path(value))
    image = _as_pixels(np.asarray(value))
    return Markup() if image is None else _picture(image, f"input {row}")


def _linked(path: Path) -> Markup:
    from recal.collecting.folders import read_image

    inside: Markup | str
    try:
        inside = _picture(np.asarray(read_image(path)), path.name)
    except FileError:
        inside = path.name
    return Markup('<a href="{}">{}</a>').format(path.resolve().as_uri(), inside)


def _picture(pixels: NDArray[np.uint8], words: str) -> Markup:
    from PIL import Image

    image = Image.fromarray(pixels)
    factor = _SIDE / max(image.size)
    # Small images are enlarged pixel by pixel, so that people see what the model sees.
    how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BILINEAR
    image = image.resize(
        (max(round(image.width * factor), 1), max(round(image.height * factor), 1)), how
    )
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    code = base64.b64encode(buffer.getvalue()).decode("ascii")
    element = '<img alt="{}" width="{}" height="{}" src="data:image/png;base64,{}">'
    return Markup(element).format(words, image.width, image.height, code)


def _as_pixels(array: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return an array as an image, grey or colour, channels last or first; None if it is not one."""
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
    # Normalised images have any range, so they are stretched to the visible one.
    low, high = (
        (0.0, 1.0)
        if low >= 0 and high <= 1
        else (0.0, 255.0)
        if low >= 0 and high <= 255
        else (low, high)
    )
    return np.clip(255 * (values - low) / ((high - low) or 1.0), 0, 255).astype(np.uint8)
