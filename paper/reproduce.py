"""`python -m paper`: train, collect, fit, tabulate. Each stage is done once; a killed run goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recal
from paper.results.claims import claims_table
from paper.results.fits import Protocol, all_transforms, judge, uncalibrated
from paper.results.groups import group_tables, group_transforms, ranks
from paper.results.paper import COMPARED, GROUP_KINDS, Compared, paper_groups
from paper.results.rank_chart import rank_chart
from paper.results.tables import (
    BEYOND,
    METRICS,
    PAPER_SPLIT,
    Table,
    group_table,
    halves_table,
    paper_table,
    rank_table,
)
from paper.stages import Stages, digest_arrays, fingerprint, read_json, write_json, write_text
from paper.training import data
from paper.training.recipes import Recipe, recipe_for
from recal.calibrators.base import Calibrator
from recal.collecting import collect
from recal.comparison import compare_probs
from recal.errors import InputError
from recal.reporting import report
from recal.transforms import Transform
from recal.transforms.preprocessing import Normalize
from recal.views import Views

WHAT = ("all", *METRICS, "groups")


@dataclass(frozen=True)
class Settings:
    """What is to be reproduced.

    Parameters
    ----------
    what : {"all", "ece", "brier", "error", "time", "groups"}
    dataset : str
        One of `data.dataset_names()`.
    networks : sequence of str
        Names of `networks.NETWORKS`, which are trained, or any name that `models` gives a file for.
    recipes : mapping of network to changes of its recipe, such as {"lenet5": {"epochs": 30}}
    models : mapping of network to an .onnx or .pt2 file, or a Hugging Face folder, that is used
    instead of training halves : int
        Over how many random halves of the test images everything is fitted and tested again.
    seed : int
        Of the split, the pools, the draws and the halves.
    """

    what: str
    data_dir: Path
    dataset: str
    networks: Sequence[str]
    out: Path
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)
    halves: int = 5
    seed: int = 0
    device: str = "cpu"
    batch_size: int = 64  # small networks answer faster while a batch fits the processor's cache
    verify: bool = True

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise InputError(
                f"What to reproduce must be one of {', '.join(WHAT)}, got {self.what!r}."
            )
        if not self.networks:
            raise InputError("Name at least one network, such as lenet5.")
        if len(set(self.networks)) != len(self.networks):
            raise InputError(f"A network is named twice in {', '.join(self.networks)}.")
        strangers = sorted((set(self.recipes) | set(self.models)) - set(self.networks))
        if strangers:
            raise InputError(
                f"{strangers[0]!r} has a recipe or a model but is not among the networks."
            )
        for name in ("halves", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"`{name}` must not be negative, got {getattr(self, name)}.")

    def wants(self, part: str) -> bool:
        return self.what in ("all", part)


@dataclass(frozen=True)
class Network:
    """A trained network, what its input must go through, and a mark that changes when it does."""

    name: str
    model: Any
    preprocess: Any
    mark: str
    about: dict[str, Any]


def reproduce(settings: Settings, say: Callable[[str], None] = print) -> list[Path]:
    """Run what `settings` asks for and return the files that hold the tables."""
    stages = Stages(settings.out / settings.dataset, say)
    found = data.load(settings.dataset, settings.data_dir, verify=settings.verify)
    say(str(found))
    recipes = _recipes(settings, found)
    results: dict[str, dict[str, Any]] = {}
    groups: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in settings.networks:
        trained = name in recipes
        network = (
            _trained(settings, name, recipes[name], found, stages)
            if trained
            else _opened(settings, name, found)
        )
        about[name] = network.about
        views = _Collected(settings, network, found, stages)
        if settings.what != "groups":
            results[name] = _fit_all(settings, network, views, stages)
        if settings.what == "all":
            _report(settings, network, views, results[name], stages)
        if settings.wants("groups"):
            groups[name] = _groups(network, views, stages)
    files = _write_tables(settings, results, groups, about, stages)
    tables = settings.out / settings.dataset
    say(f"{stages.done} stages done, {stages.kept} existed already. Tables: {tables}")
    return files


def _recipes(settings: Settings, found: data.Dataset) -> dict[str, Recipe]:
    """How each network is trained that no file is given for.

    What is wrong is said before the first hour passes.
    """
    recipes = {}
    for name in settings.networks:
        if name in settings.models:
            if not settings.models[name].exists():
                raise InputError(f"There is no model file {settings.models[name]}.")
        elif len(found.train_labels) == 0:
            raise InputError(
                f"{found.name} is not trained on here: give the network {name!r} as a file, "
                f"--model {name}=FILE (.onnx, .pt2 or a Hugging Face folder)."
            )
        else:
            recipes[name] = recipe_for(name, found.name, **settings.recipes.get(name, {}))
    return recipes


def _opened(settings: Settings, name: str, found: data.Dataset) -> Network:
    """Open a network, which gets the same pixels as the others, normalised as it was trained."""
    from recal.collecting.models import as_model

    path = settings.models[name]
    source: Any = path
    if path.suffix == ".pt2":  # named by the person who runs the experiment, and so trusted
        import torch

        source = torch.export.load(path)
    model: Any = as_model(source, device=settings.device)
    mark, preprocess = model.fingerprint(), data.IMAGENET
    if len(found.train_labels):
        preprocess = data.normalisation(
            found.train_images[data.split(found, seed=settings.seed).train]
        )
    if hasattr(model, "processor"):
        # Hugging Face's processor would resize and cut the pictures a second time: only its numbers
        # are taken.
        processor = model.processor
        as_is = not getattr(processor, "do_normalize", True)
        preprocess = (
            Normalize()
            if as_is
            else Normalize(tuple(processor.image_mean), tuple(processor.image_std))
        )
        model = as_model(model.module, device=settings.device)
    return Network(name, model, preprocess, mark, {"model": path.name})


def _trained(
    settings: Settings, name: str, recipe: Recipe, found: data.Dataset, stages: Stages
) -> Network:
    from paper.training.train import load_network, train

    rows = data.split(found, seed=settings.seed).train
    images, labels = found.train_images[rows], found.train_labels[rows]
    preprocess = data.normalisation(images)
    made_from = {"network": name, "recipe": recipe.as_dict(), "data": digest_arrays(images, labels)}

    def make(path: Path) -> None:
        train(
            name,
            images,
            labels,
            recipe,
            n_classes=found.n_classes,
            checkpoint=path,
            preprocess=preprocess,
            device=settings.device,
            say=stages.say,
        )

    mark = stages.run(f"{name}/checkpoint.safetensors", made_from, make)
    model, known = load_network(stages.folder / name / "checkpoint.safetensors")
    last = known["history"][-1]
    about = {
        "recipe": recipe.as_dict(),
        "train_images": len(images),
        "train_accuracy": last["accuracy"],
    }
    return Network(name, model, preprocess, mark, about)


@dataclass
class _Collected:
    """The views of one network, collected when they are first asked for."""

    settings: Settings
    network: Network
    found: data.Dataset
    stages: Stages
    at_hand: dict[str, tuple[Views, str]] = field(default_factory=dict)

    def test(self) -> tuple[Views, str]:
        return self._views("test", all_transforms(self.settings.seed))

    def groups(self) -> tuple[Views, str]:
        return self._views("test", group_transforms(), "-groups")

    def held_out(self) -> tuple[Views, str] | None:
        if len(self.found.train_labels) == 0:
            return None
        return self._views("validation", all_transforms(self.settings.seed))

    def _views(
        self, part: str, transforms: tuple[Transform, ...], suffix: str = ""
    ) -> tuple[Views, str]:
        images, labels = self.found.test_images, self.found.test_labels
        if part == "validation":
            rows = data.split(self.found, seed=self.settings.seed).validation
            images, labels = self.found.train_images[rows], self.found.train_labels[rows]
        network = self.network
        name = f"{network.name}/views/{part}{suffix}.zarr"
        if name in self.at_hand:
            return self.at_hand[name]
        made_from = {
            "network": network.mark,
            "images": data.digest_images(images),
            "labels": digest_arrays(labels),
            "transforms": [str(transform) for transform in transforms],
            "preprocess": repr(network.preprocess),
        }

        def make(path: Path) -> None:
            work = f"{len(labels):,} {part} images, {len(transforms)} transformations"
            self.stages.say(f"{network.name}: {work}")
            collect(
                network.model,
                images,
                transforms,
                preprocess=network.preprocess,
                labels=labels,
                batch_size=self.settings.batch_size,
                out=path,
                device=None if network.name in self.settings.models else self.settings.device,
            )

        mark = self.stages.run(name, made_from, make)
        self.at_hand[name] = recal.read_views(self.stages.folder / name), mark
        return self.at_hand[name]


def _protocols(settings: Settings, views: _Collected) -> list[tuple[Protocol, str]]:
    """The paper's split first, then random halves of the test images; each with a mark of what it
    was made from.
    """
    test, test_mark = views.test()
    held_out = views.held_out()
    protocols = []
    if held_out is not None:
        mark = fingerprint([held_out[1], test_mark])
        protocols.append((Protocol(PAPER_SPLIT, held_out[0], test), mark))
        seeds = range(settings.halves)
    else:  # as the paper does with ImageNet's validation images
        one, other = data.halves(len(test), settings.seed)
        protocols.append((Protocol(PAPER_SPLIT, test[one], test[other]), test_mark))
        seeds = range(1, settings.halves + 1)
    for number in seeds:
        one, other = data.halves(len(test), settings.seed + number)
        protocols.append((Protocol(f"half-{number}", test[one], test[other]), test_mark))
    return protocols


def _fit_all(
    settings: Settings, network: Network, views: _Collected, stages: Stages
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for protocol, views_mark in _protocols(settings, views):
        results[protocol.name] = {}
        for method in COMPARED:
            name = f"{network.name}/results/{protocol.name}/{method.file_name}.json"
            made_from = {
                "views": views_mark,
                "protocol": protocol.name,
                "method": method.name,
                "seed": settings.seed,
            }
            if method.build is not None:
                made_from["settings"] = repr(method.build(settings.seed))

            def make(path: Path, method: Any = method, protocol: Protocol = protocol) -> None:
                result, calibrator = judge(method, protocol, seed=settings.seed)
                if calibrator is not None and protocol.name == PAPER_SPLIT:
                    recal.save(calibrator, path.with_suffix(".recal"))
                write_json(path, result)
                ece, seconds = result["metrics"]["ece"], result["seconds"]
                time = "" if seconds is None else f", learnt in {seconds:.2f} s"
                stages.say(
                    f"{network.name}, {protocol.name}: {method.name} has ECE {ece:.5f}{time}"
                )

            stages.run(name, made_from, make)
            results[protocol.name][method.name] = read_json(stages.folder / name)
    return results


def _report(
    settings: Settings, network: Network, views: _Collected, results: Any, stages: Stages
) -> None:
    """The HTML report on the paper's split, from the calibrations as they were saved."""
    protocol, mark = _protocols(settings, views)[0]

    def make(path: Path) -> None:
        folder = stages.folder / network.name / "results" / PAPER_SPLIT
        probs = {method.name: _probs(method, protocol.test, folder) for method in COMPARED}
        assert protocol.test.labels is not None  # collected with them
        comparison = compare_probs(probs, protocol.test.labels, baseline="TS")
        title = f"{settings.dataset}, {network.name}: the methods that the ReCal paper compares"
        report(comparison, path, title=title)

    made_from = {"views": mark, "results": fingerprint(results[PAPER_SPLIT])}
    stages.run(f"tables/report-{network.name}.html", made_from, make)


