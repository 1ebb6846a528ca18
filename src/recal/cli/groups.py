"""`recal groups`: how answers react to transformations."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.printing import print_json, print_table, say, shell_line, working
from recal.errors import InputError


def groups(
    views: opt.ViewsFile,
    confidence_at: Annotated[
        str,
        Option(
            help="Compare the confidence in the `original` prediction, or in each copy's `own`."
        ),
    ] = "original",
    scaled: Annotated[bool, Option("--scaled", help="First fit one temperature.")] = False,
    bins: opt.BinCount = 15,
) -> None:
    """Show how the model's answers react to each transformation, and how well it is calibrated in
    each group.

    Every sample falls in one of four groups: was the prediction kept or changed, and did the
    confidence in it rise or not? Shown are each group's share and, where the views have labels, its
    calibration error (ECE). The paper's group tables are made with --scaled --confidence-at own.

    Example: [bold]recal groups held-out.npz --scaled --confidence-at own[/bold]
    """
    source = opt.Inputs().views(views)
    from recal.reporting.figure_data import FEWEST_RANKED, GROUP_LABELS, group_study

    if not source.transforms:
        raise InputError(f"{views} holds no transformations, so there is nothing to group.")
    how: dict[str, Any] = {"confidence_at": confidence_at}
    with working("Grouping"):
        study = group_study(source, scaled=scaled, n_bins=bins, **how)
    print_json({"samples": source.n_samples, **study.to_dict()})
    lines = []
    for spec, sizes, errors in study.lines():
        cells = []
        for size, error in zip(sizes, errors):
            ece = "" if error != error else f", ECE {error:.4f}"  # an empty group has none
            cells.append(f"{size:,} ({size / source.n_samples:.1%}){ece}")
        lines.append([spec, *cells])
    print_table(
        f"Groups of {source.n_samples:,} samples",
        ["transformation", *GROUP_LABELS.values()],
        lines,
        note="kept/changed: the prediction, seen through the transformation; rose/fell: the "
        "confidence in it.",
    )
    if source.labels is not None:
        ranked = zip(GROUP_LABELS.values(), study.ranks.tolist(), study.usual_sizes)
        print_table(
            "Rank of each group's ECE, counted over the transformations",
            ["group", "smallest", "second", "third", "largest", "median size"],
            [[label, *row, size] for label, row, size in ranked],
            note=f"Groups of fewer than {FEWEST_RANKED} samples are not ranked.",
        )
    labelled = () if source.labels is not None else ("--labels", "FILE")
    words = (*labelled, "--method", "recal", "--out", "calibration.recal")
    say(f"Next: {shell_line('fit', views, *words)}")
