"""The group of commands, each loaded when it is used, and how a run ends.

A command `name` is a module `recal.cli.name` with a function `name`, whose docstring is its help,
and one word in `COMMANDS`. The module imports only typer and this folder's helpers at its top,
because `recal --help` loads all of them. The function imports the code that does the work.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recal.cli.destinations import check_outputs
from recal.cli.failures import BROKEN_PIPE, OK, Warnings, ended, failed
from recal.cli.options import Command
from recal.cli.printing import SESSION
from recal.errors import InputError
from recal.files.paths import as_path, is_url

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
_HELP = ["-h", "--help"]
_HELP_ALL = "--help-all"


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
    app = typer.Typer(**_STYLE)
    family = getattr(module, "FitCommand", Command)
    app.command(name, cls=family, help=_reflow(function.__doc__))(_checked(name, function))
    command = typer.main.get_command(app)
    command.no_args_is_help = name not in ("demo", "transforms", "doctor")  # they need none
    names = _HELP
    options: list[Any] = command.params
    in_panels = [one for one in options if getattr(one, "rich_help_panel", None)]
    if in_panels:
        names = [*_HELP, _HELP_ALL]
        if _HELP_ALL not in words:
            command.help = f"{command.help}\n\n{len(in_panels)} more options: add {_HELP_ALL}"
            for option in in_panels:
                option.hidden = True
    command.context_settings["help_option_names"] = names
    return command


def _checked(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """Add what all commands share: --json and --quiet, URLs as paths, and the rules for outputs."""

    @functools.wraps(function)
    def command(**values: Any) -> None:
        SESSION.quiet, SESSION.as_json = values["quiet"], values["as_json"]
        for key, value in values.items():
            if isinstance(value, Path) and is_url(value):
                values[key] = as_path(value)
        check_outputs(name, values, force=values.get("force", False))
        function(**values)

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
    context_settings={"help_option_names": _HELP},
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
        return BROKEN_PIPE
    except Exception as error:
        return failed(error, arguments)
    return OK


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
