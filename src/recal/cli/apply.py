"""`recal apply`: calibrated probabilities for views."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recal.cli.output import AsJson, print_json, say, working


def apply(
    calibration: Annotated[Path, typer.Argument(help="What `recal fit` wrote.")],
    views: Annotated[Path, typer.Argument(help="Views of the inputs to judge: an .npz file or a .zarr folder.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the probabilities (.npz).")],
    as_json: AsJson = False,
) -> None:
    """Turn views into calibrated probabilities.

    The file written holds `probs` (n_samples, n_classes) and, where the views have them, `labels` and `classes`.

    Example: [bold]recal apply calibration.recal new.npz --out probs.npz[/bold]
    """
    from recal import load, read_views
    from recal.prob_files import write_probs

    calibrator, source = load(calibration), read_views(views)
    with working("Applying"):
        probs = calibrator.predict_proba(source)
    write_probs(out, probs, source.labels, source.classes)
    if as_json:
        print_json({"samples": probs.shape[0], "classes": probs.shape[1], "file": out})
        return
    say(f"Probabilities of {probs.shape[0]:,} samples written to {out}. Next: recal evaluate {out}")
