"""All errors and warnings. An error keeps the argument, the rule that it broke and the remedy.

    raise InputError(f"must be a whole number from 1 on, got {batch_size!r}", argument="batch_size")

`str(error)` names the argument as in Python: "`batch_size` must be a whole number from 1 on, got
0." The command line names the option that was typed (`RecalError.sentence`). The rest of the text
is the same in both: a remedy names the argument and, in brackets, the option.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self


def in_both(**options: Any) -> str:
    """Return options as they are written in Python and in a terminal, for a remedy.

    Examples
    --------
    >>> from recal.errors import in_both
    >>> in_both(on_error="skip")
    "on_error='skip' (--on-error skip)"
    >>> in_both(classes=["no", "yes"])
    "classes=['no', 'yes'] (--classes no,yes)"
    >>> print(in_both(classes=["no", "yes, later"]))
    classes=['no', 'yes, later'] (--classes 'no,"yes, later"')
    """
    forms = []
    for name, value in options.items():
        quoted = [f'"{one}"' if "," in str(one) else str(one) for one in value]
        word = value if isinstance(value, str) else ",".join(quoted)
        forms.append(f"{name}={value!r} (--{name.replace('_', '-')} {shlex.quote(word)})")
    return ", ".join(forms)


@contextmanager
def recorded_warnings(found: list[str]) -> Iterator[None]:
    """Collect the texts of warnings, which are shown as usual, so that a report can repeat them.

    Examples
    --------
    >>> import warnings
    >>> from recal.errors import recorded_warnings
    >>> found = []
    >>> with recorded_warnings(found):
    ...     warnings.simplefilter("ignore")
    ...     warnings.warn("not shown, so not recorded")
    >>> found
    []
    """
    with warnings.catch_warnings():
        show = warnings.showwarning

        def record(message: Warning | str, *rest: Any, **more: Any) -> None:
            if str(message) not in found:
                found.append(str(message))
            show(message, *rest, **more)

        warnings.showwarning = record
        yield


def _code(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{name}`" for name in names)


class RecalError(Exception):
    """The base of all errors that recal raises.

    Parameters
    ----------
    rule : str
        What must hold, and what was given instead. With an argument, a rule that begins with a
        lower-case letter continues a sentence that begins with the argument's name.
    argument : str or tuple of str, optional
        The argument, or arguments, that broke the rule, by their names in Python.
    remedy : str, optional
        What to do next, in Python and in a terminal: "pass classes=[...] (--classes A,B)".
    where : str, optional
        The file or folder that the error is about.

    Examples
    --------
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on, got 0", argument="batch_size")
    >>> str(error)
    '`batch_size` must be a whole number from 1 on, got 0.'
    >>> error.argument
    'batch_size'
    """

    def __init__(
        self,
        rule: str = "",
        *,
        argument: str | tuple[str, ...] | None = None,
        remedy: str = "",
        where: str = "",
    ) -> None:
        self.rule, self.argument, self.remedy, self.where = rule, argument, remedy, where
        super().__init__(self.sentence())

    def sentence(self, spell: Callable[[tuple[str, ...]], str] = _code) -> str:
        """Return the error as text; `spell` formats the arguments."""
        names = (self.argument,) if isinstance(self.argument, str) else self.argument or ()
        text = f"{spell(names)} {self.rule}" if names and not self.rule[:1].isupper() else self.rule
        if names or self.remedy:
            parts = [part for part in (text, self.remedy) if part]
            text = " ".join(part if part.endswith((".", "?")) else f"{part}." for part in parts)
        return f"{self.where}: {text}" if self.where else text

    def at(self, where: object) -> Self:
        """Return the same error with the name of a file in front, unless it already names one."""
        if not self.where:
            self.where = str(where)
            self.args = (self.sentence(),)
        return self


class InputError(RecalError, ValueError):
    """The caller's values break a rule."""


class NotFittedError(RecalError, ValueError, AttributeError):
    """A calibrator was used before it was fitted."""


class FileError(RecalError):
    """A file cannot be read or written."""


class MissingExtraError(RecalError, ImportError):
    """An optional package is needed but not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed. "
            f"Install it with: {install_command(extra)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return RecalError, self.args, vars(self)  # the constructor does not take the message


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import of an optional package into an error that says how to install it."""
    try:
        yield
    except ImportError as error:
        package = (error.name or extra).partition(".")[0]
        raise MissingExtraError(package, extra, purpose) from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra: from the clone if recal was installed from one."""
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
    """Add a note to an exception that code called by recal, such as the user's model, raised it."""
    error.add_note(f"{whose} failed {where}.")
    error.__dict__["blamed"] = whose


class ConvergenceWarning(UserWarning):
    """A solver stopped before it met its tolerance."""


class FewSamplesWarning(UserWarning):
    """There are too few samples for the parameters of a method."""


class SameRowsWarning(UserWarning):
    """A rule or a metric is computed on the rows that the calibration was fitted on."""


class DoubtfulLabelsWarning(UserWarning):
    """Labels do not seem to belong to the rows."""


class DependentRowsWarning(UserWarning):
    """Rows are near-copies of each other, and no clusters were given."""


class UnseenGroupsWarning(UserWarning):
    """Some groups were not seen when a rule or a calibration was made."""


class UnseenValuesWarning(UserWarning):
    """Signals have levels or values far from those of the fit."""
