"""`recal groups`: how samples react to each transformation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from recal.cli.printing import AsJson, print_json, print_table, say, typed, working


def groups(
    views: Annotated[Path, typer.Argument(help="Views with transformations: an .npz file or a .zarr folder.")],
    confidence_at: Annotated[
        str,
        typer.Option(
            "--confidence-at", help="Compare the confidence in the `original` prediction, or in each copy's `own`."
        ),
    ] = "original",
    ties: Annotated[str, typer.Option("--ties", help="Compare confidences as `float32` or `exact`.")] = "float32",
    scaled: Annotated[
        bool, typer.Option("--scaled", help="First apply one fitted temperature, as the paper did.")
    ] = False,
    bins: Annotated[int, typer.Option("--bins", help="Number of bins of the ECE.")] = 15,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Also draw a bar chart of the groups' ranks (.png, .svg, .pdf).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the model's answers react to each transformation, and how well it is calibrated in each group.

    Every sample falls in one of four groups: was the prediction kept or changed, and did the confidence in it rise or
    not? Shown are each group's share and, where the views have labels, its calibration error (ECE). The paper's group
    tables are made with --scaled --confidence-at own.

    Example: [bold]recal groups held-out.npz --scaled --confidence-at own[/bold]
    """
    from recal.cli.sources import open_views

    source = open_views(views)
    from recal.errors import InputError
    from recal.plan import ConfidenceAt, Rule, Ties
    from recal.reporting.data.groups import FEWEST_RANKED, GROUP_LABELS, group_study

    if not source.transforms:
        raise InputError(f"{views} holds no transformations, so there is nothing to group.")
    rule = Rule(confidence_at=cast(ConfidenceAt, confidence_at), ties=cast(Ties, ties))  # refuses other words
    with working("Grouping"):
        study = group_study(source, confidence_at=rule.confidence_at, ties=rule.ties, scaled=scaled, n_bins=bins)
    if chart is not None:
        from recal.reporting.drawing.figures import rank_figure, save_figure

        if source.labels is None:
            raise InputError(f"{views} holds no labels; without them groups have no error by which to rank them.")
        save_figure(rank_figure(study), chart)
    if as_json:
        print_json({"samples": source.n_samples, **study.to_dict()})
        return
    lines = []
    for spec, sizes, errors in study.lines():
        cells = []
        for size, error in zip(sizes, errors):
            known = "" if error != error else f", ECE {error:.4f}"  # an empty group has none
            cells.append(f"{size:,} ({size / source.n_samples:.1%}){known}")
        lines.append([spec, *cells])
    print_table(
        f"Groups of {source.n_samples:,} samples",
        ["transformation", *GROUP_LABELS.values()],
        lines,
        note="kept/changed: the prediction, seen through the transformation; rose/fell: the confidence in it.",
    )
    if source.labels is not None:
        places = ["smallest", "second", "third", "largest"]
        named = zip(GROUP_LABELS.values(), study.ranks.tolist(), study.usual_sizes)
        print_table(
            "How often each group's ECE ranks so over the transformations",
            ["group", *places, "median size"],
            [[label, *row, size] for label, row, size in named],
            note=f"Groups of fewer than {FEWEST_RANKED} samples are not ranked.",
        )
    if chart is not None:
        say(f"Written to {chart}.")
    labelled = () if source.labels is not None else ("--labels", "FILE")
    say(f"Next: {typed('recal', 'fit', views, *labelled, '--method', 'recal', '--out', 'calibration.recal')}")
