"""`recal reproduce`: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recal.cli.output import AsJson, print_json


def reproduce(
    what: Annotated[str, typer.Argument(help="all, ece, brier, error, time or groups.")],
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Folder with the data set's files; nothing downloads.")],
    dataset: Annotated[str, typer.Option("--dataset", help="cifar10, cifar100, mnist, fashion-mnist or imagenet.")],
    networks: Annotated[str, typer.Option("--networks", help="Names joined by commas, such as resnet20,lenet5.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints, views, results and tables.")],
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="Change a network's training: lenet5:epochs=30,crop=0. May be repeated."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Use a trained network: resnet152=FILE (.onnx, .pt2, Hugging Face folder)."),
    ] = None,
    halves: Annotated[int, typer.Option("--halves", help="Random halves of the test images to repeat over.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Of the split, the pools, the draws and the halves.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Refuse CIFAR images that are not the official ones.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Repeat the paper's experiments: train, collect views, fit every compared method, write its tables.

    Each stage is done once: a second run does nothing, a killed run goes on. Tables stand beside the paper's own
    numbers in OUT/DATASET/tables.

    Example: [bold]recal reproduce all --data-dir data --dataset cifar10 --networks lenet5 --out results[/bold]
    """
    if not data_dir.is_dir():
        from recal.errors import InputError

        raise InputError(f"There is no folder {data_dir}. Nothing is downloaded: put the data set's files there first.")
    from recal.experiments.options import parse_models, parse_recipes
    from recal.experiments.reproduce import Settings
    from recal.experiments.reproduce import reproduce as run

    settings = Settings(
        what,
        data_dir,
        dataset,
        tuple(name.strip() for name in networks.split(",") if name.strip()),
        out,
        recipes=parse_recipes(recipe or []),
        models=parse_models(model or []),
        halves=halves,
        seed=seed,
        device=device,
        verify=verify,
    )

    def tell(sentence: str) -> None:
        if not as_json:
            print(sentence, flush=True)  # a training takes hours, and its log file must show how far it is

    files = run(settings, say=tell)
    if as_json:
        found: dict[str, Any] = {"folder": out / dataset / "tables", "files": files}
        print_json(found)
