"""The cost of the default: the ensemble and `auto`, relative to one fit of each of their members.

    python -m benchmarks.default_cost [VIEWS.npz ...] [--small]

Without a file the logits are made up: 10, 140 and 1,000 classes, without views and with 8. With
views, one fit of view stacking counts as a member, and for `auto` also one fit of ReCal, which it
tries. The first line compares the cost of one answer of a mixture with a forward pass of a small
network.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import made_up, real_views, take_turns
from benchmarks.ratios import Ratio, table
from recal import AutoCalibration, ReCal, Views, ViewStacking
from recal.calibrators import CalibrationEnsemble
from recal.calibrators.ensemble import FAMILIES, READS, fit_members, member_names
from recal.calibrators.samples import Samples
from recal.maps.aggregation import Mixture
from recal.maps.arrays import safe_log
from recal.maps.base import wide

PART = "The default beside the sum of one fit of each member"
SIZES = ((5_000, 10), (3_000, 140), (5_000, 1_000))
N_VIEWS = 8


def ratios(small: bool, paths: Iterable[Path] = ()) -> Iterator[Ratio]:
    """Yield the ratios of fits, on made-up logits or on those of these files; with the former those
    of answers.
    """
    paths = tuple(paths)
    logits, views, labels = made_up(2_000, 100, 2)
    AutoCalibration().fit(Views(logits, views, labels))  # load compiled code
    if not paths:
        yield from answers()
    for name, views in _problems(small, paths):
        for part in (Views(views.logits, {}, views.labels), views):
            n_views = len(part.transforms)
            what = f"{name}, {len(part)} x {part.n_classes}" + (
                f", {n_views} views" if n_views else ""
            )
            yield from _fits(what, part, turns=1 if small or part.logits.size > 2e5 else 2)


def _problems(small: bool, paths: tuple[Path, ...]) -> list[tuple[str, Views]]:
    if paths:
        return [(name, views[np.arange(0, len(views), 2)]) for name, views in real_views(paths)]
    found = []
    for n, k in SIZES:
        logits, views, labels = made_up(n // 10 if small else n, k, N_VIEWS)
        found.append(("made up", Views(logits, views, labels)))
    return found


def _fits(what: str, views: Views, turns: int) -> list[Ratio]:
    names = member_names(views.n_classes)
    first = fit_members(("ets",), Samples(views, views.labels))["ets"]
    read = {None: views.logits, "ets": safe_log(first.map_.probs(wide(views.logits)))}

    def members() -> None:
        for name in names:
            FAMILIES[name]().fit(read[READS.get(name)], views.labels)

    runs: dict[str, Callable[[], Any]] = {
        "members": members,
        "ensemble": lambda: CalibrationEnsemble().fit(views),
        "auto": lambda: AutoCalibration().fit(views),
    }
    if views.transforms:
        runs |= {"stack": lambda: ViewStacking().fit(views), "recal": lambda: ReCal().fit(views)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Do not repeat fits that take seconds.
        cpu = {
            name: timing.cpu for name, timing in take_turns(runs, turns, warm_up=turns > 1).items()
        }
    once = cpu["members"] + cpu.get("stack", 0.0)
    return [
        Ratio(PART, f"ensemble, {what}", "one fit of each member", cpu["ensemble"], once, 2.0),
        Ratio(
            PART,
            f"auto, {what}",
            "one fit of each member",
            cpu["auto"],
            once + cpu.get("recal", 0.0),
            2.0,
        ),
    ]


def answers() -> list[Ratio]:
    """Return what one answer of a mixture costs beside a forward pass of a network of ResNet-8's
    size.
    """
    import torch

    torch.set_num_threads(1)
    logits, _, labels = made_up(5_256, 10)
    logits, labels, asked = logits[:5_000], labels[:5_000], logits[5_000:]
    ensemble = CalibrationEnsemble(answers="free").fit(logits, labels)
    names = member_names(10)[:6]
    members = fit_members(names, Samples(Views(logits), labels))
    reads = np.full(len(members), -1)
    maps = tuple(members[name].map_ for name in members)
    ensemble.map_ = Mixture(tuple(members), maps, np.full(len(members), 1 / len(members)), reads)
    widths = (
        (3, 16, 1),
        (16, 16, 1),
        (16, 16, 1),
        (16, 32, 2),
        (32, 32, 1),
        (32, 64, 2),
        (64, 64, 1),
    )
    layers = [
        layer
        for inside, outside, stride in widths
        for layer in (torch.nn.Conv2d(inside, outside, 3, stride, 1), torch.nn.ReLU())
    ]
    network = torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)
    )
    found = []
    for count in (1, 256):
        images, rows, times = torch.rand(count, 3, 32, 32), asked[:count], 50 if count == 1 else 1
        runs = {
            "mixture": lambda rows=rows, times=times: [
                ensemble.predict_proba(rows) for _ in range(times)
            ],
            "pass": lambda images=images, times=times: [network(images) for _ in range(times)],
        }
        with torch.inference_mode():
            cpu = {name: timing.cpu / times for name, timing in take_turns(runs, 5).items()}
        what = f"mixture of six members, {count} at a time, 10 classes"
        beside = "a pass of a network of ResNet-8's size"
        found.append(
            Ratio("An answer of the default", what, beside, cpu["mixture"], cpu["pass"], 0.1)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("views", nargs="*", type=Path)
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, one turn")
    given = parser.parse_args()
    print("\n".join(table(ratios(given.small, given.views))))


if __name__ == "__main__":
    main()
