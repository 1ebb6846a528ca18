"""The error tree. Every message says the rule, what came instead, and what to do."""

from __future__ import annotations

import sys
from functools import cache


class RecalError(Exception):
    """Whatever recal refuses to do."""


class InputError(RecalError, ValueError):
    """The caller's values break a rule."""


class NotFittedError(RecalError, ValueError, AttributeError):
    """A calibrator was asked before it was fitted. Where scikit-learn is loaded it is also an instance of its own."""

    def __new__(cls, *arguments: object) -> NotFittedError:
        theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
        if theirs is None or cls is not NotFittedError:
            return super().__new__(cls, *arguments)
        return super().__new__(_joined_with(theirs), *arguments)

    def __reduce__(self) -> tuple[type[NotFittedError], tuple[object, ...]]:
        return NotFittedError, self.args  # a process that reads it may not have scikit-learn loaded


@cache
def _joined_with(theirs: type[Exception]) -> type[NotFittedError]:
    return type("NotFittedError", (NotFittedError, theirs), {"__module__": __name__, "__doc__": NotFittedError.__doc__})


class FileError(RecalError):
    """A file cannot be read or written as what it should be."""


class MissingExtraError(RecalError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed. "
            f"Install it with: pip install 'recal-calibration[{extra}]'"
        )


def blame(error: Exception, whose: str, where: str) -> None:
    """Note on an exception that it came from code that recal only called, such as the user's model."""
    error.add_note(f"{whose} failed {where}.")
    error.__dict__["blamed"] = whose


class ConvergenceWarning(UserWarning):
    """A solver stopped before it met its tolerance."""


class FewSamplesWarning(UserWarning):
    """There are too few samples for what a method has to learn."""


class DoubtfulLabelsWarning(UserWarning):
    """Labels do not look like those of the rows that they are given with."""
