"""How a run that failed ends: one sentence about the error, and the exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from recal.cli.options import shown_name
from recal.cli.printing import SESSION, printable
from recal.errors import RecalError

OK, UNEXPECTED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143

# Each option with its names in other tools.
_SYNONYMS = {
    "--json": ("--format",),
    "--out": ("--output", "--output-file", "--save"),
    "--force": ("--overwrite",),
    "--labels": ("--label", "--target"),
    "--pool": ("--transforms", "--views"),
    "--data": ("--inputs", "--input", "--images"),
    "--batch-size": ("--batch",),
    "--again": ("--resume",),
    "--risk": ("--error",),
    "--bins": ("--n-bins",),
}
# How an argument of the library is typed, if the option has another name.
_OPTIONS = {
    "n_bins": ("--bins",),
    "random_state": ("--seed",),
    "pixels": ("--pixels", "--gray"),
    "save_to": ("--save",),
    "groups": ("--group",),
    "clusters": ("--cluster", "--cluster-by"),
}


def ended(stop: BaseException, *, terminated: bool) -> int:
    """Print that the run was ended from outside, and how to resume it."""
    what, code = ("Terminated.", TERMINATED) if terminated else ("Interrupted.", INTERRUPTED)
    return _say(" ".join([what, *getattr(stop, "__notes__", ())]), code)


def failed(error: Exception, arguments: Sequence[str]) -> int:
    """Print one sentence about an error and return the exit code."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, RecalError):
        return _say(as_typed(error, arguments) + "".join(f" ({note})" for note in notes), BAD_INPUT)
    # Errors of the parser share no public base class.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        sentence = _parser_sentence(error)
        return _say(sentence, BAD_INPUT) if sentence else BAD_INPUT
    if isinstance(error, OSError):
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        if error.errno == errno.ENOSPC:
            text += " Free some space there, or choose another location with --out."
        return _say(text, BAD_INPUT)
    if isinstance(error, MemoryError):
        return _say(f"There is not enough memory for this: {error}", UNEXPECTED)
    if os.environ.get("RECAL_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {str(error).rstrip('.')}"
    if hasattr(error, "blamed"):
        where = "Set RECAL_DEBUG=1 to see where."
        return _say(f"{' '.join(notes)} It raised {what}. {where}", BAD_INPUT)
    return _say(
        f"Unexpected {what}. This is a bug in recal; set RECAL_DEBUG=1 to see where it happened, "
        "and please report it.",
        UNEXPECTED,
    )


class Warnings:
    """Prints each warning as one sentence, without its location in the code.

    Warnings that differ only in their figures, such as those of ten splits, are shown once and
    counted.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[type[Warning], str]] = Counter()

    def show(
        self, message: Warning | str, category: type[Warning], *_where: Any, **_more: Any
    ) -> None:
        text = printable(" ".join(str(message).split()))
        key = category, re.sub(r"\d[\d.,]*", "#", text)
        self.counts[key] += 1
        if self.counts[key] == 1:
            name = "Warning" if category is UserWarning else category.__name__
            print(f"recal: {name}: {text}", file=sys.stderr)

    def close(self) -> None:
        if more := self.counts.total() - len(self.counts):
            sentence = f"{more} more warnings of the same kind, with other figures."
            print(f"recal: {sentence}", file=sys.stderr)


def _say(sentence: str, code: int) -> int:
    print(f"recal: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _parser_sentence(error: Any) -> str:
    """Return the sentence for an error of the parser; empty if the help was shown instead."""
    message = str(error.format_message()).rstrip(".")
    if not message:
        return ""
    context: Any = getattr(error, "ctx", None)
    parameters = context.command.params if context else ()
    options = {flag: one for one in parameters for flag in one.opts}
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "MissingParameter" and parameter is not None:
        needed = getattr(parameter, "help", None) or "it is needed"
        message = f"{shown_name(parameter)} is missing: {needed}"
    elif kind == "NoSuchOption":
        message = f"There is no option {error.option_name}."
        if near := _similar(str(error.option_name), list(error.possibilities or ()), options):
            message += f" Did you mean {' or '.join(near[:3])}?"
    elif kind == "BadParameter" and parameter is not None:
        message = _bad_value(str(error.message), parameter)
    elif "unexpected extra argument" in message:
        taken = [shown_name(one) for one in parameters if one.param_type_name == "argument"]
        extra = re.sub(r".*unexpected extra argument(s|\(s\))? \((.*)\)", r"\2", message)
        takes = " and ".join(taken) or "options"
        message = f"{context.command_path} takes {takes} alone, got also {extra}"
    path = context.command_path if context is not None else "recal"
    method = SESSION.value("--method")
    path += f" --method {method}" if method and path.endswith(" fit") else ""
    return f"{message}{'' if message[-1] in '.?' else '.'} See: {path} --help"


def _similar(flag: str, near: list[str], options: dict[str, Any]) -> list[str]:
    """Return the options that a person may have meant."""
    meant = [own for own, others in _SYNONYMS.items() if flag in others and own in options]
    if not meant and not near and len(flag) == 2:  # a single letter
        meant = [name for name in options if name.startswith(f"-{flag}")]
    return meant or near


def _bad_value(reason: str, parameter: Any) -> str:
    values = (SESSION.value(flag) for flag in parameter.opts)
    value = next((value for value in values if value is not None), None)
    came = "" if value is None else f", got {value!r}"
    if "valid integer" in reason:
        return f"{shown_name(parameter)} takes a whole number{came}"
    if "valid number" in reason or "valid float" in reason:
        return f"{shown_name(parameter)} takes a number, such as 0.05{came}"
    return f"{shown_name(parameter)}: {reason[:1].lower()}{reason[1:]}{came}"


def as_typed(error: RecalError, arguments: Sequence[str]) -> str:
    """Return the sentence for an error, with its arguments named as they were typed.

    Examples
    --------
    >>> from recal.cli.failures import as_typed
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on, got 0", argument="batch_size")
    >>> as_typed(error, ["collect", "--batch-size", "0"])
    '--batch-size must be a whole number from 1 on, got 0.'
    """
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}

    def spell(names: tuple[str, ...]) -> str:
        options = [_OPTIONS.get(name, (f"--{name.replace('_', '-')}",)) for name in names]
        # If none of these options was typed, use the arguments' own names.
        if not typed & {option for forms in options for option in forms}:
            return " and ".join(f"`{name}`" for name in names)
        return " and ".join(
            next((form for form in forms if form in typed), forms[0]) for forms in options
        )

    return error.sentence(spell)
