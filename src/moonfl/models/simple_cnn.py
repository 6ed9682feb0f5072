"""The CNN of the paper's CIFAR-10 experiments (Sec. 4.1)."""

from torch import nn

from ..errors import InputError
from ..kernels.convpool import ConvReluPool


def simple_cnn(shape: tuple[int, ...]) -> nn.Module:
    """Return two 5x5 convolutions with 2x2 max-pooling and two linear layers, all with ReLU.

    The convolutions have 6 and 16 channels, the linear layers 120 and 84 units.
    """
    channels, *sides = shape
    if len(sides) != 2 or min(sides) < 16:
        raise InputError(
            f"model simple-cnn needs images of at least 16x16, the data have shape {shape}; "
            "try model=mlp"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    return nn.Sequential(
        ConvReluPool(channels, 6, 5),
        ConvReluPool(6, 16, 5, flat=True),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
