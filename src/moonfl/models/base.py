"""The network of the paper: base encoder, projection head, output layer."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..kernels.chain import run
from ..kernels.plan import NativeChain, Parts, plan_layers
from ..types import Output


class Standardise(nn.Module):
    """(x - mean) / std, both set once for the whole federation; buffers, so they go wherever the model goes."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Model(nn.Module):
    """Encoder -> projection head (2-layer MLP) -> output layer.

    `z` is the vector after the head, or the encoder's own output where there is no head.
    """

    def __init__(
        self, encoder: nn.Module, features: int, classes: int, head: bool = True, out_dim: int = 256
    ) -> None:
        super().__init__()
        self.standardise: nn.Module = nn.Identity()
        self.encoder = encoder
        self.head: nn.Module = nn.Identity()
        if head:
            self.head = nn.Sequential(
                nn.Linear(features, features), nn.ReLU(), nn.Linear(features, out_dim)
            )
        self.output = nn.Linear(out_dim if head else features, classes)
        self.native = True  # False: always use torch
        self.native_chain: NativeChain | None = None  # None: use torch

    def parts(self) -> Parts:
        """Return the modules that compute z, and those that compute the logits from it."""
        return (self.encoder, self.head), (self.output,)

    def plan_native(self, shape: tuple[int, ...]) -> None:
        """Choose native code or torch for samples of this shape; call it when the model is complete."""
        self.native_chain = plan_layers(self.parts(), shape)

    def forward(self, x: Tensor) -> Output:
        """Return z and the logits of a batch."""
        x = self.standardise(x)
        if self.native and self.native_chain is not None:
            outputs = run(self.native_chain, self.parts(), x)
            if outputs is not None:
                return Output(*outputs)
        z = self.head(self.encoder(x))
        return Output(z, self.output(z))


class Whole(nn.Module):
    """Somebody's module that returns (z, logits) itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Output:
        return Output(*self.model(x))


def with_memory_format(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """The model with its tensors in that layout, unless it has some (of 3-D convolutions) that cannot be."""
    if any(tensor.dim() == 5 for tensor in model.state_dict().values()):
        return model
    return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]  # torch's stubs know it not


def with_dense_parameters(model: nn.Module) -> nn.Module:
    """The model with parameters that are cut out of larger tensors in memory of their own: torch's fused step of SGD
    takes what follows in memory for what follows in the parameter.
    """
    for param in model.parameters():
        if torch.empty_like(param).stride() != param.stride():
            param.data = param.data.clone()
    return model


def has_batch_norm(model: nn.Module) -> bool:
    return any(map(is_batch_norm, model.modules()))


def is_batch_norm(layer: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def standardises(model: nn.Module) -> bool:
    """Whether it does so with its inputs, by mean and deviation of the federation."""
    return any(isinstance(m, Standardise) for m in model.modules())


@torch.no_grad()
def probe(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, classes: int
) -> int | None:
    """The length of an encoder's output for samples of this shape; None where the module gives (z, logits) itself."""
    training = module.training
    zeros = torch.zeros(2, *shape, dtype=dtype)
    try:
        found = module.eval()(zeros)
    except InputError:
        raise
    except Exception as error:  # somebody's own module may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"the model cannot take samples of shape {list(shape)}: {reason}"
        ) from None
    module.train(training)
    if isinstance(found, Tensor) and found.dim() == 2:
        return int(found.shape[1])
    whole = (
        isinstance(found, tuple)
        and len(found) == 2
        and all(isinstance(part, Tensor) for part in found)
    )
    if whole and found[0].dim() == 2 and found[1].shape == (2, classes):
        return None
    given = [
        list(part.shape) if isinstance(part, Tensor) else type(part).__name__
        for part in _parts(found)
    ]
    raise InputError(
        f"for 2 samples the model gives {' and '.join(map(str, given))}; it must give features [2, F], "
        f"to be followed by projection head and output layer, or (z, logits), [2, D] and [2, {classes}]"
    )


@torch.no_grad()
def uses_fractions(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a module that takes whole numbers takes others too, and not as if they were whole."""
    try:
        zeros, others = (
            _parts(module.eval()(torch.full((2, *shape), value))) for value in (0.0, 0.25)
        )
    except Exception:  # as an embedding does
        return False
    pairs = zip(zeros, others, strict=True)
    return any(
        isinstance(a, Tensor) and isinstance(b, Tensor) and not torch.equal(a, b) for a, b in pairs
    )


def _parts(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else (found,)
