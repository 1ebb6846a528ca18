"""`python -m paper`: repeat the paper's experiments.

Run it at the root of the repository, or with `make paper`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.options import parse_models, parse_recipes
from paper.reproduce import WHAT, Settings, reproduce
from recal.errors import RecalError


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paper",
        description="Train, collect views, fit every compared method, write the paper's tables. "
        "Each stage is done once: a second run does nothing, a killed run resumes. Tables are "
        "written to OUT/DATASET/tables.",
    )
    parser.add_argument("what", help=", ".join(WHAT))
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="folder with the data set's files"
    )
    parser.add_argument(
        "--dataset", required=True, help="cifar10, cifar100, mnist, fashion-mnist or imagenet"
    )
    parser.add_argument(
        "--networks", required=True, help="names joined by commas, such as resnet20,lenet5"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints, views, results and tables"
    )
    parser.add_argument(
        "--recipe", action="append", default=[], help="change a training: lenet5:epochs=30,crop=0"
    )
    parser.add_argument(
        "--model", action="append", default=[], help="use a trained network: resnet152=FILE"
    )
    parser.add_argument(
        "--halves", type=int, default=5, help="random halves of the test images to repeat over"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the split, the pools, the draws and the halves"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="accept CIFAR images that are not the official ones",
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the experiments; a wrong input gives one sentence and exit code 2."""
    asked = arguments(given)
    try:
        settings = Settings(
            asked.what,
            asked.data_dir,
            asked.dataset,
            tuple(name.strip() for name in asked.networks.split(",") if name.strip()),
            asked.out,
            recipes=parse_recipes(asked.recipe),
            models=parse_models(asked.model),
            halves=asked.halves,
            seed=asked.seed,
            device=asked.device,
            verify=not asked.no_verify,
        )
        # A training takes hours, and its log file must show how far it is.
        reproduce(settings, say=lambda sentence: print(sentence, flush=True))
    except RecalError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
