"""Methods by name: the short names of the command line and of tables, such as `svs` and `svs (kept)`."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from typing import Any

from recal import calibrators
from recal.calibrators import short_names
from recal.calibrators.base import Calibrator
from recal.errors import InputError

_WITH_ANSWERS = re.compile(r"\s*(?P<name>[^\s(:]+)\s*(?:\(\s*(?P<option>\w+)\s*\)|:(?P<short>\w+))?\s*")

_WORDS = re.compile(r"[A-Z][a-z]+")


def find_method(name: str) -> tuple[type[Calibrator], dict[str, Any]]:
    """Return the class that a name stands for, and the options that are part of the name.

    ``svs (kept)``, or ``svs:kept`` where brackets are a nuisance, is ``svs`` with ``answers="kept"``.

    Examples
    --------
    >>> from recal.calibrators.names import find_method
    >>> find_method("svs (kept)")
    (<class 'recal.calibrators.structured.StructuredVectorScaling'>, {'answers': 'kept'})
    """
    by_name = short_names()
    found = _WITH_ANSWERS.fullmatch(name)
    plain = found["name"] if found else name
    answers = (found["option"] or found["short"]) if found else None
    if plain not in by_name:
        raise InputError(f"There is no method {name!r}; the methods are {', '.join(by_name)}.{_hint(plain, by_name)}")
    method = getattr(calibrators, by_name[plain])
    if answers is None:
        return method, {}
    if "answers" not in inspect.signature(method).parameters:
        raise InputError(f"{plain!r} never changes an answer and has no option `answers`, so {name!r} is no method.")
    if answers not in ("kept", "free"):
        raise InputError(f"A method's answers are 'kept' or 'free', got {name!r}.")
    return method, {"answers": answers}


def _hint(typed: str, by_name: dict[str, str]) -> str:
    """The method that was meant, where its short or its long name is near."""
    meant = {short: short for short in by_name}
    meant |= {word.lower(): short for short, found in by_name.items() for word in _WORDS.findall(found)[:1]}
    meant |= {found.lower(): short for short, found in by_name.items()}
    near = get_close_matches(typed.lower(), meant, n=1)
    return f" Did you mean {meant[near[0]]}?" if near else ""


def name_of(calibrator: Calibrator) -> str:
    """Return the name under which a calibrator stands in tables: `svs`, or `svs (kept)` if that is not its default.

    Examples
    --------
    >>> from recal.calibrators import StructuredVectorScaling
    >>> from recal.calibrators.names import name_of
    >>> name_of(StructuredVectorScaling(answers="kept"))
    'svs (kept)'
    """
    usual = inspect.signature(type(calibrator)).parameters.get("answers")
    answers = getattr(calibrator, "answers", None)
    short = calibrator.short_name
    return short if usual is None or answers == usual.default else f"{short} ({answers})"
