from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from paper.training.data import normalisation
from paper.training.recipes import RECIPES, Recipe, recipe_for
from paper.training.train import augment, load_network, train
from recal.errors import FileError, InputError

QUICK = Recipe(epochs=3, batch_size=16, rate=0.02, crop=2)


def run(pictures, path, recipe=QUICK, network="lenet5", n_classes=4, **options):
    images, labels = pictures.coloured(48, n_classes)
    options = {"say": None, **options}
    preprocess = normalisation(images)
    return train(
        network,
        images,
        labels,
        recipe,
        n_classes=n_classes,
        checkpoint=path,
        preprocess=preprocess,
        **options,
    )


def bits(network) -> list[bytes]:
    return [value.detach().numpy().tobytes() for value in network.state_dict().values()]


@pytest.mark.parametrize("network", ["lenet5", "resnet8"])
def test_a_stopped_training_goes_on_to_the_same_bits(pictures, tmp_path, network):
    whole, history = run(pictures, tmp_path / "whole", network=network)
    for stop in (1, 2):
        run(pictures, tmp_path / "parts", network=network, stop_after=stop)
        torch.rand(5)  # what others draw in between must not matter
    parts, resumed = run(pictures, tmp_path / "parts", network=network)
    assert bits(parts) == bits(whole)
    assert [record["loss"] for record in resumed] == [record["loss"] for record in history]


def test_the_next_epoch_needs_the_momentum_and_the_random_state(pictures, tmp_path):
    """Would the test above notice? Without either, the weights differ."""
    whole, _ = run(pictures, tmp_path / "whole")
    for part in ("momentum/head.5.weight", "random/cpu"):
        path = tmp_path / part.replace("/", "-")
        run(pictures, path, stop_after=1)
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
        tensors = load_file(path)
        if part == "random/cpu":
            tensors[part] = torch.Generator().manual_seed(5).get_state()
        else:
            tensors[part].zero_()
        save_file(tensors, path, metadata=about)
        assert bits(run(pictures, path)[0]) != bits(whole)


def test_training_learns_what_can_be_learnt(pictures, tmp_path):
    recipe = replace(QUICK, epochs=6, crop=0, milestones=())
    _, history = run(pictures, tmp_path / "checkpoint", recipe, network="resnet8")
    assert history[-1]["accuracy"] > 0.9 > history[0]["accuracy"]


def test_the_callers_random_state_is_left_alone(pictures, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    run(pictures, tmp_path / "checkpoint")
    assert torch.equal(torch.rand(4), expected)


def test_a_finished_training_is_only_read(pictures, tmp_path):
    path = tmp_path / "checkpoint"
    run(pictures, path)
    stamp = path.stat().st_mtime_ns
    said: list[str] = []
    run(pictures, path, say=said.append)
    assert path.stat().st_mtime_ns == stamp
    assert said == []


def test_each_epoch_is_told_with_the_time_left(pictures, tmp_path):
    said: list[str] = []
    run(pictures, tmp_path / "checkpoint", say=said.append)
    assert len(said) == 3
    assert said[0].startswith("lenet5: epoch 1/3, rate 0.02")
    assert said[-1].endswith("0 s left")


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(pictures, tmp_path):
    path = tmp_path / "checkpoint"
    run(pictures, path, stop_after=1)
    with pytest.raises(FileError, match=r"another training \(other: recipe\)"):
        run(pictures, path, replace(QUICK, rate=0.03))


def test_the_same_pictures_with_other_labels_are_another_training(pictures, tmp_path):
    images, labels = pictures.coloured(48, 4)
    settings = {
        "n_classes": 4,
        "checkpoint": tmp_path / "checkpoint",
        "preprocess": normalisation(images),
        "say": None,
    }
    train("lenet5", images, labels, QUICK, **settings)
    with pytest.raises(FileError, match=r"another training \(other: data\)"):
        train("lenet5", images, labels[::-1], QUICK, **settings)


@pytest.mark.parametrize("device", ["tpu", "meta:x", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(pictures, tmp_path, device):
    with pytest.raises(InputError, match="cannot be used here"):
        run(pictures, tmp_path / "checkpoint", device=device)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("content", [b"", b"rubbish" * 10, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_rubbish_is_no_checkpoint(pictures, tmp_path, content):
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(FileError, match="no checkpoint of a training"):
        run(pictures, path)


@pytest.mark.parametrize("network", ["lenet5", "resnet8", "resnet110-sd", "wrn16-2", "densenet40"])
def test_a_loaded_network_predicts_as_the_trained_one(pictures, tmp_path, network):
    recipe = replace(QUICK, epochs=1, rate=0.001)
    trained, _ = run(pictures, tmp_path / "checkpoint", recipe, network=network)
    loaded, about = load_network(tmp_path / "checkpoint")
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), trained(images), rtol=1e-3, atol=1e-4)
    assert about["epoch"] == 1
    assert about["identity"]["recipe"]["rate"] == 0.001


def test_a_loss_that_is_not_finite_stops_the_training(pictures, tmp_path):
    with pytest.raises(InputError, match="broke down in epoch"):
        run(pictures, tmp_path / "checkpoint", replace(QUICK, rate=1e30, epochs=5))


def test_augmenting_only_moves_and_mirrors():
    torch.manual_seed(0)
    batch = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 1, 8, 8).repeat(200, 1, 1, 1)
    mirrored = augment(batch, crop=0, flip=True)
    turned = (mirrored == batch.flip(3)).flatten(1).all(1)
    assert ((mirrored == batch).flatten(1).all(1) | turned).all()
    assert 60 < turned.sum() < 140
    moved = augment(batch, crop=2, flip=False)
    places = {tuple(np.argwhere(picture[0].numpy() == 28)[0] - (3, 3)) for picture in moved}
    assert places == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}
    for picture in moved[:20]:
        dy, dx = np.argwhere(picture[0].numpy() == 28)[0] - (3, 3)
        rolled = torch.roll(batch[0, 0], (int(dy), int(dx)), (0, 1))
        inside = picture[0] > 0
        assert torch.equal(picture[0][inside], rolled[inside])
        assert inside.sum() == (8 - abs(dy)) * (8 - abs(dx))


def test_the_rate_falls_where_published():
    recipe = RECIPES["wrn28-10"]
    rates = [recipe.rate_in(epoch) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == [0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008]
    assert RECIPES["resnet110"].rate_in(0) == pytest.approx(0.01)
    assert RECIPES["resnet110"].rate_in(1) == 0.1


def test_grey_pictures_are_not_mirrored():
    assert recipe_for("lenet5", "mnist", epochs=2) == replace(
        RECIPES["lenet5"], epochs=2, crop=0, flip=False
    )


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"momentum": 1.0},
        {"nesterov": True, "momentum": 0.0},
        {"weight_decay": -1.0},
        {"milestones": (0.5, 60)},
        {"decay": 0.0},
        {"warmup": -1},
        {"crop": -4},
        {"seed": -1},
    ],
)
def test_impossible_recipes_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change))):
        replace(QUICK, **change)
