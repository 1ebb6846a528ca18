"""Miniatures of the whole: few images, one epoch, made-up data in the layouts of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paper import __main__ as command
from paper import reproduce
from paper.reproduce import Settings
from paper.results import paper
from paper.training import data
from recal import read_views
from recal.errors import InputError

TINY_POOLS = {
    "zoom:0.1-0.9:20": "zoom:0.1-0.9:3",
    "zoom:0.5-0.9:10": "zoom:0.5-0.9:2",
    "brightness:0.1-0.9:20": "brightness:0.1-0.9:2",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory, pictures):
    """CIFAR-10 by LeNet-5, once for all tests that only look at the outcome."""
    root = tmp_path_factory.mktemp("reproduce")
    pictures.cifar10(root / "data", per_batch=60, tests=80)
    said: list[str] = []
    settings = Settings(
        "all", root / "data", "cifar10", ("lenet5",), root / "out",
        recipes={"lenet5": {"epochs": 1, "batch_size": 32}}, halves=1, verify=False,
    )  # fmt: skip
    files = reproduce.reproduce(settings, said.append)
    return settings, files, said


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_every_table_is_written_in_the_papers_layout(done):
    settings, files, said = done
    assert said[-1].endswith(f" 0 existed already. Tables: {settings.out / 'cifar10'}")
    tables = settings.out / "cifar10" / "tables"
    written = {path.stem for path in files if path.suffix == ".md"}
    assert written == {"ece", "brier", "error", "time", "groups", "claims", "nll", "aurc"}
    page = (tables / "ece.md").read_text()
    header = next(line for line in page.splitlines() if line.startswith("|"))
    names = [method.name for method in paper.COMPARED]
    assert [cell.strip() for cell in header.split("|")[2:-1]] == names
    assert "paper: CIFAR10 LeNet5" in page
    assert "ReCal(z,.1-.9,20)" in (tables / "report-lenet5.html").read_text()
    assert (tables / "ranks-lenet5-zoom.svg").read_text().startswith("<svg")
    assert json.loads((tables / "networks.json").read_text())["lenet5"]["recipe"]["epochs"] == 1


def test_the_views_hold_every_pool_and_the_split_is_the_papers(done):
    folder = done[0].out / "cifar10" / "lenet5" / "views"
    held_out, test = read_views(folder / "validation.zarr"), read_views(folder / "test.zarr")
    assert (held_out.n_samples, test.n_samples) == (30, 80)
    kinds = [str(transform).split(":")[0] for transform in test.transforms]
    assert kinds.count("brightness") == 20
    assert 20 <= kinds.count("zoom") <= 30
    assert len(read_views(folder / "test-groups.zarr").transforms) == 18


def test_a_second_run_does_nothing(done):
    settings, files, _ = done
    before, said = stamps(settings.out), []
    assert reproduce.reproduce(settings, said.append) == files
    assert stamps(settings.out) == before
    assert said[-1].startswith("0 stages done")


def test_a_killed_run_goes_on(done, monkeypatch):
    settings, _, _ = done
    folder = settings.out / "cifar10" / "lenet5"
    (folder / "results" / "half-0" / "uncal.json").unlink()
    (folder / "views" / "test-groups.zarr.made-from.json").unlink()
    (folder.parent / "tables" / "ece.md").unlink()
    monkeypatch.setattr("paper.training.train.train", None)  # what is there is not trained again
    said: list[str] = []
    reproduce.reproduce(settings, said.append)
    assert said[-1].startswith("3 stages done")


@pytest.mark.slow
def test_the_command_line_reproduces_cifar100(tmp_path, pictures, capsys):
    pictures.cifar100(tmp_path / "data")
    arguments = ["error", "--data-dir", str(tmp_path / "data"), "--dataset", "cifar100"]
    arguments += ["--networks", "lenet5", "--out", str(tmp_path / "out"), "--halves", "0"]
    arguments += ["--recipe", "lenet5:epochs=1"]
    assert command.main(arguments) == 2
    assert "MD5" in capsys.readouterr().err
    assert command.main([*arguments, "--no-verify"]) == 0
    assert "paper: CIFAR100 LeNet5" in (tmp_path / "out/cifar100/tables/error.md").read_text()


@pytest.mark.slow
def test_imagenet_is_reproduced_with_a_network_from_a_file(tmp_path, pictures, monkeypatch):
    import torch

    tiny = tuple(
        paper.Compared(m.name, m.build, TINY_POOLS.get(m.pool) if m.pool else None)
        for m in paper.COMPARED
    )
    for module in ("results.fits", "results.tables", "reproduce"):
        monkeypatch.setattr(f"paper.{module}.COMPARED", tiny)
    monkeypatch.setattr("paper.results.fits.all_transforms.__defaults__", (tiny,))
    pictures.imagenet(tmp_path / "data", n_classes=3, per_class=8)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.AvgPool2d(32), torch.nn.Flatten(), torch.nn.Linear(147, 3)
    ).eval()
    shape = {0: torch.export.Dim("n", min=1, max=4096)}
    program = torch.export.export(network, (torch.zeros(4, 3, 224, 224),), dynamic_shapes=(shape,))
    torch.export.save(program, tmp_path / "network.pt2")
    settings = Settings(
        "all", tmp_path / "data", "imagenet", ("resnet152",), tmp_path / "out",
        models={"resnet152": tmp_path / "network.pt2"}, halves=1,
    )  # fmt: skip
    reproduce.reproduce(settings, lambda _: None)
    folder = tmp_path / "out" / "imagenet"
    assert "paper: ImageNet ResNet152" in (folder / "tables" / "ece.md").read_text()
    result = json.loads((folder / "resnet152" / "results" / "paper" / "ts.json").read_text())
    assert (result["n_fit"], result["n_test"]) == (12, 12)
    assert "ReCal has the best ECE on ImageNet" in (folder / "tables" / "claims.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": ("lenet5", "lenet6")}, "no recipe to train 'lenet6'.*--model lenet6=FILE"),
        ({"networks": ("mine",), "models": {"mine": Path("nowhere.onnx")}}, "nowhere.onnx"),
    ],
)
def test_what_is_wrong_with_the_second_network_is_said_before_the_first_is_trained(
    tmp_path, pictures, monkeypatch, change, message
):
    pictures.cifar10(tmp_path / "data")
    monkeypatch.setattr("paper.training.train.train", None)
    given = {"what": "ece", "data_dir": tmp_path / "data", "dataset": "cifar10", "out": tmp_path}
    with pytest.raises(InputError, match=message):
        reproduce.reproduce(Settings(**given, **change, verify=False), lambda _: None)


def views_of_a_file(folder, dataset, name, path, data_dir):
    settings = Settings(
        "groups", data_dir, dataset, (name,), folder, models={name: path}, verify=False
    )  # fmt: skip
    reproduce.reproduce(settings, lambda _: None)
    return read_views(folder / dataset / name / "views" / "test-groups.zarr")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_a_hugging_face_network_sees_the_same_pixels_with_the_mean_it_was_trained_with(
    tmp_path, pictures
):
    """Its processor would resize what was resized already."""
    import torch
    import transformers

    pictures.imagenet(tmp_path / "data", n_classes=3, per_class=2)
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    network = transformers.ResNetForImageClassification(config).eval()
    network.save_pretrained(tmp_path / "resnet")
    # From release 5 on the plain name stands for one that needs torchvision.
    kind = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    kind(size={"height": 100, "width": 100}, image_mean=[0.4] * 3).save_pretrained(
        tmp_path / "resnet"
    )
    views = views_of_a_file(
        tmp_path / "out", "imagenet", "resnet152", tmp_path / "resnet", tmp_path / "data"
    )
    images = data.load("imagenet", tmp_path / "data").test_images.read(range(6))
    pixels = torch.from_numpy(np.moveaxis((images / 255.0 - 0.4) / 0.5, -1, 1)).float()
    with torch.no_grad():
        np.testing.assert_allclose(views.logits, network(pixels).logits.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"what": "nll"}, "one of all, ece"),
        ({"networks": ("lenet5", "lenet5")}, "named twice"),
        ({"halves": -1}, "`halves` must not be negative, got -1"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, change, message):
    given = {"what": "ece", "data_dir": tmp_path, "dataset": "cifar10", "out": tmp_path}
    with pytest.raises(InputError, match=message):
        Settings(**{**given, "networks": ("lenet5",), **change})
