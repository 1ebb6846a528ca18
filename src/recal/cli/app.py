"""The group of commands, each loaded when it is used, and how a run ends.

A command `name` is a module `recal.cli.name` with a function `name`, whose docstring is its help,
and one word in `COMMANDS`. The module imports only typer and this folder's helpers at its top,
because `recal --help` loads all of them. The function imports the code that does the work.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recal.cli.destinations import check_destinations
from recal.cli.options import Command, expand, shared, shown_name
from recal.cli.printing import SESSION, printable
from recal.errors import InputError, RecalError
from recal.files.paths import local_path

# In the order in which they are listed.
COMMANDS = [
    "demo",
    "calibrate",
    "apply",
    "collect",
    "fit",
    "evaluate",
    "compare",
    "decide",
    "audit",
    "check",
    "serve",
    "watch",
    "report",
    "export",
    "plan",
    "transforms",
    "groups",
    "doctor",
]
# Set the markup mode because older releases of typer print markup as plain text by default.
_STYLE: dict[str, Any] = {"add_completion": False, "rich_markup_mode": "rich"}


class LazyGroup(TyperGroup):
    """Commands by name; a command's file is imported when the command is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"the commands are {', '.join(COMMANDS)}."
            if near:
                hint = f"did you mean {near[0]!r}?"
            raise InputError(f"There is no command {cmd_name!r}; {hint}")
        return build_command(cmd_name, ctx.obj or [])


def build_command(name: str, words: Sequence[str] = ()) -> Any:
    """Return the parser of one command; `words` is what was typed after `recal`."""
    module = import_module(f"recal.cli.{name}")
    function = getattr(module, name)
    family = getattr(module, "FitCommand", Command)
    command = _parser(_checked(name, function), name, cls=family, help=_reflow(function.__doc__))
    command.params += _parser(shared).params
    command.no_args_is_help = name not in ("demo", "transforms", "doctor")  # they need none
    options: list[Any] = command.params
    in_panels = [one for one in options if getattr(one, "rich_help_panel", None)]
    if in_panels and "--help-all" not in words:
        command.help = f"{command.help}\n\n{len(in_panels)} more options: add --help-all"
        for option in in_panels:
            option.hidden = True
    more = ["--help-all"] if in_panels else []
    command.context_settings["help_option_names"] = ["-h", "--help", *more]
    return command


def _parser(function: Callable[..., None], *name: str, **how: Any) -> Any:
    app = typer.Typer(**_STYLE)
    app.command(*name, **how)(function)
    return typer.main.get_command(app)


def _checked(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """Add what all commands share: blocks of options, and the rules for outputs."""
    options, packed = expand(function)

    def command(**values: Any) -> None:
        for value in values.values():
            if isinstance(value, Path):
                local_path(value)
        check_destinations(name, values, force=values.get("force", False))
        function(**packed(**values))

    command.__signature__ = options  # type: ignore[attr-defined]
    return command


def _reflow(docstring: str | None) -> str:
    """Join the lines of each paragraph, because the terminal wraps them to its own width."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _show_version(asked: bool) -> None:
    if asked:
        from recal import __version__

        typer.echo(f"recal {__version__}")
        raise typer.Exit


_app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_STYLE,
)


def _recal(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Calibrate a trained classifier without retraining it, and find the answers that can be
    automated.

    [bold]recal calibrate[/bold] does the whole job for your model and labelled inputs. [bold]recal
    apply[/bold] then answers new inputs. The other commands are its steps, one by one.

    [bold]recal demo[/bold] shows the whole job on real images in about a minute. It needs the extra
    `demo`.
    """


_app.callback(help=_reflow(_recal.__doc__))(_recal)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 1 for an unexpected error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    SESSION.words = tuple(arguments)
    for stream in (sys.stdout, sys.stderr):
        # Do not fail on a name that is not UTF-8, or on an ASCII terminal.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _end_on_sigterm(), warnings.catch_warnings():
            printer = Warnings()
            warnings.showwarning = printer.show
            group = typer.main.get_command(_app)
            with group.make_context("recal", list(arguments), obj=arguments) as context:
                group.invoke(context)
            printer.close()
        sys.stdout.flush()
    except typer.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort) as stop:
        return ended(stop, terminated=isinstance(stop, _Terminated))
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would report this again when it closes
        # stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as error:
        return failed(error, arguments)
    return 0


