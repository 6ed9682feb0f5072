"""The encoders by name, and how a model is built. A new encoder is a file and an entry here."""

import copy
import inspect
from collections.abc import Callable

import torch
from torch import nn

from ..errors import InputError
from ..registry import find
from .base import Model, Rescale, Standardise, Whole, probe
from .mlp import mlp
from .resnet import resnet18, resnet50
from .signals import cnn1d
from .simple_cnn import simple_cnn, wide_cnn

Encoder = Callable[[tuple[int, ...]], nn.Module]  # shape of a sample -> module returning [B, F]
ModelSource = nn.Module | Callable[..., nn.Module] | str  # a module, a function, or a name

ENCODERS: dict[str, Encoder] = {
    "mlp": mlp,
    "simple-cnn": simple_cnn,
    "wide-cnn": wide_cnn,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "cnn1d": cnn1d,
}


def make_encoder(model: ModelSource, shape: tuple[int, ...]) -> nn.Module:
    """Return a new module: a copy of `model` if it is a module, otherwise what it returns.

    The function is called with the shape of a sample if it has a required parameter.
    """
    source = find("model", model, ENCODERS) if isinstance(model, str) else model
    module = _copy_or_call(model, source, shape)
    if not isinstance(module, nn.Module):
        raise InputError(f"model {model!r} returns {type(module).__name__}, not a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            "the model is a TorchScript module, whose parameters cannot be replaced during "
            "training; pass the module that it was made from"
        )
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"the state of model {model!r} has {name}, which is not a tensor; "
                "parties can send tensors only"
            )
    return module


def _copy_or_call(model: ModelSource, source: object, shape: tuple[int, ...]) -> object:
    """Copy a module or call a function; `model` is its name in error messages."""
    if not callable(source):
        raise InputError(
            f"model must be a torch.nn.Module, a function that returns one, or a name; "
            f"got {model!r}"
        )
    try:
        if isinstance(source, nn.Module):
            action = "copied"
            return copy.deepcopy(source)
        if _has_required_parameter(source):
            action = f"built from the shape of a sample, {shape}"
            return source(shape)
        action = "built without arguments"
        return source()
    except InputError:
        raise
    except Exception as error:  # custom code may raise anything
        raise InputError(
            f"model {model!r} cannot be {action}: {type(error).__name__}: {error}"
        ) from error


def _has_required_parameter(function: Callable[..., object]) -> bool:
    """Return True if a function has a positional parameter without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return False
    return any(p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in parameters)


def build_model(
    model: ModelSource,
    shape: tuple[int, ...],
    classes: int,
    head: bool,
    out_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    standardise: Standardise | None = None,
    rescale: Rescale | None = None,
) -> nn.Module:
    """Build the network, which is the same for every algorithm; `head` adds the projection head.

    `shape` and `dtype` are those of an input sample, after the layer `standardise` if there is one.
    A module that returns (z, logits) itself is used as it is. `rescale` converts the predictions of
    either to the units of a regression's targets.
    """
    encoder = make_encoder(model, shape)
    features = probe(encoder, shape, dtype, classes)
    if features is None:
        whole = Whole(encoder)
        whole.rescale = rescale or whole.rescale
        return whole
    network = Model(encoder, features, classes, head, out_dim)
    if standardise is not None:
        network.standardise = standardise
    network.rescale = rescale or network.rescale
    network.plan_native(shape)
    return network
