"""Algorithm: the contract of a federated learning method."""

import difflib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from .. import tree
from ..exchange import SENT_AND_STORED, check_pair
from ..types import GLOBAL, Batch, Loss, Mean, Params, Party, Phase, Server, State, Term, Update

RENAMED_ATTRIBUTES = {"takes_server_step": "takes_server_optimizer", "meaning": "choice"}


@dataclass(frozen=True)
class Algorithm:
    """A method: a frozen dataclass whose fields are the hyperparameters and whose hooks are pure.

    The defaults of the hooks are FedAvg; a method overrides what its paper changes. Nothing is
    stored on `self`: what must survive a round is returned, as Server or as party state.
    """

    label: ClassVar[str] = "Algorithm"  # as papers write the method; by default the class name
    takes_server_optimizer: ClassVar[bool] = True  # False: the method has its own server update
    requires_sgd: ClassVar[str] = ""  # why its formulas need SGD, without nesterov and grad_clip
    federated: ClassVar[bool] = True  # False: parties never exchange models; there is one round
    needs_classes: ClassVar[str] = ""  # why it needs one class per sample; "": it does not
    replaces_supervised: ClassVar[bool] = False  # True: its term is another loss minus l_sup
    weighting: ClassVar[str] = "parties are weighted by their number of samples"
    choice: ClassVar[str] = ""  # implementation choice, stored with the results
    # settings of the experiment that the method cannot do without, each with an example
    requires: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Set the default label, accept former names, and warn of names that look misspelt."""
        if "label" not in vars(cls):
            cls.label = cls.__name__
        for old, new in RENAMED_ATTRIBUTES.items():
            if old in vars(cls):
                note = f"{cls.__name__}.{old} is deprecated; call it {new}"
                warnings.warn(note, DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])
        known = {*inspect.get_annotations(cls), *RENAMED_ATTRIBUTES}
        for base in cls.__mro__[1:]:
            known.update(vars(base))
        for name in sorted(vars(cls).keys() - known):
            similar = difflib.get_close_matches(name, dir(Algorithm), n=1, cutoff=0.85)
            if similar and not name.startswith("_"):
                note = f"{cls.__name__}.{name} is not a hook; did you mean {similar[0]}?"
                warnings.warn(note, stacklevel=2)

    def __add__(self, other: "Algorithm") -> "Algorithm":
        """Return the composition of two methods."""
        from .composed import compose  # composed.py imports this module

        return compose(self, other) if isinstance(other, Algorithm) else NotImplemented

    def init_server(self, params: Params, buffers: Params) -> Server:
        """Return the server before the first round; `shared` is sent to parties, not `memory`."""
        return Server(params=params, buffers=buffers)

    def init_party(self, params: Params) -> State:
        """Return what a party stores before its first round."""
        return {}

    def term(self, party: Party) -> Term | None:
        """Return what the method adds to the supervised loss of `party` this round, or None.

        Called once, before the first step. The term is a function (output, batch, w) -> scalar: the
        model's output for the batch, and its trainable parameters w, without those that stay at
        the party (`personal`). Most papers are just this.
        """
        return None

    def local_loss(self, party: Party) -> Loss:
        """Return the loss that `party` minimises this round: the supervised loss plus the term.

        Called once, before the first step. Override it only to compute gradients differently.
        """
        term = self.term(party)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            output = model(batch.x)
            supervised = party.supervised(output.logits, batch)
            if term is None:
                return supervised
            w = tree.params_of(model)
            if party.personal:
                w = {name: w[name] for name in w if name not in party.personal}
            return supervised + term(output, batch, w)

        return loss

    @property
    def proximal_weight(self) -> float:
        """Return m if the local loss contains m/2 ||w - w^t||^2, and 0 if it does not.

        FedNova divides by the number of steps that the party takes towards its own optimum, and
        this term takes some of them back.
        """
        return 0.0

    def phases(self, party: Party, main: Phase) -> Sequence[Phase]:
        """Return the phases of this party's local training; `main` alone is the default.

        `main` trains the model that is sent with `local_loss` for `epochs` epochs. A method may
        divide it with `replace(main, trains=...)` if the phases that train shared parameters have
        `epochs` epochs in all. It may add a phase for a model of the party's own. `party.state`
        has the result of that phase, under its name, when `finish` is called.
        """
        return (main,)

    def own_model(self, state: State) -> Params:
        """Return the party's own model from its state, or {} if it has none.

        `state` is empty before the party's first round. Tensors that are missing are those of the
        global model.
        """
        return {}

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        """Return what the party stores, and what it sends in addition to its model.

        Called after local training. `trained` holds all parameters and buffers, also those that
        stay at the party; `steps` is the number of optimizer steps. All tensors are on the CPU,
        and so must those be that it returns.
        """
        return party.state, {}

    def extra_like(self, params: Params, effective_steps: float) -> State:
        """Declare what `finish` sends in addition to the model.

        The tensors that it sends have these names, shapes and dtypes. A server that does not trust
        its parties compares what they send with this. Scalars (tensors without dimensions) must be
        equal, so they can only depend on these arguments. `effective_steps` is what
        `party.effective_steps(steps)` returns in `finish`.
        """
        return {}

    def finish_round(
        self, server: Server, updates: list[Update], parties: int, mean: Mean
    ) -> tuple[State, State]:
        """Return what the server sends in addition to the model from now on, and what it stores.

        `server` is the one before this round, and `parties` is N, the number of all parties. `mean`
        is the weighted mean, or a robust rule in its place: whatever is averaged over parties goes
        through it.
        """
        return server.shared, server.memory

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        """Return the next server: w^{t+1} = sum |D^i|/|D| w_i^t over the parties of this round.

        Sets params, shared and memory; `finish_round` explains the arguments. Buffers are always
        averaged, and the server optimizer is applied afterwards. Override it only to aggregate the
        parameters differently.
        """
        result = self.finish_round(server, updates, parties, mean)
        shared, memory = check_pair(f"finish_round of {self.label}", SENT_AND_STORED, result)
        params = mean((u.params, u.num_samples) for u in updates)
        return replace(server, params=params, shared=shared, memory=memory)

    def deployed(self, server: Server) -> dict[str, Params]:
        """Return the models to evaluate: "global", or one per party: "party0", "party1", ..."""
        return {GLOBAL: server.model}
