"""The error tree. An error is data: which argument, what rule, what came instead, what to do next.

    raise InputError("must be a whole number from 1 on", argument="batch_size", came=f"got {batch_size!r}")

`str(error)` puts it in the words of Python: "`batch_size` must be a whole number from 1 on, got 0." The command line
renders the same data with the options that were typed (`RecalError.sentence`). An error that reads the same in both
is one plain text: `InputError("The pool is empty.")`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Self


@dataclass(frozen=True)
class Remedy:
    """What to do next, where Python and a terminal need different words; an empty text says nothing.

    Examples
    --------
    >>> from recal.errors import Remedy
    >>> Remedy("pass classes=[...] in the columns' order", typed="give --classes A,B,C in the columns' order").typed
    "give --classes A,B,C in the columns' order"
    """

    python: str
    typed: str


def _code(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{name}`" for name in names)


class RecalError(Exception):
    """Whatever recal refuses to do.

    Parameters
    ----------
    rule : str
        What must hold; the whole sentence where nothing else is given. With an argument it continues the sentence that
        the argument begins.
    argument : str or tuple of str, optional
        The argument, or arguments, that broke the rule, by their names in Python.
    subject : str, optional
        How the sentence begins in place of the argument's name, such as "Labels".
    came : str, optional
        What came instead, a clause: "got 0", "row 7, column 0 is nan".
    remedy : str or Remedy, optional
        What to do next.
    aside : str, optional
        Words that only tools look for, such as scikit-learn's checks; the command line leaves them out.
    where : str, optional
        The file, or the like, that it is about.

    Examples
    --------
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on", argument="batch_size", came="got 0")
    >>> str(error)
    '`batch_size` must be a whole number from 1 on, got 0.'
    >>> error.argument, error.came
    ('batch_size', 'got 0')
    """

    def __init__(
        self,
        rule: str = "",
        *,
        argument: str | tuple[str, ...] | None = None,
        subject: str = "",
        came: str = "",
        remedy: str | Remedy = "",
        aside: str = "",
        where: str = "",
    ) -> None:
        self.rule, self.argument, self.subject, self.came = rule, argument, subject, came
        self.remedy, self.aside, self.where = remedy, aside, where
        super().__init__(self.sentence())

    def sentence(self, spell: Callable[[tuple[str, ...]], str] = _code, *, typed: bool = False) -> str:
        """Return the error as text; `spell` writes the arguments, and `typed` chooses a terminal's words."""
        names = (self.argument,) if isinstance(self.argument, str) else self.argument or ()
        subject = self.subject or (spell(names) if names else "")
        remedy = self.remedy if isinstance(self.remedy, str) else self.remedy.typed if typed else self.remedy.python
        text = f"{subject} {self.rule}" if subject else self.rule
        if self.came:
            text = f"{text.rstrip('.')}{', ' if self.came.startswith('got ') else '; '}{self.came}"
        more = [remedy] if typed else [remedy, self.aside]
        if subject or self.came or any(more):
            text = " ".join(_stopped(part) for part in (text, *more) if part)
        return f"{self.where}: {text}" if self.where else text

    def at(self, where: object) -> Self:
        """Return the same error, said about a file or the like; an error that has a place keeps its own."""
        if not self.where:
            self.where = str(where)
            self.args = (self.sentence(),)
        return self


def _stopped(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


class InputError(RecalError, ValueError):
    """The caller's values break a rule."""


class NotFittedError(RecalError, ValueError, AttributeError):
    """A calibrator was asked before it was fitted. Where scikit-learn is loaded it is also an instance of its own."""

    def __new__(cls, *arguments: object, **parts: object) -> NotFittedError:
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
            f"Install it with: {install_command(extra)}"
        )


def install_command(extra: str) -> str:
    """Return what to type to install an extra: from the clone if recal was installed from one."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("recal-calibration").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    folder = str(origin.get("url", "")).removeprefix("file://")
    if "dir_info" not in origin or not folder:
        return f"pip install 'recal-calibration[{extra}]'"
    edit = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {edit}'{folder}[{extra}]'"


def blame(error: Exception, whose: str, where: str) -> None:
    """Note on an exception that it came from code that recal only called, such as the user's model."""
    error.add_note(f"{whose} failed {where}.")
    error.__dict__["blamed"] = whose


class ConvergenceWarning(UserWarning):
    """A solver stopped before it met its tolerance."""


class FewSamplesWarning(UserWarning):
    """There are too few samples for what a method has to learn."""


class SameRowsWarning(UserWarning):
    """Something is made or measured on the rows that the calibration was fitted on."""


class DoubtfulLabelsWarning(UserWarning):
    """Labels do not look like those of the rows that they are given with."""


class DependentRowsWarning(UserWarning):
    """Rows are near-copies of each other, and no clusters were given."""


class UnseenGroupsWarning(UserWarning):
    """Some groups were not seen when a rule or a calibration was made."""


class GroupRiskWarning(UserWarning):
    """One rule for all is clearly broken in a group."""