class _Terminated(KeyboardInterrupt):
    """SIGTERM: code that cleans up or says how to resume after Ctrl-C also runs for it."""


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """End the work on SIGTERM as on Ctrl-C. A second SIGTERM ends the process at once."""
    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
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


def ended(stop: BaseException, *, terminated: bool) -> int:
    """Print that the run was ended from outside, and how to resume it."""
    what, code = ("Terminated.", 143) if terminated else ("Interrupted.", 130)
    return _say(" ".join([what, *getattr(stop, "__notes__", ())]), code)


def failed(error: Exception, arguments: Sequence[str]) -> int:
    """Print one sentence about an error and return the exit code."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, RecalError):
        return _say(as_typed(error, arguments) + "".join(f" ({note})" for note in notes), 2)
    # Errors of the parser share no public base class.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        sentence = _parser_sentence(error)
        return _say(sentence, 2) if sentence else 2
    if isinstance(error, OSError):
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        if error.errno == errno.ENOSPC:
            text += " Free some space there, or choose another location with --out."
        return _say(text, 2)
    if isinstance(error, MemoryError):
        return _say(f"There is not enough memory for this: {error}", 1)
    if os.environ.get("RECAL_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {str(error).rstrip('.')}"
    if hasattr(error, "blamed"):
        where = "Set RECAL_DEBUG=1 to see where."
        return _say(f"{' '.join(notes)} It raised {what}. {where}", 2)
    return _say(
        f"Unexpected {what}. This is a bug in recal; set RECAL_DEBUG=1 to see where it happened, "
        "and please report it.",
        1,
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
            words = "warnings" if more > 1 else "warning"
            sentence = f"{more} more {words} of the same kind, with other figures."
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
    options = [flag for one in parameters for flag in one.opts]
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "MissingParameter" and parameter is not None:
        needed = getattr(parameter, "help", None) or "it is needed"
        message = f"{shown_name(parameter)} is missing: {needed}"
    elif kind == "NoSuchOption":
        message = f"There is no option {error.option_name}."
        near = list(error.possibilities or ())
        if len(error.option_name) == 2:  # a single letter
            near += [flag for flag in options if flag.startswith(f"-{error.option_name}")]
        if near:
            message += f" Did you mean {' or '.join(near[:3])}?"
    elif kind == "BadParameter" and parameter is not None:
        message = _bad_value(str(error.message), parameter)
    elif "unexpected extra argument" in message:
        taken = [shown_name(one) for one in parameters if one.param_type_name == "argument"]
        extra = re.sub(r".*unexpected extra argument(s|\(s\))? \((.*)\)", r"\2", message)
        takes = " and ".join(taken) or "options"
        message = f"{context.command_path} takes {takes} alone, got also {extra}"
        if context.info_name == "evaluate":
            line = f"recal check FOLDER {extra} --label-column COLUMN"
            message += f". To measure a calibration on a labelled table: {line}"
    path = context.command_path if context is not None else "recal"
    method = SESSION.value("--method")
    path += f" --method {method}" if method and path.endswith(" fit") else ""
    return f"{message}{'' if message[-1] in '.?' else '.'} See: {path} --help"


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
    >>> from recal.cli.app import as_typed
    >>> from recal.errors import InputError
    >>> error = InputError("must be a whole number from 1 on, got 0", argument="batch_size")
    >>> as_typed(error, ["collect", "--batch-size", "0"])
    '--batch-size must be a whole number from 1 on, got 0.'
    """
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    # How an argument of the library is typed, if the option has another name.
    other_names = {
        "n_bins": ("--bins",),
        "random_state": ("--seed",),
        "save_to": ("--save",),
        "groups": ("--group",),
        "clusters": ("--cluster", "--cluster-by"),
    }

    def spell(names: tuple[str, ...]) -> str:
        options = [other_names.get(name, (f"--{name.replace('_', '-')}",)) for name in names]
        # If none of these options was typed, use the arguments' own names.
        if not typed & {option for forms in options for option in forms}:
            return " and ".join(f"`{name}`" for name in names)
        return " and ".join(
            next((form for form in forms if form in typed), forms[0]) for forms in options
        )

    return error.sentence(spell)
