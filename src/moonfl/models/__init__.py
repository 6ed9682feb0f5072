"""The encoders by name, and how a whole model is built. A new encoder is a file and a line in this table."""

from collections.abc import Callable

from torch import nn

from .base import Model, num_features
from .mlp import mlp
from .resnet import resnet18, resnet50
from .simple_cnn import simple_cnn

Encoder = Callable[[tuple[int, ...]], nn.Module]  # input shape [C, H, W] -> a module giving [B, features]

ENCODERS: dict[str, Encoder] = {"mlp": mlp, "simple-cnn": simple_cnn, "resnet18": resnet18, "resnet50": resnet50}


def build_model(name: str, shape: tuple[int, ...], classes: int, head: bool, out_dim: int) -> nn.Module:
    """The same network for every algorithm; `head` switches the projection head and nothing else."""
    encoder = ENCODERS[name](shape)
    return Model(encoder, num_features(encoder, shape), classes, head, out_dim)
