"""`recal transforms`: which transformations exist, and what each does."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli.printing import print_json, say
from recal.errors import InputError

if TYPE_CHECKING:
    from recal.transforms import BuiltIn


def transforms(
    kind: Annotated[str | None, Argument(help="A transformation to explain, such as zoom.")] = None,
    made_for: Annotated[
        str | None,
        Option(
            "--for", help="Only transformations for image, video, series, audio, text or tabular."
        ),
    ] = None,
) -> None:
    """List the transformations, or explain one: what it does, how strong it can be, how it is
    written.

    A pool is written as parts joined by +. A part is a strength (zoom:0.8), a range from which
    strengths are drawn (zoom:0.5-0.9:10 draws ten), or a kind alone (zoom draws ten from its useful
    range). Options come last (zoom:0.8:layout=NHWC).

    Example: [bold]recal transforms zoom[/bold]

    Example: [bold]recal transforms --for text[/bold]
    """
    from recal.transforms.pool import KINDS, pool

    if kind is not None:
        name = kind.partition(":")[0]  # zoom:0.5 is a zoom
        if name not in KINDS:
            pool(kind)  # its error names the kinds and the closest match
        _explain(KINDS[name])
        return
    modalities = sorted({one.modality for one in KINDS.values()})
    if made_for not in (None, *modalities):
        near = get_close_matches(made_for or "", modalities, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"--for takes one of {', '.join(modalities)}, got {made_for!r}.{hint}")
    kinds = [one for one in KINDS.values() if made_for in (None, one.modality)]
    print_json([_facts(one) for one in kinds])
    width = max(60, shutil.get_terminal_size().columns)
    for modality in dict.fromkeys(one.modality for one in kinds):
        say(modality)
        for one in kinds:
            if one.modality == modality:
                head = f"  {one.kind:<11} {_range(one):<9} "
                text = _summary(one).replace("``", "`")
                say(
                    textwrap.fill(
                        text, width, initial_indent=head, subsequent_indent=" " * len(head)
                    )
                )
    say(f"Next: recal transforms {kinds[0].kind}")


def _explain(kind: type[BuiltIn]) -> None:
    facts = _facts(kind)
    print_json(facts)
    strengths = kind.strengths
    middle = round((strengths.weak + strengths.strong) / 2 / strengths.step) * strengths.step
    options = ", ".join(f"{name}={default}" for name, default in facts["options"].items())
    say(f"{kind.kind} ({kind.modality})")
    say((inspect.getdoc(kind) or "").partition("Examples\n")[0].strip())
    say("")
    bounds = (
        f"{'above ' if strengths.ends[0] == '(' else ''}{strengths.low:g} to {strengths.high:g}"
    )
    say(
        f"Strengths   {_range(kind)} are useful, {bounds} are accepted, {strengths.identity:g} changes nothing."
    )
    say(f"Options     {options or 'none'}")
    if facts["assumes"]:
        say(f"Assumes     {facts['assumes']}")
    say(f"Write       {kind.kind}:{middle:.4g}  or a range, {kind.kind}:{_range(kind)}:5")


def _facts(kind: type[BuiltIn]) -> dict[str, Any]:
    return {
        "kind": kind.kind,
        "for": kind.modality,
        "what": _summary(kind),
        "keeps_information": getattr(kind, "keeps_information", False),
        "assumes": getattr(kind, "assumes", ""),
        "useful": sorted((kind.strengths.weak, kind.strengths.strong)),
        "accepted": (kind.strengths.low, kind.strengths.high),
        "changes_nothing": kind.strengths.identity,
        "options": {field.name: field.default for field in fields(kind)[1:]},  # type: ignore[arg-type]
    }


def _summary(kind: type[BuiltIn]) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _range(kind: type[BuiltIn]) -> str:
    low, high = sorted((kind.strengths.weak, kind.strengths.strong))
    return f"{low:g}-{high:g}"
