"""A 1-D CNN, for signals: motion, ECG, sound, anything measured over time at one or more channels."""

import torch
from torch import Tensor, nn

from ..errors import InputError

SHORTEST = 16


class TimeLast(nn.Module):
    """[B, time, channels] -> [B, channels, time]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def cnn1d(shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions over time (32 and 64 channels, width 5) with ReLU and max-pooling by 2, the mean and the largest
    over time, then 64 units. Time is the longer side of a sample.
    """
    if len(shape) != 2 or max(shape) < SHORTEST:
        raise InputError(
            f"model cnn1d needs signals [channels, time] with a time of at least {SHORTEST}, the data have "
            f"shape {shape}; try model=mlp"
        )
    channels = min(shape)
    return nn.Sequential(
        TimeLast() if shape[0] > shape[1] else nn.Identity(),
        nn.Conv1d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        MeanAndMax(),
        nn.Linear(128, 64),
        nn.ReLU(),
    )


class MeanAndMax(nn.Module):
    """Over time: [B, C, L] -> [B, 2C]."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(dim=2), x.amax(dim=2)], dim=1)
