"""Composition of methods: `MOON() + Scaffold()`, or `algorithm=moon+scaffold`.

The terms of the parts add up. Each part sees only what it stores and sends itself: labels of its
state carry its key, as in `moon/prev0`. At most one part may replace the aggregation. The order of
the parts does not matter, because they are sorted, and FedAvg as a part adds nothing.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .. import tree
from ..errors import InputError, RunError
from ..exchange import SENT_AND_STORED, STORED_AND_SENT, check_pair, check_server
from ..registry import name_of
from ..types import Batch, Mean, Output, Params, Party, Phase, Server, State, Term, Update
from .base import Algorithm
from .fedavg import FedAvg
from .table import ALGORITHMS


def compose(*methods: Algorithm) -> Algorithm:
    """Return the composition of methods; a single method is returned as it is."""
    parts: list[Algorithm] = []
    for method in methods:
        parts += method.parts if isinstance(method, Composed) else [method]
    parts = [part for part in parts if type(part) is not FedAvg]
    if not parts:
        return FedAvg()
    return parts[0] if len(parts) == 1 else Composed(tuple(sorted(parts, key=position)))


def position(method: Algorithm) -> tuple[int, str]:
    """Return the key that sorts the parts: as in the table, then custom classes by name."""
    name = name_of(type(method), ALGORITHMS)
    names = list(ALGORITHMS)
    return (names.index(name) if name in names else len(names), name)


def part_key(name: str) -> str:
    """Return the key of a part by its name: the table's, or the class name in lower case."""
    return name.rpartition(":")[2].rpartition(".")[2].lower()


def replaces_aggregation(method: Algorithm) -> bool:
    """Return True if the method, or a part of it, aggregates parameters in its own way."""
    if isinstance(method, Composed):
        return any(map(replaces_aggregation, method.parts))
    return type(method).combine is not Algorithm.combine


def overrides_deployed(method: Algorithm) -> bool:
    """Return True if the method, or a part of it, says which models are evaluated."""
    if isinstance(method, Composed):
        return any(map(overrides_deployed, method.parts))
    return type(method).deployed is not Algorithm.deployed


def has_own_model(method: Algorithm) -> bool:
    """Return True if the method, or a part of it, trains a model of each party's own."""
    if isinstance(method, Composed):
        return any(map(has_own_model, method.parts))
    return type(method).own_model is not Algorithm.own_model


def stores_state(method: Algorithm) -> bool:
    """Return True if the method, or a part of it, may store something at a party.

    Only a method with one of these hooks can: the default of `finish` stores what it was given.
    """
    if isinstance(method, Composed):
        return any(map(stores_state, method.parts))
    hooks = ("init_party", "phases", "finish")
    return any(getattr(type(method), hook) is not getattr(Algorithm, hook) for hook in hooks)


