"""A small multi-layer perceptron for digits, tables and other small inputs."""

import math

from torch import nn


def mlp(shape: tuple[int, ...]) -> nn.Module:
    """Return two layers of 64 units with ReLU."""
    inputs = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
    )
