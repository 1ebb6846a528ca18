"""The group of commands, each loaded when it is used, and the one place where errors become exit
codes.

A new command `name` is a function `name`, whose docstring is its help, and one line in `COMMANDS`
with its module. The module imports only typer and this folder's helpers at its top, because `recal
--help` loads all of them. The function imports the code that does the work.
"""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import os
import re
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperGroup

from recal.cli.destinations import OUTPUTS, check_outputs
from recal.cli.options import MORE, option, typed_value
from recal.cli.printing import SESSION, printable
from recal.errors import InputError, RecalError
from recal.files.paths import as_path, is_url

# Each command with its module, in the order in which they are listed.
COMMANDS: dict[str, str] = {
    "demo": "evaluate",
    "calibrate": "calibrate",
    "collect": "collect",
    "fit": "calibrate",
    "apply": "apply",
    "evaluate": "evaluate",
    "compare": "evaluate",
    "decide": "decide",
    "watch": "decide",
    "report": "evaluate",
    "groups": "evaluate",
    "export": "export",
    "plan": "export",
    "transforms": "doctor",
    "doctor": "doctor",
}
OK, UNEXPECTED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143

# Set the markup mode because older releases of typer print markup as plain text by default.
_STYLE: dict[str, Any] = {"add_completion": False, "rich_markup_mode": "rich"}
_HELP = ["-h", "--help"]
_HELP_ALL = "--help-all"
# Options that every command has; --force only those that write a file.
_GENERAL = {
    "as_json": option("Print one JSON value for machines and nothing else.", False, flag="--json"),
    "force": option("Overwrite existing files.", False),
    "quiet": option("Show no progress; without a terminal none is shown anyway.", False),
}


class LazyGroup(TyperGroup):
    """Commands by name; a command's file is imported when the command is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}."
            )
            raise InputError(f"There is no command {cmd_name!r}; {hint}")
        argv: list[str] = ctx.obj or []
        function = command_function(cmd_name, argv[1:] if argv[:1] == [cmd_name] else [])
        parameters = inspect.signature(function).parameters
        names = [*_HELP, _HELP_ALL] if _has_many(parameters) else _HELP
        single = typer.Typer(**_STYLE, context_settings={"help_option_names": names})
        # Without arguments, a command with required arguments shows its help.
        needs_arguments = any(parameter.default.default is ... for parameter in parameters.values())
        single.command(cmd_name, no_args_is_help=needs_arguments, help=_reflow(function.__doc__))(
            function
        )
        return typer.main.get_command(single)


def _has_many(options: Collection[str]) -> bool:
    """Whether a command has the options of a model; these are so many that --help shows only those
    without a group.
    """
    return "batch_size" in options


def command_function(name: str, argv: Sequence[str] = ()) -> Callable[..., None]:
    """Return a command in the form for the parser: one parameter per option, and the checks that
    all commands share.

    Blocks of options are replaced by their fields, `fit` gets the options of the method in `argv`,
    and every command gets --json and --quiet. The returned function checks the outputs and calls
    the command.
    """
    module = import_module(f"recal.cli.{COMMANDS[name]}")
    function = getattr(module, name)
    hints = get_type_hints(function)
    blocks: dict[str, Any] = {key: hint for key, hint in hints.items() if is_dataclass(hint)}
    own = inspect.signature(function).parameters
    options: dict[str, tuple[Any, Any]] = {}  # the type and the declaration of each
    for key, parameter in own.items():
        if key in blocks:
            inner = get_type_hints(blocks[key])
            options |= {
                field.name: (inner[field.name], field.default) for field in fields(blocks[key])
            }
        elif parameter.kind is parameter.VAR_KEYWORD:
            options |= module.method_options(argv)
        else:
            options[key] = (hints[key], parameter.default)
    for key, declaration in _GENERAL.items():
        if key != "force" or set(OUTPUTS) & set(own):
            options.setdefault(key, (bool, declaration))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        SESSION.quiet, SESSION.as_json = values.pop("quiet"), values.pop("as_json")
        values = {
            key: as_path(value) if isinstance(value, Path) and is_url(value) else value
            for key, value in values.items()
        }
        check_outputs(name, values, force=values.get("force", False))
        if "force" not in own:
            values.pop("force", None)
        for key, block in blocks.items():
            values[key] = block(**{field.name: values.pop(field.name) for field in fields(block)})
        function(**values)

    has_many, parameters = _has_many(options), []
    for key, (kind, shared) in options.items():
        declaration = copy.copy(shared)
        if isinstance(declaration, typer.models.OptionInfo) and not declaration.param_decls:
            declaration.param_decls = (f"--{key.replace('_', '-')}",)
        if has_many:
            declaration.rich_help_panel = MORE if key in _GENERAL else declaration.rich_help_panel
            declaration.hidden = declaration.rich_help_panel is not None and _HELP_ALL not in argv
        parameters.append(
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=declaration, annotation=kind
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    if n_hidden := sum(parameter.default.hidden for parameter in parameters):
        command.__doc__ = f"{function.__doc__}\n\n    {n_hidden} more options: add {_HELP_ALL}"
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
    version: bool = option(
        "Print the version.", False, flag="--version", callback=_show_version, is_eager=True
    ),
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
        if hasattr(
            stream, "reconfigure"
        ):  # do not fail on a name that is not UTF-8, or on an ASCII terminal
            stream.reconfigure(errors="backslashreplace")
    try:
        with _end_on_sigterm(), warnings.catch_warnings():
            printer = _Warnings()
            warnings.showwarning = printer.show
            group = typer.main.get_command(_app)
            with group.make_context("recal", list(arguments), obj=arguments) as context:
                group.invoke(context)
            printer.close()
        sys.stdout.flush()
    except typer.Exit as end:
        return int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort) as stop:
        what, code = (
            ("Terminated.", TERMINATED)
            if isinstance(stop, _Terminated)
            else ("Interrupted.", INTERRUPTED)
        )
        return _say(" ".join([what, *getattr(stop, "__notes__", ())]), code)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would report this again when it closes
        # stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except Exception as error:
        return _fail(error, arguments)
    return OK


class _Terminated(KeyboardInterrupt):
    """SIGTERM: code that cleans up or says how to resume after Ctrl-C also runs for it."""


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """End the work on SIGTERM as on Ctrl-C. A second SIGTERM ends the process at once."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread may handle signals
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


