from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from paper.options import parse_recipes
from paper.training.data import normalisation
from paper.training.recipes import RECIPES, Recipe
from paper.training.train import augment, load_network, train
from recal.errors import FileError, InputError

QUICK = Recipe(epochs=3, batch_size=16, rate=0.02, crop=2)


def run(pictures, path, recipe=QUICK, network="lenet5", n_classes=4, **options):
    images, labels = pictures.coloured(48, n_classes)
    given = {"say": None, "checkpoint": path, "preprocess": normalisation(images), **options}
    return train(network, images, labels, recipe, n_classes=n_classes, **given)


def bits(network) -> list[bytes]:
    return [value.detach().numpy().tobytes() for value in network.state_dict().values()]


def test_a_stopped_training_goes_on_to_the_same_bits(pictures, tmp_path):
    whole, history = run(pictures, tmp_path / "whole", network="resnet8")
    for stop in (1, 2):
        run(pictures, tmp_path / "parts", network="resnet8", stop_after=stop)
        torch.rand(5)  # what others draw in between must not matter
    parts, resumed = run(pictures, tmp_path / "parts", network="resnet8")
    assert bits(parts) == bits(whole)
    assert [record["loss"] for record in resumed] == [record["loss"] for record in history]


def test_training_learns_what_can_be_learnt(pictures, tmp_path):
    recipe = replace(QUICK, epochs=6, crop=0, milestones=())
    _, history = run(pictures, tmp_path / "checkpoint", recipe, network="resnet8")
    assert history[-1]["accuracy"] > 0.9 > history[0]["accuracy"]


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(pictures, tmp_path):
    path = tmp_path / "checkpoint"
    run(pictures, path, stop_after=1)
    with pytest.raises(FileError, match="recipe"):
        run(pictures, path, replace(QUICK, rate=0.03))


@pytest.mark.parametrize("content", [b"", b"rubbish" * 10, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_other_bytes_are_no_checkpoint(pictures, tmp_path, content):
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(FileError, match="no checkpoint of a training"):
        run(pictures, path)


@pytest.mark.parametrize("network", ["lenet5", "resnet110-sd"])
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
    with pytest.raises(InputError, match="Lower the learning rate"):
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


def test_recipes_are_read_by_the_kind_of_each_value():
    text = "lenet5:epochs=30,rate=0.05,flip=no,milestones=0.5/0.75"
    changes = {"epochs": 30, "rate": 0.05, "flip": False, "milestones": (0.5, 0.75)}
    assert parse_recipes([text]) == {"lenet5": changes}
    for wrong in ("epochs=30", "lenet5:epochs", "lenet5:epochs=many", "lenet5:flip=maybe"):
        with pytest.raises(InputError, match=wrong.split("=")[-1].split(":")[-1]):
            parse_recipes([wrong])


def test_the_rate_falls_where_published():
    recipe = RECIPES["wrn28-10"]
    rates = [recipe.rate_in(epoch) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == [0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008]
    assert RECIPES["resnet110"].rate_in(0) == pytest.approx(0.01)
    assert RECIPES["resnet110"].rate_in(1) == 0.1


@pytest.mark.parametrize(
    "change",
    [{"epochs": 0}, {"nesterov": True, "momentum": 0.0}, {"milestones": (0.5, 60)}, {"crop": -4}],
)
def test_impossible_recipes_are_refused(change):
    with pytest.raises(InputError, match=next(iter(change))):
        replace(QUICK, **change)
