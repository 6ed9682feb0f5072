"""The network of the paper: base encoder, projection head, output layer."""

import torch
from torch import Tensor, nn

from ..kernels import chain
from ..types import Output


class Model(nn.Module):
    """Encoder -> projection head (2-layer MLP) -> output layer.

    `z` is the vector after the head, or the encoder's own output where there is no head.
    """

    def __init__(self, encoder: nn.Module, features: int, classes: int, head: bool = True, out_dim: int = 256) -> None:
        super().__init__()
        self.encoder = encoder
        self.head: nn.Module = nn.Identity()
        if head:
            self.head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, out_dim))
        self.output = nn.Linear(out_dim if head else features, classes)
        self.native = True  # False: torch, whatever is at hand

    def forward(self, x: Tensor) -> Output:
        made = chain.run([[self.encoder, self.head], [self.output]], x) if self.native else None
        if made is not None:
            return Output(*made)
        z = self.head(self.encoder(x))
        return Output(z, self.output(z))


def laid_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """The model with its tensors in that layout."""
    return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]  # torch's stubs know it not


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


@torch.no_grad()
def num_features(encoder: nn.Module, shape: tuple[int, ...]) -> int:
    """The length of the encoder's output for inputs of `shape`."""
    training = encoder.training
    features = encoder.eval()(torch.zeros(1, *shape)).shape[1]
    encoder.train(training)
    return int(features)
