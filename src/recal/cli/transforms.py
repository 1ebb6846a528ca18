"""`recal transforms`: what inputs can be shown through, and how it is written."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recal.cli.printing import AsJson, print_json, say

if TYPE_CHECKING:
    from recal.transforms import BuiltIn

NEEDS_ARGUMENTS = False


def transforms(
    kind: Annotated[str | None, typer.Argument(help="A transformation to explain, such as zoom.")] = None,
    made_for: Annotated[
        str | None, typer.Option("--for", help="Only transformations for image, video, series, audio, text or tabular.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the transformations, or explain one: what it does, how strong it can be, how it is written.

    A pool is written as parts joined by +. A part is a strength (zoom:0.8), a range from which strengths are drawn
    (zoom:0.5-0.9:10 draws ten), or a kind alone (zoom draws ten from its useful range). Options come last
    (zoom:0.8:layout=NHWC).

    Example: [bold]recal transforms zoom[/bold]

    Example: [bold]recal transforms --for text[/bold]
    """
    from recal.errors import InputError
    from recal.transforms.pool import KINDS

    if kind is not None:
        from recal.transforms import pool

        name = kind.partition(":")[0]  # zoom:0.5 is a zoom
        if name not in KINDS:
            pool(kind)  # its own error names the kinds, and the nearest
        _explain(KINDS[name], as_json)
        return
    modalities = sorted({found.modality for found in KINDS.values()})
    if made_for not in (None, *modalities):
        near = get_close_matches(made_for or "", modalities, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"--for takes one of {', '.join(modalities)}, got {made_for!r}.{hint}")
    shown = [found for found in KINDS.values() if made_for in (None, found.modality)]
    if as_json:
        print_json([_facts(found) for found in shown])
        return
    for modality in dict.fromkeys(found.modality for found in shown):
        say(modality)
        for found in shown:
            if found.modality == modality:
                say(_line(found))
    say(f"Next: recal transforms {shown[0].kind}")


def _explain(found: type[BuiltIn], as_json: bool) -> None:
    if as_json:
        print_json(_facts(found))
        return
    facts = _facts(found)
    say(f"{found.kind} ({found.modality})")
    text = inspect.getdoc(found) or ""
    say(text.partition("Examples\n")[0].strip())
    say("")
    say(f"Strengths   {_range(found)} are useful, {_bounds(found)} are accepted, {found.identity:g} changes nothing.")
    options = ", ".join(f"{name}={default}" for name, default in facts["options"].items())
    say(f"Options     {options or 'none'}")
    if facts["assumes"]:
        say(f"Assumes     {facts['assumes']}")
    say(f"Write       {_example(found)}  or a range, {_example(found, ranged=True)}")


def _line(found: type[BuiltIn]) -> str:
    """Return kind, useful strengths and what it does, broken to the terminal's width."""
    head = f"  {found.kind:<11} {_range(found):<9} "
    width = max(60, shutil.get_terminal_size().columns)
    return textwrap.fill(_what(found).replace("``", "`"), width, initial_indent=head, subsequent_indent=" " * len(head))


def _facts(found: type[BuiltIn]) -> dict[str, Any]:
    from dataclasses import fields

    return {
        "kind": found.kind,
        "for": found.modality,
        "what": _what(found),
        "keeps_information": getattr(found, "keeps_information", False),
        "assumes": getattr(found, "assumes", ""),
        "useful": sorted(found.strengths),
        "accepted": found.domain,
        "changes_nothing": found.identity,
        "options": {field.name: field.default for field in fields(found)[1:]},  # type: ignore[arg-type]
    }


def _what(found: type[BuiltIn]) -> str:
    return " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())


def _range(found: type[BuiltIn]) -> str:
    low, high = sorted(found.strengths)
    return f"{low:g}-{high:g}"


def _bounds(found: type[BuiltIn]) -> str:
    low, high = found.domain
    return f"{'above ' if found.positive else ''}{low:g} to {high:g}"


def _example(found: type[BuiltIn], ranged: bool = False) -> str:
    low, high = sorted(found.strengths)
    if ranged:
        return f"{found.kind}:{low:g}-{high:g}:5"
    middle = round((low + high) / 2 / found.step) * found.step
    return f"{found.kind}:{middle:.4g}"
