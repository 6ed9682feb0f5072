"""The network of the paper (encoder, projection head, output layer), and checks of models."""

import math
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ..errors import InputError, first_line
from ..kernels.chain import run
from ..kernels.convpool import ConvReluPool
from ..kernels.plan import NativeChain, Parts, plan_layers
from ..types import Output

INPUT_STATISTICS = ("standardise.mean", "standardise.std")
TARGET_STATISTICS = ("rescale.mean", "rescale.std")
STATISTICS = INPUT_STATISTICS + TARGET_STATISTICS  # buffers that training does not change


class Standardise(nn.Module):
    """(x - mean) / std in float32, with statistics over all parties.

    Mean and standard deviation are buffers, so they are part of the model. They have the dtype of
    the samples: float64 samples are converted to float32 only after the mean was subtracted,
    because a small variation around a large mean would be lost otherwise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=dtype))
        self.register_buffer("std", torch.ones(shape, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Standardise a batch."""
        return ((x - self.mean) / self.std).float()


class Rescale(nn.Module):
    """mean + std * output in float64: from standardised targets to the units of the data.

    Mean and standard deviation of the targets over all parties are buffers, part of the model.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, targets: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(targets, dtype=torch.float64))
        self.register_buffer("std", torch.ones(targets, dtype=torch.float64))

    def forward(self, output: Tensor) -> Tensor:
        """Return predictions in the units of the data."""
        return self.mean + self.std * output


class AutocastModule(nn.Module):
    """A module that returns z and logits at least in float32, computed with autocast if it is set.

    Losses and terms of methods are therefore computed in float32.
    """

    autocast: torch.dtype | None = None  # None: compute in the dtype of the parameters

    def forward(self, x: Tensor) -> Output:
        """Return z and the logits of a batch."""
        if self.autocast is None:
            return self.compute(x)
        with torch.autocast(x.device.type, self.autocast):
            z, logits = self.compute(x)
        return Output(widen(z), widen(logits))

    def compute(self, x: Tensor) -> Output:
        """Return z and the logits of a batch in any dtype."""
        raise NotImplementedError(f"{type(self).__name__} must define compute")


class Model(AutocastModule):
    """Encoder -> projection head (2-layer MLP) -> output layer.

    `z` is the output of the head, or of the encoder if there is no head.
    """

    def __init__(
        self, encoder: nn.Module, features: int, classes: int, head: bool = True, out_dim: int = 256
    ) -> None:
        super().__init__()
        self.standardise: nn.Module = nn.Identity()
        self.encoder = encoder
        self.num_features = features  # length of the encoder's output
        self.head: nn.Module = nn.Identity()
        if head:
            self.head = nn.Sequential(
                nn.Linear(features, features), nn.ReLU(), nn.Linear(features, out_dim)
            )
        self.output = nn.Linear(out_dim if head else features, classes)
        self.rescale: nn.Module = nn.Identity()
        self.native = True  # False: always use torch
        self.native_chain: NativeChain | None = None  # None: use torch

    def parts(self) -> Parts:
        """Return the modules that compute z, and those that compute the logits from it."""
        return (self.encoder, self.head), (self.output,)

    def plan_native(self, shape: tuple[int, ...]) -> None:
        """Choose native code or torch for samples of this shape, once the model is complete."""
        self.native_chain = plan_layers(self.parts(), shape)

    def compute(self, x: Tensor) -> Output:
        """Return z and the logits of a batch in any dtype."""
        x = self.standardise(x)
        if self.native and self.native_chain is not None:
            outputs = run(self.native_chain, self.parts(), x)
            if outputs is not None:
                z, logits = outputs
                return Output(z, self.rescale(logits))
        z = self.head(self.encoder(x))
        return Output(z, self.rescale(self.output(z)))


class Whole(AutocastModule):
    """A custom module that returns (z, logits) itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.rescale: nn.Module = nn.Identity()

    def compute(self, x: Tensor) -> Output:
        """Return z and the logits of a batch in any dtype."""
        z, logits = self.model(x)
        return Output(z, self.rescale(logits))


