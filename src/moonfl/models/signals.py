"""A 1-D CNN for time series of one or more channels: motion, ECG, audio."""

import torch
from torch import Tensor, nn

from ..errors import InputError

MIN_LENGTH = 16  # of a time series


class TimeLast(nn.Module):
    """Transposition [B, time, channels] -> [B, channels, time]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed batch."""
        return x.transpose(1, 2)


def cnn1d(shape: tuple[int, ...]) -> nn.Module:
    """Return two convolutions over time, mean and maximum over time, and a linear layer.

    The convolutions (32 and 64 channels, width 5) are followed by ReLU and max-pooling by 2; the
    linear layer has 64 units. Time is the longer side of a sample.
    """
    if len(shape) != 2 or max(shape) < MIN_LENGTH:
        raise InputError(
            f"model cnn1d needs signals [channels, time] with a time of at least {MIN_LENGTH}, "
            f"the data have shape {shape}; try model=mlp"
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
    """Mean and maximum over time: [B, C, L] -> [B, 2C]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled batch."""
        return torch.cat([x.mean(dim=2), x.amax(dim=2)], dim=1)
