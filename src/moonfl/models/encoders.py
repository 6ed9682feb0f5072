"""The encoders by name, and how a whole model is built. A new encoder is a file and a line in this table."""

import copy
import inspect
from collections.abc import Callable

import torch
from torch import nn

from ..errors import InputError
from ..registry import find
from .base import Model, Standardise, Whole, probe
from .mlp import mlp
from .resnet import resnet18, resnet50
from .signals import cnn1d
from .simple_cnn import simple_cnn

Encoder = Callable[
    [tuple[int, ...]], nn.Module
]  # shape of a sample -> a module giving [B, features]
ModelSource = (
    nn.Module | Callable[..., nn.Module] | str
)  # an encoder, or what makes one: as it is, or by name

ENCODERS: dict[str, Encoder] = {
    "mlp": mlp,
    "simple-cnn": simple_cnn,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "cnn1d": cnn1d,
}


def make_encoder(model: ModelSource, shape: tuple[int, ...]) -> nn.Module:
    """A new module: a copy of one that is given, or what a function makes of nothing or of the shape of a sample."""
    given = find("model", model, ENCODERS) if isinstance(model, str) else model
    make: Callable[..., nn.Module] = (
        (lambda: copy.deepcopy(given)) if isinstance(given, nn.Module) else given
    )
    if not callable(make):
        raise InputError(
            f"model is {model!r}; it must be a module, a function that makes one, or a name"
        )
    try:
        needed = [
            p
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind < p.VAR_POSITIONAL
        ]
    except (TypeError, ValueError):  # a callable that does not tell
        needed = []
    try:
        module = make(shape) if needed else make()
    except InputError:
        raise
    except Exception as error:  # somebody's own code may raise anything
        of = f"the shape of a sample, {shape}" if needed else "nothing"
        raise InputError(
            f"model {model!r} cannot be made of {of}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model {model!r} makes {type(module).__name__}, not a torch.nn.Module")
    odd = next(
        (
            name
            for name, value in module.state_dict().items()
            if not isinstance(value, torch.Tensor)
        ),
        None,
    )
    if odd is not None:
        raise InputError(
            f"model {model!r} keeps {odd}, which is no tensor; parties can send tensors only"
        )
    return module


def build_model(
    model: ModelSource,
    shape: tuple[int, ...],
    classes: int,
    head: bool,
    out_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    statistics_shape: tuple[int, ...] | None = None,
) -> nn.Module:
    """The same network for every algorithm; `head` switches the projection head and nothing else.

    `dtype` is that of its input; `scales` the shape of mean and deviation, where it standardises its input. A module
    that gives (z, logits) itself is taken as it is.
    """
    encoder = make_encoder(model, shape)
    features = probe(encoder, shape, dtype, classes)
    if features is None:
        return Whole(encoder)
    made = Model(encoder, features, classes, head, out_dim)
    if statistics_shape is not None:
        made.standardise = Standardise(statistics_shape)
    made.plan_native(shape)
    return made
