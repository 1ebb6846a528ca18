"""What the parser of options refuses, in one sentence: which option, what came, what it takes.

The parser's own sentences leave out what was typed. Its errors share no public class, so they are told by their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# What options of other tools are called here.
_MEANT = {
    "--format": "--json",
    "--output": "--out",
    "--output-file": "--out",
    "--save": "--out",
    "--overwrite": "--force",
    "--label": "--labels",
    "--target": "--labels",
    "--transforms": "--pool",
    "--views": "--pool",
    "--inputs": "--data",
    "--input": "--data",
    "--images": "--data",
    "--batch": "--batch-size",
    "--resume": "--again",
    "--error": "--risk",
    "--n-bins": "--bins",
}
_NUMBER = "a number, such as 0.05"
_TAKES = {"valid integer": "a whole number", "valid number": _NUMBER, "valid float": _NUMBER}


def refused(error: Any, arguments: Sequence[str]) -> str | None:
    """Return the sentence for an error of the parser; None where the help was shown instead."""
    message = str(error.format_message()).rstrip(".")
    if not message:
        return None
    context: Any = getattr(error, "ctx", None)
    options = {option: one for one in (context.command.params if context else ()) for option in one.opts}
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "MissingParameter" and parameter is not None:
        message = f"{_name(parameter)} is missing: {_help(parameter)}"
    elif kind == "NoSuchOption":
        message = _unknown(str(error.option_name), list(error.possibilities or ()), options)
    elif kind == "BadParameter" and parameter is not None:
        message = _wrong(error, parameter, _typed(parameter, arguments))
    elif "unexpected extra argument" in message:
        taken = [_name(one) for one in options.values() if getattr(one, "param_type_name", "") == "argument"]
        extra = re.sub(r".*unexpected extra argument(s|\(s\))? \((.*)\)", r"\2", message)
        message = (
            f"{context.command_path} takes {' and '.join(dict.fromkeys(taken)) or 'options'} alone, got also {extra}"
        )
    path = context.command_path if context is not None else "recal"
    method = _value("--method", arguments)
    path += f" --method {method}" if method and path.endswith(" fit") else ""
    return f"{message}{'' if message[-1] in '.?' else '.'} See: {path} --help"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper().replace("_", " ")
    return str(parameter.opts[0])


def _help(parameter: Any) -> str:
    return str(getattr(parameter, "help", None) or "it is needed")


def _wrong(error: Any, parameter: Any, typed: str | None) -> str:
    said = str(error.message)
    got = "" if typed is None else f", got {typed!r}"
    takes = next((takes for words, takes in _TAKES.items() if words in said), None)
    if takes is not None:
        return f"{_name(parameter)} takes {takes}{got}"
    if repr(typed) in said:  # an option of a method, whose reader says it all
        return f"{_name(parameter)}: {said}"
    return f"{_name(parameter)}: {said[:1].lower()}{said[1:]}{got}"


def _unknown(option: str, near: list[str], options: dict[str, Any]) -> str:
    meant = [_MEANT[option]] if _MEANT.get(option) in options else near
    if not meant and len(option) == 2:  # a single letter
        meant = [name for name in options if name.startswith(f"-{option}")]
    hint = f" Did you mean {' or '.join(meant[:3])}?" if meant else ""
    return f"There is no option {option}.{hint}"


def _typed(parameter: Any, arguments: Sequence[str]) -> str | None:
    found = (_value(option, arguments) for option in parameter.opts)
    return next((value for value in found if value is not None), None)


def _value(option: str, arguments: Sequence[str]) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None
