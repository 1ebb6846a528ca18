from __future__ import annotations

import pytest
import torch

from paper.training.networks import NETWORKS, ResidualBlock, build, count_parameters

# Published, in millions, to the digits that the papers print; LeNet-5's follows from its layers.
PUBLISHED = {"resnet20": 0.27, "resnet110": 1.7, "resnet110-sd": 1.7, "densenet40": 1.0}
PUBLISHED |= {"wrn28-10": 36.5, "wrn16-2": 0.7}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    digits = len(str(PUBLISHED[name]).split(".")[1])
    with torch.device("meta"):  # counting needs no memory for the weights
        assert round(count_parameters(build(name, 10)) / 1e6, digits) == PUBLISHED[name]


def test_lenet5_has_the_parameters_of_its_layers():
    grey = (25 + 1) * 6 + (6 * 25 + 1) * 16 + (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10
    assert count_parameters(build("lenet5", 10, 1, 28)) == grey == 61_706


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "wrn28-10"])
def test_a_training_step_lowers_the_loss_and_reaches_every_weight(name):
    torch.manual_seed(0)
    network = build(name, 7)
    if name == "resnet110-sd":
        for block in network.blocks:
            block.survive = 0.999999  # a dropped branch rightly gets no gradient
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 6])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01 if name == "lenet5" else 0.001)
    logits = network(images)
    assert logits.shape == (4, 7)
    before = torch.nn.functional.cross_entropy(logits, labels)
    before.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
    optimizer.step()
    assert torch.nn.functional.cross_entropy(network(images), labels) < before


def test_a_block_predicts_with_the_mean_of_what_it_did_in_training():
    """The branch is dropped with probability 1 - survive, so its mean share over training is what
    prediction uses.
    """
    torch.manual_seed(0)
    block = ResidualBlock(4, 4, 1, survive=0.7)
    block.branch.eval()  # the statistics of normalisation must not move between the draws
    images = (
        torch.rand(2, 4, 6, 6) + 10.0
    )  # far from the ReLU's corner, so that the mean passes through it
    with torch.no_grad():
        expected = block.eval()(images)
        block.training = True
        draws = torch.stack([block(images) for _ in range(4000)])
    kept = (draws != images).flatten(1).any(1).float().mean()
    assert kept == pytest.approx(0.7, abs=0.03)
    share = ((draws.mean(0) - images) / (expected - images)).median()
    assert share == pytest.approx(1.0, abs=0.05)