def _probs(method: Compared, test: Views, folder: Path) -> NDArray[np.float64]:
    if method.build is None:
        return uncalibrated(test)
    calibrator = recal.load(folder / f"{method.file_name}.recal")
    assert isinstance(calibrator, Calibrator)  # this run wrote it
    return calibrator.predict_proba(test)


def _groups(network: Network, views: _Collected, stages: Stages) -> dict[str, Any]:
    test, mark = views.groups()
    held_out = views.held_out()
    # Where nothing is held out the temperature comes from the images themselves, as in the paper's
    # supplement.
    fit, fit_mark = held_out if held_out is not None else (test, mark)
    name = f"{network.name}/groups.json"

    def make(path: Path) -> None:
        write_json(path, group_tables(fit, test))

    stages.run(name, {"test": mark, "fit": fit_mark}, make)
    found: dict[str, Any] = read_json(stages.folder / name)
    return found


def _write_tables(
    settings: Settings,
    results: dict[str, Any],
    groups: dict[str, Any],
    about: dict[str, Any],
    stages: Stages,
) -> list[Path]:
    tables: dict[str, list[Table]] = {}
    for name in (*METRICS, *BEYOND):
        if settings.wants(name):
            halves = halves_table(name, settings.dataset, results)
            tables[name] = [
                paper_table(name, settings.dataset, results),
                *([halves] if halves else []),
            ]
    charts: dict[str, str] = {}
    for network, found in groups.items():
        shown = [group_table(network, kind, found) for kind in GROUP_KINDS]
        tables.setdefault("groups", []).extend([*shown, rank_table(network, found)])
        for kind in GROUP_KINDS:
            for file, who, rows in (
                (network, f"{settings.dataset} {network}", found["kinds"][kind]),
                ("paper", "paper, ImageNet ResNet152", paper_groups()[kind]),
            ):
                charts[f"ranks-{file}-{kind}.svg"] = rank_chart(
                    f"{who}, {kind}: ranks by ECE", ranks(rows)
                )
    if settings.what == "all":
        tables["claims"] = [claims_table(settings.dataset, results, groups)]
    files = []
    for name, parts in tables.items():
        texts = {f"{name}.md": "\n".join(table.markdown() for table in parts)}
        texts |= {f"{name}-{number}.csv": table.csv() for number, table in enumerate(parts, 1)}
        for file, text in texts.items():
            files.append(_write(stages, f"tables/{file}", text))
    files += [_write(stages, f"tables/{file}", text) for file, text in charts.items()]
    files.append(_write(stages, "tables/networks.json", about))
    return files


def _write(stages: Stages, name: str, content: Any) -> Path:
    """Write a table as one more stage, so that a second run leaves even these files alone."""
    make = (
        (lambda path: write_text(path, content))
        if isinstance(content, str)
        else (lambda p: write_json(p, content))
    )
    stages.run(name, {"content": fingerprint(content)}, make)
    return stages.folder / name
