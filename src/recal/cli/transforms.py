"""`recal transforms`: which transformations exist, and what each does."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recal.cli.printing import print_json, say, say_facts
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
    from recal.transforms.pools import KINDS, pool

    if kind is not None:
        name = kind.partition(":")[0]  # zoom:0.5 is a zoom
        if name not in KINDS:
            pool(kind)  # its error names the kinds
        _explain(KINDS[name])
        return
    modalities = sorted({one.modality for one in KINDS.values()})
    if made_for not in (None, *modalities):
        raise InputError(f"--for takes one of {', '.join(modalities)}, got {made_for!r}.")
    kinds = [one for one in KINDS.values() if made_for in (None, one.modality)]
    print_json([_facts(one) for one in kinds])
    for one in kinds:
        say(f"{one.kind:<11} {one.modality:<8} {_range(one):<9} {_summary(one)}")
    say(f"Next: recal transforms {kinds[0].kind}")


def _explain(kind: type[BuiltIn]) -> None:
    """Print one transformation."""
    facts, strengths = _facts(kind), kind.strengths
    print_json(facts)
    say(f"{kind.kind} ({kind.modality})")
    say((inspect.getdoc(kind) or "").partition("Examples\n")[0].strip())
    say("")
    options = ", ".join(f"{name}={default}" for name, default in facts["options"].items())
    above = "above " if strengths.ends[0] == "(" else ""
    say_facts(
        Strengths=f"{_range(kind)} are useful, {above}{strengths.low:g} to {strengths.high:g} are "
        f"accepted, {strengths.identity:g} changes nothing",
        Options=options or "none",
        Assumes=facts["assumes"] or None,
        Write=f"{kind.kind}:{strengths.weak:g}, or a range: {kind.kind}:{_range(kind)}:5",
    )


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
    summary = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    return " ".join(summary.replace("``", "`").split())


def _range(kind: type[BuiltIn]) -> str:
    low, high = sorted((kind.strengths.weak, kind.strengths.strong))
    return f"{low:g}-{high:g}"
