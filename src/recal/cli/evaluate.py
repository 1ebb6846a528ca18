"""`recal evaluate`: how honest probabilities are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.output import AsJson, print_json, print_table, working


def evaluate(
    source: Annotated[
        Path,
        typer.Argument(metavar="PROBS|VIEWS", help="Probabilities from `recal apply`, or views: an .npz or .zarr."),
    ],
    bootstrap: Annotated[int, typer.Option("--bootstrap", help="Draws behind the 95 % intervals; 0 for none.")] = 1000,
    bins: Annotated[int, typer.Option("--bins", help="Bins of the binned calibration errors.")] = 15,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how honest probabilities are, with 95 % intervals.

    Of views, the model's own uncalibrated probabilities are measured. The file must hold labels.

    Example: [bold]recal evaluate probs.npz[/bold]
    """
    from recal import evaluate as measure
    from recal.errors import InputError
    from recal.metrics import LABELS
    from recal.prob_files import probs_of_file

    found = probs_of_file(source)
    if found.labels is None:
        raise InputError(f"{source} holds no labels, and without them nothing can be measured.")
    with working("Measuring"):
        result = measure(found.probs, found.labels, bootstrap, n_bins=bins, random_state=seed)
    if as_json:
        print_json({"file": source, **result.to_dict()})
        return
    rows = []
    for name, value in result.items():
        low, high = result.intervals.get(name, (None, None))
        rows.append([LABELS[name], f"{value:.5f}", "" if low is None else f"{low:.5f} to {high:.5f}"])
    print_table(
        f"{result.n_samples:,} samples, {result.n_classes:,} classes, {result.n_bins} bins",
        ["metric", "value", "95 % interval" if result.intervals else ""],
        rows,
        note="Less is better, but for AUROC.",
    )
