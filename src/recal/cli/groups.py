"""`recal groups`: how samples react to each transformation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.output import AsJson, print_json, print_table, working


def groups(
    views: Annotated[Path, typer.Argument(help="Views with transformations: an .npz file or a .zarr folder.")],
    as_json: AsJson = False,
) -> None:
    """Show how the model's answers react to each transformation.

    Every sample falls in one of four groups: was the prediction kept or changed, and did the confidence in it rise or
    not? A transformation that leaves nearly all samples in one group tells little apart.

    Example: [bold]recal groups held-out.npz[/bold]
    """
    import numpy as np

    from recal import Group, group, read_views
    from recal.errors import InputError

    source = read_views(views)
    if not source.transforms:
        raise InputError(f"{views} holds no transformations, so there is nothing to group.")
    with working("Grouping"):
        numbers = {t: group(source.logits, source.transformed(t)) for t in source.transforms}
    sizes = {t: np.bincount(number, minlength=5)[1:] for t, number in numbers.items()}
    names = [member.name.lower() for member in Group]
    if as_json:
        print_json({"samples": source.n_samples, "groups": {str(t): dict(zip(names, row)) for t, row in sizes.items()}})
        return
    shares = [[str(t), *(f"{n:,} ({n / source.n_samples:.1%})" for n in row)] for t, row in sizes.items()]
    print_table(
        f"Groups of {source.n_samples:,} samples",
        ["transformation", *(name.replace("_", ", ") for name in names)],
        shares,
        note="kept/changed: the prediction, seen through the transformation; rose/fell: the confidence in it.",
    )
