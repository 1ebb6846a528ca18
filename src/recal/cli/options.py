"""The options that several commands share, each declared once.

A command takes one as ``risk: opt.Risk = 0.01``, and many that belong together as an `OptionGroup`. Options
in a panel are shown by --help-all only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option
from typer.core import TyperCommand

from recal.cli.printing import SESSION
from recal.errors import InputError

more = partial(Option, rich_help_panel="More options")

# Several commands.
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]
SeedNumber = Annotated[int, Option(help="Same seed, same result.", min=0)]

# Files.
CalibrationPath = Annotated[
    Path, Argument(help="The folder of recal calibrate, or file of recal fit.")
]
ViewsFile = Annotated[Path, Argument(help="Views: an .npz file or a .zarr folder.")]
ProbsFile = Annotated[
    Path, Argument(help="Probabilities (.npz, .csv, .parquet) or views.", metavar="PROBS|VIEWS")
]
GroupColumn = Annotated[
    str | None, Option(help="The column of groups; each gets its own guarantee.")
]

# Rules and results.
Risk = Annotated[float, Option(help="The largest share of errors among automated answers.")]
Confidence = Annotated[float, Option(help="The probability that the guarantee holds.")]
GuaranteeKind = Annotated[
    str, Option(help="confidence: with the probability of --confidence; average: on average.")
]
Correct = Annotated[str | None, Option(help="The column that says which graded answers are right.")]
CrossFitting = Annotated[bool, Option("--cross-fit", help="Fit and decide on the same rows.")]
BinCount = Annotated[int, Option(help="Number of bins of ECE and other binned errors.")]
MethodNames = Annotated[
    str | None,
    Option(
        help="Short names, joined with commas; `all` for every method.",
        show_default="ts,ets,spline,irm,svs, and of views recal,stack",
    ),
]
Splits = Annotated[int | None, Option(help="Random splits; by default 10 halves of one file.")]
Again = Annotated[bool, more("--again", help="Start over instead of resuming.")]

# A model.
ModelSource = Annotated[
    str | None,
    Option(
        help="An .onnx, .pt2 or .skops file, a Hugging Face folder, module:name of an object in "
        "Python, or the address of a server (http://...)."
    ),
]
OutputKind = Annotated[
    str | None,
    Option(help="What the model returns: logits, probabilities or votes.", show_default="logits"),
]
Trust = Annotated[
    str | None, Option(help="What may be opened although it can run code.", rich_help_panel="Model")
]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that belong together; each field is one.

    A command takes them all as one parameter, ``inputs: Inputs``, or some of them:
    ``inputs: Annotated[Inputs, "model data"],``.
    """

    @classmethod
    def names(cls) -> list[str]:
        """The names of its options."""
        return [field.name for field in fields(cls)]


def expand(command: Callable[..., None]) -> tuple[Signature, Callable[..., dict[str, Any]]]:
    """Return the signature of a command with the options of its blocks in place of the blocks, and
    a function that makes the blocks from the values of such options.
    """
    options: list[Parameter] = []
    blocks: dict[str, tuple[type[OptionGroup], list[str]]] = {}
    for one in signature(command, eval_str=True).parameters.values():
        kind, *some = get_args(one.annotation) or (one.annotation,)
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            own = signature(kind, eval_str=True).parameters
            names = some[0].split() if some else list(own)
            blocks[one.name] = kind, names
            options += [own[name] for name in names]
        else:
            options.append(one.replace(kind=Parameter.KEYWORD_ONLY))

    def packed(**values: Any) -> dict[str, Any]:
        for block, (kind, names) in blocks.items():
            values[block] = kind(**{name: values.pop(name) for name in names})
        return values

    return Signature(options), packed


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if nothing was typed.

    Examples
    --------
    >>> split_names('yes, no,","')
    ['yes', 'no', ',']
    """
    if text is None:
        return None
    import csv

    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]


def shared(
    json: Annotated[bool, Option("--json", help="Print one JSON value and nothing else.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """The options of every command, which `Command` reads."""


class Command(TyperCommand):
    """A command that takes the options of `shared`, and knows which options were typed."""

    def invoke(self, ctx: Any) -> Any:
        SESSION.as_json, SESSION.quiet = ctx.params.pop("json"), ctx.params.pop("quiet")
        SESSION.typed = {}
        for one in self.params:
            source = ctx.get_parameter_source(one.name)
            if source is not None and source.name == "COMMANDLINE":
                SESSION.typed[str(one.name)] = shown_name(one)
        return super().invoke(ctx)


def shown_name(parameter: Any) -> str:
    """Return an option or argument as the help writes it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).upper()
    return str(parameter.opts[0])


def refuse(what: str, names: Iterable[str]) -> None:
    """Refuse these options, if they were typed, because they would have no effect."""
    names = set(names)
    if flags := [flag for name, flag in SESSION.typed.items() if name in names]:
        pronoun = "them" if flags[1:] else "it"
        raise InputError(f"{' and '.join(flags)} cannot be used with {what}. Leave {pronoun} out.")


def refuse_unused(what: str, used: Iterable[str]) -> None:
    """Refuse all options that were typed, except those in `used` and those of every command."""
    refuse(what, set(SESSION.typed) - {*used, "out", "force", "json", "quiet"})
