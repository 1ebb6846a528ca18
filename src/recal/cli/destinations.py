"""The rules for outputs, shared by all commands: no input is overwritten, and an existing file needs --force.

`guarded` wraps every command. The options in `OUTPUTS` name its outputs; every other argument that exists on disk is an
input. An existing folder is left to the code that writes into it: a store or a folder of parts is resumed, and a folder
with other contents is refused.
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
from recal.files.urls import as_path, is_remote, is_url
from recal.workflow.result import is_unfinished

# The options that name an output, and the endings that each may have. A folder has none.
OUTPUTS = {"out": "--out", "report": "--report", "chart": "--chart", "save_to": "--save"}
SUFFIXES: dict[tuple[str, str], tuple[str, ...]] = {
    ("fit", "out"): (".recal", ""),
    ("decide", "out"): (".recal", ""),
    ("report", "out"): (".html",),
    ("evaluate", "report"): (".html",),
    ("groups", "chart"): (".png", ".svg", ".pdf"),
    ("export", "out"): (".onnx",),
    ("apply", "out"): (".npz", ".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ""),
    ("collect", "out"): (".npz", ".zarr"),
    ("watch", "save_to"): (".recal", ""),
}
# Commands whose --out is a folder for several files.
FOLDERS = ("calibrate", "compare", "demo")
# The files that they write into it.
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
# The profile that `export` writes beside the ONNX file.
PROFILE = ".profile.recal"
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; without a terminal none is shown anyway.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def guarded(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with --force and --quiet; its outputs are checked before it starts."""
    signature = inspect.signature(function, eval_str=True)
    writes = bool(set(OUTPUTS) & set(signature.parameters))

    @functools.wraps(function)
    def checked(*, force: bool = False, quiet: bool = False, **values: Any) -> None:
        be_quiet(quiet)
        values = {name: _place(value) for name, value in values.items()}
        if writes:
            check_outputs(command, values, force=force)
        if "force" in signature.parameters:
            values["force"] = force
        function(**values)

    # `**options` stands for options that a command builds later; it is not an option itself.
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in named]
    for name, annotation in (("force", Force), ("quiet", Quiet)):
        if (writes or name != "force") and name not in signature.parameters:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=False, annotation=annotation))
    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    checked.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return checked


def _place(value: Any) -> Any:
    """Return a URL as the path of its object store, and every other value unchanged."""
    if not isinstance(value, Path) or not is_url(value):
        return value
    return as_path(value)


def check_outputs(command: str, values: dict[str, Any], *, force: bool) -> None:
    """Refuse an output that is also an input, has the wrong ending, cannot be written, or exists (without --force)."""
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
        if not force and not values.get("again"):
            for path in _files(command, target):
                refuse_existing(path)


def _files(command: str, target: Path) -> list[Path]:
    """Return the files that a command writes for one output; none for a folder that it would resume."""
    if command == "calibrate" and is_unfinished(target):
        return []
    beside = [target.with_suffix(PROFILE)] if command == "export" else []
    return [target, *beside, *(target / name for name in NAMES.get(command, ()))]


def refuse_existing(path: Path) -> None:
    """Refuse to overwrite a file."""
    if path.is_file():
        raise InputError(f"{path} already exists. Use --force to overwrite it.")


# Outputs that can be a URL: views written block by block, and answers written part by part.
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
    """Return the paths in a value that exist on disk; the value may be a path, its text, or several of them."""
    if isinstance(value, list | tuple):
        return [path for item in value for path in _paths(item)]
    if not isinstance(value, str | os.PathLike) or not str(value):
        return []
    # `resnet152=FILE` also names a file.
    candidates = [Path(text) for text in (str(value), str(value).partition("=")[2]) if text]
    try:
        return [path for path in candidates if path.exists()]
    except (OSError, ValueError):  # too long for a path, or not a path at all
        return []


def _check_apart(target: Path, source: Path, option: str) -> None:
    """Refuse an output that is an input (also through a link), lies inside an input store, or contains an input."""
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
    """Refuse a place that cannot be written, before the work starts."""
    if folder and target.is_file():
        raise InputError(f"{option} {target} is a file, and this command writes a folder. Choose another name.")
    if not folder and target.is_dir():
        raise InputError(f"{option} {target} is a folder. Name a file, such as {target / 'name'}{target.suffix}.")
    above = next(parent for parent in Path(os.path.abspath(target)).parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"{option} {target} cannot be written: {above} is a file, not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{option} {target} cannot be written: you may not write to the folder {above}.")
