"""The one rule for what commands write: never over what they read, nor over what recal did not make.

`guarded` wraps every command. Its outputs are the options in `OUTPUTS`; whatever else it was given and is there on disk
is an input. It adds the option --force, which replaces a file of unknown origin, but never an input.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.printing import be_quiet
from recal.errors import InputError
from recal.files.places import as_place, is_remote, is_url

# The options that name what is written, and by command the endings that the name may have; none for a folder.
OUTPUTS = {"out": "--out", "report": "--report", "chart": "--chart", "save_to": "--save"}
SUFFIXES: dict[tuple[str, str], tuple[str, ...]] = {
    ("fit", "out"): (".recal", ""),
    ("decide", "out"): (".recal", ""),
    ("report", "out"): (".html",),
    ("evaluate", "report"): (".html",),
    ("groups", "chart"): (".png", ".svg", ".pdf"),
    ("export", "out"): (".onnx",),
    ("apply", "out"): (".npz", ".parquet", ".csv", ""),
    ("collect", "out"): (".npz", ".zarr"),
    ("watch", "save_to"): (".recal", ""),
}
# Commands whose --out is a folder for several files.
FOLDERS = ("calibrate", "compare", "demo")
# The names that they write there.
NAMES = {
    "calibrate": ("calibration.recal", "report.html", "summary.json"),
    "compare": ("comparison.md", "comparison.tex", "comparison.csv", "comparison.json", "report.html"),
    "demo": (
        "summary.png",
        "zoomed.png",
        "report.html",
        "calibration.recal",
        "fit.npz",
        "decide.npz",
        "new.npz",
    ),
}
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; without a terminal none is shown anyway.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that recal did not write.")]


def guarded(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its outputs checked before it begins, and with --quiet."""
    signature = inspect.signature(function, eval_str=True)
    writes = bool(set(OUTPUTS) & set(signature.parameters))

    @functools.wraps(function)
    def checked(*, force: bool = False, quiet: bool = False, **values: Any) -> None:
        be_quiet(quiet)
        values = {name: _place(value) for name, value in values.items()}
        if writes:
            check_outputs(command, values, force=force)
        function(**values)

    # `**options` is where a command takes what it builds its options from later; it is none itself.
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in named]
    for name, annotation in (("force", Force), ("quiet", Quiet)):
        if writes or name != "force":
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=False, annotation=annotation))
    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    checked.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return checked


def _place(value: Any) -> Any:
    """Return a path that was typed as a URL as what it names; everything else as it is."""
    if not isinstance(value, Path) or not is_url(value):
        return value
    return as_place(value)


def check_outputs(command: str, values: dict[str, Any], *, force: bool) -> None:
    """Refuse an output that is an input, that has an unusual ending, or that would replace what recal did not make."""
    inputs = [path for name, value in values.items() if name not in OUTPUTS for path in _paths(value)]
    for name, option in OUTPUTS.items():
        target = values.get(name)
        if target is None:
            continue
        endings = SUFFIXES.get((command, name), ())
        if endings and target.suffix.lower() not in endings:
            raise InputError(
                f"{option} of recal {command} takes a name ending in {' or '.join(filter(None, endings))}, got "
                f"{str(target)!r}."
            )
        if is_remote(target):
            _check_url(command, target, option, [source for source in values.values() if source is not target])
            continue
        for source in inputs:
            _check_apart(target, source, option)
        in_parts = command == "apply" and not target.suffix  # tables by batch
        _check_place(target, option, folder=command in FOLDERS or in_parts or target.suffix == ".zarr")
        for path in (target, *(target / inner for inner in NAMES.get(command, ()))):
            _check_origin(path, values.get("again", False), force)


# What can be written to a URL: views block by block, and answers part by part.
_URLS = {("collect", ".zarr"), ("apply", "")}


def _check_url(command: str, target: Path, option: str, inputs: list[Any]) -> None:
    if (command, target.suffix) not in _URLS:
        raise InputError(
            f"{option} of recal {command} cannot be a URL, got {target}. Views can be collected into "
            "s3://.../NAME.zarr, and answers applied into a folder such as s3://.../answers."
        )
    if any(str(source) == str(target) for source in inputs):
        raise InputError(f"{option} {target} is also an input, which would be overwritten. Choose another name.")


def _paths(value: Any) -> list[Path]:
    """What is there on disk of a value: a path, its text, or several."""
    if isinstance(value, list | tuple):
        return [path for item in value for path in _paths(item)]
    if not isinstance(value, str | os.PathLike) or not str(value):
        return []
    # `resnet152=FILE` names a file, too.
    found = [Path(text) for text in (str(value), str(value).partition("=")[2]) if text]
    try:
        return [path for path in found if path.exists()]
    except (OSError, ValueError):  # a text that is too long, or no name at all
        return []


def _check_apart(target: Path, source: Path, option: str) -> None:
    """Refuse where an output is an input by any name, lies in a store that is read, or would replace its folder."""
    here, there = Path(os.path.realpath(target)), Path(os.path.realpath(source))
    same = here == there or (target.exists() and os.path.samefile(target, source))
    inside = there in here.parents and there.is_dir() and (there / "zarr.json").exists()
    around = here in there.parents and here.suffix == ".zarr"
    if same or inside or around:
        how = "is" if same else "lies inside" if inside else "holds"
        raise InputError(
            f"{option} {target} {how} the input {source}, which would be overwritten. Choose another name."
        )


def _check_place(target: Path, option: str, *, folder: bool) -> None:
    """Refuse, before the work begins, a place where nothing can be written."""
    if folder and target.is_file():
        raise InputError(
            f"{option} {target} is a file, and a folder is needed for what is written; choose another name."
        )
    if not folder and target.is_dir():
        raise InputError(f"{option} {target} is a folder; name a file, such as {target / 'name'}{target.suffix}.")
    above = next(parent for parent in Path(os.path.abspath(target)).parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"{option} {target} cannot be written: {above} is a file, not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{option} {target} cannot be written: you may not write to the folder {above}.")


def _check_origin(target: Path, again: bool, force: bool) -> None:
    from recal.files.origin import made_by_recal

    if force or again or not target.exists():
        return
    if target.is_dir() and (not target.suffix or not any(target.iterdir())):
        return  # a folder for several files, each with its own name
    if not made_by_recal(target):
        # Nothing in a table of text can tell who wrote it.
        unknown = "" if target.suffix.lower() == ".csv" else " and was not written by recal"
        raise InputError(f"{target} already exists{unknown}. Use --force to overwrite it.")
