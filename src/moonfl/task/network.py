"""The builder of a model, and checks that the model can be trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from .. import tree
from ..data.augment import is_pixels
from ..data.moments import channel_axis, statistics_shape
from ..data.targets import REGRESSION
from ..errors import InputError, notify
from ..experiment import Experiment
from ..models.base import (
    Model,
    Rescale,
    Standardise,
    has_batch_norm,
    is_batch_norm,
    standardises,
    with_autocast,
    with_dense_parameters,
    with_memory_format,
)
from ..models.encoders import ModelSource, build_model


class Network(NamedTuple):
    """The builder of a model, and what is known about the models it builds."""

    build: Callable[[], nn.Module]
    model: nn.Module  # one that it has built
    batch_norm: bool
    standardises: bool  # its inputs, by federation-wide mean and standard deviation


@dataclass(frozen=True)
class ModelBuilder:
    """A function that builds a model; it can be sent to a process that was not forked."""

    source: ModelSource
    shape: tuple[int, ...]
    classes: int
    head: bool
    out_dim: int
    dtype: torch.dtype
    statistics_shape: tuple[int, ...] | None  # None: inputs are not standardised
    stored_dtype: torch.dtype
    device: str
    rescales: bool  # predictions to the units of a regression's targets
    autocast: torch.dtype | None = None  # None: float32

    def __call__(self) -> nn.Module:
        """Return a model with arbitrary weights."""
        rescale = Rescale(self.classes) if self.rescales else None
        standardise = None
        if self.statistics_shape is not None:
            standardise = Standardise(self.statistics_shape, self.stored_dtype)
        network = build_model(
            self.source,
            self.shape,
            self.classes,
            self.head,
            self.out_dim,
            dtype=self.dtype,
            standardise=standardise,
            rescale=rescale,
        )
        # The layout decides which elements torch's SGD rounds once and which twice: published runs
        # depend on it.
        network = with_dense_parameters(network.to(self.device))
        if self.autocast is not None:
            network = with_autocast(network, self.autocast)
        return with_memory_format(network, torch.channels_last)


def in_float32(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the builder of the same model without autocast, for use after the run."""
    return replace(build, autocast=None) if isinstance(build, ModelBuilder) else build


def notify_if_not_native(network: Network) -> None:
    """Print that native layers are not used, if only the precision prevents it."""
    float32 = tree.build_module(in_float32(network.build))
    if isinstance(float32, Model) and float32.native_chain is not None:
        notify(
            "moonfl: precision=bfloat16 is computed by torch: the native layers, which this model "
            "would use, compute in float32 only"
        )


def notify_if_time_is_first(network: Network, model: str, shape: tuple[int, ...]) -> None:
    """Print that the first axis of a signal is read as time, if that changes the result."""
    is_read_as_signal = len(shape) == 2 and (model == "cnn1d" or network.standardises)
    if is_read_as_signal and channel_axis(shape) == 1:
        notify(
            f"moonfl: samples {list(shape)} are read as {shape[0]} time steps of {shape[1]} "
            "channels, because the longer side of a signal is time; signals with more channels "
            "than time steps need a model of your own and standardise=false"
        )


def make_builder(
    exp: Experiment,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    classes: int,
    model: ModelSource | None = None,
) -> Network:
    """Return the builder of the model for samples of this shape and dtype, as they are stored."""
    if exp.standardise and not dtype.is_floating_point:
        raise InputError(
            "standardise=true requires floating-point features; "
            "images and token ids are not standardised"
        )
    standardise = dtype.is_floating_point if exp.standardise is None else exp.standardise
    becomes_float32 = is_pixels(dtype, len(shape)) or dtype == torch.float64
    input_dtype = torch.float32 if becomes_float32 else dtype

    build = ModelBuilder(
        source=str(exp.model) if model is None else model,
        shape=shape,
        classes=classes,
        head=exp.head,
        out_dim=exp.out_dim,
        dtype=input_dtype,
        statistics_shape=statistics_shape(shape) if standardise else None,
        stored_dtype=dtype,
        device=exp.device,
        rescales=exp.task == REGRESSION,
        autocast=torch.bfloat16 if exp.precision == "bfloat16" else None,
    )
    network = tree.build_module(build)
    if exp.standardise and not standardises(network):
        raise InputError(
            "standardise=true: a model that returns (z, logits) itself receives samples unchanged; "
            "standardise them inside the model"
        )
    batch_norm = has_batch_norm(network)
    check_batch_size(exp, is_batch_norm=batch_norm)
    return Network(build, network, batch_norm, standardises(network))


def check_batch_size(exp: Experiment, *, is_batch_norm: bool) -> None:
    """Check that a batch has enough samples for a model with BatchNorm layers."""
    if is_batch_norm and exp.batch_size == 1:
        raise InputError(
            f"batch_size=1 cannot train model={exp.model}: its BatchNorm needs at least 2 samples"
        )


def check_model(network: Network, *, is_factory: bool) -> None:
    """Refuse models that cannot be trained here; `is_factory`: a user's function builds them."""
    params = tree.params_of(network.model)
    if not params:
        raise InputError(
            "the model has no trainable parameter: it has none, or all of them are frozen"
        )
    if any(param.is_complex() for param in params.values()):
        raise InputError("the model has complex parameters, which are not supported; use real ones")
    if is_factory:
        check_independent(network)
    for name, layer in network.model.named_modules():
        check_layer(name, layer)


def check_independent(network: Network) -> None:
    """Check that two models of a user's function share no parameters."""
    shared = tree.find_shared(network.model, tree.build_module(network.build))
    if shared is not None:
        raise InputError(
            f"the function that builds the model returns the same '{shared}' every time, so that "
            "models would change each other; create what is trained anew (copy.deepcopy what was "
            "loaded once), or pass the module itself"
        )


def check_layer(name: str, layer: nn.Module) -> None:
    """Refuse layers that cannot be trained here."""
    if is_batch_norm(layer) and layer.running_mean is None:
        raise InputError(
            f"BatchNorm '{name}' has no running statistics, so its output for a sample depends on "
            "the other samples of the batch; set track_running_stats=True, or use GroupNorm"
        )
    is_embedding = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if is_embedding and layer.sparse and layer.weight.requires_grad:
        raise InputError(
            f"layer '{name}' has sparse gradients, which are not supported; set sparse=False"
        )


def check_private(
    exp: Experiment, network: Network, personal: tuple[str, ...], *, is_encoded: bool
) -> None:
    """Refuse what parties would share without noise in a run with differential privacy."""
    if is_encoded:
        raise InputError(
            "dp does not cover the statistics that impute and encode compute over all parties; "
            "prepare the tables in advance, and remove impute and encode"
        )
    if network.standardises:
        raise InputError(
            "dp does not cover the mean and standard deviation of the features over all parties; "
            "scale the features in advance by constants, and set standardise=false"
        )
    buffers = [name for name in tree.buffers_of(network.model) if name not in personal]
    if any(name.endswith("running_mean") for name in buffers):
        raise InputError(
            "dp does not cover the statistics of BatchNorm, which parties share without noise; set "
            "personal=batchnorm, or use a model without BatchNorm"
        )
    params = {k: v for k, v in tree.params_of(network.model).items() if k not in personal}
    for label, values in exp.algorithm.extra_like(params, exp.effective_steps(1, t=0)).items():
        if values.keys() != params.keys():
            raise InputError(
                f"dp does not cover what {exp.algorithm.label} sends in addition to the model "
                f"({label}): it needs the names of the model's parameters; use another method"
            )
