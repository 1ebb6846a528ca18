"""The paper's networks for small images, and smaller siblings of the same code for machines without
a GPU.

All take float images of shape (n, channels, height, width) and return logits. DenseNet-161 and
ResNet-152 for ImageNet are not written here: they come as ONNX, torch.export or Hugging Face files
through `recal.collect`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from recal.errors import InputError, MissingExtraError

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:  # this module is only imported where a network is needed
    raise MissingExtraError("torch", "torch", "Training the paper's networks") from error


def _conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)


class LeNet5(nn.Module):
    """Two convolutions and three dense layers (LeCun et al., 1998), with ReLU and max-pooling as is
    usual today.
    """

    def __init__(self, n_classes: int, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        # The network was drawn for 32 x 32; smaller pictures get the missing border as padding.
        padding = max(0, (33 - image_size) // 2)
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, n_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(images)))


class ResidualBlock(nn.Module):
    """relu(shortcut + survive * branch), where training drops the branch with probability 1 -
    survive.

    The shortcut has no parameters: it takes every second pixel and fills new channels with zeros.
    While training the branch is added whole or not at all; otherwise it is weighted by `survive`,
    which is its mean over training.
    """

    def __init__(
        self, channels_in: int, channels_out: int, stride: int, survive: float = 1.0
    ) -> None:
        super().__init__()
        self.stride, self.new_channels, self.survive = stride, channels_out - channels_in, survive
        self.branch = nn.Sequential(
            _conv3x3(channels_in, channels_out, stride),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            _conv3x3(channels_out, channels_out),
            nn.BatchNorm2d(channels_out),
        )

    def forward(self, images: Tensor) -> Tensor:
        shortcut = images if self.stride == 1 else images[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, before, self.new_channels - before))
        if self.survive == 1.0:
            return functional.relu(shortcut + self.branch(images))
        if not self.training:
            return functional.relu(shortcut + self.survive * self.branch(images))
        if torch.rand(()).item() < self.survive:
            return functional.relu(shortcut + self.branch(images))
        return functional.relu(shortcut)


class ResNet(nn.Module):
    """Depth 6n + 2 for small images (He et al., 2016): three stages of n blocks with 16, 32 and 64
    channels.

    `last_survival` below 1 gives stochastic depth (Huang et al., 2016): block l of L survives a
    training step with probability 1 - l / L * (1 - last_survival).
    """

    def __init__(
        self, depth: int, n_classes: int, in_channels: int = 3, last_survival: float = 1.0
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError(
                f"A ResNet's depth must be 6n + 2 with n >= 1 (8, 14, 20, ... 110), got {depth}."
            )
        if not 0.0 < last_survival <= 1.0:
            raise InputError(
                f"`last_survival` must lie in (0, 1], got {last_survival!r}; 1 drops nothing."
            )
        per_stage = (depth - 2) // 6
        self.stem = nn.Sequential(_conv3x3(in_channels, 16), nn.BatchNorm2d(16), nn.ReLU())
        blocks: list[nn.Module] = []
        channels = 16
        for width in (16, 32, 64):
            for first in (True,) + (False,) * (per_stage - 1):
                survive = 1.0 - (len(blocks) + 1) / (3 * per_stage) * (1.0 - last_survival)
                blocks.append(
                    ResidualBlock(channels, width, 2 if first and width > 16 else 1, survive)
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(64, n_classes)
        _he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.blocks(self.stem(images)).mean(dim=(2, 3))))


class WideBlock(nn.Module):
    """Pre-activation block: the shortcut is the input itself, or a 1 x 1 convolution where the
    shape changes.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(channels_in), nn.ReLU())
        self.branch = nn.Sequential(
            _conv3x3(channels_in, channels_out, stride),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            _conv3x3(channels_out, channels_out),
        )
        changes = stride != 1 or channels_in != channels_out
        self.shortcut = (
            nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if changes else None
        )

    def forward(self, images: Tensor) -> Tensor:
        active = self.enter(images)
        shortcut = images if self.shortcut is None else self.shortcut(active)
        return cast(Tensor, shortcut + self.branch(active))


class WideResNet(nn.Module):
    """WRN-depth-widen (Zagoruyko and Komodakis, 2016): depth 6n + 4, three stages `widen` times as
    wide.
    """

    def __init__(self, depth: int, widen: int, n_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise InputError(
                f"A wide ResNet's depth must be 6n + 4 with n >= 1 (10, 16, ... 28), got {depth}."
            )
        blocks: list[nn.Module] = []
        channels = 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for number in range((depth - 4) // 6):
                blocks.append(WideBlock(channels, width, 2 if stage and number == 0 else 1))
                channels = width
        self.stem = _conv3x3(in_channels, 16)
        self.blocks = nn.Sequential(*blocks)
        self.leave = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, n_classes)
        _he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.leave(self.blocks(self.stem(images))).mean(dim=(2, 3))))


class DenseLayer(nn.Module):
    """Adds `growth` channels to those that came in."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), _conv3x3(channels, growth))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat((images, self.branch(images)), dim=1)


class DenseNet(nn.Module):
    """The plain DenseNet (Huang et al., 2017), no bottleneck and no compression: depth 3n + 4,
    `growth` a layer.
    """

    def __init__(self, depth: int, growth: int, n_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        if depth < 7 or (depth - 4) % 3:
            raise InputError(
                f"A DenseNet's depth must be 3n + 4 with n >= 1 (7, 10, ... 40), got {depth}."
            )
        channels = 16
        layers: list[nn.Module] = [_conv3x3(in_channels, channels)]
        for stage in range(3):
            if stage:  # between the blocks the picture is halved
                shrink = (
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels, 1, bias=False),
                )
                layers += [*shrink, nn.AvgPool2d(2)]
            for _ in range((depth - 4) // 3):
                layers.append(DenseLayer(channels, growth))
                channels += growth
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, n_classes)
        _he_initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(images).mean(dim=(2, 3))))


def _he_initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


# Name on the command line -> builder of (n_classes, in_channels, image_size). The one list of
# networks.
NETWORKS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "lenet5": LeNet5,
    "resnet8": lambda classes, channels, size: ResNet(8, classes, channels),
    "resnet14": lambda classes, channels, size: ResNet(14, classes, channels),
    "resnet20": lambda classes, channels, size: ResNet(20, classes, channels),
    "resnet110": lambda classes, channels, size: ResNet(110, classes, channels),
    "resnet110-sd": lambda classes, channels, size: ResNet(
        110, classes, channels, last_survival=0.5
    ),
    "wrn16-2": lambda classes, channels, size: WideResNet(16, 2, classes, channels),
    "wrn28-10": lambda classes, channels, size: WideResNet(28, 10, classes, channels),
    "densenet40": lambda classes, channels, size: DenseNet(40, 12, classes, channels),
}


def build(name: str, n_classes: int, in_channels: int = 3, image_size: int = 32) -> nn.Module:
    """Return the named network with fresh weights, drawn from torch's current random state.

    Examples
    --------
    >>> from paper.training.networks import build, count_parameters
    >>> count_parameters(build("resnet20", n_classes=10))
    269722
    """
    if name not in NETWORKS:
        raise InputError(f"There is no network {name!r}; there are: {', '.join(NETWORKS)}.")
    return NETWORKS[name](n_classes, in_channels, image_size)


def count_parameters(network: nn.Module) -> int:
    """Return how many numbers training adjusts."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