def _fail(error: Exception, arguments: Sequence[str]) -> int:
    """Print one sentence about an error and return the exit code."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, RecalError):
        return _say(as_typed(error, arguments) + "".join(f" ({note})" for note in notes), BAD_INPUT)
    if hasattr(error, "format_message") and hasattr(
        error, "exit_code"
    ):  # parser errors share no public base class
        sentence = _parser_sentence(error, arguments)
        return _say(sentence, BAD_INPUT) if sentence else BAD_INPUT
    if isinstance(error, OSError):
        full = (
            " Free some space there, or choose another location with --out."
            if error.errno == errno.ENOSPC
            else ""
        )
        return _say(
            f"{error.strerror or error}: {error.filename}{full}" if error.filename else str(error),
            BAD_INPUT,
        )
    if isinstance(error, MemoryError):
        return _say(f"There is not enough memory for this: {error}", UNEXPECTED)
    if os.environ.get("RECAL_DEBUG"):
        raise error
    what = f"{type(error).__name__}: {str(error).rstrip('.')}"
    if hasattr(error, "blamed"):
        return _say(
            f"{' '.join(notes)} It raised {what}. Set RECAL_DEBUG=1 to see where.", BAD_INPUT
        )
    return _say(
        f"Unexpected {what}. This is a bug in recal; set RECAL_DEBUG=1 to see where it happened, and please report it.",
        UNEXPECTED,
    )


class _Warnings:
    """Prints each warning as one sentence, without its location in the code, which does not help
    users.

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
            print(
                f"recal: {more} more warnings of the same kind, with other figures.",
                file=sys.stderr,
            )


def _say(sentence: str, code: int) -> int:
    print(f"recal: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


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
_NUMBER = "a number, such as 0.05"
_KINDS = {"valid integer": "a whole number", "valid number": _NUMBER, "valid float": _NUMBER}


def _parser_sentence(error: Any, arguments: Sequence[str]) -> str:
    """Return the sentence for an error of the parser; empty if the help was shown instead."""
    message = str(error.format_message()).rstrip(".")
    if not message:
        return ""
    context: Any = getattr(error, "ctx", None)
    options = {
        flag: one for one in (context.command.params if context else ()) for flag in one.opts
    }
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "MissingParameter" and parameter is not None:
        message = (
            f"{_name(parameter)} is missing: {getattr(parameter, 'help', None) or 'it is needed'}"
        )
    elif kind == "NoSuchOption":
        flag, near = str(error.option_name), list(error.possibilities or ())
        if synonyms := [
            own for own, others in _SYNONYMS.items() if flag in others and own in options
        ]:
            near = synonyms
        elif not near and len(flag) == 2:  # a single letter
            near = [name for name in options if name.startswith(f"-{flag}")]
        message = f"There is no option {flag}." + (
            f" Did you mean {' or '.join(near[:3])}?" if near else ""
        )
    elif kind == "BadParameter" and parameter is not None:
        reason, name = str(error.message), _name(parameter)
        value = next(filter(None, (typed_value(flag, arguments) for flag in parameter.opts)), None)
        came = "" if value is None else f", got {value!r}"
        if takes := next((takes for words, takes in _KINDS.items() if words in reason), None):
            message = f"{name} takes {takes}{came}"
        elif repr(value) in reason:  # an option of a method, whose own message is complete
            message = f"{name}: {reason}"
        else:
            message = f"{name}: {reason[:1].lower()}{reason[1:]}{came}"
    elif "unexpected extra argument" in message:
        names = [
            _name(one)
            for one in options.values()
            if getattr(one, "param_type_name", "") == "argument"
        ]
        extra = re.sub(r".*unexpected extra argument(s|\(s\))? \((.*)\)", r"\2", message)
        message = f"{context.command_path} takes {' and '.join(dict.fromkeys(names)) or 'options'} alone, got also {extra}"
    path = context.command_path if context is not None else "recal"
    method = typed_value("--method", arguments)
    path += f" --method {method}" if method and path.endswith(" fit") else ""
    return f"{message}{'' if message[-1] in '.?' else '.'} See: {path} --help"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper().replace("_", " ")
    return str(parameter.opts[0])


# How an argument of the library is typed, if the option has another name.
_OPTIONS = {
    "n_bins": ("--bins",),
    "random_state": ("--seed",),
    "pixels": ("--pixels", "--gray"),
    "save_to": ("--save",),
    "groups": ("--group",),
    "clusters": ("--cluster", "--cluster-by"),
}


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

    def spell(names: tuple[str, ...]) -> str:
        options = [_OPTIONS.get(name, (f"--{name.replace('_', '-')}",)) for name in names]
        # If none of these options was typed, use the arguments' own names.
        if not typed & {option for forms in options for option in forms}:
            return " and ".join(f"`{name}`" for name in names)
        return " and ".join(
            next((form for form in forms if form in typed), forms[0]) for forms in options
        )

    return error.sentence(spell, typed=True)
