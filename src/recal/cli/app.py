"""The group of commands, each loaded when it is used, and the one place where errors become exit codes.

A new command `name` is a function `name`, whose docstring is its help, and one line in `COMMANDS` with its module. The
module imports only typer and this folder's helpers at its top, because `recal --help` reads all of them. The function
imports what does the work.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recal.cli.destinations import guarded
from recal.cli.options import ALL_OPTIONS, arranged, expanded, has_many
from recal.cli.printing import note_words, printable
from recal.errors import InputError, RecalError

# Each command with its module, in the order in which they are listed.
COMMANDS: dict[str, str] = {
    "demo": "report",
    "calibrate": "calibrate",
    "collect": "calibrate",
    "fit": "fit",
    "apply": "apply",
    "evaluate": "evaluate",
    "compare": "evaluate",
    "decide": "decide",
    "watch": "watch",
    "report": "report",
    "groups": "evaluate",
    "export": "export",
    "plan": "export",
    "transforms": "doctor",
    "doctor": "doctor",
}
# Commands that run with all defaults when nothing else is typed; the others show their help.
WITHOUT_ARGUMENTS = ("demo", "transforms", "doctor")

OK, UNEXPECTED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143

# The markup is named because older releases of typer take it for plain text by default.
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyGroup(TyperGroup):
    """Commands by name; a command's file is imported when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}."
            raise InputError(f"There is no command {cmd_name!r}; {hint}")
        argv: list[str] = ctx.obj or []
        here = argv[1:] if argv[:1] == [cmd_name] else []
        function = arranged(guarded(cmd_name, command_function(cmd_name, here)), show_all=ALL_OPTIONS in here)
        names = ["-h", "--help", *([ALL_OPTIONS] if has_many(function) else [])]
        single = typer.Typer(**_STYLE | {"context_settings": {"help_option_names": names}})
        needs_arguments = cmd_name not in WITHOUT_ARGUMENTS
        single.command(cmd_name, no_args_is_help=needs_arguments, help=_reflow(function.__doc__))(function)
        return typer.main.get_command(single)


def command_function(name: str, argv: Sequence[str] = ()) -> Callable[..., None]:
    """Return the function of a command, with the options of its blocks; `fit` also has those of the method typed."""
    module = import_module(f"recal.cli.{COMMANDS[name]}")
    return module.build(argv) if name == "fit" and argv else expanded(getattr(module, name))


def _reflow(docstring: str | None) -> str:
    """Join the lines of each paragraph: a terminal breaks them where it is wide enough."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _show_version(wanted: bool) -> None:
    if wanted:
        from recal import __version__

        typer.echo(f"recal {__version__}")
        raise typer.Exit


_app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    **_STYLE,
)


def _recal(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Calibrate a trained classifier without retraining it, and find the answers that can be automated.

    [bold]recal calibrate[/bold] does the whole job for your model and labelled inputs. [bold]recal apply[/bold] then
    answers new inputs. The other commands are its steps, one by one.

    [bold]recal demo[/bold] shows the whole job on real images in about a minute. It needs the extra `demo`.
    """


_app.callback(help=_reflow(_recal.__doc__))(_recal)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 1 for what should never happen."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    note_words(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name that is not UTF-8, or a terminal that is ASCII, stops no command
            stream.reconfigure(errors="backslashreplace")
    try:
        with _ended_by_sigterm(), warnings.catch_warnings():
            shown = _Warnings()
            warnings.showwarning = shown.show
            group = typer.main.get_command(_app)
            with group.make_context("recal", list(arguments), obj=arguments) as context:
                group.invoke(context)
            shown.close()
        sys.stdout.flush()
    except typer.Exit as done:
        return int(done.exit_code)
    except (KeyboardInterrupt, typer.Abort) as stop:
        ended = isinstance(stop, _Terminated)
        how = "Terminated." if ended else "Interrupted."
        return _say(" ".join([how, *getattr(stop, "__notes__", ())]), TERMINATED if ended else INTERRUPTED)
    except BrokenPipeError:
        # The reader left, as `head` does. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except RecalError as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return _say(as_typed(error, arguments) + where, BAD_INPUT)
    except Exception as error:
        return _refuse(error, arguments)
    return OK


class _Terminated(KeyboardInterrupt):
    """SIGTERM: whatever cleans up, or tells how to go on, after Ctrl-C does the same for it."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End the work on SIGTERM as on Ctrl-C. A second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():  # only there may a signal be handled
        yield
        return

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse(error: Exception, arguments: Sequence[str]) -> int:
    """One sentence for what the parser refuses, what the system refuses, and what nobody expected."""
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the parser's own errors share no public base
        sentence = refused(error, arguments)
        return (
            BAD_INPUT if sentence is None else _say(sentence, BAD_INPUT)
        )  # None: no arguments, the help has been shown
    if isinstance(error, OSError):
        full = " Free some space there, or choose another location with --out." if error.errno == errno.ENOSPC else ""
        return _say(f"{error.strerror or error}: {error.filename}{full}" if error.filename else str(error), BAD_INPUT)
    if isinstance(error, MemoryError):
        return _say(f"There is not enough memory for this: {error}", UNEXPECTED)
    if os.environ.get("RECAL_DEBUG"):
        raise error
    if hasattr(error, "blamed"):
        notes = " ".join(getattr(error, "__notes__", ()))
        return _say(
            f"{notes} It raised {type(error).__name__}: {str(error).rstrip('.')}. Set RECAL_DEBUG=1 to see where.",
            BAD_INPUT,
        )
    return _say(
        f"Unexpected {type(error).__name__}: {str(error).rstrip('.')}. This is a bug in recal; "
        "set RECAL_DEBUG=1 to see where it happened, and please report it.",
        UNEXPECTED,
    )


class _Warnings:
    """Warnings as one sentence each: where in the code they arose tells a reader of the command line nothing.

    Those that differ in their figures alone, as from each of ten splits, are shown once and counted.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[type[Warning], str], int] = {}

    def show(self, message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
        text = printable(" ".join(str(message).split()))
        key = category, re.sub(r"\d[\d.,]*", "#", text)
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] == 1:
            called = "Warning" if category is UserWarning else category.__name__
            print(f"recal: {called}: {text}", file=sys.stderr)

    def close(self) -> None:
        if more := sum(self.counts.values()) - len(self.counts):
            print(f"recal: {more} more warnings of the same kind, with other figures.", file=sys.stderr)


def _say(sentence: str, code: int) -> int:
    print(f"recal: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


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


# How an argument of the library is typed, where it is not called the same.
_OPTIONS = {
    "n_bins": ("--bins",),
    "random_state": ("--seed",),
    "pixels": ("--pixels", "--gray"),
    "save_to": ("--save",),
}


def as_typed(error: RecalError, arguments: Sequence[str]) -> str:
    """Return the sentence for an error, with its arguments named as they were typed.

    Examples
    --------
    >>> from recal.cli.app import as_typed
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on", argument="batch_size", came="got 0")
    >>> as_typed(error, ["collect", "--batch-size", "0"])
    '--batch-size must be a whole number from 1 on, got 0.'
    """
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}

    def spell(names: tuple[str, ...]) -> str:
        options = [_OPTIONS.get(name, (f"--{name.replace('_', '-')}",)) for name in names]
        # Of two arguments that belong together, one may have been forgotten.
        if not typed & {option for forms in options for option in forms}:
            return " and ".join(f"`{name}`" for name in names)
        return " and ".join(next((form for form in forms if form in typed), forms[0]) for forms in options)

    return error.sentence(spell, typed=True)
