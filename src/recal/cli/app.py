"""The group of commands, each loaded when it is used, and how a run ends.

A command `name` is a module `recal.cli.name` with a function `name`, whose docstring is its help,
and one word in `COMMANDS`. Its list `INPUTS` names the fields of `Inputs` that are its options. The
module imports only typer and this folder's helpers at its top, because `recal --help` loads all of
them. The function imports the code that does the work.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from recal.cli.files import check_destinations
from recal.cli.options import Inputs
from recal.cli.printing import SESSION, printable
from recal.errors import RecalError
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
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def _shared(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """The options of every command, which `Command` reads."""


class Command(TyperCommand):
    """A command that also takes shared options, and refuses an output that exists."""

    inputs: tuple[str, ...] = ()

    def invoke(self, ctx: Any) -> Any:
        SESSION.as_json, SESSION.quiet = ctx.params.pop("json"), ctx.params.pop("quiet")
        for value in ctx.params.values():
            if isinstance(value, Path):
                local_path(value)  # refuse a URL
        check_destinations(str(self.name), ctx.params)
        ctx.obj = Inputs(**{name: ctx.params.pop(name) for name in self.inputs})
        return super().invoke(ctx)


class LazyGroup(TyperGroup):
    """Commands by name; a command's file is imported when the command is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return build_command(cmd_name) if cmd_name in COMMANDS else None


def build_command(name: str) -> Any:
    """Return the parser of one command."""
    module = import_module(f"recal.cli.{name}")
    function = getattr(module, name)
    settings = _HELP | getattr(module, "CONTEXT_SETTINGS", {})
    how: dict[str, Any] = {"help": _reflow(function.__doc__), "context_settings": settings}
    command = _parser(function, name, cls=Command, **how)
    command.inputs = getattr(module, "INPUTS", ())
    of_inputs = _options_of(Inputs)
    command.params += [of_inputs[name] for name in command.inputs]
    command.params += _options_of(_shared).values()
    return command


@cache
def _options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that typer makes of the parameters of a function or class."""
    return {option.name: option for option in _parser(function).params}


def _parser(function: Callable[..., Any], *name: str, **how: Any) -> Any:
    app = typer.Typer(**_STYLE)
    app.command(*name, **how)(function)
    return typer.main.get_command(app)


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
    context_settings=_HELP,
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
            warnings.showwarning = _warning_printer()
            group = typer.main.get_command(_app)
            with group.make_context("recal", list(arguments)) as context:
                group.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort) as stop:
        what, code = (
            ("Terminated.", 143) if isinstance(stop, _Terminated) else ("Interrupted.", 130)
        )
        return _say(" ".join([what, *getattr(stop, "__notes__", ())]), code)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would report this again when it closes
        # stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as error:
        return _failed(error, arguments)
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


def _failed(error: Exception, arguments: Sequence[str]) -> int:
    """Print one sentence about an error and return the exit code."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, RecalError):
        return _say(as_typed(error, arguments) + "".join(f" ({note})" for note in notes), 2)
    # Errors of the parser share no public base class.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        message, context = str(error.format_message()), getattr(error, "ctx", None)
        path = "recal" if context is None else context.command_path
        # Without any argument, typer has shown the help.
        return _say(f"{message.rstrip('.')}. See: {path} --help", 2) if message else 2
    if isinstance(error, OSError):
        text = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        return _say(text, 2)
    if isinstance(error, MemoryError):
        return _say(f"There is not enough memory for this: {error}", 1)
    if os.environ.get("RECAL_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {str(error).rstrip('.')}"
    if hasattr(error, "blamed"):  # an error in the user's own code
        where = "Set RECAL_DEBUG=1 to see where."
        return _say(f"{' '.join(notes)} It raised {what}. {where}", 2)
    return _say(
        f"Unexpected {what}. This is a bug in recal; set RECAL_DEBUG=1 to see where it happened, "
        "and please report it.",
        1,
    )


def _warning_printer() -> Callable[..., None]:
    """Return a function that prints each warning as one sentence, without its place in the code.

    Warnings that differ only in their figures, such as those of ten splits, are shown once.
    """
    shown = set()

    def show(message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
        text = printable(" ".join(str(message).split()))
        key = category, re.sub(r"\d[\d.,]*", "#", text)
        if key not in shown:
            name = "Warning" if category is UserWarning else category.__name__
            print(f"recal: {name}: {text}", file=sys.stderr)
        shown.add(key)

    return show


def _say(sentence: str, code: int) -> int:
    print(f"recal: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


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
    options = {"n_bins": "bins", "random_state": "seed", "groups": "group", "clusters": "cluster"}

    def spell(names: tuple[str, ...]) -> str:
        flags = [f"--{options.get(name, name).replace('_', '-')}" for name in names]
        # If none of these options was typed, use the arguments' own names.
        return " and ".join([f"`{name}`" for name in names] if typed.isdisjoint(flags) else flags)

    return error.sentence(spell)