def widen(values: Tensor) -> Tensor:
    """Return values of at least float32: bfloat16 is converted, float64 is not."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def with_autocast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Let a network compute with autocast to this dtype.

    Native layers compute in float32 only, so that torch runs all layers.
    """
    for part in model.modules():
        if isinstance(part, AutocastModule):
            part.autocast = dtype
        if isinstance(part, Model):
            part.native_chain = None
        if isinstance(part, ConvReluPool):
            part.native = False
    return model


def with_memory_format(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Convert a model to a memory format, unless it has 3-D convolutions."""
    if any(tensor.dim() == 5 for tensor in model.state_dict().values()):
        return model
    return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]  # torch's stubs lack this overload


def with_dense_parameters(model: nn.Module) -> nn.Module:
    """Copy parameters that are views of larger tensors into memory of their own.

    The fused SGD of torch assumes that the values of a parameter are contiguous in memory.
    """
    for param in model.parameters():
        if torch.empty_like(param).stride() != param.stride():
            param.data = param.data.clone()
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Return True if the model has a BatchNorm layer."""
    return any(is_batch_norm(layer) for layer in model.modules())


def is_batch_norm(layer: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Return True if the layer is BatchNorm of any dimension."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def standardises(model: nn.Module) -> bool:
    """Return True if the model standardises its input by the statistics of all parties."""
    return any(isinstance(module, Standardise) for module in model.modules())


def check_tensors(module: nn.Module) -> None:
    """Refuse parameters of a custom module that do not fit samples in float32 on the CPU."""
    for name, param in module.named_parameters():
        if param.dtype == torch.float64:
            raise InputError(
                f"the model has float64 parameters ('{name}'), and moonfl trains in float32; "
                "call model.float() first"
            )
        if param.is_meta:
            raise InputError(
                f"the model's parameter '{name}' is on the meta device and has no values; build "
                "the model on the CPU"
            )


@torch.no_grad()
def probe(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, classes: int
) -> int | None:
    """Return the length of an encoder's output for samples of this shape.

    Return None if the module returns (z, logits) itself.
    """
    training = module.training
    zeros = torch.zeros(2, *shape, dtype=dtype)
    try:
        output = module.eval()(zeros)
    except InputError:
        raise
    except Exception as error:  # a custom module may raise anything
        check_tensors(module)
        reason = first_line(error)
        raise InputError(
            f"the model does not accept samples of shape {list(shape)}: {reason}"
        ) from None
    module.train(training)
    if isinstance(output, Tensor) and output.dim() == 2:
        return int(output.shape[1])
    if _is_z_and_logits(output, classes):
        return None
    parts = " and ".join(_describe(part) for part in _parts(output))
    raise InputError(
        f"for 2 samples the model returns {parts}; it must return features [2, F], to be followed "
        f"by projection head and output layer, or (z, logits), [2, D] and [2, {classes}]"
    )


def _is_z_and_logits(output: object, classes: int) -> bool:
    """Return True if the output for 2 samples is a pair of z and logits."""
    if not isinstance(output, tuple) or len(output) != 2:
        return False
    z, logits = output
    if not isinstance(z, Tensor) or not isinstance(logits, Tensor):
        return False
    return z.dim() == 2 and logits.shape == (2, classes)


def _describe(part: object) -> str:
    """Return the shape of a tensor, or the type of anything else."""
    return str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__


@torch.no_grad()
def uses_fractions(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return True if the module's output changes for non-integer inputs.

    A module that treats its inputs as token ids refuses them or rounds them. The values vary,
    because a module may normalise each sample.
    """
    module.eval()
    positions = torch.arange(2 * math.prod(shape)).reshape(2, *shape)
    integers = (positions % 2).float()
    try:
        output = _parts(module(integers))
        fraction_output = _parts(module(integers + 0.25 * (positions % 3 == 0)))
    except Exception:  # an embedding refuses floats
        return False
    for a, b in zip(output, fraction_output, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor) and not torch.equal(a, b):
            return True
    return False


def _parts(output: object) -> tuple[object, ...]:
    return output if isinstance(output, tuple) else (output,)
