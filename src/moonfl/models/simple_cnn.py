"""The CNN of the paper's CIFAR-10 experiments (Sec. 4.1), and a wider one of the same shape."""

from torch import nn

from ..errors import InputError
from ..kernels.convpool import ConvReluPool


def simple_cnn(shape: tuple[int, ...]) -> nn.Module:
    """Return the paper's CNN: 6 and 16 channels, then 120 and 84 units."""
    return cnn("simple-cnn", shape, channels=(6, 16), units=(120, 84))


def wide_cnn(shape: tuple[int, ...]) -> nn.Module:
    """Return a CNN with 16 and 32 channels, then 256 and 128 units.

    A step takes about three times as long as with the paper's CNN.
    """
    return cnn("wide-cnn", shape, channels=(16, 32), units=(256, 128))


def cnn(
    name: str, shape: tuple[int, ...], *, channels: tuple[int, int], units: tuple[int, int]
) -> nn.Module:
    """Return two 5x5 convolutions with 2x2 max-pooling and two linear layers, all with ReLU."""
    inputs, *sides = shape
    if len(shape) == 2 and min(shape) >= 16:
        raise InputError(
            f"model {name} needs images with a channel axis, [channels, height, width], the data "
            f"have shape {shape}; use x[:, None]"
        )
    if len(sides) != 2 or min(sides) < 16:
        raise InputError(
            f"model {name} needs images of at least 16x16, the data have shape {shape}; "
            "try model=mlp"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return nn.Sequential(
        ConvReluPool(inputs, channels[0], 5),
        ConvReluPool(channels[0], channels[1], 5, flat=True),
        nn.Flatten(),
        nn.Linear(channels[1] * height * width, units[0]),
        nn.ReLU(),
        nn.Linear(units[0], units[1]),
        nn.ReLU(),
    )
