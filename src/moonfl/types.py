"""The values that travel in a federation, and what an algorithm sees of a party. All immutable."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

Params = Mapping[str, Tensor]  # tensors of a model by name
State = Mapping[str, Params]  # what an algorithm remembers or sends, by label
Mean = Callable[
    [Iterable[tuple[Params, float]]], Params
]  # of (values, weight) pairs, one per party


class Batch(NamedTuple):
    x: Tensor  # inputs, [B, ...]
    y: Tensor  # labels, [B]
    rows: Tensor  # where these samples stand in the party's data, [B]


class Output(NamedTuple):
    """What a model returns."""

    z: Tensor  # R_w(x), the projected representation, [B, D]
    logits: Tensor  # F_w(x), [B, classes]


Loss = Callable[[nn.Module, Batch], Tensor]  # -> a scalar
Frozen = Callable[
    [Batch], Output
]  # a model that is only read; of the batch as it came: it may go by its rows, not x


@dataclass(frozen=True)
class Server:
    """The server between two rounds."""

    params: Params  # w^t, the trainable parameters
    buffers: Params = field(default_factory=dict)  # BatchNorm statistics, sent along with w^t
    shared: State = field(default_factory=dict)  # also sent to the parties (SCAFFOLD's c)
    memory: State = field(default_factory=dict)  # the algorithm's own, never sent (FedDyn's h)
    step: State = field(default_factory=dict)  # the server step's own, never sent (FedAvgM's v)


@dataclass(frozen=True)
class Party:
    """What an algorithm sees of one party in one round."""

    id: int
    state: State  # what the algorithm kept here when this party last took part
    global_params: Params  # w^t
    global_buffers: Params
    shared: State  # what the server sent beside w^t
    lr: float  # the local optimiser's step size
    momentum: float  # and its momentum
    supervised: Callable[[Tensor, Batch], Tensor]  # (logits, batch) -> loss, given by the task
    frozen: Callable[[Params], Frozen]  # a model in eval mode and without gradients

    @property
    def global_model(self) -> Params:
        """w^t with its buffers: all that is needed to run it."""
        return {**self.global_params, **self.global_buffers}


@dataclass(frozen=True)
class Update:
    """What one party returns after local training."""

    party: int
    params: Params  # w_i^t
    buffers: Params
    num_samples: int  # |D^i|
    num_steps: int  # optimiser steps taken; 0: this party could not train
    extra: State = field(
        default_factory=dict
    )  # what the algorithm sends besides (SCAFFOLD's delta c_i)
    metrics: dict[str, float] = field(default_factory=dict)
    missing: str = (
        ""  # why there is no model in it: this party did not answer, or what it sent was refused
    )
