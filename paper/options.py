"""Recipes and models as they are typed on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from paper.training.recipes import Recipe
from recal.errors import InputError


def parse_recipes(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the changes of each network's recipe from texts such as ``lenet5:epochs=30,crop=0``.

    Shares of the epochs at which the rate falls are joined by a slash: ``milestones=0.6/0.85``.

    Examples
    --------
    >>> from paper.options import parse_recipes
    >>> parse_recipes(["lenet5:epochs=30,flip=no,milestones=0.6/0.85"])
    {'lenet5': {'epochs': 30, 'flip': False, 'milestones': (0.6, 0.85)}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        network, colon, changes = text.partition(":")
        if not colon or not network.strip() or not changes.strip():
            raise InputError(f"A recipe is written network:name=value,name=value, got {text!r}.")
        for change in changes.split(","):
            name, equals, value = (part.strip() for part in change.partition("="))
            if not equals:
                raise InputError(
                    f"A recipe's change is written name=value, got {change!r} in {text!r}."
                )
            found.setdefault(network.strip(), {})[name] = _read(name, value)
    return found


def _read(name: str, text: str) -> Any:
    examples = {f.name: 0 if f.default is MISSING else f.default for f in fields(Recipe)}
    if name not in examples:
        raise InputError(f"A recipe has no {name!r}; it has: {', '.join(examples)}.")
    example = examples[name]
    try:
        if isinstance(example, bool):
            return {"yes": True, "no": False, "true": True, "false": False}[text.lower()]
        if isinstance(example, tuple):
            return tuple(float(part) for part in text.split("/") if part)
        return type(example)(text)
    except (KeyError, ValueError):
        kind = {
            bool: "yes or no",
            tuple: "numbers joined by /",
            int: "a whole number",
            float: "a number",
        }
        raise InputError(f"A recipe's {name} is {kind[type(example)]}, got {text!r}.") from None


def parse_models(texts: Iterable[str]) -> dict[str, Path]:
    """Return the model files from texts such as ``resnet152=resnet152.onnx``."""
    found: dict[str, Path] = {}
    for text in texts:
        network, equals, path = text.partition("=")
        if not equals or not network.strip() or not path.strip():
            raise InputError(f"A model is written network=FILE, got {text!r}.")
        found[network.strip()] = Path(path.strip())
    return found
