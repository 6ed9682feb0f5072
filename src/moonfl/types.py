"""Data types exchanged between server and parties, and what an algorithm sees of a party."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor, nn

Params = Mapping[str, Tensor]  # tensors of a model by name
State = Mapping[str, Params]  # what an algorithm stores or sends, by label
Mean = Callable[[Iterable[tuple[Params, float]]], Params]  # mean of (values, weight), one per party
GLOBAL = "global"  # name of the model that all parties train
PARTY_MODEL = "party"  # the name of a party's model, before its number


class Batch(NamedTuple):
    """Some samples of one party."""

    x: Tensor  # inputs, [B, ...]
    y: Tensor  # labels, [B]
    rows: Tensor  # indices of these samples in the party's data, [B]


class Output(NamedTuple):
    """What a model returns."""

    z: Tensor  # R_w(x), the projected representation, [B, D]
    logits: Tensor  # F_w(x), [B, classes]


Loss = Callable[[nn.Module, Batch], Tensor]  # returns a scalar
Term = Callable[[Output, Batch, Params], Tensor]  # (output, batch, w) -> a scalar


@dataclass(frozen=True)
class Phase:
    """A part of a party's local training: which model is trained, with which loss, how long.

    All phases of a round use the same loop over batches. Each starts with a new optimizer state.
    """

    loss: Loss
    stream: str = ""  # other names have other random numbers; "": those of a method with one phase
    epochs: int | None = None  # None: as many as the run's `epochs`
    trains: Callable[[str], bool] | None = None  # by parameter name; None: every parameter
    # name of a model of the party's own: the result is stored in its state under this label and
    # never sent; "": the model that is sent, which starts from the result of the previous phase
    model: str = ""
    start: Params | None = None  # parameters and buffers that the party's own model starts from

    def covers(self, name: str) -> bool:
        """Return True if this phase trains the parameter with this name."""
        return self.trains is None or self.trains(name)


class Frozen(Protocol):
    """A model in eval mode and without gradients."""

    def __call__(self, x: Tensor | Batch, rows: Tensor | None = None) -> Output:
        """Return the output for the inputs `x`, or for those of a batch.

        `rows` states that `x` are the party's samples at these indices, unchanged. Their outputs
        may then come from a cache. Leave it out for inputs that the method has modified.
        """


@dataclass(frozen=True)
class Server:
    """The state of the server between two rounds."""

    params: Params  # w^t, the trainable parameters
    buffers: Params = field(default_factory=dict)  # BatchNorm statistics, sent with w^t
    shared: State = field(default_factory=dict)  # also sent to the parties (SCAFFOLD's c)
    memory: State = field(default_factory=dict)  # of the algorithm, never sent (FedDyn's h)
    optimizer_state: State = field(default_factory=dict)  # never sent (FedAvgM's velocity)

    @property
    def model(self) -> dict[str, Tensor]:
        """Return w^t and its buffers."""
        return {**self.params, **self.buffers}


@dataclass(frozen=True)
class Party:
    """What an algorithm sees of one party in one round."""

    id: int
    state: State  # what `finish` returned for this party when it last took part
    global_params: Params  # w^t
    global_buffers: Params
    shared: State  # what the server sent in addition to w^t
    lr: float  # learning rate of the local optimizer
    momentum: float  # momentum of the local optimizer
    supervised: Callable[[Tensor, Batch], Tensor]  # (logits, batch) -> loss, defined by the task
    frozen: Callable[[Params], Frozen]  # loads parameters into a frozen model
    class_counts: Tensor  # number of the party's samples of each class, [classes]
    # outputs of a frozen model for all samples of the party, batch by batch, not augmented
    outputs: Callable[[Params], Iterator[tuple[Output, Batch]]]
    # FedNova's a: how many plain SGD steps move the weights as far as so many optimizer steps
    effective_steps: Callable[[int], float]
    personal: Params = field(default_factory=dict)  # tensors that stay at the party
    # (difference that is sent) -> what the server counts of it: scaled down to the norm `clip`
    clip_difference: Callable[[Params], Params] = lambda difference: difference

    @property
    def global_model(self) -> Params:
        """Return w^t, its buffers and the personal tensors: all that is needed to run the model."""
        return {**self.global_params, **self.global_buffers, **self.personal}


@dataclass(frozen=True)
class Update:
    """What one party returns after local training."""

    party: int
    params: Params  # w_i^t
    buffers: Params
    num_samples: int  # |D^i|
    num_steps: int  # optimizer steps; 0: this party could not train
    # sent in addition to the model, such as SCAFFOLD's delta c_i
    extra: State = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    missing: str = ""  # why there is no model: the party did not answer, or its update was refused

    @property
    def model(self) -> dict[str, Tensor]:
        """Return w_i^t and its buffers."""
        return {**self.params, **self.buffers}


def party_model_name(party: int) -> str:
    """Return the name of a party's model."""
    return f"{PARTY_MODEL}{party}"


def party_of_model(name: str) -> int | None:
    """Return the party whose model has this name; None for other models."""
    number = name.removeprefix(PARTY_MODEL)
    is_party = name.startswith(PARTY_MODEL) and number.isdecimal()
    return int(number) if is_party else None