@dataclass(frozen=True)
class Composed(Algorithm):
    """l = l_sup + the sum of the terms of the parts. Built by `compose` or `+`."""

    parts: tuple[Algorithm, ...]

    def __post_init__(self) -> None:
        check_parts(self.parts)
        choices = [part.choice for part in self.parts if part.choice]
        requires: dict[str, str] = {}
        for part in self.parts:
            requires |= part.requires
        reasons = [part.requires_sgd for part in self.parts if part.requires_sgd]
        aggregating = next(filter(replaces_aggregation, self.parts), self.parts[0])
        attributes: dict[str, str | bool | Mapping[str, str]] = {
            "label": " + ".join(part.label for part in self.parts),
            "takes_server_optimizer": all(part.takes_server_optimizer for part in self.parts),
            "requires_sgd": "; ".join(reasons),
            "weighting": aggregating.weighting,
            "choice": "; ".join(choices),
            "requires": requires,
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def by_key(self) -> dict[str, Algorithm]:
        """Return the parts by their keys."""
        return {part_key(name_of(type(part), ALGORITHMS)): part for part in self.parts}

    def init_server(self, params: Params, buffers: Params) -> Server:
        shared: dict[str, Params] = {}
        memory: dict[str, Params] = {}
        for key, part in self.by_key.items():
            server = part.init_server(params, buffers)
            params, buffers = server.params, server.buffers
            shared |= tree.add_prefix(key, server.shared)
            memory |= tree.add_prefix(key, server.memory)
        return Server(params=params, buffers=buffers, shared=shared, memory=memory)

    def init_party(self, params: Params) -> State:
        state: dict[str, Params] = {}
        for key, part in self.by_key.items():
            state |= tree.add_prefix(key, part.init_party(params))
        return state

    def term(self, party: Party) -> Term | None:
        terms = [part.term(party_view(party, key)) for key, part in self.by_key.items()]
        present = [term for term in terms if term is not None]
        if not present:
            return None

        def total(output: Output, batch: Batch, w: Params) -> Tensor:
            first, *others = [term(output, batch, w) for term in present]
            return functools.reduce(Tensor.add, others, first)

        return total

    @property
    def proximal_weight(self) -> float:
        return sum(part.proximal_weight for part in self.parts)

    def phases(self, party: Party, main: Phase) -> Sequence[Phase]:
        divided: tuple[Phase, ...] = (main,)
        own: list[Phase] = []
        for key, part in self.by_key.items():
            phases = part.phases(party_view(party, key), main)
            own += [with_prefix(phase, key) for phase in phases if phase.model]
            sent = tuple(phase for phase in phases if not phase.model)
            if sent != (main,):
                if divided != (main,):
                    raise RunError(
                        f"{self.label} cannot be composed: two of its parts divide the training of "
                        "the model that is sent into phases; keep one of them"
                    )
                divided = sent
        return (*divided, *own)

    def own_model(self, state: State) -> Params:
        for key, part in self.by_key.items():
            if has_own_model(part):
                return part.own_model(tree.select_prefix(key, state))
        return {}

    def finish(self, party: Party, trained: Params, steps: int) -> tuple[State, State]:
        state: dict[str, Params] = {}
        extra: dict[str, Params] = {}
        for key, part in self.by_key.items():
            result = part.finish(party_view(party, key), trained, steps)
            stored, sent = check_pair(f"finish of {part.label}", STORED_AND_SENT, result)
            state |= tree.add_prefix(key, stored)
            extra |= tree.add_prefix(key, sent)
        return state, extra

    def extra_like(self, params: Params, effective_steps: float) -> State:
        extra: dict[str, Params] = {}
        for key, part in self.by_key.items():
            extra |= tree.add_prefix(key, part.extra_like(params, effective_steps))
        return extra

    def combine(self, server: Server, updates: list[Update], parties: int, mean: Mean) -> Server:
        params: Params | None = None
        shared: dict[str, Params] = {}
        memory: dict[str, Params] = {}
        for key, part in self.by_key.items():
            view = server_view(server, key)
            own_updates = [update_view(update, key) for update in updates]
            if replaces_aggregation(part):
                combined = check_server(
                    f"combine of {part.label}", part.combine(view, own_updates, parties, mean)
                )
                params, new_shared, new_memory = combined.params, combined.shared, combined.memory
            else:
                result = part.finish_round(view, own_updates, parties, mean)
                hook = f"finish_round of {part.label}"
                new_shared, new_memory = check_pair(hook, SENT_AND_STORED, result)
            shared |= tree.add_prefix(key, new_shared)
            memory |= tree.add_prefix(key, new_memory)
        if params is None:
            params = mean((u.params, u.num_samples) for u in updates)
        return replace(server, params=params, shared=shared, memory=memory)

    def deployed(self, server: Server) -> dict[str, Params]:
        for key, part in self.by_key.items():
            if overrides_deployed(part):
                return part.deployed(server_view(server, key))
        return super().deployed(server)


def check_parts(parts: tuple[Algorithm, ...]) -> None:
    """Refuse compositions that make no sense."""
    names = [name_of(type(part), ALGORITHMS) for part in parts]
    keys = [part_key(name) for name in names]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(
                f"{key} occurs twice in {'+'.join(names)}; a method can be part of it only once"
            )
    for part in parts:
        if not part.federated:
            raise InputError(
                f"{part.label} cannot be composed: its parties never exchange models; "
                f"use it alone, or leave it out of {'+'.join(names)}"
            )
        if type(part).local_loss is not Algorithm.local_loss:
            raise InputError(
                f"{part.label} cannot be composed: it replaces the whole local loss, and only "
                f"terms can be added; use it alone, or leave it out of {'+'.join(names)}"
            )
    replacing = [part.label for part in parts if part.replaces_supervised]
    if len(replacing) > 1:
        raise InputError(
            f"{' and '.join(replacing)} cannot be composed: each replaces the supervised loss, and "
            "the sum of their terms would subtract it twice; keep one of them"
        )
    evaluating = [part.label for part in parts if overrides_deployed(part)]
    if len(evaluating) > 1:
        raise InputError(
            f"{' and '.join(evaluating)} cannot be composed: each evaluates other models than the "
            "aggregated one; keep one of them"
        )
    owning = [part.label for part in parts if has_own_model(part)]
    if len(owning) > 1:
        raise InputError(
            f"{' and '.join(owning)} cannot be composed: each trains a model of the party's own, "
            "and only one can be evaluated; keep one of them"
        )
    partial = [part.label for part in parts if "personal" in part.requires]
    if owning and partial:
        raise InputError(
            f"{owning[0]} and {partial[0]} cannot be composed: {owning[0]} trains a complete model "
            f"for each party, and {partial[0]} a part of it; keep one of them"
        )
    aggregating = [part.label for part in parts if replaces_aggregation(part)]
    if len(aggregating) > 1:
        raise InputError(
            f"{' and '.join(aggregating)} cannot be composed: each aggregates the parameters in "
            "its own way; keep one of them"
        )


def with_prefix(phase: Phase, key: str) -> Phase:
    """Return the phase of a part with the label of its model in the state of the composition."""
    (label,) = tree.add_prefix(key, {phase.model: {}})
    return replace(phase, model=label)


def party_view(party: Party, key: str) -> Party:
    """Return the party as the part with this key sees it."""
    state = tree.select_prefix(key, party.state)
    return replace(party, state=state, shared=tree.select_prefix(key, party.shared))


def server_view(server: Server, key: str) -> Server:
    """Return the server as the part with this key sees it."""
    shared = tree.select_prefix(key, server.shared)
    return replace(server, shared=shared, memory=tree.select_prefix(key, server.memory))


def update_view(update: Update, key: str) -> Update:
    """Return the update as the part with this key sees it."""
    return replace(update, extra=tree.select_prefix(key, update.extra))
